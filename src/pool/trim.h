/* SPDX-License-Identifier: MIT
 *
 * trim: giving memory back: by signal, to who is out of memory and to other
 * processes; and what age and need (decay.c) give back it by. The functions of
 * both that others call are in pool/pool.h, but for vs_trim.
 */
#ifndef VS_POOL_TRIM_H
#define VS_POOL_TRIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/state.h"

/*
 * Gives back to the driver what is idle, and what is seen complete now; bytes.
 * Waits for no work. Takes pool.grow and the locks after it.
 */
uint64_t vs_trim(struct vs_pool *pool);

/*
 * The process is about to end; vs_pool_ending's alone to change. It is what
 * stops a round of the service thread (`stop`, below); NULL for what the
 * program's threads do, whose exit handlers may need memory while such a round
 * goes on.
 */
extern _Atomic bool vs_trim_is_ending;
/* None once that is so: what came before may have outlasted the end's wait. */
struct vs_pool *vs_trim_pool(int i);

/*
 * What became complete goes home, so that whole chunks are idle. No lock held,
 * here and in the next two.
 */
void vs_trim_collect(struct vs_pool *pool);
/*
 * Releases idle chunks that were used last before `before`, so many bytes or
 * some more, and what is dead; bytes.
 */
uint64_t vs_trim_release(struct vs_pool *pool, uint64_t bytes, uint64_t before,
			 const _Atomic bool *stop);
/* The same of all that is idle. */
uint64_t vs_trim_idle(struct vs_pool *pool, const _Atomic bool *stop);
/*
 * Chunks that only dead memory is left of go; bytes. Grow lock held, but not
 * all the time.
 */
uint64_t vs_trim_dead(struct vs_pool *pool, const _Atomic bool *stop);
/* Whoever waits for the grow lock, which is held, has it now. */
void vs_trim_let_grow(struct vs_pool *pool);

#endif
