/* SPDX-License-Identifier: MIT
 *
 * chunk: physical memory. A chunk is one handle, mapped whole at some places
 * (pool/view) or (cached) nowhere. All fields are guarded by the pool's lock;
 * what is mapped where changes only under the pool's grow lock.
 *
 * A chunk is idle when no live, pending, dead or busy range touches it, at
 * whatever address: then it may be mapped elsewhere, or released. One that is
 * used in part may lend the idle bytes at its start or end to a block that
 * begins or ends in it.
 *
 * Note [Whole]: one handle is mapped faster than several of the same bytes, and
 * nothing of it goes back while any part is live. So the few that are larger
 * than all others are handed out as a whole, where they lie, or not at all:
 * they are never moved, and released when something else needs memory that is
 * not there without them. From then on the program gets no more of them: one
 * that goes on like that would wait for the driver again and again. pool/plan
 * makes them and says when. A block that may have one is a whole number of
 * granules, so that nothing is left of it; where it begins in what another left
 * over, less than one stays unused there.
 *
 * Note [Vast]: any live block keeps all of its chunk. A program that loaded
 * 8 GiB in one piece, freed it, and kept a result of 16 MiB, held 8 GiB for
 * that, for ever. So while a large chunk is idle, no block that is much smaller
 * is its first, as long as the program may have new memory (Note [Need] in
 * pool/grow.h). Then the chunk goes, for smaller ones. A program that goes
 * round like that has them after a few rounds, of which the large block is
 * made, too.
 *
 * Note [Guests]: a result of 10 MiB came to lie in what a temporary block had
 * left of its last chunk of 80. That block went, and 70 MiB stayed behind, for
 * small ones alone; in a second chunk with the next result, and so on. So what
 * lies in one chunk and takes no more than half of it is its guest, and a block
 * that would be the first guest of a chunk goes to an idle end of one that has
 * some. Whether a block stays nobody knows; that it is small for a chunk does
 * as well. Only while so much is held that it is worth the trouble.
 */
#ifndef VS_POOL_CHUNK_H
#define VS_POOL_CHUNK_H

#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/view.h"

struct vs_pool;

/* Blocks of more bytes may have a chunk of Note [Whole]. */
#define VS_WHOLE_LEAST ((uint64_t)24 << 30)

/* A chunk of Note [Vast], and not for blocks of less than such a part of it. */
#define VS_VAST_LEAST ((uint64_t)512 << 20)
#define VS_VAST_TIMES 16

/* See Note [Guests]: a part of the chunk. */
#define VS_GUEST_SHARE 2

/* Where a chunk is listed. */
enum vs_chunk_place {
	VS_CHUNK_NOWHERE, /* in use, or in a plan */
	VS_CHUNK_IDLE,
	VS_CHUNK_CACHED,
};

enum vs_chunk_end { VS_CHUNK_HEAD, VS_CHUNK_TAIL };

struct vs_chunk {
	/* one cache line that every use touches */
	struct vs_view_list views;
	uint64_t size;	   /* bytes, a multiple of VS_GRANULE */
	uint64_t used;	   /* bytes of ranges that are not idle */
	unsigned n_guests; /* see Note [Guests] */
	uint8_t n_on;	   /* of its views */
	uint8_t n_had;	   /* of its views: on or asleep */
	enum vs_chunk_place place : 16;
	struct vs_chunk *next_stale;
	uint64_t idle_tag; /* the work of this epoch may still touch it */
	/* head, tail and the tree by size are out of date */
	bool is_stale;
	bool is_by_size;  /* in that tree */
	bool has_dead;	  /* `dead` is not 0; here for the cache line */
	bool is_whole;	  /* constant, see Note [Whole] */
	bool is_vast;	  /* constant, see Note [Vast] */
	bool is_small;	  /* constant: made for a block below VS_MIDDLE_MAX */
	bool is_of_slabs; /* constant: and in the heap of slabs */
	bool is_noted;	  /* in the pool's `noted` (see pool/dead) */

	TAILQ_ENTRY(vs_chunk) link; /* in idle or cached; or noted or spent */
	TAILQ_ENTRY(vs_chunk) of_all;
	RB_ENTRY(vs_chunk) by_size;
	RB_ENTRY(vs_chunk) by_head, by_tail; /* while head, tail are not 0 */
	CUmemGenericAllocationHandle handle; /* 0: yet to be created */
	unsigned n_moved;		     /* mapped elsewhere so often */
	uint64_t serial;		     /* in the order of their making */
	uint64_t plan;	     /* number of the last one it was in (pool/plan) */
	uint64_t idle_since; /* clock, ns; meaningful while idle or cached */
	uint64_t dead;	     /* part of used: dead ranges (see pool/dead) */
	uint64_t dead_tag;   /* the newest of theirs */
	uint64_t head, tail; /* idle bytes at its ends, if used in part */
};

static inline uint64_t vs_chunk_idle_at(const struct vs_chunk *c,
					enum vs_chunk_end end)
{
	return end == VS_CHUNK_HEAD ? c->head : c->tail;
}

/* Whether a range of `span` bytes that lies in it would be its guest. */
static inline bool vs_chunk_is_guest(const struct vs_chunk *c, uint64_t span)
{
	return span <= c->size / VS_GUEST_SHARE;
}

/* An idle chunk of more bytes is not for a block of `span` (Note [Vast]). */
static inline uint64_t vs_chunk_most_for(uint64_t span)
{
	uint64_t most = span * VS_VAST_TIMES;

	return most > VS_VAST_LEAST ? most : VS_VAST_LEAST;
}

/* Nothing is in it, and so few bytes are not to be the first. */
static inline bool vs_chunk_is_too_vast(const struct vs_chunk *c, uint64_t span)
{
	return c->is_vast && c->used == 0 && c->size > vs_chunk_most_for(span);
}

/* The address behind a view. */
static inline CUdeviceptr vs_view_end(const struct vs_view *v)
{
	return v->at + v->chunk->size;
}

/*
 * What lies over a granule of the arena, or over a whole stretch. The view, if
 * any, is named either by the granule or by the stretch; the range of the first
 * byte of a granule, unless it is a hole, by at least one of both: what else is
 * named there does not hold that byte.
 */
struct vs_spot {
	struct vs_view *view;
	struct vs_range *range; /* read without the lock, too (pool/owner) */
};

static inline struct vs_range *vs_spot_range(const struct vs_spot *spot)
{
	return __atomic_load_n(&spot->range, __ATOMIC_ACQUIRE);
}

/* Lock. */
static inline void vs_spot_name(struct vs_spot *spot, struct vs_range *r)
{
	__atomic_store_n(&spot->range, r, __ATOMIC_RELEASE);
}

TAILQ_HEAD(vs_chunk_list, vs_chunk);
RB_HEAD(vs_chunk_size_tree, vs_chunk);
RB_HEAD(vs_chunk_head_tree, vs_chunk);
RB_HEAD(vs_chunk_tail_tree, vs_chunk);

struct vs_chunks {
	struct vs_spot *spots;	   /* by granule of the arena */
	struct vs_spot *stretches; /* by stretch */
	uint64_t idle_bytes;	   /* of both lists, each chunk once */
	uint64_t vast_bytes;	   /* of both lists, Notes [Whole] and [Vast] */
	uint64_t touches;	   /* as many as views were used */
	struct vs_shading shading;
	/* what a hit touches is above */
	struct vs_chunk_list all;	/* changes only under the grow lock */
	struct vs_chunk_list idle;	/* mapped, longest idle first */
	struct vs_chunk_list cached;	/* mapped nowhere, longest first */
	struct vs_chunk_size_tree free; /* those of both lists, but stale */
	struct vs_chunk_head_tree heads;
	struct vs_chunk_tail_tree tails;
	struct vs_chunk *stale;
	uint64_t held;	       /* bytes of all chunks; grow lock, too */
	uint64_t small_held;   /* of those that are small */
	uint64_t cached_bytes; /* of `cached` */
	uint64_t whole_bytes;  /* of both lists, Note [Whole] */
	uint64_t count;
	uint64_t serial, regions; /* the last ones given; see VS_TRUNK_REGION */
};

/* Idle bytes that a request may have a part of. Lock. */
static inline uint64_t vs_chunks_loose(const struct vs_chunks *cs)
{
	return cs->idle_bytes - cs->whole_bytes;
}

/* One of Note [Vast] that may go is idle. Lock. */
static inline bool vs_chunks_are_vast(const struct vs_chunks *cs)
{
	return cs->vast_bytes > cs->whole_bytes;
}

/* Bytes of the table that vs_chunks_init() takes, all zero. */
size_t vs_chunks_table(const struct vs_pool *pool);
void vs_chunks_init(struct vs_pool *pool, void *table);

/*
 * For pool/view: so many more (fewer) bytes are in use; the work of epoch `tag`
 * may still touch them. Lock.
 */
void vs_chunk_use(struct vs_pool *pool, struct vs_chunk *c, uint64_t n);
void vs_chunk_unuse(struct vs_pool *pool, struct vs_chunk *c, uint64_t n,
		    uint64_t tag);

/* Nothing on the GPU can touch an idle chunk: it may be unmapped. Lock. */
bool vs_chunk_is_quiet(struct vs_pool *pool, const struct vs_chunk *c);

/* A struct for a chunk to be created; NULL without host memory. */
struct vs_chunk *vs_chunk_make(struct vs_pool *pool, uint64_t size);
/* It was created. Lock. */
void vs_chunk_born(struct vs_pool *pool, struct vs_chunk *c);
/* Puts a chunk where it belongs: idle, cached, or in use. Lock. */
void vs_chunk_sort(struct vs_pool *pool, struct vs_chunk *c);
/* Takes an idle or cached chunk out of its list, for a plan. Lock. */
void vs_chunk_hold(struct vs_pool *pool, struct vs_chunk *c);
/* The chunk (in no list, no views) was released: frees the struct. Lock. */
void vs_chunk_died(struct vs_pool *pool, struct vs_chunk *c);

/* Idle or cached: the smallest of at least `size` bytes; next larger. Lock. */
struct vs_chunk *vs_chunk_free_from(struct vs_pool *pool, uint64_t size);
struct vs_chunk *vs_chunk_free_next(struct vs_chunk *c);
/* One of Note [Whole] that is idle and quiet, or NULL. Lock. */
struct vs_chunk *vs_chunk_free_whole(struct vs_pool *pool);
/* The largest, the next smaller. */
struct vs_chunk *vs_chunk_free_last(struct vs_pool *pool);
struct vs_chunk *vs_chunk_free_prev(struct vs_chunk *c);

/* Brings up to date what is sorted, of which the following tell. Lock. */
void vs_chunks_refresh(struct vs_pool *pool);
/* The same for so many chunks at most: the others may tell what was. Lock. */
void vs_chunks_refresh_some(struct vs_pool *pool, unsigned most);
/*
 * The same, before what will want them so: takes the lock, and gives it up in
 * between. Each use of a chunk has it sorted anew, and 60,000 take 6 ms.
 */
void vs_chunks_refresh_slowly(struct vs_pool *pool);
/* Used in part: the least idle at that end, from `size` on; next larger. */
struct vs_chunk *vs_chunk_end_from(struct vs_pool *pool, enum vs_chunk_end end,
				   uint64_t size);
struct vs_chunk *vs_chunk_end_next(struct vs_chunk *c, enum vs_chunk_end end);
/* The most idle at that end, fewer than `size` bytes; the next smaller. */
struct vs_chunk *vs_chunk_end_below(struct vs_pool *pool, enum vs_chunk_end end,
				    uint64_t size);
/* The most idle of all. */
struct vs_chunk *vs_chunk_end_last(struct vs_pool *pool, enum vs_chunk_end end);
struct vs_chunk *vs_chunk_end_prev(struct vs_chunk *c, enum vs_chunk_end end);

#endif
