/* SPDX-License-Identifier: MIT */
#include "pool/ladder.h"

#include "base/clock.h"
#include "pool/dead.h"
#include "pool/greed.h"
#include "pool/grow.h"
#include "pool/mark.h"
#include "pool/others.h"
#include "pool/plan.h"
#include "pool/range.h"
#include "pool/reuse.h"
#include "pool/tcache.h"
#include "pool/trouble.h"

/* How long a wait that only saves memory may take; Note [Patience]. */
#define THRIFT_PATIENCE (100 * VS_MS)
/*
 * Note [Late]: a host may be 1,000 launches ahead of its GPU, and be it of a
 * millisecond each. A pool that gave up after 100 ms, and went on by new memory
 * until the marker was seen at last, took it for all that was freed meanwhile:
 * two to fifty times what was live. So the more memory there would be beyond
 * need, the longer a wait may take: twice as long for each such part of the
 * need (or so much at least), so many times. A longer one is repeated for a
 * marker that was waited for, so that one may cost some three seconds. Each
 * further marker that took a longer one in vain makes it half as long: where
 * work waits for the host no wait helps. One that ended well, and was longer
 * than the shortest patience or for that marker, takes all that back; of
 * others, of which any program has some, so many take back one.
 *
 * And beyond the first of those parts no wait is shorter than the GPU was
 * behind lately, and a quarter more: eight times what was live was held 250 ms
 * behind when a few waits of 200 ms had been in vain. Each wait that was longer
 * for that alone, and in vain, halves that part of it, until one ends well.
 */
#define LATE_SHARE 80
#define LATE_LEAST (VS_FLOOR / 2)
#define LATE_DOUBLINGS 4
#define LATE_FORGIVES 16
/* Part of the need that is far beyond it; a 10th does as well, an 80th not. */
#define FAR_SHARE 20
/* Waits of one request before it is moved for: what came back does not fit. */
#define WAIT_ROUNDS 6
/* How long a wait may take when the alternative is out of memory. */
#define NEED_PATIENCE (30000 * VS_MS)
/* Eight threads on 93 % of a device needed four waits, now and then. */
enum { OVERTAKEN = 16 };
/* How long other processes are asked; the last answer may take longer. */
#define ASKING_LASTS (3000 * VS_MS)

static bool grow_once(struct vs_pool *pool, enum vs_heap_kind kind,
		      uint64_t span, enum vs_grow_how how,
		      struct vs_range **range_out, CUresult *result_out)
{
	struct vs_range *r = NULL;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	pthread_mutex_lock(&pool->grow);
	vs_dead_thin(pool);
	/* then once more, without what lies on the shelves of other heaps */
	for (int i = 0; i < 2 && result != CUDA_SUCCESS; i++) {
		if (i > 0 && !vs_reuse_unshelve(pool))
			break;
		/* another thread may have grown meanwhile */
		r = vs_reuse_take(pool, kind, span);
		result = r ? CUDA_SUCCESS : vs_grow(pool, kind, span, how, &r);
	}
	pthread_mutex_unlock(&pool->grow);
	*range_out = r;
	*result_out = result;
	return result == CUDA_SUCCESS;
}

/* Bytes, and parts of the need, that are worth the trouble of flushing. */
#define GATHER_LEAST (VS_FLOOR / 4)
#define GATHER_SHARE 100

/*
 * Memory of small objects that threads or half-empty slabs keep goes home, when
 * it is so much. A marker covers what cannot go yet. True if slabs
 * became idle.
 */
static bool gather_small(struct vs_pool *pool, enum vs_heap_kind kind,
			 uint64_t began, bool *is_gathered_out)
{
	uint64_t slack, least, kept;

	pthread_mutex_lock(&pool->lock);
	slack = vs_range_slack(pool);
	least = pool->need / GATHER_SHARE;
	pthread_mutex_unlock(&pool->lock);
	if (slack < GATHER_LEAST || slack < least)
		return false;
	kept = vs_tcache_flush_marked(pool);
	if (kind == VS_HEAP_SLABS)
		vs_quota_emptied(pool, kept, began);
	*is_gathered_out = true;
	/* slabs whose objects are all back went home */
	return vs_slab_sweep(pool) > 0;
}

/* See Note [Late]. `by_lag_out`: it is so long for the lag alone. */
static uint64_t patience_for(struct vs_pool *pool, uint64_t span,
			     bool *by_lag_out)
{
	uint64_t lag = vs_fence_calm_lag(&pool->fence) / 4 * 5;
	uint64_t part, doublings, vain, patience;

	if (lag > THRIFT_PATIENCE << LATE_DOUBLINGS)
		lag = THRIFT_PATIENCE << LATE_DOUBLINGS;
	pthread_mutex_lock(&pool->lock);
	part = pool->need / LATE_SHARE;
	if (part < LATE_LEAST)
		part = LATE_LEAST;
	doublings = vs_plan_beyond(pool, span) / part;
	if (doublings > LATE_DOUBLINGS)
		doublings = LATE_DOUBLINGS;
	/* the last may be the one at hand */
	vain = pool->late.markers > 0 ? pool->late.markers - 1 : 0;
	lag >>= pool->late.lags;
	pthread_mutex_unlock(&pool->lock);
	patience = THRIFT_PATIENCE << (doublings > vain ? doublings - vain : 0);
	*by_lag_out = doublings > 0 && patience < lag;
	return *by_lag_out ? lag : patience;
}

/*
 * How many markers were waited for in vain, see Note [Late]. `is_last`: the
 * last of them was seen complete by this wait, so it was a matter of patience.
 */
static void note_wait(struct vs_pool *pool, bool is_good, bool is_last,
		      bool is_by_lag, uint64_t took)
{
	uint64_t slow = atomic_load(&pool->fence.slow);

	pthread_mutex_lock(&pool->lock);
	if (is_good && took > THRIFT_PATIENCE)
		pool->late.lags = 0;
	else if (!is_good && is_by_lag && took > THRIFT_PATIENCE &&
		 pool->late.lags < LATE_DOUBLINGS)
		pool->late.lags++;
	if (is_good && (is_last || took > THRIFT_PATIENCE)) {
		pool->late.markers = 0;
	} else if (is_good) {
		if (pool->late.markers > 0 &&
		    ++pool->late.good_waits % LATE_FORGIVES == 0)
			pool->late.markers--;
	} else if (took > THRIFT_PATIENCE * 3 / 2 &&
		   slow != pool->late.marker) {
		pool->late.marker = slow;
		if (pool->late.markers <= LATE_DOUBLINGS)
			pool->late.markers++;
	}
	pthread_mutex_unlock(&pool->lock);
}

/*
 * One wait for what was freed up to a tag, for thrift. True if it may have
 * brought some. What other threads free meanwhile may never end; and nothing
 * is waited for where patience would not be heeded (pool/mark).
 */
static bool wait_for_pending(struct vs_pool *pool, uint64_t span,
			     uint64_t until)
{
	struct vs_fence *f = &pool->fence;
	uint64_t began, vain;
	bool is_good, is_last, is_by_lag;

	if (vs_fence_is_complete(f, until))
		return false;
	vs_mark_pending(pool);
	if (!f->has_context_events)
		return false;
	pthread_mutex_lock(&pool->lock);
	vain = pool->late.marker;
	pthread_mutex_unlock(&pool->lock);
	is_last = !vs_fence_is_complete(f, vain);
	began = vs_vmm_clock();
	is_good = vs_fence_wait(f, patience_for(pool, span, &is_by_lag));
	is_last = is_last && vs_fence_is_complete(f, vain);
	note_wait(pool, is_good, is_last, is_by_lag, vs_vmm_clock() - began);
	return is_good;
}

/*
 * Whatever was freed may be handed out, but for small objects. A wait until it
 * is complete, too, brings views that may be unmapped (VS_VIEWS_WAITING), and
 * is worth it only where the pool would grow far beyond need.
 */
static bool is_all_ordered(struct vs_pool *pool, uint64_t span)
{
	uint64_t far, beyond;
	bool is_any_pending;

	if (!vs_fence_may_order(&pool->fence))
		return false;
	pthread_mutex_lock(&pool->lock);
	is_any_pending = pool->pending_bytes > 0;
	far = pool->need / FAR_SHARE;
	beyond = vs_plan_beyond(pool, span);
	pthread_mutex_unlock(&pool->lock);
	return !is_any_pending && (beyond <= far || beyond <= VS_FLOOR);
}

/* What is pending may be handed out at once; see Note [One stream]. */
static bool order_pending(struct vs_pool *pool, uint64_t until)
{
	if (!vs_fence_may_order(&pool->fence) ||
	    vs_fence_is_done(&pool->fence, until))
		return false;
	vs_mark_pending(pool);
	return vs_fence_order(&pool->fence);
}

/*
 * More is pending than knob PENDING_LIMIT says, if it is set: no new memory is
 * to be had before a wait.
 */
static bool is_past_limit(struct vs_pool *pool)
{
	bool is;

	if (pool->pending_limit == 0)
		return false;
	pthread_mutex_lock(&pool->lock);
	is = pool->pending_bytes > pool->pending_limit;
	pthread_mutex_unlock(&pool->lock);
	return is;
}

/*
 * No more is pending than knob PENDING_LIMIT says, if it is set, so that new
 * memory is to be had without a wait. What small objects left may be.
 */
static bool is_within_limit(struct vs_pool *pool)
{
	bool is;

	if (pool->pending_limit == 0)
		return false;
	pthread_mutex_lock(&pool->lock);
	is = pool->pending_bytes + vs_range_slack(pool) <= pool->pending_limit;
	pthread_mutex_unlock(&pool->lock);
	return is;
}

/* By what came back, or new memory, if that is not to be waited for first. */
static void grow_within(struct vs_pool *pool, enum vs_heap_kind kind,
			uint64_t span, struct vs_range **range_out,
			CUresult *result_out)
{
	if (!is_past_limit(pool)) {
		grow_once(pool, kind, span, VS_GROW_WITHIN, range_out,
			  result_out);
		return;
	}
	*range_out = vs_reuse_take(pool, kind, span);
	*result_out = *range_out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/*
 * Grows within what the program needs, else by moving, else waits; past what
 * it needs only when nothing is pending any more, or no more than the user
 * allows. While much is pending, or what fits, a wait is better than a move:
 * what comes back often fits as it is.
 */
static CUresult grow_wisely(struct vs_pool *pool, enum vs_heap_kind kind,
			    uint64_t span, struct vs_range **range_out)
{
	uint64_t until = vs_fence_tag(&pool->fence), began = vs_vmm_clock();
	bool is_gathered = false;
	CUresult r;

	for (unsigned round = 0;; round++) {
		bool may_wait;

		grow_within(pool, kind, span, range_out, &r);
		if (r != CUDA_ERROR_NOT_FOUND)
			return r;
		if (order_pending(pool, until))
			continue;
		pthread_mutex_lock(&pool->lock);
		may_wait = round < WAIT_ROUNDS &&
			   vs_mark_is_worth_a_wait(pool, span);
		pthread_mutex_unlock(&pool->lock);
		if (may_wait && wait_for_pending(pool, span, until))
			continue;
		if (!is_gathered &&
		    gather_small(pool, kind, began, &is_gathered))
			continue;
		grow_once(pool, kind, span, VS_GROW_MOVE, range_out, &r);
		if (r != CUDA_ERROR_NOT_FOUND)
			return r;
		if (!is_gathered && is_all_ordered(pool, span))
			break;
		/* half-empty slabs: no wait brings their rest home */
		if (is_gathered &&
		    vs_fence_is_complete(&pool->fence, vs_mark_newest(pool)))
			break;
		if (is_within_limit(pool) ||
		    !wait_for_pending(pool, span, until))
			break;
		if (is_gathered)
			vs_slab_sweep(pool);
	}
	grow_once(pool, kind, span, VS_GROW_BEYOND, range_out, &r);
	return r;
}

/* What was freed up to a tag is dead no more, if it may; whether any was. */
static bool revive(struct vs_pool *pool, uint64_t until)
{
	uint64_t bytes;

	pthread_mutex_lock(&pool->lock);
	bytes = vs_dead_revive(pool, until, 0);
	pthread_mutex_unlock(&pool->lock);
	return bytes > 0;
}

/*
 * All that was freed up to a tag, and that only, is waited for. What is dead
 * comes after what is pending, which nobody else may reach, but before a long
 * wait, before other processes are asked, who would do with less for it, and
 * before out of memory: the driver would have served the request from it.
 */
static bool climb_until(struct vs_pool *pool, enum vs_heap_kind kind,
			uint64_t span, uint64_t until,
			struct vs_range **range_out, CUresult *result_out)
{
	struct vs_fence *f = &pool->fence;
	bool may_bar = true; /* once: it may be true for ever */
	bool is_hasty = vs_stat_get(&pool->stats, dead) > 0;
	uint64_t began = vs_vmm_clock(); /* since then waits are in vain */

	for (;;) {
		bool is_last = vs_fence_is_complete(f, until);
		uint64_t rest = vs_fence_rest(began, NEED_PATIENCE);

		vs_guard_collect(pool, NULL);
		pthread_mutex_lock(&pool->lock);
		vs_mark_all(pool);
		vs_fence_order(f);
		pthread_mutex_unlock(&pool->lock);
		vs_slab_sweep(pool);
		if (grow_once(pool, kind, span, VS_GROW_ALL, range_out,
			      result_out))
			return true;
		/* another thread may see what this one would wait for */
		if (!is_last &&
		    (vs_fence_wait(f, is_hasty ? THRIFT_PATIENCE : rest) ||
		     vs_fence_is_complete(f, until))) {
			began = vs_vmm_clock();
			continue;
		}
		if (revive(pool, until) || (is_hasty && !is_last)) {
			is_hasty = false;
			continue;
		}
		if (!is_last && vs_mark_wait_out(pool)) {
			began = vs_vmm_clock();
			continue;
		}
		if (is_last || !may_bar)
			return false;
		/* if not that, it may have recorded a marker to be waited for
		 */
		vs_fence_barrier_for(f, vs_fence_rest(began, NEED_PATIENCE));
		may_bar = false;
	}
}

/*
 * What this thread waited for another may have taken, that came later, for what
 * it freed itself. The driver would have served both at once. So what was freed
 * meanwhile is waited for, too; but not for ever.
 */
static bool climb_by_waiting(struct vs_pool *pool, enum vs_heap_kind kind,
			     uint64_t span, struct vs_range **range_out,
			     CUresult *result_out)
{
	uint64_t until = 0, newest;

	for (int i = 0; i < OVERTAKEN; i++) {
		bool is_vain = vs_mark_lacking(pool, span) > 0;

		vs_tcache_flush_marked(pool);
		newest = vs_mark_newest(pool);
		if (i > 0 && newest == until)
			return false;
		until = is_vain ? 0 : newest;
		if (climb_until(pool, kind, span, until, range_out, result_out))
			return true;
		if (is_vain || !vs_fence_is_complete(&pool->fence, until))
			return false;
	}
	return false;
}

static void release(struct vs_pool *pool, uint64_t bytes)
{
	pthread_mutex_lock(&pool->grow);
	vs_grow_release(pool, bytes, UINT64_MAX);
	pthread_mutex_unlock(&pool->grow);
}

static void release_all(struct vs_pool *pool)
{
	release(pool, UINT64_MAX);
}

/*
 * Last of all: a large block that was freed may come again, and finds its place
 * taken. A smaller one, freed behind long work, came to lie in that of one that
 * was idle, and the larger was out of memory.
 */
static bool take_anywhere(struct vs_pool *pool, enum vs_heap_kind kind,
			  uint64_t span, struct vs_range **range_out)
{
	return kind != VS_HEAP_SLABS &&
	       (*range_out = vs_reuse_anywhere(pool, span));
}

/*
 * Where addresses were short: with what was released views went, and what is
 * idle in pieces may find a place now.
 */
static bool gather_again(struct vs_pool *pool, enum vs_heap_kind kind,
			 uint64_t span, struct vs_range **range_out)
{
	CUresult r;

	return atomic_load(&pool->cramped[kind]) &&
	       grow_once(pool, kind, span, VS_GROW_ALL, range_out, &r);
}

/* The steps when the driver has no more memory, the cheapest first. */
static CUresult scrape_together(struct vs_pool *pool, enum vs_heap_kind kind,
				uint64_t span, struct vs_range **range_out)
{
	CUresult r;

	pthread_mutex_lock(&pool->lock);
	vs_plan_tighten(pool, span);
	pthread_mutex_unlock(&pool->lock);
	if (grow_once(pool, kind, span, VS_GROW_ALL, range_out, &r)) {
		vs_stat_add(&pool->stats, oom_release, 1);
		return r;
	}
	if (climb_by_waiting(pool, kind, span, range_out, &r)) {
		vs_stat_add(&pool->stats, oom_wait, 1);
		return r;
	}
	/* idle chunks too small or too scattered for one request */
	release_all(pool);
	if (grow_once(pool, kind, span, VS_GROW_BEYOND, range_out, &r) ||
	    gather_again(pool, kind, span, range_out) ||
	    take_anywhere(pool, kind, span, range_out)) {
		vs_stat_add(&pool->stats, oom_release, 1);
		return CUDA_SUCCESS;
	}
	/* all that was left of the device: others may do with less */
	release_all(pool);
	return r;
}

/* What was created for a request, and is mapped nowhere. */
static void give_up_growth(struct vs_pool *pool)
{
	uint64_t bytes;

	pthread_mutex_lock(&pool->lock);
	bytes = pool->chunks.cached_bytes;
	pthread_mutex_unlock(&pool->lock);
	if (bytes > 0)
		release(pool, bytes);
}

/*
 * Others may have it first, and it may come in pieces. `is_scraped`: what is
 * idle here was given up for it before.
 */
static CUresult ask_others(struct vs_pool *pool, enum vs_heap_kind kind,
			   uint64_t span, bool is_scraped,
			   struct vs_range **range_out)
{
	uint64_t until = vs_vmm_clock() + ASKING_LASTS, given;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	do {
		given = vs_others_ask(pool, span);
		/* with it, what is pending here may be enough */
		if (given == 0 || vs_greed_is_vain(pool, span))
			continue;
		if (!is_scraped)
			r = scrape_together(pool, kind, span, range_out);
		else if (!grow_once(pool, kind, span, VS_GROW_ALL, range_out,
				    &r))
			climb_by_waiting(pool, kind, span, range_out, &r);
		is_scraped = true;
		if (r == CUDA_SUCCESS)
			vs_stat_add(&pool->stats, oom_neighbours, 1);
	} while (given > 1 && r == CUDA_ERROR_OUT_OF_MEMORY &&
		 vs_vmm_clock() < until);
	return r;
}

/*
 * Note [Hoards]: threads that turn over small objects fill their caches again
 * within microseconds, each object in a slab that is not idle for that: 16 of
 * them, of 32 MiB live in all, kept 200 MiB from one that wanted 800 of 1,024.
 * So while a thread is out of memory caches get one object at a time, and
 * frees go past them; and for a while after that batches are small. And frees
 * wait for the work before them in the memory's context, as the driver's do: of
 * a thread that gave each of its pairs work of 20 us, and was 5 ms ahead of it,
 * all that another freed and waited for was pending in a moment, again and
 * again. It found no 38 MiB beside 763 live of 1,024 (simulated).
 */
static CUresult climb_short(struct vs_pool *pool, enum vs_heap_kind kind,
			    uint64_t span, bool is_vain,
			    struct vs_range **range_out)
{
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	atomic_fetch_add(&pool->n_short, 1);
	vs_trouble_beware(pool);
	vs_quota_least(pool);
	if (!is_vain)
		r = scrape_together(pool, kind, span, range_out);
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		r = ask_others(pool, kind, span, !is_vain, range_out);
	atomic_fetch_sub(&pool->n_short, 1);
	vs_trouble_beware(pool);
	return r;
}

void vs_ladder_heed(struct vs_pool *pool, const struct vs_ctx *ctx)
{
	vs_fence_heed(&pool->fence, ctx, &pool->n_short, NEED_PATIENCE);
}

CUresult vs_ladder_climb(struct vs_pool *pool, enum vs_heap_kind kind,
			 uint64_t span, struct vs_range **range_out)
{
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	bool is_vain;

	if (vs_greed_is_beyond_all(pool, span))
		return r;
	is_vain = vs_greed_is_vain_again(pool, span);
	if (!is_vain) {
		r = grow_wisely(pool, kind, span, range_out);
		is_vain = r == CUDA_ERROR_OUT_OF_MEMORY &&
			  vs_greed_is_vain(pool, span);
		if (is_vain)
			give_up_growth(pool);
	}
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		r = climb_short(pool, kind, span, is_vain, range_out);
	return r;
}
