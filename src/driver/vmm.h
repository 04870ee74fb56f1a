/* SPDX-License-Identifier: MIT
 *
 * vmm: the pool's verbs over the driver's memory and event calls.
 *
 * Called by the pool without the pool's lock, except the event verbs. None of
 * the memory calls harms a capture (seen on an H200); around event calls the
 * caller relaxes the thread's capture mode (vs_vmm_relax), except around
 * cuCtxRecordEvent, which kills captures in any mode and belongs to pool/fence.
 * Errors are the driver's; those of memory calls and of making an event are
 * logged here, once. Outputs are set only on success; a failing verb has undone
 * what it did.
 */
#ifndef VS_DRIVER_VMM_H
#define VS_DRIVER_VMM_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VS_MAX_DEVICES 64 /* as many as a set of 64 bits has */

/* How memory of one device is made; constant after vs_vmm_probe. */
struct vs_vmm_device {
	CUdevice device;
	size_t granularity; /* bytes, a power of two; 2 MiB on every card seen
			     */
	uint64_t total;	    /* bytes of device memory */
	uint64_t id;	    /* vs_vmm_device_id */
	unsigned char uuid[16]; /* what that is made of, if it is not 0 */
	CUmemAllocationProp prop;
	bool is_usable;		 /* the device and the driver have VMM */
	bool has_context_events; /* cuCtxRecordEvent (driver 12.5) */
	bool has_posix_fd;	 /* chunks can travel to another process */
};

/*
 * From the device's UUID: the same in all processes, whose ordinals may differ.
 * 0 where the driver tells none.
 */
uint64_t vs_vmm_device_id(CUdevice device);

/*
 * Fills *out for `device`: false (one log line) where VMM is missing. Tries
 * the property set POSIX FD + RDMA + decompression and drops what is refused,
 * which out of memory is not.
 */
bool vs_vmm_probe(CUdevice device, struct vs_vmm_device *out);

/* `size` bytes of address space, aligned to `alignment` (0: granularity). */
CUresult vs_vmm_reserve(size_t size, size_t alignment, CUdeviceptr *base_out);
CUresult vs_vmm_unreserve(CUdeviceptr base, size_t size);

/* One handle of `size` bytes. OUT_OF_MEMORY is not logged. */
CUresult vs_vmm_create(const struct vs_vmm_device *d, size_t size,
		       CUmemGenericAllocationHandle *handle_out);
CUresult vs_vmm_release(CUmemGenericAllocationHandle handle);

/* Maps a whole handle; inaccessible until vs_vmm_allow. */
CUresult vs_vmm_map(CUdeviceptr at, size_t size,
		    CUmemGenericAllocationHandle handle);
CUresult vs_vmm_unmap(CUdeviceptr at, size_t size);

/*
 * Read-write access for `owner` and the devices whose bit is set in `peers`
 * over a range that is wholly mapped.
 */
CUresult vs_vmm_allow(CUdeviceptr at, size_t size, CUdevice owner,
		      uint64_t peers);

/* Bytes of the context's device that nobody has. */
CUresult vs_vmm_unused(CUcontext ctx, uint64_t *bytes_out);

/* The primary context of a device, not retained; NULL if there is none. */
CUcontext vs_vmm_primary(CUdevice device);
/* The thread's current one; NULL: none, or the driver has an error to say. */
CUcontext vs_vmm_current(void);
/*
 * To other threads a context that has ended stays current. False, too: none is,
 * or the driver has an error to say.
 */
bool vs_vmm_is_current_alive(void);
/*
 * False in a host function: there the driver refuses whatever is asked of a
 * context (an H200: NOT_PERMITTED, this question too). It is asked of `ctx`, or
 * of the current one if NULL.
 */
bool vs_vmm_is_permitted(CUcontext ctx);
/* It takes calls: there is one, it has not ended, and no kernel has faulted. */
bool vs_vmm_is_current_sound(void);
/* Its device, or the driver's error: CUDA_ERROR_CONTEXT_IS_DESTROYED. */
CUresult vs_vmm_current_device(CUdevice *device_out);
/*
 * The device of a context; CU_DEVICE_INVALID if it has ended, or the driver
 * does not say.
 */
CUdevice vs_vmm_device_of(CUcontext ctx);

/* A stream that somebody made: not one of the names of the default ones. */
static inline bool vs_vmm_is_created(CUstream stream)
{
	return (uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD;
}

/* Events of `ctx`, without timing. */
CUresult vs_vmm_event_create(CUcontext ctx, CUevent *event_out);
void vs_vmm_event_destroy(CUevent event);
/*
 * cuCtxRecordEvent or cuCtxWaitEvent of `ctx`, or a query of an event of its
 * own answered `result`. An error for good may be that of another context,
 * which is current: then the call is made again in `ctx`. Returns what `ctx`
 * answers. May run under the pool's lock.
 */
CUresult vs_vmm_record_again(CUcontext ctx, CUevent event, CUresult result)
	__attribute__((cold));
CUresult vs_vmm_query_again(CUcontext ctx, CUevent event, CUresult result)
	__attribute__((cold));
CUresult vs_vmm_follow_again(CUcontext ctx, CUevent event, CUresult result)
	__attribute__((cold));
/* NOT_READY is not an error. May run under the pool's lock. */
CUresult vs_vmm_event_query(CUevent event);
CUresult vs_vmm_event_wait(CUevent event);
/*
 * Makes an event, recorded in the NULL stream of `ctx`; has what comes there
 * wait for one. Says nothing of what fails in the stream: the program's own
 * call there meets it, too.
 */
CUresult vs_vmm_event_mark(CUcontext ctx, CUevent *event_out);
CUresult vs_vmm_event_follow(CUcontext ctx, CUevent event);
/* All work submitted to the context. */
CUresult vs_vmm_ctx_wait(CUcontext ctx);

/*
 * Makes `ctx` current, unless it is, until vs_vmm_pop(*is_pushed_out). A
 * failure is the driver's, or CONTEXT_IS_DESTROYED for one that has ended and
 * is not current; it is not logged, and leaves nothing to undo.
 */
CUresult vs_vmm_push(CUcontext ctx, bool *is_pushed_out);
void vs_vmm_pop(bool is_pushed);

/* Relaxed capture mode for this thread; nests. */
void vs_vmm_relax(CUstreamCaptureMode *saved_out);
void vs_vmm_unrelax(CUstreamCaptureMode saved);

/* Monotonic nanoseconds (replaced in unit tests and in replay). */
extern uint64_t (*vs_vmm_clock)(void);
/*
 * The same, roughly, from the CPU's own counter: it may run at half or twice
 * the speed, and cores may differ a little. For what is done now and then, on
 * paths where reading the clock costs more than the rest.
 */
extern uint64_t (*vs_vmm_ticks)(void);
/* A pause in a wait, longer in later rounds (replaced likewise). */
extern void (*vs_vmm_pause)(unsigned round);

#endif
