/* SPDX-License-Identifier: MIT */
#include "pool/range.h"

#include <stddef.h>

#include "pool/capture.h"
#include "pool/dead.h"
#include "pool/grow.h"
#include "pool/ladder.h"
#include "pool/mark.h"
#include "pool/owner.h"
#include "pool/repack.h"
#include "pool/reuse.h"
#include "pool/tcache.h"

/* Bytes of the range for a request. */
static inline uint64_t span_of(size_t size)
{
	uint64_t unit = size > VS_WHOLE_LEAST ? VS_GRANULE : VS_RANGE_ALIGN;

	return (size + unit - 1) & ~(unit - 1);
}

/* A sum that may have been added up while its parts changed: 0 to `most`. */
static uint64_t within(uint64_t sum, uint64_t most)
{
	if ((int64_t)sum < 0)
		return 0;
	return sum < most ? sum : most;
}

/* What caches count. */
struct counted {
	uint64_t asked, given, allocs, frees;
};

static inline void add(struct counted *sum, const struct vs_tcache *tc)
{
	sum->asked += vs_stat_get(tc, live_bytes);
	sum->given += vs_stat_get(tc, live_spans);
	sum->allocs += vs_stat_get(tc, allocs);
	sum->frees += vs_stat_get(tc, frees);
}

/*
 * From what all caches count. Threads go on while their counters are added up,
 * and the reader may lose its processor in between: of what one hands out and
 * another takes back either may be missed, without end. So small objects are no
 * fewer than none, and no more than there are slabs for.
 */
static inline void tell_live(struct vs_pool *pool, struct counted sum,
			     uint64_t *asked_out, uint64_t *given_out,
			     uint64_t *blocks_out)
{
	uint64_t asked = sum.asked - vs_stat_get(pool, odd_free_bytes) -
			 vs_stat_get(pool, lost_bytes);
	uint64_t given = sum.given - vs_stat_get(pool, odd_free_spans) -
			 vs_stat_get(pool, lost_spans);
	uint64_t blocks = sum.allocs - sum.frees -
			  vs_stat_get(pool, odd_frees) -
			  vs_stat_get(pool, lost_blocks);

	given = within(given, vs_stat_get(pool, slab_bytes));
	*asked_out = vs_stat_get(pool, live_bytes) + within(asked, given);
	*given_out = vs_stat_get(pool, live_spans) + given;
	*blocks_out = vs_stat_get(pool, live_blocks) +
		      within(blocks, given / VS_ALIGN);
}

void vs_range_live(struct vs_pool *pool, uint64_t *asked_out,
		   uint64_t *given_out, uint64_t *blocks_out)
{
	const struct vs_census *ended = &pool->census;
	struct counted sum = {ended->live_bytes, ended->live_spans,
			      ended->allocs, ended->frees};

	VS_EACH_TCACHE (tc, pool)
		add(&sum, tc);
	tell_live(pool, sum, asked_out, given_out, blocks_out);
}

uint64_t vs_range_live_unlocked(struct vs_pool *pool, uint64_t *asked_out,
				uint64_t *given_out, uint64_t *blocks_out)
{
	struct counted sum = {0};

	VS_EVERY_TCACHE (tc, pool)
		add(&sum, tc);
	tell_live(pool, sum, asked_out, given_out, blocks_out);
	return sum.allocs;
}

uint64_t vs_range_least(struct vs_pool *pool)
{
	const struct vs_census *ended = &pool->census;
	uint64_t given = ended->live_spans, live;

	VS_EACH_TCACHE (tc, pool)
		given += vs_stat_get(tc, alloc_spans);
	atomic_thread_fence(memory_order_acquire);
	VS_EACH_TCACHE (tc, pool) {
		live = vs_stat_get(tc, live_spans);
		atomic_thread_fence(memory_order_acquire);
		given -= vs_stat_get(tc, alloc_spans) - live;
	}
	given -= vs_stat_get(pool, odd_free_spans) +
		 vs_stat_get(pool, lost_spans);
	return vs_stat_get(pool, live_spans) +
	       within(given, vs_stat_get(pool, slab_bytes));
}

uint64_t vs_range_allocs(struct vs_pool *pool)
{
	uint64_t allocs = vs_stat_get(&pool->stats, large_hit) +
			  vs_stat_get(&pool->stats, large_miss) +
			  pool->census.allocs;

	VS_EACH_TCACHE (tc, pool)
		allocs += vs_stat_get(tc, allocs);
	return allocs;
}

uint64_t vs_range_slack(struct vs_pool *pool)
{
	uint64_t asked, given, blocks;

	vs_range_live(pool, &asked, &given, &blocks);
	return pool->slab_bytes - (given - pool->live_spans);
}

/*
 * What is live, with the small objects that caches took back since they were
 * last added up; the need is no less. Lock.
 */
static uint64_t add_up(struct vs_pool *pool, uint64_t *blocks_out)
{
	uint64_t live, given;

	vs_range_live(pool, &live, &given, blocks_out);
	pool->small_bytes = live - pool->live_bytes;
	if (live > pool->most_now)
		pool->most_now = live;
	if (live > pool->need)
		pool->need = live;
	return live;
}

/* Lock. */
static inline void set_live(struct vs_pool *pool, uint64_t live)
{
	vs_stat_set_shared(&pool->stats, live, live);
	if (live + pool->fall_now < pool->need)
		pool->fall_now = pool->need - live;
}

/* A new mark, if caches took nothing back; lock. */
static __attribute__((noinline)) void show_most(struct vs_pool *pool)
{
	uint64_t blocks;

	set_live(pool, add_up(pool, &blocks));
}

/* Brings the gauges of live memory up to date; lock. */
static void show_live(struct vs_pool *pool, uint64_t coming)
{
	uint64_t blocks, live = add_up(pool, &blocks);

	set_live(pool, live);
	if (live + coming > pool->need)
		pool->need = live + coming;
	if (coming <= VS_SMALL_MAX)
		vs_stat_set_shared(&pool->stats, live, live + coming);
	vs_stat_set_shared(&pool->stats, blocks, blocks + (coming > 0));
}

/* No idle range fits. */
static CUresult get_more(struct vs_pool *pool, enum vs_heap_kind kind,
			 uint64_t span, struct vs_range **range_out)
{
	CUresult r;

	if (vs_grow_is_cramped(pool, kind, span)) {
		/* what this one left others may have brought home */
		*range_out = vs_reuse_take(pool, kind, span);
		/* the last resort serves */
		return *range_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	r = vs_ladder_climb(pool, kind, span, range_out);
	if (r != CUDA_SUCCESS) {
		/* who tries how much there is does not need so much */
		pthread_mutex_lock(&pool->lock);
		show_live(pool, 0);
		pool->need = pool->most_now > pool->most_before
				     ? pool->most_now
				     : pool->most_before;
		pthread_mutex_unlock(&pool->lock);
	}
	return r;
}

void vs_range_hand_out(struct vs_pool *pool, struct vs_range *range,
		       struct vs_ctx *ctx, size_t size)
{
	uint64_t live;

	vs_range_set_ctx(range, ctx);
	range->is_pinned = false;
	/* released, too: see vs_range_set_base() */
	atomic_store_explicit(&range->size, size, memory_order_release);
	atomic_store_explicit(&range->id, vs_serial_next(),
			      memory_order_release);
	vs_owner_set(pool, range);
	vs_stat_bump(pool, live_bytes, size);
	vs_stat_bump(pool, live_spans, range->span);
	vs_stat_bump(pool, live_blocks, 1);
	pool->turnover.handed += range->span;
	live = pool->live_bytes + pool->small_bytes;
	/* one look for all: the need is no less, nor is the gauge's mark */
	if (__builtin_expect(live > pool->most_now, 0))
		show_most(pool);
	else
		set_live(pool, live);
}

/*
 * Another thread may have ended the context. What it is given after its ranges
 * were taken back nobody takes back, and what it frees is another's. Lock.
 */
static inline bool is_dead(struct vs_ctx *ctx)
{
	return __builtin_expect(
		atomic_load_explicit(&ctx->is_dead, memory_order_relaxed), 0);
}

/* No slab can be had, so a small object is a range. */
static bool alloc_odd(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
		      CUdeviceptr *out)
{
	struct vs_range *range = vs_reuse_anywhere(pool, VS_OWNER_PAGE);

	if (!range)
		return false;
	pthread_mutex_lock(&pool->lock);
	if (is_dead(ctx)) {
		vs_reuse_go_home(pool, range);
		range = NULL;
	} else {
		vs_range_hand_out(pool, range, ctx, size);
		*out = range->base;
	}
	pthread_mutex_unlock(&pool->lock);
	return range != NULL;
}

/* For a small object a larger one, or a range. */
static bool alloc_larger(struct vs_pool *pool, struct vs_ctx *ctx,
			 struct vs_tcache *tc, size_t size, CUdeviceptr *out)
{
	CUdeviceptr p = vs_tcache_take_larger(tc, size);

	if (p) {
		*out = p;
		return true;
	}
	if (!alloc_odd(pool, ctx, size, out))
		return false;
	vs_stat_add(&pool->stats, large_hit, 1);
	return true;
}

CUresult vs_range_last_resort(struct vs_pool *pool, struct vs_ctx *ctx,
			      struct vs_tcache *tc, size_t size,
			      CUdeviceptr *out)
{
	CUdeviceptr p;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	if (pool->memory_limit == UINT64_MAX)
		r = vs_capture_alloc_beside(&p, size);
	/* not before: what these take is up to thousands of times as large */
	if (r == CUDA_ERROR_OUT_OF_MEMORY && tc &&
	    alloc_larger(pool, ctx, tc, size, out))
		return CUDA_SUCCESS;
	if (r != CUDA_SUCCESS) {
		vs_stat_add(&pool->stats, failed, 1);
		return r;
	}
	vs_stat_add(&pool->stats, native, 1);
	vs_stat_add(&pool->stats, oom_native, 1);
	*out = p;
	return CUDA_SUCCESS;
}

static __attribute__((noinline)) CUresult alloc_miss(struct vs_pool *pool,
						     struct vs_ctx *ctx,
						     size_t size, uint64_t span,
						     CUdeviceptr *out)
{
	enum vs_heap_kind kind = vs_reuse_kind(span);
	struct vs_range *range = vs_reuse_rest(pool, kind, span);
	bool is_hit = range != NULL;
	CUresult r = range ? CUDA_SUCCESS : get_more(pool, kind, span, &range);

	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return vs_range_last_resort(pool, ctx, NULL, size, out);
	if (r != CUDA_SUCCESS)
		return VS_PASS; /* the driver words it */
	pthread_mutex_lock(&pool->lock);
	if (is_dead(ctx)) {
		vs_reuse_go_home(pool, range);
		pthread_mutex_unlock(&pool->lock);
		return VS_PASS;
	}
	vs_range_hand_out(pool, range, ctx, size);
	*out = range->base;
	pthread_mutex_unlock(&pool->lock);
	if (is_hit)
		vs_stat_add(&pool->stats, large_hit, 1);
	else
		vs_stat_add(&pool->stats, large_miss, 1);
	return CUDA_SUCCESS;
}

/* Hot: a hit is one lock, a search by size, and the owner index. */
CUresult vs_range_alloc(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
			CUdeviceptr *out)
{
	uint64_t span = span_of(size);
	struct vs_range *range;
	bool is_spare_due;

	pthread_mutex_lock(&pool->lock);
	if (is_dead(ctx)) {
		pthread_mutex_unlock(&pool->lock);
		return VS_PASS;
	}
	range = vs_reuse_find(pool, vs_reuse_kind(span), span);
	if (__builtin_expect(!range, 0)) {
		show_live(pool, size);
		pthread_mutex_unlock(&pool->lock);
		return alloc_miss(pool, ctx, size, span, out);
	}
	vs_range_hand_out(pool, range, ctx, size);
	*out = range->base;
	is_spare_due = pool->turnover.is_spare_due;
	pool->turnover.is_spare_due = false;
	pthread_mutex_unlock(&pool->lock);
	vs_stat_add(&pool->stats, large_hit, 1);
	if (__builtin_expect(is_spare_due, 0))
		vs_grow_spare(pool, vs_reuse_kind(span), span);
	return CUDA_SUCCESS;
}

void vs_range_end_life(struct vs_pool *pool, struct vs_range *r)
{
	/* first: a look-up without the lock reads it last */
	atomic_store_explicit(&r->id, 0, memory_order_relaxed);
	vs_stat_bump(pool, live_bytes, -atomic_load(&r->size));
	vs_stat_bump(pool, live_spans, -r->span);
	vs_stat_bump(pool, live_blocks, -1);
}

void vs_range_put_off(struct vs_pool *pool, struct vs_range *r)
{
	r->state = VS_RANGE_PENDING;
	r->tag = vs_fence_tag_freed(&pool->fence);
	TAILQ_INSERT_TAIL(&pool->pending, r, link);
	pool->pending_bytes += r->span;
	vs_mark_freed(pool, r->span);
	vs_reuse_show_pending(pool);
}

CUresult vs_range_free(struct vs_pool *pool, struct vs_ctx *current,
		       CUdeviceptr p)
{
	struct vs_range *r;

	pthread_mutex_lock(&pool->lock);
	r = is_dead(current) ? NULL : vs_owner_live(pool, p);
	if (!r) {
		pthread_mutex_unlock(&pool->lock);
		return VS_PASS;
	}
	vs_range_end_life(pool, r);
	if (r->is_pinned) {
		vs_dead_bury(pool, r);
	} else {
		vs_range_put_off(pool, r);
	}
	vs_mark_at_free(pool);
	pthread_mutex_unlock(&pool->lock);
	vs_mark_wait_at_free(pool);
	return CUDA_SUCCESS;
}

/* Another thread may end the context whenever the lock is not held. */
CUresult vs_range_slab(struct vs_pool *pool, struct vs_ctx *ctx, unsigned class)
{
	uint64_t span = vs_slab_span(class);
	struct vs_slab *slab = NULL;
	struct vs_range *range;
	CUresult r;

	pthread_mutex_lock(&pool->lock);
	show_live(pool, vs_class_size(class));
	range = vs_reuse_find(pool, VS_HEAP_SLABS, span);
	pthread_mutex_unlock(&pool->lock);
	if (!range)
		range = vs_reuse_rest(pool, VS_HEAP_SLABS, span);
	r = range ? CUDA_SUCCESS : get_more(pool, VS_HEAP_SLABS, span, &range);
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		vs_repack_soon(pool);
	if (r != CUDA_SUCCESS)
		return r == CUDA_ERROR_OUT_OF_MEMORY ? r : VS_PASS;
	pthread_mutex_lock(&pool->lock);
	if (ctx->slabs)
		slab = vs_slab_make(pool, ctx->slabs, class, range);
	if (!slab)
		vs_heap_give(pool, &pool->heap[VS_HEAP_SLABS], range);
	pthread_mutex_unlock(&pool->lock);
	return slab ? CUDA_SUCCESS : VS_PASS;
}

void vs_range_sync_free(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;
	uint64_t tag = vs_fence_tag(f);

	vs_stat_add(&pool->stats, sync_free, 1);
	/* no marker beside a capture, which may end meanwhile */
	if (!vs_fence_wait_tag(f, tag, UINT64_MAX) && !vs_fence_barrier(f))
		vs_fence_wait_tag(f, tag, UINT64_MAX);
}

void vs_range_lost(uint64_t id)
{
	void (*on_lost)(uint64_t) = atomic_load(&vs_pool_on_lost);

	if (on_lost)
		on_lost(id);
}

void vs_range_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx)
{
	struct vs_range *r, *next;

	pthread_mutex_lock(&pool->lock);
	for (int k = 0; k < VS_HEAP_SLABS; k++) {
		for (r = pool->heap[k].first; r; r = next) {
			next = r->next;
			if (r->state != VS_RANGE_LIVE || r->ctx != ctx)
				continue;
			vs_range_lost(atomic_load(&r->id));
			vs_range_end_life(pool, r);
			if (r->is_pinned) {
				vs_dead_bury(pool, r);
				continue;
			}
			/* pending first: merging would free the next range */
			r->state = VS_RANGE_PENDING;
			r->tag = 0;
			TAILQ_INSERT_HEAD(&pool->pending, r, link);
			pool->pending_bytes += r->span;
		}
	}
	vs_guard_drop_ctx(pool, ctx);
	vs_slab_drop_ctx(pool, ctx);
	show_live(pool, 0);
	pthread_mutex_unlock(&pool->lock);
	vs_reuse_bring_home(pool);
}
