/* SPDX-License-Identifier: MIT
 *
 * view: one address at which a chunk is mapped, whole. A view that is on has
 * its bytes in the heap's ranges (see pool/heap, Note [One byte, several
 * addresses]); one that is off is a single busy range: mapped, or just being
 * mapped or unmapped, and nobody's to use.
 *
 * Note [Asleep]: what is taken or given back of a chunk is so at all its views
 * that are on, and a program's own work has emptied the caches by then: some .7
 * us for each, of which training of small networks had nine a block (an H200).
 * So few are on. Another one is asleep: off, but mapped. Where no idle range is
 * large enough, those are woken that together are (pool/wake). The one longest
 * not used falls asleep when a chunk has too many on; and where they are told
 * of much, one that nothing was taken at for some uses of its chunk. Of a chunk
 * with any view on or asleep at least one is on.
 *
 * Views side by side form a region; idle ranges merge across views of one
 * region only, and no chunk is twice in a region, so that no idle range holds
 * a byte twice. All of it is guarded by the pool's lock; what is mapped changes
 * only under the grow lock.
 */
#ifndef VS_POOL_VIEW_H
#define VS_POOL_VIEW_H

#include <bsd/sys/queue.h>
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct vs_pool;
struct vs_chunk;
struct vs_range;
struct vs_heap;

/* The region of what is in a heap's trunk (Note [Trunk] in pool/heap). */
#define VS_TRUNK_REGION ((uint64_t)1)

/*
 * Views of one chunk that are on, unless all are used, and in all, at most
 * (HACKING.md has the comparison). More if none may go: what later work waits
 * for on the device (Note [One stream] in pool/fence) stays mapped until the
 * host has seen it complete.
 */
#define VS_VIEWS 8
#define VS_VIEWS_MOST 16
#define VS_VIEWS_WAITING 32

struct vs_view {
	struct vs_chunk *chunk; /* constant */
	CUdeviceptr at;
	uint64_t region;
	uint64_t used;	   /* bytes of ranges in use whose address is here */
	uint64_t touched;  /* a count that grows with each use of any view */
	uint64_t idle_tag; /* the work of this epoch may still touch it */
	unsigned n_vain;   /* times it was told so since it was used */
	bool is_on;
	bool is_asleep;		   /* off, Note [Asleep] */
	bool has_access;	   /* it was on, or ready to be */
	TAILQ_ENTRY(vs_view) link; /* of the chunk */
};

TAILQ_HEAD(vs_view_list, vs_view);

/* How often views are told what is taken elsewhere. */
struct vs_shading {
	unsigned n;	     /* in the window */
	uint64_t began;	     /* the window; ticks */
	uint64_t dear_until; /* ticks */
};

/* It neither sleeps nor goes for another, but with its chunk. */
static inline bool vs_view_is_trunk(const struct vs_view *v)
{
	return v->region == VS_TRUNK_REGION;
}

/* The pool may use it: now, or when it wakes. */
static inline bool vs_view_is_had(const struct vs_view *v)
{
	return v->is_on || v->is_asleep;
}

/* The view that lies over `p`, or NULL. */
struct vs_view *vs_view_at(const struct vs_pool *pool, CUdeviceptr p);
/* The heap that an address of the arena belongs to. */
struct vs_heap *vs_heap_of(struct vs_pool *pool, CUdeviceptr p);

/* Whether idle bytes left and right of `p` may be handed out as one. */
bool vs_views_join(const struct vs_pool *pool, CUdeviceptr p);
/* Whether a view begins, or ends, at `p`, where something is mapped. */
bool vs_views_begin(const struct vs_pool *pool, CUdeviceptr p);
bool vs_views_end(const struct vs_pool *pool, CUdeviceptr p);

/* Whether these bytes are a part of a chunk of Note [Whole] in pool/chunk. */
bool vs_views_break(const struct vs_pool *pool, CUdeviceptr base,
		    uint64_t span);

/* Whether they would be the first in a chunk of Note [Vast]. */
bool vs_views_spoil(const struct vs_pool *pool, CUdeviceptr base,
		    uint64_t span);

/* Structs that vs_views_use takes from the stock for these bytes at most. */
unsigned vs_views_cuts(const struct vs_pool *pool, CUdeviceptr base,
		       uint64_t span);
/*
 * A range, no longer idle, is in use; it is about to be idle again, and the
 * work of epoch `tag` may still touch it.
 */
void vs_views_use(struct vs_pool *pool, CUdeviceptr base, uint64_t span);
void vs_views_unuse(struct vs_pool *pool, CUdeviceptr base, uint64_t span,
		    uint64_t tag);

/*
 * A range in use was cut where a view ends; these bytes are a part of it that
 * may be a guest of its chunk now (Note [Guests] in pool/chunk).
 */
void vs_views_cut(struct vs_pool *pool, CUdeviceptr base, uint64_t span);

/* The view was mapped at v->at, inside a busy range. It is off. */
void vs_view_mapped(struct vs_pool *pool, struct vs_view *v);
/* The view, off, was unmapped: frees the struct; its range becomes a hole. */
void vs_view_unmapped(struct vs_pool *pool, struct vs_view *v);
/* Structs that vs_view_on takes from the stock at most. */
unsigned vs_view_cuts(struct vs_pool *pool, const struct vs_view *v);
/*
 * A view that is off or asleep, with access: its bytes become what they are
 * elsewhere, and another of the chunk may fall asleep. False without host
 * memory (it stays what it is).
 */
bool vs_view_on(struct vs_pool *pool, struct vs_view *v);
/*
 * A view that is had, with no range in use at its own addresses: its bytes are
 * no longer to be had here. False without host memory (it stays what it is).
 */
bool vs_view_off(struct vs_pool *pool, struct vs_view *v);

/* The chunk may be mapped at one more address; of 255 at most (n_had). */
bool vs_view_may_add(struct vs_pool *pool, struct vs_chunk *c);
/* The view to give up for another, longest untouched; NULL: none need go. */
struct vs_view *vs_view_oldest(struct vs_pool *pool, struct vs_chunk *c);
/*
 * One in a heap that may go for its address alone, as the chunk has another; or
 * NULL.
 */
struct vs_view *vs_view_spare(struct vs_pool *pool, struct vs_chunk *c,
			      const struct vs_heap *h);
/* The chunk is mapped somewhere in a region. */
bool vs_view_is_in(const struct vs_chunk *c, uint64_t region);

#endif
