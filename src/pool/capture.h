/* SPDX-License-Identifier: MIT
 *
 * capture: the stream captures that are open in the process, so that markers
 * keep out of them. Part of the room's face: hooks tell of begins and ends.
 * Has a lock of its own, and a gate that a capture which begins may hold as
 * long as the driver takes; HACKING.md has their order.
 */
#ifndef VS_POOL_CAPTURE_H
#define VS_POOL_CAPTURE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct vs_ctx;

/*
 * Around each cuStreamBeginCapture*: before takes the lock, after gives it
 * back and counts when the call succeeded. `is_per_thread`: a _ptsz variant
 * (where NULL names the thread's own stream).
 */
void vs_capture_before_begin(CUstream stream);
void vs_capture_after_begin(CUstream stream, bool is_per_thread,
			    CUstreamCaptureMode mode, bool is_begun);
/* After a cuStreamEndCapture that ended one. */
void vs_capture_ended(CUstream stream, bool is_per_thread);
/*
 * Around a cuStreamDestroy: the number of the last capture that has begun, and
 * the end of that of the stream, up to that number. By then the driver may have
 * given the handle to another thread's stream, which captures.
 */
uint64_t vs_capture_begun(void);
void vs_capture_destroyed(CUstream stream, uint64_t last);
/* A context is new: one beside which others capture may be in need, too. */
void vs_capture_ctx_born(CUcontext ctx);
/* A context is about to die: its captures end with it. */
void vs_capture_ctx_dying(CUcontext ctx);
/*
 * A thread begins to end: a capture of its per-thread stream goes with that,
 * and is counted until the thread is gone (an H100: events are recorded in the
 * context then as if nothing had been captured).
 */
void vs_capture_thread_ends(int tid);
/* Captures open in the process. */
int vs_capture_count(void);
/* How many of them are strict, which is in any mode but relaxed. Lock-free. */
int vs_capture_strict(void);
/*
 * True when the driver would refuse cuMemAlloc and cuMemFree to this thread, as
 * it has a strict capture of its own (cuda.h). A graph may hold what is
 * freed there: such a free is not to succeed.
 */
bool vs_capture_forbids(void);
/*
 * Before a call of the driver's that would end a strict capture of another
 * thread's. True: vs_vmm_unrelax() after it.
 */
bool vs_capture_relax_beside(CUstreamCaptureMode *saved_out);
/*
 * The driver's own, for what the pool does not serve or has not: strict
 * captures of other threads are as safe from them as from what it does.
 */
CUresult vs_capture_alloc_beside(CUdeviceptr *out, size_t size);
CUresult vs_capture_free_beside(CUdeviceptr p);
/* It was asked, and did not: the captures of this thread are not strict. */
void vs_capture_allows(void);
void vs_capture_forked(void);

/* --- for the fence --- */

/*
 * True when no capture is open; none can begin until vs_capture_let_in. False
 * (nothing to undo) when one is open or just beginning.
 */
bool vs_capture_shut_out(void);
void vs_capture_let_in(void);
/*
 * Waits for all work of a context while a capture is open, harming none: frees
 * a small block of the driver's own, which returns when all running kernels
 * have ended, in relaxed mode, where that harms no capture (both seen on an
 * H200). The block was made before the capture began, or with the context.
 * False if there is none or a call failed, but for a context beyond work.
 */
bool vs_capture_barrier(struct vs_ctx *ctx);
/* A marker met a capture that was never counted: log it, once. */
void vs_capture_unseen(void);

#endif
