/* SPDX-License-Identifier: MIT */
#include "pool/trim.h"

#include <limits.h>
#include <stdatomic.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/thread.h"
#include "driver/vmm.h"
#include "pool/dead.h"
#include "pool/grow.h"
#include "pool/guard.h"
#include "pool/mark.h"
#include "pool/others.h"
#include "pool/pool.h"
#include "pool/range.h"
#include "pool/reuse.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"

/*
 * How long another allocating call may be held up for pending memory. It may
 * ask for more than there is, and nobody knows; but a second was too little for
 * one that came behind a kernel of one and a half, and would have been served.
 */
#define RELIEF_PATIENCE ((uint64_t)10000000000)
/* Looks at what is pending here, for another process, a ms and more apart. */
enum { GIVE_WAY_MS = 800 };
/* How long a question may wait for the answer to be of one moment. */
#define MOVE_PATIENCE ((uint64_t)100000000)

void vs_trim_collect(struct vs_pool *pool)
{
	vs_tcache_flush(pool);
	vs_fence_poll(&pool->fence);
	vs_reuse_bring_home(pool);
	vs_slab_sweep(pool);
}

_Atomic bool vs_trim_is_ending;

void vs_pool_ending(bool is)
{
	atomic_store(&vs_trim_is_ending, is);
}

struct vs_pool *vs_trim_pool(int i)
{
	return atomic_load(&vs_trim_is_ending) ? NULL : vs_pool_by_index(i);
}

/* Chunks released in a row: 4 ms of small ones (counting driver). */
enum { IN_A_ROW = 128 };

void vs_trim_let_grow(struct vs_pool *pool)
{
	pthread_mutex_unlock(&pool->grow);
	/* a thread that takes it again at once may go on for ever */
	vs_vmm_pause(UINT_MAX);
	pthread_mutex_lock(&pool->grow);
}

uint64_t vs_trim_dead(struct vs_pool *pool, const _Atomic bool *stop)
{
	uint64_t released = 0;

	while (vs_dead_retire_some(pool, &released, stop))
		vs_trim_let_grow(pool);
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
		if (vs_pool_is_over(stop))
			break;
		part = vs_grow_release(pool, 1, before);
		released += part;
		if (n % IN_A_ROW == 0)
			vs_trim_let_grow(pool);
	}
	return released;
}

uint64_t vs_trim_release(struct vs_pool *pool, uint64_t bytes, uint64_t before,
			 const _Atomic bool *stop)
{
	uint64_t released;

	if (vs_pool_is_over(stop))
		return 0;
	released = vs_guard_collect(pool, stop);
	pthread_mutex_lock(&pool->grow);
	released += vs_trim_dead(pool, stop);
	released += release_idle(pool, bytes, before, stop);
	pthread_mutex_unlock(&pool->grow);
	if (released > 0) {
		vs_stat_add(&pool->stats, trims, 1);
		vs_stat_add(&pool->stats, trimmed, released);
	}
	return released;
}

uint64_t vs_trim_idle(struct vs_pool *pool, const _Atomic bool *stop)
{
	return vs_trim_release(pool, UINT64_MAX, UINT64_MAX, stop);
}

static uint64_t trim(struct vs_pool *pool, const _Atomic bool *stop)
{
	vs_fence_record(&pool->fence);
	vs_trim_collect(pool);
	return vs_trim_idle(pool, stop);
}

uint64_t vs_trim(struct vs_pool *pool)
{
	return trim(pool, NULL);
}

static uint64_t trim_all(const _Atomic bool *stop)
{
	uint64_t released = 0;
	struct vs_pool *pool;

	for (int i = 0; !vs_pool_is_over(stop) && (pool = vs_pool_by_index(i));
	     i++)
		released += trim(pool, stop);
	return released;
}

uint64_t vs_pool_trim(void)
{
	return trim_all(&vs_trim_is_ending);
}

uint64_t vs_pool_trim_called(void)
{
	return trim_all(NULL);
}

/*
 * Waits for some of what was freed, by a marker if that can be had: in place of
 * a barrier one may have been recorded, as a capture has ended. False, too, if
 * patience is at an end.
 */
static bool wait_for_some(struct vs_fence *f, bool *is_at_end_out)
{
	uint64_t began = vs_vmm_clock();
	bool is_good = vs_fence_wait(f, RELIEF_PATIENCE) ||
		       vs_fence_barrier_for(
			       f, vs_fence_rest(began, RELIEF_PATIENCE)) ||
		       vs_fence_wait(f, vs_fence_rest(began, RELIEF_PATIENCE));

	*is_at_end_out = !is_good && vs_fence_rest(began, RELIEF_PATIENCE) == 0;
	return is_good;
}

/*
 * Trims; if that brings nothing, or all `is_due`, waits for what was freed
 * until now, marker by marker, and looks again. What is dead beside live ranges
 * would be idle beside them, which brings nothing. Work that ended since the
 * call was out of memory is as good as waited for: it may have given memory
 * back to others. What patience came to its end at is not waited for again by
 * the same call (`in_vain`: devices): another thread may allocate meanwhile,
 * and the call be made again for that.
 */
static uint64_t relieve_pool(struct vs_pool *pool, bool is_due,
			     uint64_t *in_vain, bool *has_waited_out)
{
	uint64_t bit = (uint64_t)1 << pool->dev.device;
	struct vs_fence *f = &pool->fence;
	uint64_t freed = atomic_load(&f->bare), tag, released;
	bool was_pending = !vs_fence_is_complete(f, freed), is_at_end = false;

	released = vs_trim(pool);
	tag = vs_mark_newest(pool);
	if (was_pending && vs_fence_is_complete(f, freed))
		*has_waited_out = true;
	while ((released == 0 || is_due) && !(*in_vain & bit) &&
	       !vs_fence_is_complete(f, tag) && wait_for_some(f, &is_at_end)) {
		*has_waited_out = true;
		vs_trim_collect(pool);
		released += vs_trim_idle(pool, NULL);
	}
	if (is_at_end)
		*in_vain |= bit;
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
 * So many times one call asks other processes, which may wait a second each
 * time. That is not what it is made again so often for. The last time those of
 * each device are asked.
 */
enum { MOST_ASKED = 4 };

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

/* Whether no other thread has ever allocated of a pool. */
static bool is_alone(struct vs_pool *pool, struct vs_thread *t)
{
	VS_EVERY_TCACHE (tc, pool) {
		struct vs_tcache *own = t->cache;

		while (own && own != tc)
			own = own->next;
		if (!own)
			return false;
	}
	return true;
}

/*
 * Whether another thread may have changed what is idle there since this one was
 * here last, and perhaps since its call was out of memory: where it finds
 * nothing another has released that, or has taken it for an allocation, and
 * what the program gave back to the driver before that is unused now.
 */
static bool is_news(struct vs_thread *t, uint64_t devices)
{
	struct vs_pool *pool;
	bool is = false;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++) {
		uint64_t n = vs_stat_get(&pool->stats, chunks_released);

		if (!(devices >> pool->dev.device & 1))
			continue;
		if (!is_alone(pool, t)) {
			pthread_mutex_lock(&pool->lock);
			n += pool->chunks.touches;
			pthread_mutex_unlock(&pool->lock);
		}
		is = is || t->seen_moves[i] != n;
		t->seen_moves[i] = n;
	}
	return is;
}

uint64_t vs_pool_relieve(uint64_t devices, enum vs_relief relief)
{
	bool is_due = relief != VS_RELIEF_IDLE;
	bool is_last = relief == VS_RELIEF_LAST;
	struct vs_thread *t = vs_thread_self();
	bool has_waited = false, has_news;
	uint64_t released = 0;
	struct vs_pool *pool;

	if (!t)
		return 0;
	if (relief == VS_RELIEF_IDLE) {
		t->waited_in_vain = 0;
		t->n_asked = 0;
	}
	for (int i = 0; (pool = vs_pool_by_index(i)); i++)
		if (devices >> pool->dev.device & 1)
			released += relieve_pool(
				pool, is_due, &t->waited_in_vain, &has_waited);
	has_news = is_news(t, devices);
	if (((released == 0 && !has_news) || is_last) &&
	    t->n_asked++ < MOST_ASKED)
		released += ask_devices(devices,
					is_last || t->n_asked == MOST_ASKED);
	return released > 0 ? released : has_waited || has_news;
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
	     !vs_fence_is_complete(f, tag) && !atomic_load(&vs_trim_is_ending);
	     ms++) {
		vs_cancel_free_sleep(VS_MS);
		if (vs_fence_poll(f)) {
			vs_trim_collect(pool);
			released = vs_trim_idle(pool, &vs_trim_is_ending);
		}
	}
	return released;
}

uint64_t vs_pool_give_way(int i)
{
	struct vs_pool *pool = vs_trim_pool(i);
	uint64_t released, tag;

	if (!pool)
		return 0;
	released = trim(pool, &vs_trim_is_ending);
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
	uint64_t asked, given, blocks, handed, misses;

	if (!pool)
		return;
	handed = vs_range_live_unlocked(pool, &asked, &given, &blocks);
	misses = vs_stat_get(&pool->stats, small_miss);
	vs_stat_set_shared(&pool->stats, live, asked);
	vs_stat_set_shared(&pool->stats, blocks, blocks);
	/* a miss may have come since its cache was looked at */
	atomic_store(&pool->stats.small_hit,
		     handed > misses ? handed - misses : 0);
}
