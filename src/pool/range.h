/* SPDX-License-Identifier: MIT
 *
 * range: allocations above 1 MiB, and the ranges that slabs are made of: the
 * hit and the free. What serves a hit is pool/reuse's, what is done without one
 * pool/ladder's.
 */
#ifndef VS_POOL_RANGE_H
#define VS_POOL_RANGE_H

#include <cuda.h>
#include <stdint.h>

#include "pool/slab.h"
#include "pool/state.h"

/*
 * Hands out a range of `size` bytes (above VS_SMALL_MAX) for a context. VS_PASS
 * for one that has died meanwhile.
 */
CUresult vs_range_alloc(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
			CUdeviceptr *out);
/*
 * Frees a live range by its base, under a context. VS_PASS if there is none, or
 * the context has died meanwhile.
 */
CUresult vs_range_free(struct vs_pool *pool, struct vs_ctx *current,
		       CUdeviceptr p);
/*
 * Out of memory: the driver's own allocator, which may yet find a few bytes,
 * unless a limit forbids it; else for a small object (`tc`: the thread's cache;
 * NULL: it is none) a larger one, or a range, where one is idle.
 */
CUresult vs_range_last_resort(struct vs_pool *pool, struct vs_ctx *ctx,
			      struct vs_tcache *tc, size_t size,
			      CUdeviceptr *out);
/*
 * Gets a range and makes a slab of it; if not, there may be objects by now.
 * VS_PASS for a context that has died meanwhile.
 */
CUresult vs_range_slab(struct vs_pool *pool, struct vs_ctx *ctx,
		       unsigned class);
/* Mode sync: waits for all work, as the driver's free does. */
void vs_range_sync_free(struct vs_pool *pool);

/* Allocations that the pool served, ever; small ones, too. Lock. */
uint64_t vs_range_allocs(struct vs_pool *pool);
/* Bytes of slabs that are not live objects. Lock. */
uint64_t vs_range_slack(struct vs_pool *pool);
/* A range that was taken becomes the program's. Lock. */
void vs_range_hand_out(struct vs_pool *pool, struct vs_range *range,
		       struct vs_ctx *ctx, size_t size);
/* A live range leaves the program's hands. Lock. */
void vs_range_end_life(struct vs_pool *pool, struct vs_range *r);
/* The context of a live allocation has ended: tells vs_pool_on_lost. Lock. */
void vs_range_lost(uint64_t id);
/* A range that was live, and is no more, is pending from now on. Lock. */
void vs_range_put_off(struct vs_pool *pool, struct vs_range *r);
/*
 * Takes back the live ranges of a dying, idle context. Takes the lock.
 */
void vs_range_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx);

/* Bytes live, asked for and given, ranges and small objects. Lock. */
void vs_range_live(struct vs_pool *pool, uint64_t *asked_out,
		   uint64_t *given_out, uint64_t *blocks_out);
/*
 * Bytes given that are live at least: what small objects were handed out before
 * all that were taken back. The sum above may be far more than was ever live,
 * if its reader loses the processor while objects change hands. Lock.
 */
uint64_t vs_range_least(struct vs_pool *pool);
/*
 * The same for who has no lock, which takes longer the more threads there ever
 * were. Returns the small objects handed out, ever. Signal-safe.
 */
uint64_t vs_range_live_unlocked(struct vs_pool *pool, uint64_t *asked_out,
				uint64_t *given_out, uint64_t *blocks_out);

#endif
