/* SPDX-License-Identifier: MIT */
#include "pool/trim.h"

#include <limits.h>
#include <stdatomic.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/knob.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/dead.h"
#include "pool/grow.h"
#include "pool/mark.h"
#include "pool/others.h"
#include "pool/plan.h"
#include "pool/pool.h"
#include "pool/range.h"
#include "pool/reuse.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"

/* Note [Need] in pool/grow.h: a window is so many times DECAY_MS; ns. */
#define NEED_AGES 10
#define NEED_LEAST ((uint64_t)30000000000)
/* Of what is live, idle memory that may stay. */
#define STAY_SHARE 4
/*
 * How long another allocating call may be held up for pending memory. It may
 * ask for more than there is, and nobody knows; but a second was too little for
 * one that came behind a kernel of one and a half, and would have been served.
 */
#define RELIEF_PATIENCE ((uint64_t)10000000000)
enum { QUIET_LOOKS = 4 };
/* Some 100 views a tick, with others let in between. */
enum { THIN_TIMES = 4 };
/* Looks at what is pending here, for another process, a ms and more apart. */
enum { GIVE_WAY_MS = 800 };
/* How long a question may wait for the answer to be of one moment. */
#define MOVE_PATIENCE ((uint64_t)100000000)

/* What became complete goes home, so that whole chunks are idle. */
static void collect(struct vs_pool *pool)
{
	vs_tcache_flush(pool, NULL);
	vs_fence_poll(&pool->fence);
	vs_reuse_bring_home(pool);
	vs_slab_sweep(pool);
}

static _Atomic bool is_ending;

void vs_pool_ending(bool is)
{
	atomic_store(&is_ending, is);
}

/*
 * What stops a round of the service thread; NULL for what the program's threads
 * do, whose exit handlers may need memory while such a round goes on.
 */
static bool is_over(const _Atomic bool *stop)
{
	return stop && atomic_load(stop);
}

/* None once that is so: what came before may have outlasted the end's wait. */
static struct vs_pool *pool_before_end(int i)
{
	return atomic_load(&is_ending) ? NULL : vs_pool_by_index(i);
}

/* Chunks released in a row: 4 ms of small ones (counting driver). */
enum { IN_A_ROW = 128 };

/* Whoever waits for the grow lock has it now. */
static void let_others_grow(struct vs_pool *pool)
{
	pthread_mutex_unlock(&pool->grow);
	/* a thread that takes it again at once may go on for ever */
	vs_vmm_pause(UINT_MAX);
	pthread_mutex_lock(&pool->grow);
}

/* Chunks that only dead memory is left of go. Grow, but not all the time. */
static uint64_t retire_all(struct vs_pool *pool, const _Atomic bool *stop)
{
	uint64_t released = 0;

	while (vs_dead_retire_some(pool, &released, stop))
		let_others_grow(pool);
	return released;
}

/*
 * Chunk by chunk: 100 GiB take 50 ms, or more than a second in chunks of a
 * granule, and the process may end. What others leave meanwhile is not waited
 * for. Grow, but not all the time.
 */
static uint64_t release_idle(struct vs_pool *pool, uint64_t bytes,
			     uint64_t before, const _Atomic bool *stop)
{
	uint64_t released = 0, part = 1, idle;

	pthread_mutex_lock(&pool->lock);
	idle = pool->chunks.idle_bytes;
	pthread_mutex_unlock(&pool->lock);
	if (bytes > idle)
		bytes = idle;
	if (bytes > 0)
		vs_chunks_refresh_slowly(pool);
	for (unsigned n = 1; released < bytes && part > 0; n++) {
		if (is_over(stop))
			break;
		part = vs_grow_release(pool, 1, before);
		released += part;
		if (n % IN_A_ROW == 0)
			let_others_grow(pool);
	}
	return released;
}

static void thin_views(struct vs_pool *pool)
{
	pthread_mutex_lock(&pool->grow);
	for (int i = 0; i < THIN_TIMES && vs_grow_thin(pool, &is_ending); i++)
		let_others_grow(pool);
	pthread_mutex_unlock(&pool->grow);
}

static uint64_t release(struct vs_pool *pool, uint64_t bytes, uint64_t before,
			const _Atomic bool *stop)
{
	uint64_t released;

	if (is_over(stop))
		return 0;
	released = vs_guard_collect(pool, stop);
	pthread_mutex_lock(&pool->grow);
	released += retire_all(pool, stop);
	released += release_idle(pool, bytes, before, stop);
	pthread_mutex_unlock(&pool->grow);
	if (released > 0) {
		vs_stat_add(&pool->stats, trims, 1);
		vs_stat_add(&pool->stats, trimmed, released);
	}
	return released;
}

static uint64_t release_all(struct vs_pool *pool, const _Atomic bool *stop)
{
	return release(pool, UINT64_MAX, UINT64_MAX, stop);
}

static uint64_t trim(struct vs_pool *pool, const _Atomic bool *stop)
{
	vs_fence_record(&pool->fence);
	collect(pool);
	return release_all(pool, stop);
}

uint64_t vs_trim(struct vs_pool *pool)
{
	return trim(pool, NULL);
}

uint64_t vs_pool_trim(void)
{
	uint64_t released = 0;
	struct vs_pool *pool;

	for (int i = 0; (pool = pool_before_end(i)); i++)
		released += trim(pool, &is_ending);
	return released;
}

/*
 * Waits for some of what was freed, by a marker if that can be had: in place of
 * a barrier one may have been recorded, as a capture has ended.
 */
static bool wait_for_some(struct vs_fence *f)
{
	uint64_t began = vs_vmm_clock();

	return vs_fence_wait(f, RELIEF_PATIENCE) ||
	       vs_fence_barrier_for(f, vs_fence_rest(began, RELIEF_PATIENCE)) ||
	       vs_fence_wait(f, vs_fence_rest(began, RELIEF_PATIENCE));
}

/*
 * Trims; if that brings nothing, or all `is_due`, waits for what was freed
 * until now, marker by marker, and looks again. What is dead beside live ranges
 * would be idle beside them, which brings nothing. Work that ended since the
 * call was out of memory is as good as waited for: it may have given memory
 * back to others.
 */
static uint64_t relieve_pool(struct vs_pool *pool, bool is_due,
			     bool *has_waited_out)
{
	struct vs_fence *f = &pool->fence;
	uint64_t freed = atomic_load(&f->bare), tag, released;
	bool was_pending = !vs_fence_is_complete(f, freed);

	released = vs_trim(pool);
	tag = vs_mark_newest(pool);
	if (was_pending && vs_fence_is_complete(f, freed))
		*has_waited_out = true;
	while ((released == 0 || is_due) && !vs_fence_is_complete(f, tag) &&
	       wait_for_some(f)) {
		*has_waited_out = true;
		collect(pool);
		released += release_all(pool, NULL);
	}
	if (released > 0)
		vs_stat_add(&pool->stats, retries, 1);
	return released;
}

struct vs_pool *vs_pool_current(void)
{
	return vs_pool_of(vs_pool_ctx_device(vs_vmm_current()));
}

void vs_pool_look(uint64_t devices)
{
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++)
		if (devices >> pool->dev.device & 1)
			vs_fence_poll(&pool->fence);
}

/*
 * Of several devices that of the current context is the likely one. Then each
 * is asked, whatever the ones before gave: the call is not made again so often
 * as there are devices.
 */
static uint64_t ask_devices(uint64_t devices, bool is_last)
{
	bool is_one = (devices & (devices - 1)) == 0;
	CUdevice first = is_one ? __builtin_ctzll(devices)
				: vs_pool_ctx_device(vs_vmm_current());
	uint64_t given = vs_others_ask_of(first);

	if (is_one || (given > 1 && !is_last))
		return given;
	for (CUdevice d = 0; d < VS_MAX_DEVICES; d++)
		if (d != first && (vs_pool_of(d) || vs_ctx_any(d)))
			given += vs_others_ask_of(d);
	return given;
}

uint64_t vs_pool_relieve(uint64_t devices, enum vs_relief relief)
{
	bool is_due = relief != VS_RELIEF_IDLE;
	bool is_last = relief == VS_RELIEF_LAST;
	bool has_waited = false;
	uint64_t released = 0;
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++)
		if (devices >> pool->dev.device & 1)
			released += relieve_pool(pool, is_due, &has_waited);
	if (released == 0 || is_last)
		released += ask_devices(devices, is_last);
	return released > 0 ? released : has_waited;
}

/*
 * Waits for what was freed until `tag`, until some of it came back. The service
 * thread sleeps between its looks: the process may end, and must not wait.
 */
static uint64_t wait_to_release(struct vs_pool *pool, uint64_t tag)
{
	struct vs_fence *f = &pool->fence;
	uint64_t released = 0;

	for (int ms = 0;
	     ms < GIVE_WAY_MS && released == 0 &&
	     !vs_fence_is_complete(f, tag) && !atomic_load(&is_ending);
	     ms++) {
		vs_cancel_free_sleep(VS_MS);
		if (vs_fence_poll(f)) {
			collect(pool);
			released = release_all(pool, &is_ending);
		}
	}
	return released;
}

uint64_t vs_pool_give_way(int i)
{
	struct vs_pool *pool = pool_before_end(i);
	uint64_t released, tag;

	if (!pool)
		return 0;
	released = trim(pool, &is_ending);
	/* once for the same: who tries how much there is asks often */
	if (released == 0 &&
	    vs_fence_is_complete(&pool->fence, pool->give_way_vain)) {
		tag = vs_mark_newest(pool);
		released = wait_to_release(pool, tag);
		if (released == 0)
			pool->give_way_vain = tag;
	}
	vs_stat_add(&pool->stats, given, released);
	return released;
}

/* Dead memory goes as soon as it may, whatever its age. */
static void retire(struct vs_pool *pool)
{
	struct vs_fence *f = &pool->fence;
	uint64_t tag, released;

	if (atomic_load(&is_ending))
		return;
	vs_guard_collect(pool, &is_ending);
	if (atomic_load(&is_ending))
		return;
	pthread_mutex_lock(&pool->lock);
	tag = vs_dead_newest(pool);
	pthread_mutex_unlock(&pool->lock);
	if (tag == 0)
		return;
	vs_fence_cover(f, tag);
	vs_fence_poll(f);
	pthread_mutex_lock(&pool->grow);
	released = retire_all(pool, &is_ending);
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

/*
 * Keeps Note [Need]. Returns bytes held beyond it, at the end of a window: a
 * program may go round all that is idle before any of that is old. Lock.
 */
static uint64_t forget_need(struct vs_pool *pool, uint64_t now, uint64_t live,
			    uint64_t age)
{
	uint64_t lasts = NEED_AGES * age;

	if (lasts < NEED_LEAST)
		lasts = NEED_LEAST;
	if (live > pool->most_now)
		pool->most_now = live;
	/* another thread may have looked at the clock later, and come first */
	if (now < pool->need_since + lasts)
		return 0;
	pool->need_since = now;
	pool->need = pool->most_before = pool->most_now;
	pool->most_now = live;
	return vs_plan_surplus(pool);
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
 * keep theirs meanwhile.
 */
static void sweep_old(struct vs_pool *pool, uint64_t now, uint64_t age,
		      uint64_t stays)
{
	struct vs_fence *f = &pool->fence;
	uint64_t tag, next, bytes = 0;
	bool is_due;

	pthread_mutex_lock(&pool->lock);
	is_due = now >= pool->swept + age && vs_range_slack(pool) > stays;
	tag = pool->swept_tag;
	next = vs_fence_tag(f);
	if (is_due) {
		vs_tcache_flush_unused(pool);
		pool->swept = now;
		pool->swept_tag = next;
	}
	pthread_mutex_unlock(&pool->lock);
	if (!is_due)
		return;
	vs_fence_cover(f, next);
	vs_fence_poll(f);
	pthread_mutex_lock(&pool->lock);
	while (vs_slab_sweep_some(pool, tag, &bytes) &&
	       !atomic_load(&is_ending))
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
	collect(pool);
	if (is_waiting(pool))
		return;
	pthread_mutex_lock(&pool->lock);
	pool->n_quiet_looks++;
	pthread_mutex_unlock(&pool->lock);
}

/*
 * Decay of one pool. Thread caches are emptied only once nothing was allocated
 * for the whole time: before, they are in use.
 */
static void decay(struct vs_pool *pool, uint64_t now, uint64_t age)
{
	uint64_t allocs, idle, asked, given, blocks, surplus, spare, stays;
	bool is_quiet, is_looked_at;

	vs_fence_mend(&pool->fence);
	look_at_pending(pool);
	pthread_mutex_lock(&pool->lock);
	pool->now = now;
	vs_quota_relax(pool, now);
	vs_range_live(pool, &asked, &given, &blocks);
	surplus = forget_need(pool, now, asked, age);
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
	if (atomic_load(&is_ending))
		return;
	if (!is_quiet)
		sweep_old(pool, now, age, stays);
	else if (!is_looked_at)
		look_when_quiet(pool);
	retire(pool);
	thin_views(pool);
	if (atomic_load(&is_ending))
		return;
	pthread_mutex_lock(&pool->lock);
	idle = pool->chunks.idle_bytes;
	pthread_mutex_unlock(&pool->lock);
	spare = idle > stays ? idle - stays : 0;
	if (idle > 0 && (is_left(pool) || (age > 0 && is_pressed(pool))))
		release_all(pool, &is_ending);
	else if (surplus > 0)
		release(pool, surplus < spare ? surplus : spare, UINT64_MAX,
			&is_ending);
	else if (spare > 0)
		release(pool, spare, now > age ? now - age + (age == 0) : 0,
			&is_ending);
}

void vs_pool_tick(void)
{
	uint64_t now = vs_vmm_clock();
	struct vs_pool *pool;

	for (int i = 0; (pool = pool_before_end(i)); i++)
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

void vs_pool_sync_begins(struct vs_pool_sync *sync)
{
	struct vs_pool *pool;

	sync->pool = NULL;
	for (int i = 0; !sync->pool && (pool = vs_pool_by_index(i)); i++)
		if (vs_fence_is_waited_for(&pool->fence, &sync->epoch))
			sync->pool = pool;
}

void vs_pool_sync_ended(const struct vs_pool_sync *sync)
{
	if (sync->pool)
		vs_fence_waited(&sync->pool->fence, sync->epoch);
}

/*
 * Not by holding the grow lock over the question: a program that asks in a loop
 * would keep it from those who grow.
 */
uint64_t vs_pool_moves(struct vs_pool *pool)
{
	uint64_t began = vs_vmm_clock();

	for (unsigned round = 0; pthread_mutex_trylock(&pool->grow) != 0;
	     round++) {
		if (vs_vmm_clock() - began > MOVE_PATIENCE)
			return 0;
		vs_vmm_pause(round);
	}
	pthread_mutex_unlock(&pool->grow);
	return 1 + vs_stat_get(&pool->stats, chunks_created) +
	       vs_stat_get(&pool->stats, chunks_released);
}

/* Memory of the pool that is not the program's at this moment. */
uint64_t vs_pool_reclaimable(struct vs_pool *pool, uint64_t *limit_out,
			     uint64_t *held_out)
{
	uint64_t asked, given, blocks, held;

	pthread_mutex_lock(&pool->lock);
	vs_range_live(pool, &asked, &given, &blocks);
	held = pool->chunks.held;
	pthread_mutex_unlock(&pool->lock);
	*limit_out = pool->memory_limit != UINT64_MAX ? pool->memory_limit : 0;
	*held_out = held;
	return held > given ? held - given : 0;
}

void vs_pool_refresh(int i)
{
	struct vs_pool *pool = vs_pool_by_index(i);
	uint64_t asked, given, blocks, hits;

	if (!pool)
		return;
	hits = vs_range_live_unlocked(pool, &asked, &given, &blocks);
	vs_stat_set(&pool->stats, live, asked);
	vs_stat_set(&pool->stats, blocks, blocks);
	atomic_store(&pool->stats.small_hit,
		     hits - vs_stat_get(&pool->stats, small_miss));
}
