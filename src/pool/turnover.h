/* SPDX-License-Identifier: MIT
 *
 * turnover: how often a program hands its memory round. One that does nothing
 * else has about as much pending as live, since the GPU is always some work
 * behind the host. It would wait at every second allocation for the sake of
 * little memory: to such a program, and only while it goes on so, some memory
 * more is allowed. If the GPU is not behind there is nothing to wait for, but
 * each allocation costs a marker and a look at it; a few blocks to spare make
 * one do for several. A program that works with its memory, be it that it
 * allocates all it ever had live hundreds of times a second, is held back by
 * that work: for it memory is no better spent than anybody's.
 *
 * In its first 5 ms, from the first miss on, a program that has little live yet
 * has some benefit of the doubt: if it churns, chunks moved for want of memory
 * then would lie at several addresses, each of which has to be kept in step
 * with the others from there on: half of the instructions of its large blocks.
 * If it has more live than the doubt would bring, that benefit begins when it
 * has handed out as much again: many programs begin with one block that others
 * follow, and would hold a quarter more for all their life.
 *
 * Part of struct vs_pool and guarded by its lock.
 */
#ifndef VS_POOL_TURNOVER_H
#define VS_POOL_TURNOVER_H

#include <stdbool.h>
#include <stdint.h>

struct vs_pool;

struct vs_turnover {
	uint64_t handed; /* bytes of ranges handed out, ever */
	/* in the last whole window; see vs_turnover_was_fast() */
	bool is_fast;
	bool is_new;		/* there was none yet */
	bool is_spare_due;	/* see vs_turnover_wants_spare() */
	uint64_t began, waited; /* the window: clock, ns waited before */
	uint64_t handed_before; /* the same, and small objects */
	uint64_t times_before;	/* allocations */
	uint64_t spare;		/* bytes of the blocks to spare; while fast */
	uint64_t times_settled; /* allocations before the last vs_mark_settle */
	int thick;		/* how many came thick, so far; or of a pause */
};

/*
 * Whether it was fast when it was last asked, as it is before the pool grows;
 * for who has not the lock.
 */
static inline bool vs_turnover_was_fast(const struct vs_turnover *t)
{
	return __atomic_load_n(&t->is_fast, __ATOMIC_RELAXED);
}

/* Bytes that may be held beyond what is due otherwise, for what is pending. */
uint64_t vs_turnover_extra(struct vs_pool *pool);
/*
 * For a program that is fast so much is held beyond need, but of the device so
 * little, that blocks may be handed out whole, and larger than asked for
 * (pool/shelf; HACKING.md has the comparison). Lock.
 */
bool vs_turnover_is_roomy(const struct vs_pool *pool);
/*
 * A marker served an allocation of a range at once. Whether it is time for one
 * more block of `span` bytes to spare: so few allocations were served by the
 * marker before, and by those before that.
 */
bool vs_turnover_wants_spare(struct vs_pool *pool, uint64_t span);
/* There could be none, so it is not to be spared: not for some time. */
void vs_turnover_no_spare(struct vs_pool *pool, uint64_t span);

#endif
