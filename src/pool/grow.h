/* SPDX-License-Identifier: MIT
 *
 * grow: makes idle memory where none fits: has pool/plan choose an address
 * range and the chunks for it, and makes the driver's calls.
 *
 * Called with pool.grow held (but for spare) and pool.lock not held; makes
 * driver calls, none of which waits for the GPU (seen on an H200).
 *
 * Note [Need]: what a program needs is what it asks for now and the most that
 * it had live since the begin of the half minute before this one (ten times
 * DECAY_MS, if that is longer). Not the most ever: one that had twice a model
 * live while it loaded it, and then serves for weeks behind a late GPU, took
 * new chunks up to that mark rather than wait for those that are pending.
 */
#ifndef VS_POOL_GROW_H
#define VS_POOL_GROW_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/state.h"

enum vs_grow_how {
	/*
	 * By new chunks, if what is held then stays within what the program has
	 * shown to need (Note [Need]) and a few per cent, or the floor. Else
	 * NOT_FOUND.
	 */
	VS_GROW_WITHIN,
	VS_GROW_MOVE, /* by idle chunks from elsewhere; NOT_FOUND if too few */
	VS_GROW_BEYOND, /* by new chunks, whatever is held */
	/*
	 * By every idle chunk there is, the rest new. Before all of these but
	 * the first what vs_plan_excess() tells is released; and for the last
	 * two what the request would break (Note [Whole] in pool/chunk.h).
	 */
	VS_GROW_ALL,
};

/*
 * Makes an idle range of at least `span` bytes and takes a live one from it.
 * OUT_OF_MEMORY: the driver (or MEMORY_LIMIT) has no more; what was created on
 * the way stays cached.
 */
CUresult vs_grow(struct vs_pool *pool, enum vs_heap_kind kind, uint64_t span,
		 enum vs_grow_how how, struct vs_range **range_out);

/*
 * A moment ago no addresses were left for the heap, whatever was tried, and the
 * driver has such memory, which it may serve by its own. No lock held.
 */
bool vs_grow_is_cramped(struct vs_pool *pool, enum vs_heap_kind kind,
			uint64_t span);

/*
 * Makes an idle range of at least `span` bytes beside those in use, within what
 * the program needs, for pool/turnover. No lock held: if another thread grows,
 * nothing is done.
 */
void vs_grow_spare(struct vs_pool *pool, enum vs_heap_kind kind, uint64_t span);

/*
 * Unmaps and releases idle chunks until `bytes` are released or none is left:
 * cached ones first, then the longest idle that were idle before `before`
 * (clock; UINT64_MAX: all). Returns bytes released.
 */
uint64_t vs_grow_release(struct vs_pool *pool, uint64_t bytes, uint64_t before);

/*
 * Unmaps a chunk that is in nobody's hands wherever it is mapped, and releases
 * it. False if the driver refuses: it is not released, and mapped where it was
 * not unmapped.
 */
bool vs_grow_unmake(struct vs_pool *pool, struct vs_chunk *c);

/* Gives the pool's peers access to all that is mapped in its heaps. */
CUresult vs_grow_allow(struct vs_pool *pool);

#endif
