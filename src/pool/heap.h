/* SPDX-License-Identifier: MIT
 *
 * heap: a stretch of the arena as ranges that lie side by side without gaps.
 * Idle ranges are wholly mapped, holes not at all; both are kept by size, and
 * neighbours of the same kind are merged (in contiguous mode idle ones only
 * within a chunk). Everything here is guarded by the pool's lock; no driver
 * call is made here.
 */
#ifndef VS_POOL_HEAP_H
#define VS_POOL_HEAP_H

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct vs_pool;
struct vs_ctx;

/* What ranges begin and end at: what NICs pin in (GPU page of 64 KiB). */
#define VS_RANGE_ALIGN ((uint64_t)64 << 10)

enum vs_range_state {
	VS_RANGE_HOLE,	  /* address space without memory; granule aligned */
	VS_RANGE_IDLE,	  /* mapped, free to be handed out */
	VS_RANGE_LIVE,	  /* the program's, or a slab */
	VS_RANGE_PENDING, /* freed, tag not yet done */
	VS_RANGE_BUSY,	  /* in the hands of the thread that holds grow */
};

struct vs_range {
	RB_ENTRY(vs_range) by_size;   /* while hole or idle */
	struct vs_range *prev, *next; /* by address */
	TAILQ_ENTRY(vs_range) link;   /* while pending, or in a plan */
	CUdeviceptr base;
	uint64_t span; /* bytes, a multiple of VS_RANGE_ALIGN */
	enum vs_range_state state;
	bool is_indexed; /* the owner index names it for just this span */
	bool is_pinned;	 /* not to be used again after its free */
	/*
	 * What a look-up without the lock reads: id is 0 unless live, and is
	 * written last at birth, first at death.
	 */
	_Atomic uint64_t id;
	_Atomic uint64_t size; /* bytes the program asked for */
	struct vs_ctx *ctx;
	uint64_t tag; /* epoch of the free */
};

RB_HEAD(vs_range_tree, vs_range);
TAILQ_HEAD(vs_range_list, vs_range);

struct vs_heap {
	CUdeviceptr base, end; /* constant */
	struct vs_range *first, *last;
	struct vs_range_tree idle, holes;
	uint64_t idle_bytes;
};

/* One hole over [base, end). False without host memory. */
bool vs_heap_init(struct vs_heap *h, CUdeviceptr base, CUdeviceptr end);

/*
 * Best fit: a live range of `span` bytes out of an idle one, lowest address
 * first; NULL if none is large enough.
 */
struct vs_range *vs_heap_take(struct vs_pool *pool, struct vs_heap *h,
			      uint64_t span);
/* A range that is not idle becomes idle and merges. May free `r`. */
void vs_heap_give(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r);

/*
 * Makes [base, base + span), which lies within one range that is idle or a
 * hole, a busy range of its own. NULL without host memory (nothing changed).
 */
struct vs_range *vs_heap_carve(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span);
/* Merges a busy range with the busy one right of it; returns the former. */
struct vs_range *vs_heap_join(struct vs_heap *h, struct vs_range *left);
/* Cuts a busy or live range in two; the right one is returned. */
struct vs_range *vs_heap_cut(struct vs_heap *h, struct vs_range *r,
			     uint64_t span);
/* A busy range with no chunk in it becomes a hole and merges. */
void vs_heap_hollow(struct vs_heap *h, struct vs_range *r);

/* Smallest hole of at least `span` bytes, or NULL. */
struct vs_range *vs_heap_hole(struct vs_heap *h, uint64_t span);
/* Largest idle range, and the next smaller one; NULL at the end. */
struct vs_range *vs_heap_largest(struct vs_heap *h);
struct vs_range *vs_heap_smaller(struct vs_heap *h, struct vs_range *r);
/* The idle range that holds all of [base, base + span), or NULL. */
struct vs_range *vs_heap_idle_over(struct vs_heap *h, CUdeviceptr base,
				   uint64_t span);

#endif
