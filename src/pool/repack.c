/* SPDX-License-Identifier: MIT */
#include "pool/repack.h"

#include <pthread.h>

#include "pool/slab.h"
#include "pool/tcache.h"

/* So many sweeps, one each time such a part of the slabs came back. */
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

/* Begins what is due; it may have been another thread's by now. */
static void begin(struct vs_pool *pool)
{
	struct vs_repack *repack = &pool->repack;
	struct vs_fence *f = &pool->fence;
	bool is_new;

	pthread_mutex_lock(&pool->lock);
	is_new = vs_repack_is_due(pool) && repack->tag == 0;
	if (is_new) {
		repack->looks_left--;
		repack->tag = vs_fence_tag(f);
	}
	pthread_mutex_unlock(&pool->lock);
	if (!is_new)
		return;
	vs_tcache_flush_marked(pool);
	vs_fence_poll(f);
}

/* A device of small objects has many millions: some go home in each call. */
static void go_on(struct vs_pool *pool)
{
	struct vs_repack *repack = &pool->repack;
	uint64_t bytes = 0;

	pthread_mutex_lock(&pool->lock);
	if (repack->tag > 0 && !vs_slab_sweep_some(pool, repack->tag, &bytes)) {
		repack->tag = 0;
		set_next(pool);
	}
	pthread_mutex_unlock(&pool->lock);
}

void vs_repack_now(struct vs_pool *pool)
{
	begin(pool);
	go_on(pool);
}
