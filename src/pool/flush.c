/* SPDX-License-Identifier: MIT
 *
 * flush: how the caches of pool/tcache are emptied: by a trim, by one who finds
 * them unused, with their context, and where their thread ends.
 */
#include <pthread.h>

#include "base/meta.h"
#include "pool/pool.h"
#include "pool/tcache.h"

/*
 * Empties one bin; pool.lock and spin held. Where there can be no marker a free
 * that hands a batch over waits at last; but a thread may end, or rest, before
 * its batches are full, time and again. So the next free here hands over, too.
 * What was freed stays where there is no host memory for it. Returns the bytes
 * of what left it.
 */
static uint64_t flush_bin(struct vs_pool *pool, struct vs_tcache *tc,
			  unsigned class, bool is_dying)
{
	struct vs_bin *bin = &tc->bin[class];
	uint64_t n;

	if (!bin->idle)
		return 0;
	n = bin->idle->n;
	for (unsigned i = 0; i < bin->idle->n && !is_dying; i++)
		vs_slab_put(pool, bin->idle->obj[i]);
	bin->idle->n = 0;
	if (bin->freed->n > 0 && !is_dying &&
	    !vs_slab_return_few(pool, tc->slabs, class, bin->freed->obj,
				bin->freed->n, bin->freed->tag))
		return n * vs_class_size(class);
	n += bin->freed->n;
	bin->freed->n = bin->n_old = 0;
	bin->cap = vs_fence_may_mark(&pool->fence) ? VS_FIRST_CAP : 0;
	return n * vs_class_size(class);
}

uint64_t vs_tcache_empty(struct vs_pool *pool, struct vs_tcache *tc,
			 bool is_dying)
{
	uint64_t bytes = 0;

	for (unsigned c = 0; c < VS_N_CLASSES; c++)
		bytes += flush_bin(pool, tc, c, is_dying);
	return bytes;
}

static uint64_t flush_cache(struct vs_pool *pool, struct vs_tcache *tc,
			    bool is_dying)
{
	uint64_t bytes = 0;

	vs_tcache_lock(tc);
	if (is_dying || !atomic_load(&tc->ctx->is_dead))
		bytes = vs_tcache_empty(pool, tc, is_dying);
	vs_tcache_unlock(tc);
	return bytes;
}

/*
 * The empty batches of a thread that ends serve others: two of 4 KiB for each
 * class that it ever had anything of. What one could not be emptied of goes
 * home in it. pool.lock and spin held.
 */
static void close_bins(struct vs_pool *pool, struct vs_tcache *tc)
{
	for (unsigned c = 0; c < VS_N_CLASSES; c++) {
		struct vs_bin *bin = &tc->bin[c];
		bool is_empty = bin->idle && bin->freed->n == 0;

		/* cap 0: see flush_bin() */
		if (!bin->idle || (is_empty && bin->cap == 0))
			continue;
		if (is_empty)
			vs_meta_free(bin->freed, sizeof(*bin->freed));
		else
			vs_slab_return(pool, tc->slabs, c, bin->freed);
		vs_meta_free(bin->idle, sizeof(*bin->idle));
		bin->idle = bin->freed = NULL;
	}
}

uint64_t vs_tcache_flush(struct vs_pool *pool, struct vs_ctx *ctx)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&pool->lock);
	VS_EACH_TCACHE (tc, pool) {
		if (!ctx || tc->ctx == ctx)
			bytes += flush_cache(pool, tc, ctx != NULL);
	}
	pthread_mutex_unlock(&pool->lock);
	return bytes;
}

void vs_tcache_flush_unused(struct vs_pool *pool)
{
	VS_EACH_TCACHE (tc, pool) {
		uint64_t calls = vs_stat_get(tc, allocs);

		calls += vs_stat_get(tc, frees);
		if (calls == tc->seen_calls && !tc->is_rested)
			flush_cache(pool, tc, false);
		tc->is_rested = calls == tc->seen_calls;
		tc->seen_calls = calls;
	}
}

/* The context may just be dying: what it still has here goes with it. */
static void retire(struct vs_pool *pool, struct vs_tcache *tc)
{
	pthread_mutex_lock(&pool->lock);
	vs_tcache_lock(tc);
	vs_tcache_empty(pool, tc, atomic_load(&tc->ctx->is_dead));
	close_bins(pool, tc);
	tc->handle = NULL;
	vs_tcache_unlock(tc);
	vs_census_leave(&pool->census, tc);
	pthread_mutex_unlock(&pool->lock);
}

void vs_tcache_exit(struct vs_thread *t)
{
	vs_thread_go_deeper(t);
	for (struct vs_tcache *tc = t->cache; tc; tc = tc->next) {
		if (tc->handle)
			retire(tc->pool, tc);
	}
	vs_thread_come_back(t);
}
