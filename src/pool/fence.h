/* SPDX-License-Identifier: MIT
 *
 * fence: knows when freed memory may be used again, and keeps out of captures.
 *
 * cuCtxRecordEvent kills every capture of its context, in any mode (facts,
 * section 5), so captures are counted process-wide, and a marker is recorded
 * only at count 0, with begins shut out meanwhile (a reader-writer lock).
 */
#ifndef VS_POOL_FENCE_H
#define VS_POOL_FENCE_H

#include <cuda.h>
#include <stdbool.h>

/*
 * Around each cuStreamBeginCapture*: before takes the lock, after gives it
 * back and counts when the call succeeded. `is_per_thread`: a _ptsz variant
 * (where NULL names the thread's own stream).
 */
void vs_capture_before_begin(void);
void vs_capture_after_begin(CUstream stream, bool is_per_thread, bool is_begun);
/* After cuStreamEndCapture or cuStreamDestroy: is the stream still capturing? */
void vs_capture_ended(CUstream stream, bool is_per_thread);
/* Captures open in the process. */
int vs_capture_count(void);

#endif
