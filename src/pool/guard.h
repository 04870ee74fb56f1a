/* SPDX-License-Identifier: MIT
 *
 * guard: knob GUARD. Each allocation has a handle and a mapping of its own,
 * ends where the mapping ends (but for what its alignment leaves) and is
 * followed by address space where nothing is ever mapped while it lives. Its
 * free waits, as the driver's does, and unmaps it. So a kernel that runs over
 * its end, or uses it after its free, faults. Addresses come round again only
 * when all others were used.
 *
 * A block's range lies in no heap; the owner index names it as it names those
 * of the heaps, and the chunk table its one view (which is always off), so that
 * look-ups, pins and exports see no difference. All of it is guarded by
 * pool.lock, and what is mapped changes only under pool.grow.
 */
#ifndef VS_POOL_GUARD_H
#define VS_POOL_GUARD_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/heap.h"
#include "pool/view.h"

/* Frees that are remembered, and allocations that are named, after a fault. */
#define VS_GUARD_LATEST 8

struct vs_guard_block {
	/*
	 * base: what the program got; span: bytes of the mapping (beyond its
	 * end nothing else begins); link: live, pending or spare.
	 */
	struct vs_range range;
	struct vs_view view; /* at: where the mapping begins */
	uint64_t lost;	     /* bytes of the mapping that are not asked for */
	bool is_mapped, is_marked;
};

struct vs_guard_past {
	CUdeviceptr base;
	uint64_t size, id;
};

struct vs_guard {
	CUdeviceptr base, end; /* part of the arena; constant; 0: knob off */
	CUdeviceptr next;      /* where the next block goes, if it fits */
	CUdeviceptr top;       /* no block was above yet; grow */
	uint64_t lost;	       /* sum of the blocks'; grow */
	_Atomic bool is_short; /* there was too little for the latest one */
	struct vs_range_list live, spare;
	struct vs_range_list pending;		    /* oldest first, by tag */
	struct vs_guard_past past[VS_GUARD_LATEST]; /* frees, as a ring */
	uint64_t n_past;
};

/* With the knob: takes the arena from `base` on. */
void vs_guard_init(struct vs_pool *pool, CUdeviceptr base);

/* Serves an allocation. VS_PASS when it cannot: it is the heap's then. */
CUresult vs_guard_alloc(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
			CUdeviceptr *out);
/*
 * `p` is handed out, by whomever: one line, the first time that is without a
 * guard since there was too little for one.
 */
void vs_guard_served(struct vs_pool *pool, CUdeviceptr p, size_t size);
/* `p` is not the heap's. */
bool vs_guard_holds(const struct vs_pool *pool, CUdeviceptr p);
/*
 * Frees a block by its base, under a context; VS_PASS if there is none, or the
 * context has died meanwhile. Waits for the work before it, unless that takes
 * too long or a capture is open (then once for many); whoever comes by later
 * unmaps it.
 */
CUresult vs_guard_free(struct vs_pool *pool, struct vs_ctx *current,
		       CUdeviceptr p);

/* The newest tag of what was freed and is still mapped, or 0. Lock. */
uint64_t vs_guard_newest(const struct vs_pool *pool);
/*
 * Unmaps what was freed and is complete, until `stop`, unless that is NULL, is
 * true; never waits. Takes grow, but not all the time, and the lock.
 */
uint64_t vs_guard_collect(struct vs_pool *pool, const _Atomic bool *stop);
/* The live blocks of a dying, idle context are freed. Lock. */
void vs_guard_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx);
/* Gives all peers access to every block. Grow. */
CUresult vs_guard_allow(struct vs_pool *pool);

#endif
