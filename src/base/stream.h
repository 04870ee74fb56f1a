/* SPDX-License-Identifier: MIT
 *
 * stream: whether the program gives its GPUs all their work in one stream.
 *
 * One for the process, for policy stream (knob REUSE). What is counted are the
 * pieces of work since the stream changed; how often that was is told to
 * whoever must know that no other stream has any left. Read and written by any
 * thread; but a thousand pieces of work after a change nobody writes, but for a
 * thread in its own struct.
 *
 * Note [Two feeders]: what waits on the device holds up all streams, and is not
 * given up. So a program must not be taken for one of one stream that has a
 * second to which another thread gives what a kernel of the first waits for,
 * be it but once in a thousand pieces of work. A library may give work to a
 * stream of its own when it begins, but does that in the thread that calls it,
 * for the stream that the thread works in. So the program is not taken for such
 * a one ever again if a thread came with another stream that had not itself
 * given the last one work; nor if any came with another stream after memory had
 * been handed out by this; nor if there are two to which several threads gave
 * work, and if there is one, it can be no other stream; nor if one ever worked
 * in its own stream: each has one, nothing makes it, and nothing but the thread
 * is its name. A stream that was made is likely to be used soon: the count
 * starts again.
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
/*
 * Hardly one of one stream does it so often in a row, without ENOUGH in
 * between, and each has all threads write. Else it may go on for weeks: a
 * server may make streams for each request, and use none of them.
 */
#define VS_STREAM_MOST_CHANGES 10000

struct vs_stream {
	_Alignas(64) _Atomic uintptr_t last; /* the handle, or NOWHERE */
	_Atomic unsigned n; /* pieces of work, ENOUGH at most; or SEVERAL */
	_Atomic unsigned changes;
	_Atomic unsigned hasty;	   /* of them, in a row */
	_Atomic bool is_relied_on; /* memory was handed out by this */
	_Atomic uintptr_t shared;  /* that of several threads, or NOWHERE */
};

extern struct vs_stream vs_stream;

/* From now on, whatever comes: there are several, or nobody wants to know. */
void vs_stream_give_up(void);
/* Work of thread `t` (or NULL) comes next in another stream than before. */
void vs_stream_changed(const struct vs_thread *t, uintptr_t key)
	__attribute__((cold));
/* Work of a thread that was in another, or none, comes next in the last one. */
void vs_stream_joined(uintptr_t key) __attribute__((cold));
/* One more piece of work, after `n`, comes next in the last one. */
void vs_stream_count(uintptr_t key, unsigned n) __attribute__((cold));
/* The program made one, or the same again that there was before. */
void vs_stream_made(void);

/*
 * Memory is about to be handed out because it is one stream, if it still is
 * then: vs_stream_is_single() next. Who changes it counts that first and then
 * looks here, so that one of the two sees the other.
 */
static inline void vs_stream_rely(void)
{
	if (!atomic_load(&vs_stream.is_relied_on))
		atomic_store(&vs_stream.is_relied_on, true);
}

/* There are several, for ever. */
static inline bool vs_stream_is_given_up(void)
{
	return atomic_load_explicit(&vs_stream.n, memory_order_relaxed) ==
	       VS_STREAM_SEVERAL;
}

/* The thread (or NULL) gave the last stream work itself, last of all. */
static inline bool vs_stream_is_fed_by(const struct vs_thread *t)
{
	return t && t->worked_in == atomic_load_explicit(&vs_stream.last,
							 memory_order_relaxed);
}

/* It has long been one stream; `changes` is no older then. */
static inline bool vs_stream_is_single(void)
{
	return atomic_load(&vs_stream.n) == VS_STREAM_ENOUGH;
}

/* Work comes next in `stream`; `is_per_thread`: NULL is the thread's own. */
static inline void vs_stream_given(CUstream stream, bool is_per_thread)
{
	unsigned n = atomic_load_explicit(&vs_stream.n, memory_order_relaxed);
	uintptr_t key = (uintptr_t)stream;
	struct vs_thread *t;

	if (n == VS_STREAM_SEVERAL)
		return;
	if (stream == CU_STREAM_PER_THREAD || (!stream && is_per_thread)) {
		vs_stream_give_up();
		return;
	}
	if (stream == CU_STREAM_LEGACY)
		key = 0;
	t = vs_thread_self();
	if (__builtin_expect(atomic_load_explicit(&vs_stream.last,
						  memory_order_relaxed) != key,
			     0))
		vs_stream_changed(t, key);
	else if (__builtin_expect(t && t->worked_in != key, 0))
		vs_stream_joined(key);
	else if (__builtin_expect(n < VS_STREAM_ENOUGH, 0))
		vs_stream_count(key, n);
	if (t)
		t->worked_in = key;
}

#endif
