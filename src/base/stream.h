/* SPDX-License-Identifier: MIT
 *
 * stream: whether the program gives its GPUs all their work in one stream.
 *
 * One for the process, for policy stream (knob REUSE). Read and written by any
 * thread; but after the first thousand pieces of work nobody writes.
 *
 * Note [Never two]: what waits on the device holds up all streams, and is not
 * given up. So a program must not be taken for one of one stream that has a
 * second to which another thread gives what a kernel of the first waits for. A
 * stream that is used at all is likely to be used again, however much later:
 * who gave work to two is not taken for such a program any more. One that was
 * made is likely to be used soon: the count starts again.
 */
#ifndef VS_BASE_STREAM_H
#define VS_BASE_STREAM_H

#include <cuda.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"

/* A step of training has some hundred; who has more streams uses them in it. */
#define VS_STREAM_ENOUGH 1000
#define VS_STREAM_SEVERAL UINT_MAX
#define VS_STREAM_NONE UINTPTR_MAX

struct vs_stream {
	_Atomic uintptr_t first; /* the handle, or a thread with its own */
	_Atomic unsigned n;	 /* pieces of work, ENOUGH at most; or SEVERAL */
};

extern struct vs_stream vs_stream;

/* From now on, whatever comes: there are two, or nobody wants to know. */
void vs_stream_give_up(void);
/* The first work, or one in another stream than the first. */
void vs_stream_came(uintptr_t key) __attribute__((cold));
/* The program made one. */
void vs_stream_made(CUstream made);

/* It has long been one stream. */
static inline bool vs_stream_is_single(void)
{
	return atomic_load_explicit(&vs_stream.n, memory_order_relaxed) ==
	       VS_STREAM_ENOUGH;
}

/* Work comes next in `stream`; `is_per_thread`: NULL is the thread's own. */
static inline void vs_stream_given(CUstream stream, bool is_per_thread)
{
	unsigned n = atomic_load_explicit(&vs_stream.n, memory_order_relaxed);
	uintptr_t key = (uintptr_t)stream;

	if (n == VS_STREAM_SEVERAL)
		return;
	if (stream == CU_STREAM_PER_THREAD || (!stream && is_per_thread))
		key = (uintptr_t)vs_thread_self();
	else if (stream == CU_STREAM_LEGACY)
		key = 0;
	if (__builtin_expect(atomic_load_explicit(&vs_stream.first,
						  memory_order_relaxed) != key,
			     0))
		vs_stream_came(key);
	else if (__builtin_expect(n < VS_STREAM_ENOUGH, 0))
		/* of two at once one may count, and none but SEVERAL is lost */
		atomic_compare_exchange_strong(&vs_stream.n, &n, n + 1);
}

#endif
