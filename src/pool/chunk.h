/* SPDX-License-Identifier: MIT
 *
 * chunk: physical memory. A chunk is one handle, mapped whole at one place or
 * (cached) nowhere. All fields are guarded by the pool's lock; which chunk is
 * mapped where changes only under the pool's grow lock.
 *
 * A chunk is idle when no live, pending or busy range touches it: then it may
 * be moved, or released.
 */
#ifndef VS_POOL_CHUNK_H
#define VS_POOL_CHUNK_H

#include <bsd/sys/queue.h>
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct vs_pool;

struct vs_chunk {
	TAILQ_ENTRY(vs_chunk) link; /* in idle or cached; or in a plan */
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;	     /* where it is mapped; 0: nowhere */
	uint64_t size;	     /* bytes, a multiple of VS_GRANULE */
	uint64_t idle_since; /* clock, ns; meaningful while idle or cached */
	uint64_t idle_tag;   /* the work of this epoch may still touch it */
	unsigned used;	     /* ranges over it that are not idle */
	bool is_in_list;
};

TAILQ_HEAD(vs_chunk_list, vs_chunk);

struct vs_chunks {
	CUdeviceptr base;	   /* of the arena; constant */
	struct vs_chunk **at;	   /* by granule of the arena: what is mapped */
	struct vs_chunk_list idle; /* mapped, longest idle first */
	struct vs_chunk_list cached; /* mapped nowhere, longest first */
	uint64_t held;		     /* bytes of all chunks */
	uint64_t idle_bytes;	     /* of both lists */
	uint64_t cached_bytes;	     /* of `cached` */
	uint64_t count;
};

/* False without host memory. */
bool vs_chunks_init(struct vs_pool *pool);

/* The chunk mapped over `p`, or NULL. Lock. */
struct vs_chunk *vs_chunk_at(const struct vs_pool *pool, CUdeviceptr p);

/* A range that is not idle now covers (covers no more) these bytes. Lock. */
void vs_chunks_use(struct vs_pool *pool, CUdeviceptr base, uint64_t span);
void vs_chunks_unuse(struct vs_pool *pool, CUdeviceptr base, uint64_t span);

/* Nothing on the GPU can touch an idle chunk: it may be unmapped. Lock. */
bool vs_chunk_is_quiet(struct vs_pool *pool, const struct vs_chunk *c);

/* Bookkeeping around the driver's calls; lock. */
void vs_chunk_born(struct vs_pool *pool, struct vs_chunk *c);
void vs_chunk_mapped(struct vs_pool *pool, struct vs_chunk *c, CUdeviceptr at,
		     unsigned used);
void vs_chunk_unmapped(struct vs_pool *pool, struct vs_chunk *c);
/* Puts an unmapped chunk among the cached; takes it out again. */
void vs_chunk_cache(struct vs_pool *pool, struct vs_chunk *c);
void vs_chunk_uncache(struct vs_pool *pool, struct vs_chunk *c);
/* The chunk (unmapped, in no list) was released: frees the struct. */
void vs_chunk_died(struct vs_pool *pool, struct vs_chunk *c);

#endif
