/* SPDX-License-Identifier: MIT
 *
 * heap: a stretch of the arena as ranges that lie side by side without gaps.
 * Idle ranges are wholly mapped, holes not at all; both are kept by size, and
 * neighbours of the same kind are merged (idle ones only within a region, see
 * pool/view; in contiguous mode only within a view). Everything here is guarded
 * by the pool's lock; no driver call is made here.
 *
 * A program's own work empties the caches between two calls, so a call costs
 * what it touches: idle ranges are in one small tree a size bin, a range
 * that is idle, a hole or a shadow is one cache line, and the range at an
 * address is found by the granule.
 *
 * Note [One byte, several addresses]: a chunk may be mapped at several places
 * (views). Each byte of it is either idle at all of them, or belongs to one
 * range that is live, pending or busy at one of them, and lies in a shadow at
 * all others. So whatever idle range is handed out, none of its bytes can be
 * had at any other address. A shadow is as long as the part of the range that
 * lies in the chunk, and shadows never merge: when the range is given back,
 * its shadows are found by their address and turn idle as they are.
 *
 * Note [Trunk]: new chunks that a program needs are mapped side by side, at the
 * heap's begin, and stay so: one region, in which whatever is idle side by side
 * is one range. Away from it are the other views, of chunks that were moved for
 * one request. A program that does the same again and again comes to rest in
 * the trunk if there is some more than it needs, and only there: what is best
 * by size alone may be anywhere, each time elsewhere, and was made of chunks
 * that are missing in the trunk. So where moving takes time (pool/toll) the
 * trunk is asked first. Else, by size: in tight memory that packs better.
 */
#ifndef VS_POOL_HEAP_H
#define VS_POOL_HEAP_H

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/bins.h"

struct vs_pool;
struct vs_ctx;

enum vs_range_state {
	VS_RANGE_HOLE,	  /* address space without memory; granule aligned */
	VS_RANGE_IDLE,	  /* mapped, free to be handed out */
	VS_RANGE_LIVE,	  /* the program's, or a slab */
	VS_RANGE_PENDING, /* freed, tag not yet done */
	VS_RANGE_SHELVED, /* freed, tag done, on the shelf, or kept */
	VS_RANGE_BUSY,	  /* in the hands of the thread that holds grow */
	VS_RANGE_SHADOW,  /* mapped, in use at another address */
	VS_RANGE_DEAD,	  /* freed, to be used again last of all (pool/dead) */
};

struct vs_range {
	/* while hole or idle: RB_ENTRY without the padding at its end */
	struct {
		struct vs_range *rbe_left, *rbe_right, *rbe_parent;
		int rbe_color;
	} __attribute__((packed, aligned(4))) by_size;
	enum vs_range_state state;
	CUdeviceptr base;
	uint64_t span;		      /* bytes, a multiple of VS_RANGE_ALIGN */
	struct vs_range *prev, *next; /* by address; next: or in the stock */
	/* the second cache line, of what is neither hole nor idle nor shadow */
	TAILQ_ENTRY(vs_range) link; /* while pending or dead */
	/*
	 * What a look-up without the lock reads (pool/owner), and base: id is 0
	 * unless live, and is written last at birth, first at death.
	 */
	_Atomic uint64_t id;
	_Atomic uint64_t size;	/* bytes the program asked for */
	struct vs_ctx *ctx;	/* while live, or NULL: nobody's yet */
	uint64_t tag;		/* epoch of the free; on the shelf: done then */
	struct vs_range *below; /* while on the shelf, or NULL */
	bool is_indexed;	/* in the owner index since it was taken */
	bool is_pinned;		/* dead after its free */
};

RB_HEAD(vs_size_tree, vs_range);
TAILQ_HEAD(vs_range_list, vs_range);

/*
 * Lock. Behind the death of the last life (id), be that by another thread: a
 * look-up without the lock that sees what is released here sees that, too.
 */
static inline void vs_range_set_base(struct vs_range *r, CUdeviceptr base)
{
	__atomic_store_n(&r->base, base, __ATOMIC_RELEASE);
}

static inline void vs_range_set_ctx(struct vs_range *r, struct vs_ctx *ctx)
{
	__atomic_store_n(&r->ctx, ctx, __ATOMIC_RELEASE);
}

/* Parts of a heap: what is in the trunk, by address, and what is not. */
enum vs_heap_part { VS_AWAY, VS_TRUNK, VS_N_PARTS };

struct vs_by_size {
	struct vs_size_tree holes;
	struct vs_bins filled;
	struct vs_size_tree idle[VS_RANGE_BINS];
};

struct vs_heap {
	CUdeviceptr base, end; /* constant */
	CUdeviceptr trunk_end; /* constant; `base`: it has none */
	struct vs_range *first, *last;
	uint64_t n_shared; /* views had here, of chunks with another had */
	uint64_t n_asleep; /* views here */
	uint64_t vain_span, vain_touches; /* pool/wake: looked in vain then */
	struct vs_by_size part[VS_N_PARTS];
};

/* Structs for ranges to come, so that a change cannot fail half-way. */
struct vs_stock {
	struct vs_range *first;
	unsigned n;
};

/*
 * One hole over [base, end), or two that never merge, if the trunk has any
 * bytes: its, and that of the rest. False without host memory.
 */
bool vs_heap_init(struct vs_pool *pool, struct vs_heap *h, CUdeviceptr base,
		  uint64_t trunk, CUdeviceptr end);
/* Its structs go: of a heap that is bare, or all zero. */
void vs_heap_drop(struct vs_heap *h);
/* Nothing is mapped there. */
bool vs_heap_is_bare(const struct vs_heap *h);
/* Sees to it that the next n cuts cannot fail. False without host memory. */
bool vs_heap_stock(struct vs_pool *pool, unsigned n);
/* What is left of that goes. */
void vs_heap_unstock(struct vs_pool *pool);

/*
 * Best fit, by Note [Trunk]: a live range of `span` bytes out of an idle one,
 * lowest address first (or, for Note [Guests] in pool/chunk.h, beside others);
 * NULL if none is large enough, or all that are would have to break a chunk
 * (Note [Whole] in pool/chunk.h), or `is_sparing` and they lie in one that is
 * much too large (Note [Vast]).
 */
struct vs_range *vs_heap_take(struct vs_pool *pool, struct vs_heap *h,
			      uint64_t span, bool is_sparing);
/*
 * The same at a given place, all of which must be idle: a range of the state
 * given (live or busy). NULL without host memory (nothing changed).
 */
struct vs_range *vs_heap_take_at(struct vs_pool *pool, struct vs_heap *h,
				 CUdeviceptr base, uint64_t span,
				 enum vs_range_state state);
/* A range that is in use becomes idle and merges. May free `r`. */
void vs_heap_give(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r);

/*
 * Makes [base, base + span), which lies within one hole, a busy range of its
 * own. NULL without host memory (nothing changed).
 */
struct vs_range *vs_heap_claim(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span);
/* A busy range with nothing mapped in it becomes a hole and merges. */
void vs_heap_hollow(struct vs_pool *pool, struct vs_heap *h,
		    struct vs_range *r);

/* For pool/view; the ranges in their hands are in no tree by size. */
/*
 * Cuts [base, base + span) out of one range that is idle or a hole. Takes
 * VS_CARVE_CUTS from the stock at most: for what is left on either side.
 */
#define VS_CARVE_CUTS 2
struct vs_range *vs_heap_carve(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span);
/* Cuts in two; returns the right one, which is new. Takes from the stock. */
struct vs_range *vs_heap_cut(struct vs_pool *pool, struct vs_heap *h,
			     struct vs_range *r, uint64_t span);
/* Merges a range with the one right of it; returns the one that is left. */
struct vs_range *vs_heap_join(struct vs_pool *pool, struct vs_heap *h,
			      struct vs_range *left);
/* Turns a range into an idle one or a hole, and merges it. */
void vs_heap_settle(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r,
		    enum vs_range_state state);

/* The range that `p` lies in, which is not a hole. */
struct vs_range *vs_heap_at(const struct vs_pool *pool, CUdeviceptr p);
/* Smallest hole of at least `span` bytes, or NULL. */
struct vs_range *vs_heap_hole(struct vs_heap *h, enum vs_heap_part part,
			      uint64_t span);
/* Largest idle range of a part below `span` bytes; the next smaller; or NULL.
 */
struct vs_range *vs_heap_below(struct vs_heap *h, enum vs_heap_part part,
			       uint64_t span);
struct vs_range *vs_heap_smaller(struct vs_heap *h, struct vs_range *r);

#endif
