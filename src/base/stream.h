/* SPDX-License-Identifier: MIT
 *
 * stream: whether the program gives its GPUs all their work in one stream.
 *
 * One for the process. What is counted are the pieces of work since another
 * stream was given one; how often that was is told to whoever must know that no
 * other stream has any left. For policies stream and auto (knob REUSE) alone:
 * no other pays for it. Read and written by any thread; but at a change of
 * the stream, and for some time after one, nobody writes.
 *
 * Note [Believed less]: a program that has been taken for one of one stream,
 * and then uses another, may do so again: it has to give eight times as much
 * work in one before it is taken for that again, and after the fourth time
 * never is. Nor is one that has changed its stream so often as hardly one of
 * one stream does: its threads need not write one line at each launch.
 */
#ifndef VS_BASE_STREAM_H
#define VS_BASE_STREAM_H

#include <cuda.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/knob.h"
#include "base/thread.h"

/* A step of training has some hundred; who has more streams uses them in it. */
#define VS_STREAM_ENOUGH 1000
#define VS_STREAM_RETRIES 3
#define VS_STREAM_MOST_CHANGES 10000
#define VS_STREAM_NEVER UINT_MAX /* n does not get there */

struct vs_stream {
	_Atomic uintptr_t last; /* the handle, or a thread with its own */
	_Atomic unsigned n;	/* `enough` at most */
	_Atomic unsigned enough;
	_Atomic unsigned changes;
};

extern struct vs_stream vs_stream;

/* Work comes next in another stream than before. */
void vs_stream_changed(uintptr_t key) __attribute__((cold));

/* Work comes next in `stream`; `is_per_thread`: NULL is the thread's own. */
static inline void vs_stream_given(CUstream stream, bool is_per_thread)
{
	uintptr_t key = (uintptr_t)stream;
	unsigned n, enough;

	if (__builtin_expect(vs_knobs.reuse != VS_REUSE_AUTO &&
				     vs_knobs.reuse != VS_REUSE_STREAM,
			     1))
		return;
	enough = atomic_load_explicit(&vs_stream.enough, memory_order_relaxed);
	if (enough == VS_STREAM_NEVER)
		return;
	if (stream == CU_STREAM_PER_THREAD || (!stream && is_per_thread))
		key = (uintptr_t)vs_thread_self();
	else if (stream == CU_STREAM_LEGACY)
		key = 0;
	if (__builtin_expect(atomic_load_explicit(&vs_stream.last,
						  memory_order_relaxed) != key,
			     0)) {
		vs_stream_changed(key);
		return;
	}
	n = atomic_load_explicit(&vs_stream.n, memory_order_relaxed);
	if (__builtin_expect(n < enough, 0))
		atomic_store_explicit(&vs_stream.n, n + 1,
				      memory_order_relaxed);
}

/* The program made one: it may be the next that is given work. */
static inline void vs_stream_made(void)
{
	atomic_store_explicit(&vs_stream.n, 0, memory_order_relaxed);
}

/* It has long been one stream. */
static inline bool vs_stream_is_single(void)
{
	return atomic_load_explicit(&vs_stream.n, memory_order_relaxed) >=
	       atomic_load_explicit(&vs_stream.enough, memory_order_relaxed);
}

#endif
