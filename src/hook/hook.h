/* SPDX-License-Identifier: MIT
 *
 * hook: what all wrappers share.
 *
 * A wrapper is an ordinary exported function for one row of api.def. It counts
 * the call, calls the real function through vs_real where the shim does not
 * serve, and says nothing of its own: every error a program sees is worded by
 * the driver. vs_enter comes first in each; it binds vs_real when the program
 * came here by ELF binding before any look-up.
 */
#ifndef VS_HOOK_HOOK_H
#define VS_HOOK_HOOK_H

#include <cuda.h>
#include <stdbool.h>

#include "base/thread.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "hook/gate.h"
#include "pool/pool.h"
#include "base/stream.h"

#define VS_EXPORT __attribute__((visibility("default")))

#define vs_likely(x) __builtin_expect(!!(x), 1)
#define vs_unlikely(x) __builtin_expect(!!(x), 0)

/* See vs_unknown_address. */
extern char vs_unknown;

/* The gate is shut: binds, if nobody has. Returns whether it is open now. */
bool vs_enter_shut(enum vs_api api) __attribute__((cold));
/*
 * The first cuInit that succeeded, or the first allocation without one. False:
 * another thread is at it yet, and it is not known whether there is a trace.
 */
bool vs_enter_initialized(void) __attribute__((cold));

/* Counts the call. True when the shim serves; else call the real function. */
static inline bool vs_enter(enum vs_api api)
{
	struct vs_thread *t = vs_thread_self();

	if (vs_likely(t != NULL))
		vs_thread_count(t, api);
	return vs_likely(vs_gate_is_open()) || vs_enter_shut(api);
}

/* The row's NULL stream is the calling thread's own; its name says so. */
#define VS_IS_PER_THREAD(api)                                                  \
	(sizeof(#api) > 6 && #api[sizeof(#api) - 6] == '_' &&                  \
	 #api[sizeof(#api) - 5] == 'p' && #api[sizeof(#api) - 4] == 't')

/* The same as vs_enter, of a call that uses a stream. */
static inline bool vs_enter_stream(enum vs_api api, CUstream stream,
				   bool is_per_thread)
{
	bool is_open = vs_enter(api);

	if (vs_likely(is_open))
		vs_stream_given(stream, is_per_thread);
	return is_open;
}

/* The same, of a call that gives the GPU work in a stream. */
static inline bool vs_enter_work(enum vs_api api, CUstream stream,
				 bool is_per_thread)
{
	bool is_open = vs_enter_stream(api, stream, is_per_thread);

	if (vs_likely(is_open))
		vs_pool_before_work();
	return is_open;
}

#define VS_ENTER_STREAM(api, stream)                                           \
	vs_enter_stream(VS_API_##api, stream, VS_IS_PER_THREAD(api))
#define VS_ENTER_WORK(api, stream)                                             \
	vs_enter_work(VS_API_##api, stream, VS_IS_PER_THREAD(api))

/* A real function failed: the driver's end, or a fault of the program. */
void vs_seen_failed(CUresult result) __attribute__((cold));

/* Passes on what a real function answered; looks at failures. */
static inline CUresult vs_seen(CUresult result)
{
	if (vs_unlikely(result != CUDA_SUCCESS))
		vs_seen_failed(result);
	return result;
}

/* In nobody's allocation: what the driver says of it, it says of an unknown. */
static inline CUdeviceptr vs_unknown_address(void)
{
	return (CUdeviceptr)(uintptr_t)&vs_unknown;
}

/*
 * What was freed until now gets its marker, where that can be had. False for
 * who is within.
 */
bool vs_mark_freed_now(void);

/*
 * The devices (bits) whose memory a call may be short of: what others have idle
 * is of no use to it, and work there may wait for this very thread. All of them
 * where that cannot be told.
 */
#define VS_ANY_DEVICE UINT64_MAX
/* That of the current context; of the one that a stream belongs to. */
uint64_t vs_device_here(void) __attribute__((cold));
uint64_t vs_devices_of(CUstream stream) __attribute__((cold));
static inline uint64_t vs_device_bit(CUdevice device)
{
	return device >= 0 && device < VS_MAX_DEVICES ? (uint64_t)1 << device
						      : VS_ANY_DEVICE;
}

/*
 * True when a call that was out of memory of `devices` may succeed if it is
 * made again: memory has since been given up.
 */
bool vs_again_relieved(uint64_t devices, enum vs_relief relief)
	__attribute__((cold));

/*
 * Before a call that is seldom made and often in vain: what is complete by now
 * is no reason to make it again.
 */
void vs_look_before(uint64_t devices);

/*
 * Makes the call again while that may help: first with what is idle, which is
 * had at once, then with what is pending. Other threads may take it, and free
 * more, without end; so not for ever. Of twelve that leave a fiftieth of the
 * device to spare, and free behind work, one call in 4,000 was overtaken four
 * times, one in 67,000 eight times. `devices` is asked for only then.
 */
enum { VS_MOST_AGAIN = 8 };
static inline enum vs_relief vs_relief_of(int again)
{
	if (again == VS_MOST_AGAIN - 1)
		return VS_RELIEF_LAST;
	return again == 0 ? VS_RELIEF_IDLE : VS_RELIEF_DUE;
}
#define VS_AGAIN(devices, result, call)                                        \
	do {                                                                   \
		for (int again = 0;                                            \
		     again < VS_MOST_AGAIN &&                                  \
		     vs_unlikely((result) == CUDA_ERROR_OUT_OF_MEMORY) &&      \
		     vs_gate_is_open() &&                                      \
		     vs_again_relieved(devices, vs_relief_of(again));          \
		     again++)                                                  \
			(result) = (call);                                     \
	} while (0)

/* Of a hook all that is left to do. The arguments are names: twice here. */
#define VS_RETURN_ANSWER(devices, call, ...)                                   \
	do {                                                                   \
		CUresult result = vs_real.call(__VA_ARGS__);                   \
                                                                               \
		VS_AGAIN(devices, result, vs_real.call(__VA_ARGS__));          \
		return vs_seen(result);                                        \
	} while (0)

#endif
