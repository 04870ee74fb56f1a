/* SPDX-License-Identifier: MIT
 *
 * decay: what goes back by age and need: the looks of the service thread, and
 * of a synchronize where DECAY_MS is 0. Each stops once the process ends.
 */
#include <stdatomic.h>

#include "base/clock.h"
#include "base/knob.h"
#include "driver/vmm.h"
#include "pool/ctx.h"
#include "pool/dead.h"
#include "pool/guard.h"
#include "pool/mark.h"
#include "pool/plan.h"
#include "pool/pool.h"
#include "pool/quota.h"
#include "pool/range.h"
#include "pool/reuse.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"
#include "pool/trim.h"

/* Note [Need] in pool/grow.h: a window is so many times DECAY_MS; ns. */
#define NEED_AGES 10
#define NEED_LEAST ((uint64_t)30000000000)
/* See forget_need(): by such a part; windows; looks in vain. */
enum { SHRINKS_BY = 4, SHRINKS_FOR = 4, VAIN_LOOKS = 4 };
/* See is_in_vain(): a part that may be missing. */
enum { VAIN_SHARE = 8 };
/* Of what is live, idle memory that may stay. */
#define STAY_SHARE 4
enum { QUIET_LOOKS = 4 };

/* Dead memory goes as soon as it may, whatever its age. */
static void retire(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;
	uint64_t tag, released;

	if (atomic_load(&vs_trim_is_ending))
		return;
	vs_guard_collect(pool, &vs_trim_is_ending);
	if (atomic_load(&vs_trim_is_ending))
		return;
	pthread_mutex_lock(&pool->lock);
	tag = vs_dead_newest(pool);
	pthread_mutex_unlock(&pool->lock);
	if (tag == 0)
		return;
	vs_fence_cover(f, tag);
	vs_fence_poll(f);
	pthread_mutex_lock(&pool->grow);
	released = vs_trim_dead(pool, &vs_trim_is_ending);
	pthread_mutex_unlock(&pool->grow);
	if (released > 0)
		vs_stat_add(&pool->stats, trimmed, released);
}

/* The last context took what it could along; the rest goes when it is idle. */
static bool is_left(struct vs_pool *pool)
{
	return atomic_load(&pool->is_left) && !vs_ctx_any(pool->dev.device);
}

/*
 * A process that is not under the shim may need what is idle here, and cannot
 * ask for it (vs_pool_give_way). So when the device is almost full, and others
 * have a good part of it, idle memory does not wait for its age. A program that
 * fills a device alone keeps it.
 */
static bool is_pressed(struct vs_pool *pool)
{
	uint64_t unused, held, total = pool->dev.total;
	struct vs_ctx *any[1];
	bool is_known;

	pthread_mutex_lock(&pool->lock);
	held = pool->chunks.held;
	pthread_mutex_unlock(&pool->lock);
	if (vs_ctx_list((uint64_t)1 << pool->dev.device, any, 1) == 0 ||
	    !vs_ctx_use(any[0]))
		return false;
	is_known = vs_vmm_unused(any[0]->handle, &unused) == CUDA_SUCCESS;
	vs_ctx_unuse(any[0]);
	return is_known && unused < total / 20 &&
	       unused + held < total - total / 8;
}

/*
 * What was freed is marked and looked at each time, so that its age counts from
 * soon after the free, whatever the program does next.
 */
static void look_at_pending(struct vs_pool *pool)
{
	vs_mark_pending(pool);
	vs_fence_poll(&pool->fence);
}

static bool is_waiting(struct vs_pool *pool)
{
	return !vs_fence_is_complete(&pool->fence, vs_mark_newest(pool));
}

bool vs_pool_is_waiting(int i)
{
	struct vs_pool *pool = vs_pool_by_index(i);

	/* or markers will be tried again (vs_fence_mend) */
	return pool &&
	       (is_waiting(pool) || atomic_load(&pool->fence.is_broken));
}

/* A window of Note [Need] in pool/grow.h is over. Lock. */
static void end_window(struct vs_pool *pool, uint64_t now, uint64_t live,
		       uint64_t lasts)
{
	if (pool->most_now < pool->need - pool->need / SHRINKS_BY) {
		pool->shrinks_until = now + SHRINKS_FOR * lasts;
		pool->shrunk = 0;
		pool->n_vain_looks = 0;
	}
	pool->need_since = now;
	pool->need = pool->most_before = pool->most_now;
	pool->most_now = live;
	pool->fall_before = pool->fall_now;
	pool->fall_now = 0;
}

/*
 * What went at each of the last looks was made anew by the next: the program
 * goes round it, and what is beyond need is not idle, but lies beside live
 * blocks in their chunks. A look at which nothing went says nothing. Lock.
 */
static bool is_in_vain(struct vs_pool *pool)
{
	uint64_t held = pool->chunks.held;

	if (pool->shrunk > 0) {
		bool is_back =
			held + pool->shrunk / VAIN_SHARE >= pool->shrunk_from;

		pool->n_vain_looks = is_back ? pool->n_vain_looks + 1 : 0;
	}
	pool->shrunk = 0;
	pool->shrunk_from = held;
	return pool->n_vain_looks >= VAIN_LOOKS;
}

/*
 * Keeps that need. Returns bytes held beyond it that go whatever their age, as
 * a program may go round all that is idle: at the end of a window, and where
 * the need fell by much at each look, until nothing is beyond. One that lays
 * its blocks over large chunks of an old peak leaves none of them idle for
 * long, and behind a late GPU nearly all is pending: looked at once a window,
 * it held a third too much. But not for ever: for some programs that is what
 * they go round, and they would wait, or make it anew, each time; those that
 * are seen to are left alone at once. Lock.
 */
static uint64_t forget_need(struct vs_pool *pool, uint64_t now, uint64_t live,
			    uint64_t age)
{
	uint64_t lasts = NEED_AGES * age, beyond;

	if (lasts < NEED_LEAST)
		lasts = NEED_LEAST;
	if (live > pool->most_now)
		pool->most_now = live;
	/* another thread may have looked at the clock later, and come first */
	if (now >= pool->need_since + lasts)
		end_window(pool, now, live, lasts);
	else if (now >= pool->shrinks_until)
		return 0;
	beyond = vs_plan_surplus(pool);
	if (is_in_vain(pool) || beyond == 0)
		pool->shrinks_until = 0;
	return beyond;
}

/*
 * Idle bytes that may stay; if the user did not say, no more than a part of
 * what is live: 64 MiB each, of many small processes, fill a device by what
 * nobody uses. To make it again, an age later, costs what the driver's own call
 * costs.
 */
static uint64_t may_stay(const struct vs_pool *pool, uint64_t live,
			 uint64_t age)
{
	uint64_t most = pool->release_threshold, part = live / STAY_SHARE;

	return vs_knobs.release_threshold.is_given || age == 0 || part > most
		       ? most
		       : part;
}

/*
 * What small objects leave is in nobody's hands, nor is it idle, before it is
 * swept. So what was freed an age ago goes home, and nobody has used since,
 * also while threads go on: then they need the lock. Threads that rest do not
 * keep theirs meanwhile; nor does any thread where more than is idle is held
 * beyond need: what they fetched when the program needed more stays in use, so
 * it never was idle, and 20 MiB in small blocks held 1.5 GiB after a peak.
 */
static void sweep_old(struct vs_pool *pool, uint64_t now, uint64_t age,
		      uint64_t stays, bool is_beyond)
{
	struct vs_fence *f = &pool->fence;
	uint64_t tag, next, bytes = 0;
	bool is_due;

	pthread_mutex_lock(&pool->lock);
	is_due = (is_beyond || now >= pool->swept + age) &&
		 vs_range_slack(pool) > stays;
	tag = pool->swept_tag;
	next = vs_fence_tag(f);
	if (is_due) {
		/* what leaves the caches is looked for at the next tick */
		pool->swept = is_beyond ? 0 : now;
		pool->swept_tag = next;
	}
	pthread_mutex_unlock(&pool->lock);
	if (!is_due)
		return;
	vs_tcache_flush_unused(pool);
	if (is_beyond)
		vs_tcache_flush(pool);
	vs_fence_cover(f, next);
	vs_fence_poll(f);
	pthread_mutex_lock(&pool->lock);
	while (vs_slab_sweep_some(pool, tag, &bytes) &&
	       !atomic_load(&vs_trim_is_ending))
		vs_pool_let_in(pool);
	pthread_mutex_unlock(&pool->lock);
}

/*
 * Nothing was called for an age. Looks that find work that goes on do not
 * count: it will end unseen.
 */
static void look_when_quiet(struct vs_pool *pool)
{
	vs_fence_record(&pool->fence);
	vs_trim_collect(pool);
	if (is_waiting(pool))
		return;
	pthread_mutex_lock(&pool->lock);
	pool->n_quiet_looks++;
	pthread_mutex_unlock(&pool->lock);
}

/*
 * Releases so much: what is held beyond need whatever its age, and else what
 * was idle before a time.
 */
static void release_spare(struct vs_pool *pool, uint64_t spare,
			  uint64_t surplus, uint64_t before)
{
	uint64_t released = 0;

	if (surplus > spare)
		surplus = spare;
	if (surplus > 0) {
		released = vs_trim_release(pool, surplus, UINT64_MAX,
					   &vs_trim_is_ending);
		pthread_mutex_lock(&pool->lock);
		pool->shrunk = released;
		pthread_mutex_unlock(&pool->lock);
	}
	if (spare > released)
		vs_trim_release(pool, spare - released, before,
				&vs_trim_is_ending);
}

/*
 * Decay of one pool. Thread caches are emptied only once nothing was allocated
 * for the whole time: before, they are in use.
 */
static void decay(struct vs_pool *pool, uint64_t now, uint64_t age)
{
	uint64_t allocs, idle, asked, given, blocks, surplus, stays;
	bool is_quiet, is_looked_at, is_beyond;

	vs_fence_mend(&pool->fence);
	look_at_pending(pool);
	pthread_mutex_lock(&pool->lock);
	pool->now = now;
	vs_quota_relax(pool, now);
	vs_toll_relax(pool, now);
	vs_range_live(pool, &asked, &given, &blocks);
	surplus = forget_need(pool, now, asked, age);
	is_beyond = surplus > pool->chunks.idle_bytes;
	stays = may_stay(pool, given, age);
	allocs = vs_range_allocs(pool);
	/* allocations and frees */
	if (2 * allocs - blocks != pool->seen_calls) {
		pool->seen_calls = 2 * allocs - blocks;
		pool->quiet_since = now;
		pool->n_quiet_looks = 0;
	}
	is_quiet = now - pool->quiet_since >= age;
	/* a few looks: the first marks, a later one finds it complete */
	is_looked_at = pool->n_quiet_looks >= QUIET_LOOKS;
	pthread_mutex_unlock(&pool->lock);
	vs_reuse_bring_home(pool);
	/* that may have taken longer than the end of the process waits */
	if (atomic_load(&vs_trim_is_ending))
		return;
	if (!is_quiet)
		sweep_old(pool, now, age, stays, is_beyond);
	else if (!is_looked_at)
		look_when_quiet(pool);
	retire(pool);
	if (atomic_load(&vs_trim_is_ending))
		return;
	pthread_mutex_lock(&pool->lock);
	idle = pool->chunks.idle_bytes;
	pthread_mutex_unlock(&pool->lock);
	if (idle > 0 && (is_left(pool) || (age > 0 && is_pressed(pool))))
		vs_trim_idle(pool, &vs_trim_is_ending);
	else if (idle > stays)
		release_spare(pool, idle - stays, surplus,
			      now > age ? now - age + (age == 0) : 0);
}

void vs_pool_tick(void)
{
	uint64_t now = vs_vmm_clock();
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_trim_pool(i)); i++)
		decay(pool, now, vs_knobs.decay_ms * VS_MS);
}

void vs_pool_synchronizing(void)
{
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++) {
		if (vs_fence_is_bare(&pool->fence))
			vs_mark_bare(pool);
	}
}

void vs_pool_synchronized(void)
{
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++) {
		vs_fence_look_soon(&pool->fence);
		if (vs_knobs.decay_ms == 0 &&
		    vs_stat_get(&pool->stats, idle) +
				    vs_stat_get(&pool->stats, pending) >
			    pool->release_threshold)
			decay(pool, vs_vmm_clock(), 0);
	}
}
