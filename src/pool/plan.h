/* SPDX-License-Identifier: MIT
 *
 * plan: decides how one request that nothing idle fits is served: by which
 * chunks, side by side at which addresses. Decides only: pool/grow makes the
 * driver's calls. The policy of the heap is here; the traces it was found on
 * and what else was tried are in HACKING.md.
 *
 * A block may begin in the idle tail of one chunk, go on over whole idle ones,
 * and end in the idle head of another: each is mapped once more, side by side
 * (stitched). What a plan counts on is busy meanwhile. Guarded by the pool's
 * lock; the grow lock is held from the making of a plan to its end.
 */
#ifndef VS_POOL_PLAN_H
#define VS_POOL_PLAN_H

#include <bsd/sys/queue.h>
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/grow.h"
#include "pool/state.h"

/* One chunk to be mapped. */
struct vs_step {
	TAILQ_ENTRY(vs_step) link;
	struct vs_view *view;	/* to be; ours until it is mapped */
	struct vs_range *spot;	/* busy, was a hole: where; NULL: not yet */
	struct vs_range *place; /* busy: its bytes that we count on; or NULL */
	struct vs_view *old;	/* off: to be unmapped before; or NULL */
	bool is_mapped;
};

TAILQ_HEAD(vs_step_list, vs_step);

struct vs_plan {
	struct vs_heap *heap;
	enum vs_heap_kind kind;
	uint64_t span;	       /* bytes of the request */
	struct vs_range *base; /* busy, was idle: extended; or NULL */
	bool is_leftward;      /* it is extended to the left */
	bool is_trunk;	       /* for there, Note [Trunk] in pool/heap */
	bool is_alone;	       /* see is_alone() in pool/plan.c */
	bool is_thorough;      /* no idle chunk is overlooked */
	uint64_t lead;	       /* bytes of the first chunk before the block */
	uint64_t left;	       /* bytes yet to be found */
	uint64_t region;
	uint64_t number;	   /* no other plan has it */
	uint64_t filled;	   /* bytes of the chunks in `steps` */
	struct vs_step_list steps; /* in the order of their addresses */
};

/*
 * Decides everything. SUCCESS; NOT_FOUND: not in this way (see enum
 * vs_grow_how); VS_PLACE_NO_SPACE (pool/place); OUT_OF_MEMORY: no host memory.
 * Unless it succeeds, nothing is left to undo.
 */
CUresult vs_plan_make(struct vs_pool *pool, struct vs_plan *plan,
		      enum vs_heap_kind kind, uint64_t span,
		      enum vs_grow_how how);
/*
 * Ends a plan that failed. What is mapped of it (could not be unmapped) stays
 * so, but off; chunks that exist are kept.
 */
void vs_plan_drop(struct vs_pool *pool, struct vs_plan *plan);
/*
 * Ends a plan all of which is mapped: everything becomes idle, and the block is
 * taken out of it (NULL without host memory). False, too, without: then the
 * plan still stands.
 */
bool vs_plan_commit(struct vs_pool *pool, struct vs_plan *plan,
		    struct vs_range **range_out);

/*
 * Bytes to release first so that a request need not pin an idle chunk much
 * larger than those of its kind are now; *above_out: only chunks larger than so
 * (UINT64_MAX: none is too large).
 */
uint64_t vs_plan_excess(struct vs_pool *pool, enum vs_heap_kind kind,
			uint64_t span, uint64_t *above_out);

/* Bytes held beyond what the program needs (Note [Need] in pool/grow.h). */
uint64_t vs_plan_surplus(struct vs_pool *pool);
/* The same, were so many more created; the floor is no exception. */
uint64_t vs_plan_beyond(struct vs_pool *pool, uint64_t span);

/*
 * The driver has no more memory for a request of so many bytes. If the pool
 * holds as much that no range uses, and less than that in whole idle chunks, it
 * lies scattered.
 *
 * Note [Tight]: what a chunk in use has idle in its middle no block but those
 * of its neighbourhood can have. With 93 % of a device live, in blocks of 4 to
 * 300 MB, one allocation of 60 found no room though the driver's own would
 * have; with 95 %, one of 11. So each time that happens new chunks are half as
 * large, down to a 64th, and idle ones larger than a few of these are released
 * rather than used; with each 64 growths that go well they double again.
 */
void vs_plan_tighten(struct vs_pool *pool, uint64_t span);
/* A plan was carried out: one step back. */
void vs_plan_loosen(struct vs_pool *pool);

/* For pool/stitch: one more chunk to map; NULL without host memory. */
struct vs_step *vs_plan_step(struct vs_plan *plan, struct vs_chunk *c);
/* New chunks for so many bytes; `is_exact`: and for no more. */
bool vs_plan_new(struct vs_pool *pool, struct vs_plan *plan, uint64_t bytes,
		 bool is_exact);
/*
 * Chunks that are no larger, or a part of that, may be crumbs to the heap: what
 * is made of many of them is better made anew of their bytes (Note [Crumbs] in
 * pool/crumb.h). 0: none are, as where the driver may not have that again.
 * Lock.
 */
uint64_t vs_plan_crumb(struct vs_pool *pool, enum vs_heap_kind kind);
/* The largest chunk that a heap may take its share of. */
uint64_t vs_plan_cap(struct vs_pool *pool, enum vs_heap_kind kind);

#endif
