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
 * Objects that leave the caches in one hold of the lock (30 ns each), but for
 * those of the last cache; Note [In parts] in pool/reuse.h. What 256 threads
 * had took 8 ms (simulated).
 */
enum { LEAVE_AT_ONCE = 8192 };

/* A flush, and what left the caches by it. */
struct flush {
	uint64_t number; /* that of all caches; 0: of those that are to rest */
	uint64_t bytes;
	unsigned n; /* objects in this hold of the lock */
};

static void count(struct flush *f, unsigned n, unsigned class)
{
	f->bytes += n * vs_class_size(class);
	f->n += n;
}

/*
 * Empties one bin; pool.lock and spin held. Where there can be no marker a free
 * that hands a batch over waits at last; but a thread may end, or rest, before
 * its batches are full, time and again. So the next free here hands over, too.
 * What was freed stays where there is no host memory for it.
 */
static void flush_bin(struct vs_pool *pool, struct vs_tcache *tc,
		      unsigned class, bool is_dying, struct flush *f)
{
	struct vs_bin *bin = &tc->bin[class];

	if (!bin->idle)
		return;
	for (unsigned i = 0; i < bin->idle->n && !is_dying; i++)
		vs_slab_put(pool, bin->idle->obj[i]);
	count(f, bin->idle->n, class);
	bin->idle->n = 0;
	if (bin->freed->n > 0 && !is_dying &&
	    !vs_slab_return_few(pool, tc->slabs, class, bin->freed->obj,
				bin->freed->n, bin->freed->tag))
		return;
	count(f, bin->freed->n, class);
	bin->freed->n = bin->n_old = 0;
	bin->cap = vs_fence_may_mark(&pool->fence) ? VS_FIRST_CAP : 0;
}

static void empty(struct vs_pool *pool, struct vs_tcache *tc, bool is_dying,
		  struct flush *f)
{
	for (unsigned c = 0; c < VS_N_CLASSES; c++)
		flush_bin(pool, tc, c, is_dying, f);
}

void vs_tcache_empty(struct vs_pool *pool, struct vs_tcache *tc, bool is_dying)
{
	struct flush unused = {0};

	empty(pool, tc, is_dying, &unused);
}

/* Not one whose context is dying. Lock. */
static void flush_cache(struct vs_pool *pool, struct vs_tcache *tc,
			struct flush *f)
{
	vs_tcache_lock(tc);
	if (!atomic_load(&tc->ctx->is_dead))
		empty(pool, tc, false, f);
	vs_tcache_unlock(tc);
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

/* Each once, however often others flush it meanwhile. */
static bool is_due(const struct flush *f, const struct vs_tcache *tc)
{
	return f->number ? tc->flushed < f->number : tc->is_to_rest;
}

/* Some of the caches that are due; whether there are more. Lock. */
static bool flush_some(struct vs_pool *pool, struct flush *f)
{
	f->n = 0;
	VS_EACH_TCACHE (tc, pool) {
		if (!is_due(f, tc))
			continue;
		if (f->n >= LEAVE_AT_ONCE)
			return true;
		tc->is_to_rest = false;
		if (f->number)
			tc->flushed = f->number;
		flush_cache(pool, tc, f);
	}
	return false;
}

/* Lock, but not all the time. */
static uint64_t flush_due(struct vs_pool *pool, uint64_t number)
{
	struct flush f = {.number = number};

	while (flush_some(pool, &f))
		vs_pool_let_in(pool);
	return f.bytes;
}

uint64_t vs_tcache_flush(struct vs_pool *pool)
{
	uint64_t bytes;

	pthread_mutex_lock(&pool->lock);
	bytes = flush_due(pool, ++pool->flushes);
	pthread_mutex_unlock(&pool->lock);
	return bytes;
}

uint64_t vs_tcache_flush_marked(struct vs_pool *pool)
{
	uint64_t tag = vs_fence_tag(&pool->fence);
	uint64_t bytes = vs_tcache_flush(pool);

	vs_fence_cover(&pool->fence, tag);
	/* or what later work waits for is handed out, and never home */
	vs_fence_order(&pool->fence);
	return bytes;
}

void vs_tcache_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx)
{
	pthread_mutex_lock(&pool->lock);
	VS_EACH_TCACHE (tc, pool) {
		if (tc->ctx != ctx)
			continue;
		vs_tcache_lock(tc);
		vs_tcache_empty(pool, tc, true);
		vs_tcache_unlock(tc);
	}
	pthread_mutex_unlock(&pool->lock);
}

void vs_tcache_flush_unused(struct vs_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	VS_EACH_TCACHE (tc, pool) {
		uint64_t calls = vs_stat_get(tc, allocs);

		calls += vs_stat_get(tc, frees);
		if (calls == tc->seen_calls && !tc->is_rested)
			tc->is_to_rest = true;
		tc->is_rested = calls == tc->seen_calls;
		tc->seen_calls = calls;
	}
	flush_due(pool, 0);
	pthread_mutex_unlock(&pool->lock);
}

/* The context may just be dying: what it still has here goes with it. */
static void retire(struct vs_pool *pool, struct vs_tcache *tc)
{
	pthread_mutex_lock(&pool->lock);
	vs_tcache_lock(tc);
	vs_tcache_empty(pool, tc, atomic_load(&tc->ctx->is_dead));
	close_bins(pool, tc);
	tc->handle = NULL;
	tc->is_to_rest = false;
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
