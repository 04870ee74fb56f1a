/* SPDX-License-Identifier: MIT
 *
 * prepare: what the first allocations would have to do otherwise, done where a
 * context is born: that takes the driver a tenth of a second and more, so that
 * half a millisecond goes unseen. On an H200 a first cuMemAlloc of 2 MiB takes
 * 74 us without the shim; the arena and its tables alone take longer.
 */
#include "pool/pool.h"

#include <stdint.h>
#include <sys/mman.h>

#include "base/knob.h"
#include "base/sys.h"
#include "pool/grow.h"
#include "pool/owner.h"
#include "pool/slab.h"
#include "pool/state.h"

/*
 * So much of the large heap is touched in the tables on the host: what is
 * larger they name by stretches, but for its ends.
 */
#define FIRST_LARGE ((uint64_t)8 << 30)

/* A kernel older than 5.14 does not know it: pages then come with their use. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void touch(const void *from, uint64_t bytes)
{
	/* often 64 KiB on aarch64; madvise fails where one does not begin */
	const uintptr_t page = vs_sys_page_size();
	uintptr_t p = (uintptr_t)from & ~(page - 1);

	bytes += (uintptr_t)from - p;
	vs_sys_madvise((void *)p, (bytes + page - 1) & ~(page - 1),
		       MADV_POPULATE_WRITE);
}

/* The entries of the tables by which the first blocks of a heap are found. */
static void touch_tables(struct vs_pool *pool, enum vs_heap_kind kind)
{
	uint64_t offset = pool->heap[kind].base - pool->base;
	uint64_t bytes = kind == VS_HEAP_LARGE ? FIRST_LARGE : VS_FLOOR;

	if (bytes > pool->heap[kind].end - pool->heap[kind].base)
		bytes = pool->heap[kind].end - pool->heap[kind].base;
	if (kind == VS_HEAP_SLABS) {
		touch(&pool->slab_at[offset / VS_SLAB_PAGE],
		      bytes / VS_SLAB_PAGE * sizeof(*pool->slab_at));
		return;
	}
	touch(&pool->owner[offset / VS_OWNER_PAGE],
	      bytes / VS_OWNER_PAGE * sizeof(*pool->owner));
	touch(&pool->chunks.stretches[offset / VS_STRETCH],
	      sizeof(*pool->chunks.stretches));
	touch(&pool->chunks.spots[offset / VS_GRANULE],
	      bytes / VS_GRANULE * sizeof(*pool->chunks.spots));
}

/* A granule of idle memory where the first blocks of a heap go. */
static void map_first(struct vs_pool *pool, enum vs_heap_kind kind)
{
	struct vs_range *r = NULL;

	pthread_mutex_lock(&pool->grow);
	if (vs_grow(pool, kind, VS_GRANULE, VS_GROW_WITHIN, &r) != CUDA_SUCCESS)
		r = NULL;
	pthread_mutex_unlock(&pool->grow);
	if (!r)
		return;
	pthread_mutex_lock(&pool->lock);
	vs_heap_give(pool, &pool->heap[kind], r);
	/* the first 5 ms are those of the program (pool/turnover) */
	pool->turnover.began = 0;
	pthread_mutex_unlock(&pool->lock);
}

/* Not where a chunk is large, or ill spent: those blocks go elsewhere. */
static bool wants_first(const struct vs_pool *pool)
{
	return pool->memory_limit >= VS_FLOOR &&
	       pool->chunk_size <= VS_GRANULE && !pool->is_contiguous &&
	       !pool->guard.base;
}

bool vs_pool_prepare(CUdevice device)
{
	struct vs_pool *pool;

	/* allocations stay the driver's */
	if (vs_knobs.ipc == VS_IPC_NATIVE)
		return false;
	pool = vs_pool_for(device);
	if (!pool || atomic_exchange(&pool->is_prepared, true))
		return pool != NULL;
	for (int k = VS_N_HEAPS - 1; k >= 0; k--) {
		touch_tables(pool, (enum vs_heap_kind)k);
		if (wants_first(pool))
			map_first(pool, (enum vs_heap_kind)k);
	}
	return true;
}
