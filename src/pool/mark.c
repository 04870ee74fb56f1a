/* SPDX-License-Identifier: MIT */
#include "pool/mark.h"

#include "driver/real.h"
#include "pool/capture.h"
#include "pool/dead.h"
#include "pool/pool.h"
#include "pool/range.h"
#include "pool/reuse.h"
#include "pool/slab.h"

/* Ticks that memory is without a marker before a free records one. */
#define LONG_UNMARKED ((uint64_t)50000)
/* A marker for each such part of what the program needs (pool/grow). */
#define QUANTA 64
/* The part of the device's memory that may be without one. */
#define BARE_SHARE 16
/* A GPU so far behind leaves the host time to wait; ticks, 1 to 3 ms. */
#define LATE ((uint64_t)2000000)
/*
 * Before work, for little memory: one in so many ticks, so many at once. More
 * where later work can wait for one instead of the host.
 */
#define RATION ((uint64_t)3000000)
#define RATION_TO_ORDER ((uint64_t)1000000)
#define RATIONS_SPARED 8
/*
 * What one behind another device's copy takes: it is an event in each context
 * of the devices that reach the memory.
 */
#define RATIONS_A_COPY 4
/* Pending ranges looked at for one that fits; 128 found hardly more. */
#define FITS_TRIED 32
/*
 * Least ticks between two looks for a program that works; and while its later
 * work is made to wait, so that no memory waits for a look (HACKING.md).
 */
#define CALM_PACE ((uint64_t)500000)
#define ORDER_PACE ((uint64_t)4000000)
/* Tries in a row to order, in vain, after which it is not counted upon. */
#define VAIN_ORDERS 8
/* Without context events, and the knob: freed and not yet waited for. */
#define UNSEEN_LEAST ((uint64_t)16 << 20)
/* Memory is scarce: so much is held, or the driver had no more, ns ago. */
#define FULL_EIGHTHS 7
#define REFUSED_LASTS ((uint64_t)60000000000)

/* There is a marker to be had for little memory; see Note [Before work]. */
static bool takes_rations(struct vs_pool *pool, uint64_t n)
{
	uint64_t ration =
		vs_fence_may_order(&pool->fence) ? RATION_TO_ORDER : RATION;
	uint64_t used, now;

	/* two threads at once may take one for both: no matter */
	used = atomic_load_explicit(&pool->rations_used, memory_order_relaxed);
	now = vs_vmm_ticks();
	/* more than there can be ahead: a suspended machine counts from 0 */
	if (used < now || used - now > RATION * (RATIONS_SPARED + 1))
		used = now;
	if (used - now >= ration * (RATIONS_SPARED + 1 - n))
		return false;
	atomic_store_explicit(&pool->rations_used, used + n * ration,
			      memory_order_relaxed);
	return true;
}

void vs_mark_refused(struct vs_pool *pool)
{
	atomic_store(&pool->refused, vs_vmm_clock());
}

bool vs_mark_was_refused(struct vs_pool *pool)
{
	uint64_t refused = atomic_load(&pool->refused);

	if (__builtin_expect(refused == 0, 1))
		return false;
	if (vs_vmm_clock() < refused + REFUSED_LASTS)
		return true;
	/* or the clock would be read for ever */
	atomic_compare_exchange_strong(&pool->refused, &refused, 0);
	return false;
}

/*
 * What is freed now may be all that the next allocation can have, and that may
 * come after work that waits for the host: a marker behind that work would be
 * complete too late. The driver's cuMemFree would have waited before it. Any
 * thread.
 */
bool vs_mark_is_scarce(struct vs_pool *pool)
{
	return vs_stat_get(&pool->stats, reserved) >
		       pool->most / 8 * FULL_EIGHTHS ||
	       vs_mark_was_refused(pool);
}

void vs_mark_bare(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;

	/* the program is told what is wrong by its own call */
	if (!vs_fence_may_mark(f) || !vs_vmm_is_current_sound())
		return;
	vs_fence_mark(f);
	/* one that failed comes again, but not with each launch */
	atomic_store_explicit(&pool->is_much_bare, false, memory_order_relaxed);
}

/* In policy ordered one that comes late has all streams wait for work. */
static bool is_rationed(struct vs_pool *pool)
{
	return !pool->fence.is_ordered &&
	       !atomic_load_explicit(&pool->is_much_bare,
				     memory_order_relaxed) &&
	       !vs_mark_is_scarce(pool);
}

void vs_mark_before_work(struct vs_pool *pool)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_fence *f = &pool->fence;

	if (vs_fence_may_mark(f) &&
	    !(is_rationed(pool) && !takes_rations(pool, 1)) &&
	    vs_thread_go_within(t)) {
		vs_mark_bare(pool);
		vs_thread_come_out(t);
	}
	if (vs_fence_is_bare(f))
		vs_fence_loosen(f);
}

void vs_mark_copied(struct vs_pool *pool)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_fence *f = &pool->fence;

	if (f->is_ordered || !vs_fence_may_mark(f) ||
	    !(atomic_load(&f->is_curt) ||
	      takes_rations(pool, RATIONS_A_COPY)) ||
	    !vs_thread_go_within(t))
		return;
	if (vs_vmm_is_current_sound())
		vs_fence_record(f);
	vs_thread_come_out(t);
}

static uint64_t much_pending(const struct vs_pool *pool)
{
	return pool->pending_limit ? pool->pending_limit : pool->need / 20;
}

/* A range that a large request fits, and hardly less, is among the oldest. */
static bool has_pending_fit(struct vs_pool *pool, uint64_t span)
{
	struct vs_range *r = TAILQ_FIRST(&pool->pending);

	if (span < VS_MIDDLE_MAX)
		return false;
	for (int i = 0; r && i < FITS_TRIED; i++) {
		if (r->span >= span && r->span - span <= span / 10)
			return true;
		r = TAILQ_NEXT(r, link);
	}
	return false;
}

bool vs_mark_is_worth_a_wait(struct vs_pool *pool, uint64_t span)
{
	uint64_t lag =
		atomic_load_explicit(&pool->fence.lag, memory_order_relaxed);

	return pool->pending_bytes > much_pending(pool) ||
	       (pool->pending_limit == 0 && lag >= LATE &&
		has_pending_fit(pool, span));
}

/*
 * What the driver's own pools keep, and what was freed into them under work, is
 * used to cuMemGetInfo, but the driver gives it to whoever asks.
 */
static bool has_driver_pools(void)
{
	return vs_thread_calls(VS_API_cuMemAllocAsync) > 0 ||
	       vs_thread_calls(VS_API_cuMemAllocAsync_ptsz) > 0 ||
	       vs_thread_calls(VS_API_cuMemAllocFromPoolAsync) > 0 ||
	       vs_thread_calls(VS_API_cuMemAllocFromPoolAsync_ptsz) > 0;
}

uint64_t vs_mark_lacking(struct vs_pool *pool, uint64_t span)
{
	uint64_t limit = pool->memory_limit, live, held, room;
	size_t unused, total;
	CUresult r;

	/* no chunk is on its way between the driver and the pool */
	pthread_mutex_lock(&pool->grow);
	r = vs_real.cuMemGetInfo_v2(&unused, &total);
	pthread_mutex_lock(&pool->lock);
	live = vs_range_least(pool);
	held = pool->chunks.held;
	pthread_mutex_unlock(&pool->lock);
	pthread_mutex_unlock(&pool->grow);
	if (r != CUDA_SUCCESS)
		return 0;
	room = held > live ? held - live : 0;
	if (pool->dev.total > held && has_driver_pools())
		unused = pool->dev.total - held;
	if (unused > limit - held)
		unused = limit - held;
	return span <= room + unused + VS_MISCOUNT ? 0 : span - room;
}

bool vs_mark_wait_out(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;
	uint64_t epoch = 0;

	pthread_mutex_lock(&pool->lock);
	if (pool->held_up == vs_thread_tid(vs_thread_self()))
		epoch = pool->held_up_epoch;
	pthread_mutex_unlock(&pool->lock);
	if (!vs_fence_has_events(f) || vs_fence_is_complete(f, epoch) ||
	    vs_pool_ctx_count() != 1)
		return false;
	return vs_fence_wait_out(f, epoch);
}

/* The tag of what was freed last; 0 if nothing is pending or dead. */
static uint64_t newest_tag(struct vs_pool *pool)
{
	struct vs_range *r = TAILQ_LAST(&pool->pending, vs_range_list);
	uint64_t dead = vs_dead_newest(pool);

	return r && r->tag > dead ? r->tag : dead;
}

uint64_t vs_mark_newest(struct vs_pool *pool)
{
	/* policy ordered: what is idle may be in use up to there */
	uint64_t newest = atomic_load(&pool->fence.done), tags[3];

	pthread_mutex_lock(&pool->lock);
	tags[0] = newest_tag(pool);
	tags[1] = vs_slab_newest(pool);
	tags[2] = vs_guard_newest(pool);
	pthread_mutex_unlock(&pool->lock);
	for (int i = 0; i < 3; i++)
		newest = tags[i] > newest ? tags[i] : newest;
	return newest;
}

/* A marker covers all ranges that were freed. Lock. */
static void clear_unmarked(struct vs_pool *pool)
{
	pool->unmarked_bytes = 0;
	atomic_store_explicit(&pool->is_much_bare, false, memory_order_relaxed);
}

/* A marker covers all that is pending, or could not be recorded. */
static void marked(struct vs_pool *pool, bool is_covered)
{
	if (is_covered)
		clear_unmarked(pool);
	else if (vs_capture_count() > 0)
		vs_stat_add(&pool->stats, deferred, 1);
}

/* Nothing that was counted so far is bare any more. */
static bool is_clothed(struct vs_fence *f, uint64_t tag)
{
	return f->has_context_events ? vs_fence_is_covered(f, tag)
				     : vs_fence_is_complete(f, tag);
}

/* Whether it got a marker. */
static inline bool freed(struct vs_pool *pool, uint64_t bytes)
{
	struct vs_fence *f = &pool->fence;

	if (is_clothed(f, pool->bare_tag))
		pool->bare_bytes = pool->unmarked_bytes = 0;
	pool->bare_tag = atomic_load_explicit(&f->epoch, memory_order_relaxed);
	pool->bare_bytes += bytes;
	if (pool->bare_bytes <= pool->total / BARE_SHARE &&
	    !vs_mark_is_scarce(pool))
		return false;
	if (!vs_fence_mark(f))
		return false;
	clear_unmarked(pool);
	return true;
}

void vs_mark_freed_small(struct vs_pool *pool, uint64_t bytes)
{
	freed(pool, bytes);
}

/* Little memory is not worth a marker before it is needed. */
static bool is_much(const struct vs_pool *pool)
{
	uint64_t quantum = pool->need / QUANTA;

	return pool->unmarked_bytes > quantum && quantum > VS_SMALL_MAX;
}

void vs_mark_freed(struct vs_pool *pool, uint64_t bytes)
{
	/* first: what has a marker by now counts no more */
	if (freed(pool, bytes)) {
		/* the range's own: see vs_mark_wait_out() */
		pool->held_up = vs_thread_tid(vs_thread_self());
		pool->held_up_epoch = atomic_load_explicit(
			&pool->fence.covered, memory_order_relaxed);
		return;
	}
	if (pool->unmarked_bytes == 0)
		pool->unmarked_since = vs_vmm_ticks();
	pool->unmarked_bytes += bytes;
	/* one that is fast would have one for each; it may, to order by */
	if (is_much(pool) &&
	    (!pool->turnover.is_fast || vs_fence_may_order(&pool->fence)))
		atomic_store_explicit(&pool->is_much_bare, true,
				      memory_order_relaxed);
}

void vs_mark_all(struct vs_pool *pool)
{
	if (pool->unmarked_bytes > 0)
		marked(pool, vs_fence_cover(&pool->fence, newest_tag(pool)));
}

void vs_mark_pending(struct vs_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	vs_mark_all(pool);
	pthread_mutex_unlock(&pool->lock);
}

void vs_mark_settle(struct vs_pool *pool)
{
	uint64_t tag = newest_tag(pool);

	vs_fence_settle(&pool->fence, tag);
	if (pool->unmarked_bytes > 0)
		marked(pool, vs_fence_is_covered(&pool->fence, tag));
}

/*
 * Between markers, and looks at them, that are not yet needed: each costs as
 * much as some ten allocations, which a program that is fast (pool/turnover)
 * feels.
 */
static uint64_t pace(struct vs_pool *pool)
{
	uint64_t ticks = vs_fence_pace(&pool->fence);

	return pool->turnover.is_fast ? 2 * ticks : ticks;
}

bool vs_mark_spares_looks(const struct vs_pool *pool)
{
	return pool->orders_left > 0 && vs_fence_may_order(&pool->fence);
}

/*
 * To a program that works, whose own work empties the caches in between, a look
 * that finds a marker complete costs 2.5 us (H100, train_resnet). But where
 * memory is scarce, what is idle in time spares an out of memory.
 */
static inline bool is_look_due(struct vs_pool *pool, uint64_t now)
{
	uint64_t since = now - atomic_load_explicit(&pool->fence.looked,
						    memory_order_relaxed);
	uint64_t calm;

	if (since < VS_PACE_LEAST || since < pace(pool))
		return false;
	calm = vs_mark_spares_looks(pool) ? ORDER_PACE : CALM_PACE;
	return since >= calm || pool->turnover.is_fast ||
	       vs_mark_is_scarce(pool);
}

/* A program that is fast would have a marker for every free. */
static void mark_if_due(struct vs_pool *pool, uint64_t now)
{
	if (pool->turnover.is_fast) {
		if (now - pool->marked < pace(pool))
			return;
		pool->marked = now;
	}
	vs_mark_all(pool);
}

/* Memory packs better where more of it may be had. */
static __attribute__((noinline)) void order_much(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;

	if (!vs_fence_may_order(f) ||
	    pool->pending_bytes <= pool->need / QUANTA ||
	    vs_fence_is_done(f, newest_tag(pool)))
		return;
	if (vs_fence_order(f))
		pool->orders_left = VAIN_ORDERS;
	else if (pool->orders_left > 0 &&
		 atomic_load_explicit(&f->covered, memory_order_relaxed) >
			 atomic_load_explicit(&f->done, memory_order_relaxed))
		/* Note [One stream]: no marker there is is one to order by */
		pool->orders_left--;
}

void vs_mark_at_alloc(struct vs_pool *pool)
{
	uint64_t now = vs_vmm_ticks();

	if (is_much(pool))
		mark_if_due(pool, now);
	if (is_look_due(pool, now))
		vs_fence_glance_at(&pool->fence, now);
	if (pool->fence.is_ordered || pool->fence.may_order)
		order_much(pool);
}

/*
 * What may be freed and neither covered nor, without events, seen complete.
 * Beside a capture: as much as the program needs, or allocations, which must
 * not wait there, would take as much again and again.
 */
static uint64_t most_bare(struct vs_pool *pool)
{
	uint64_t share = pool->total / BARE_SHARE, most;

	if (vs_mark_is_scarce(pool))
		return 0;
	if (pool->fence.has_context_events) {
		most = pool->need + VS_FLOOR;
		return most < share ? most : share;
	}
	most = much_pending(pool);
	return most > UNSEEN_LEAST || pool->pending_limit ? most : UNSEEN_LEAST;
}

void vs_mark_wait_at_free(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;
	uint64_t bytes, most, tag;

	if (vs_fence_may_mark(f) ||
	    (f->has_context_events && vs_fence_counts_others(f)))
		return;
	/* what the last wait was for is done, and not to be waited for again */
	vs_reuse_bring_home(pool);
	pthread_mutex_lock(&pool->lock);
	bytes = pool->bare_bytes;
	/* what is covered may be far from complete, and more would follow */
	if (f->has_context_events && pool->pending_bytes > bytes)
		bytes = pool->pending_bytes;
	tag = pool->bare_tag;
	most = most_bare(pool);
	pthread_mutex_unlock(&pool->lock);
	if (bytes <= most)
		return;
	if (f->has_context_events || !vs_fence_wait_tag(f, tag, UINT64_MAX))
		vs_fence_barrier(f);
}

void vs_mark_at_free(struct vs_pool *pool)
{
	/* a program that is fast allocates soon */
	if (!pool->turnover.is_fast && is_much(pool) &&
	    vs_vmm_ticks() - pool->unmarked_since > LONG_UNMARKED)
		marked(pool, vs_fence_mark(&pool->fence));
}
