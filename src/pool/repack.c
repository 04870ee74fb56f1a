/* SPDX-License-Identifier: MIT */
#include "pool/repack.h"

#include <pthread.h>

#include "pool/trim.h"

/* So many, one each time such a part of the slabs came back. */
enum { LOOKS = 8 };

/* Lock. */
static void set_next(struct vs_pool *pool)
{
	struct vs_repack *repack = &pool->repack;
	uint64_t part = vs_stat_get(pool, slab_bytes) / LOOKS + 1;

	atomic_store(&repack->at, repack->looks_left > 0
					  ? vs_stat_get(repack, returned) + part
					  : 0);
}

void vs_repack_soon(struct vs_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->repack.looks_left = LOOKS;
	if (vs_stat_get(&pool->repack, at) == 0)
		set_next(pool);
	pthread_mutex_unlock(&pool->lock);
}

/* It may have been another thread's by now. */
static bool is_due(struct vs_pool *pool)
{
	bool is;

	pthread_mutex_lock(&pool->lock);
	is = vs_repack_is_due(pool);
	if (is) {
		pool->repack.looks_left--;
		set_next(pool);
	}
	pthread_mutex_unlock(&pool->lock);
	return is;
}

void vs_repack_now(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;

	if (!is_due(pool))
		return;
	vs_fence_cover(f, vs_fence_tag(f));
	/* or what later work waits for is handed out, and never home */
	vs_fence_order(f);
	vs_trim_collect(pool);
}
