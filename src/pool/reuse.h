/* SPDX-License-Identifier: MIT
 *
 * reuse: what of a pool's memory serves a request without the driver: what is
 * idle, and what was freed, as soon as its work is done (pool/mark says when
 * that is looked at). Then it goes home to its heap, or is put aside as it is:
 * on a shelf (pool/shelf), for a program that churns, or kept (pool/kept).
 *
 * All under the pool's lock, but for some that take it; no driver call but the
 * markers'.
 *
 * Note [In parts]: of 60,000 blocks that were freed behind one kernel the next
 * request brought all home, and every other thread waited 15 to 36 ms for the
 * lock. So in one hold of it some hundred come home, and the next look goes on.
 * A request that what is home serves need not wait for the rest. But none
 * grows, waits or fails while any is left: the lock is given up, and it is
 * looked for anew. No search is ever interrupted.
 */
#ifndef VS_POOL_REUSE_H
#define VS_POOL_REUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "pool/state.h"

/* The heap for blocks of so many bytes, which are no slabs. */
static inline enum vs_heap_kind vs_reuse_kind(uint64_t span)
{
	return span < VS_MIDDLE_MAX ? VS_HEAP_MIDDLE : VS_HEAP_LARGE;
}

/*
 * A live range that fits among what is idle, or becomes so by looking at the
 * markers; NULL if there is none, or it may be in what vs_reuse_rest() has. See
 * Note [In parts]. Lock.
 */
struct vs_range *vs_reuse_find(struct vs_pool *pool, enum vs_heap_kind kind,
			       uint64_t span);
/* The same among all there is; takes the lock, and gives it up in between. */
struct vs_range *vs_reuse_take(struct vs_pool *pool, enum vs_heap_kind kind,
			       uint64_t span);
/* The same, if vs_reuse_find() has left anything out; else NULL. */
struct vs_range *vs_reuse_rest(struct vs_pool *pool, enum vs_heap_kind kind,
			       uint64_t span);
/*
 * Where memory has run out: what is idle in the middle of a chunk in use can be
 * mapped for no other heap, but it may be handed out where it is. A live range
 * that is no slab, and no shorter than VS_OWNER_PAGE; or NULL. Takes the lock.
 */
struct vs_range *vs_reuse_anywhere(struct vs_pool *pool, uint64_t span);
/*
 * Pending ranges whose tag is done become idle, some hundred of them, and what
 * is on the shelf; whether any did. Lock.
 */
bool vs_reuse_harvest(struct vs_pool *pool);
/*
 * The same of all whose tag is done by now. Takes the lock, and gives it up in
 * between.
 */
void vs_reuse_bring_home(struct vs_pool *pool);
/* What is on the shelf becomes idle; whether any did. Takes the lock. */
bool vs_reuse_unshelve(struct vs_pool *pool);
/* A range whose work is done becomes idle. Lock. */
void vs_reuse_go_home(struct vs_pool *pool, struct vs_range *r);
/* Brings the gauge up to date; what is on a shelf is nobody's, either. Lock. */
static inline void vs_reuse_show_pending(struct vs_pool *pool)
{
	vs_stat_set(&pool->stats, pending,
		    pool->pending_bytes + pool->shelved_bytes);
}

#endif
