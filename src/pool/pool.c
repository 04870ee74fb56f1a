/* SPDX-License-Identifier: MIT */
#include "pool/pool.h"

#include <pthread.h>
#include <string.h>

#include "base/board.h"
#include "base/hot.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/meta.h"
#include "base/modules.h"
#include "base/thread.h"
#include "driver/real.h"
#include "pool/arena.h"
#include "pool/budget.h"
#include "pool/capture.h"
#include "pool/fill.h"
#include "pool/grow.h"
#include "pool/ladder.h"
#include "pool/mark.h"
#include "pool/newcomer.h"
#include "pool/range.h"
#include "pool/repack.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"
#include "pool/trouble.h"

/* The part of what there is at most that a chunk may be, by CHUNK_SIZE. */
#define CHUNK_SHARE 8

/*
 * The pools (base/hot) are in the order of their making: their number grows,
 * entries are constant.
 */
_Static_assert(VS_MOST_POOLS == VS_MAX_DEVICES, "a pool each");
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static bool is_refused[VS_MAX_DEVICES]; /* no VMM there; making */
/* Devices that reach the memory of each device; making, read anywhere. */
static _Atomic uint64_t peers_of[VS_MAX_DEVICES];

static __attribute__((noinline)) CUresult alloc_slow(struct vs_thread *t,
						     CUcontext current,
						     size_t size,
						     CUdeviceptr *out);
static __attribute__((noinline)) CUresult free_slow(struct vs_thread *t,
						    CUcontext current,
						    struct vs_pool *pool,
						    CUdeviceptr p);

/*
 * Hot: a hit for a small object is one look at the current context, one
 * uncontended spinlock, one pop.
 */
CUresult vs_pool_alloc(size_t size, CUdeviceptr *out)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_tcache *tc;
	CUcontext current;
	CUdeviceptr p;

	if (__builtin_expect(!t, 0) ||
	    vs_real.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current)
		return VS_PASS;
	tc = t->cache;
	if (tc && tc->handle == current && size - 1 < tc->small_max &&
	    !atomic_load_explicit(&tc->ctx->is_dead, memory_order_relaxed)) {
		p = vs_tcache_take(tc, size);
		if (__builtin_expect(p != 0, 1)) {
			*out = p;
			return CUDA_SUCCESS;
		}
	}
	return alloc_slow(t, current, size, out);
}

/* Hot: a free under the context that this thread last allocated under. */
static inline CUresult give_back(struct vs_thread *t, struct vs_pool *pool,
				 CUdeviceptr p)
{
	struct vs_slab *slab;
	struct vs_tcache *tc;
	CUcontext current;
	CUresult r;

	r = vs_real.cuCtxGetCurrent(&current);
	if (__builtin_expect(!t || r != CUDA_SUCCESS || !current, 0))
		return r != CUDA_SUCCESS ? r : VS_PASS;
	tc = t->cache;
	r = VS_PASS;
	if (tc && tc->handle == current &&
	    !atomic_load_explicit(&pool->is_wary, memory_order_relaxed)) {
		if (p >= pool->slabs_end)
			r = vs_range_free(pool, tc->ctx, p);
		else if ((slab = vs_slab_at(pool, p)))
			r = vs_tcache_put(tc, slab, p);
	}
	if (__builtin_expect(r == CUDA_SUCCESS, 1))
		return CUDA_SUCCESS;
	return free_slow(t, current, pool, p);
}

/* See Note [Who frees] in pool/fence.h. */
static __attribute__((noinline)) CUresult
give_back_watched(struct vs_thread *t, struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_fence *f = &pool->fence;
	CUresult r;

	if (!vs_stream_is_fed_by(t))
		return give_back(t, pool, p);
	vs_fence_note_waited(f);
	r = give_back(t, pool, p);
	if (r == CUDA_SUCCESS)
		vs_fence_tighten(f);
	else
		vs_fence_loosen(f);
	return r;
}

CUresult vs_pool_free(CUdeviceptr p)
{
	struct vs_pool *pool = vs_pool_at(p);
	struct vs_thread *t;

	if (!pool)
		return VS_PASS;
	t = vs_thread_self();
	if (__builtin_expect(vs_fence_is_watched(&pool->fence), 0))
		return give_back_watched(t, pool, p);
	return give_back(t, pool, p);
}

/* Hot: before each launch, copy and set. */
void vs_pool_before_work(void)
{
	int n = atomic_load_explicit(&vs_hot.n_pools, memory_order_acquire);

	for (int i = 0; i < n; i++) {
		if (__builtin_expect(vs_fence_is_bare(&vs_hot.pools[i]->fence),
				     0))
			vs_mark_before_work(vs_hot.pools[i]);
	}
}

struct vs_pool *vs_pool_at(CUdeviceptr p)
{
	int n = atomic_load_explicit(&vs_hot.n_pools, memory_order_acquire);

	for (int i = 0; i < n; i++) {
		if (p >= vs_hot.pools[i]->base && p < vs_hot.pools[i]->end)
			return vs_hot.pools[i];
	}
	return NULL;
}

struct vs_pool *vs_pool_of(CUdevice device)
{
	int n = atomic_load_explicit(&vs_hot.n_pools, memory_order_acquire);

	for (int i = 0; i < n; i++) {
		if (vs_hot.pools[i]->dev.device == device)
			return vs_hot.pools[i];
	}
	return NULL;
}

static void read_knobs(struct vs_pool *pool)
{
	uint64_t total = pool->dev.total;

	pool->memory_limit = vs_budget_limit(total);
	pool->total = total;
	pool->most = pool->memory_limit < total ? pool->memory_limit : total;
	pool->pending_limit = vs_size_bytes(vs_knobs.pending_limit, total);
	pool->release_threshold =
		vs_size_bytes(vs_knobs.release_threshold, total);
	pool->chunk_size = vs_size_bytes(vs_knobs.chunk_size, total);
	/* or that of one heap would leave no room for those of the others */
	if (pool->chunk_size > pool->most / CHUNK_SHARE)
		pool->chunk_size = pool->most / CHUNK_SHARE;
	pool->chunk_size = vs_granules_up(pool->chunk_size);
	pool->is_contiguous = vs_knobs.contiguous;
	pool->is_sync = vs_knobs.mode == VS_MODE_SYNC;
	pool->is_fussy = pool->is_sync || vs_fill_is_on() || vs_knobs.guard;
	atomic_store(&pool->is_wary, pool->is_fussy);
}

/* The policy that knob REUSE names, or leaves to the pool. */
static enum vs_reuse reuse_for(const struct vs_pool *pool)
{
	enum vs_reuse reuse = vs_knobs.reuse;

	/* a program that is to fail early, or says that it has a NIC */
	if (reuse == VS_REUSE_AUTO)
		reuse = pool->is_fussy || pool->is_contiguous ||
					!vs_modules_are_own()
				? VS_REUSE_COMPLETE
				: VS_REUSE_STREAM;
	/* to set what is handed out the host waits in a stream of its own */
	if (reuse == VS_REUSE_STREAM && vs_fill_is_on())
		reuse = VS_REUSE_COMPLETE;
	return reuse;
}

/* No pool for a device; `pool`: what there is of one, or NULL. */
static struct vs_pool *without(struct vs_pool *pool, CUdevice device,
			       const char *why)
{
	vs_info("%s for device %d: its allocations stay the driver's", why,
		device);
	vs_meta_free(pool, sizeof(*pool));
	return NULL;
}

static void thread_ends(struct vs_thread *t, int tid)
{
	vs_capture_thread_ends(tid);
	vs_tcache_exit(t);
}

/* Lock `making` held. */
static struct vs_pool *make_pool(CUdevice device)
{
	struct vs_pool *pool = vs_meta_alloc(sizeof(*pool));
	int n = atomic_load(&vs_hot.n_pools);

	if (!pool)
		return without(pool, device, "no host memory");
	if (!vs_vmm_probe(device, &pool->dev)) { /* which has said why */
		vs_meta_free(pool, sizeof(*pool));
		return NULL;
	}
	if (pool->dev.granularity > VS_GRANULE)
		return without(pool, device, "no chunks of 2 MiB");
	if (!vs_arena_reserve(pool))
		return without(pool, device, "no address space");
	pthread_mutex_init(&pool->grow, NULL);
	pool->lock = (pthread_mutex_t)VS_SPINNING_MUTEX;
	TAILQ_INIT(&pool->pending);
	TAILQ_INIT(&pool->dead);
	TAILQ_INIT(&pool->dead_slabs);
	TAILQ_INIT(&pool->noted);
	TAILQ_INIT(&pool->spent);
	atomic_store(&pool->peers, atomic_load(&peers_of[device]));
	atomic_store(&pool->reach,
		     atomic_load(&pool->peers) | (uint64_t)1 << device);
	atomic_store(&pool->welcomed, atomic_load(&pool->reach));
	read_knobs(pool);
	atomic_store(&pool->counting, (uint64_t)1 << device);
	vs_fence_init(&pool->fence, &pool->stats, &pool->reach, &pool->counting,
		      pool->dev.has_context_events, reuse_for(pool));
	atomic_store(&pool->fence.is_curt, pool->is_sync);
	atomic_store(&pool->fence.is_barred, vs_pool_ctx_count() > 1);
	pool->now = pool->need_since = vs_vmm_clock();
	pool->index = n;
	if (!vs_arena_lay_out(pool)) {
		vs_vmm_unreserve(pool->base, pool->end - pool->base);
		return without(pool, device, "no host memory");
	}
	vs_thread_on_exit = thread_ends;
	vs_hot.pools[n] = pool;
	atomic_store_explicit(&vs_hot.n_pools, n + 1, memory_order_release);
	/* the service thread shows it to others: else at its next look */
	vs_board_ring();
	vs_debug("pool for device %d: arena of %zu GiB%s", device,
		 (size_t)((pool->end - pool->base) >> 30),
		 pool->fence.may_order ? ", reuse by stream" : "");
	return pool;
}

struct vs_pool *vs_pool_for(CUdevice device)
{
	struct vs_pool *pool = vs_pool_of(device);

	if (pool || device < 0 || device >= VS_MAX_DEVICES)
		return pool;
	pthread_mutex_lock(&making);
	pool = vs_pool_of(device);
	if (!pool && !is_refused[device]) {
		pool = make_pool(device);
		is_refused[device] = !pool;
	}
	pthread_mutex_unlock(&making);
	return pool;
}

/* Puts the thread's cache for this context first, where the hot path looks. */
static void move_to_front(struct vs_thread *t, struct vs_tcache *tc)
{
	struct vs_tcache *before = t->cache;

	if (before == tc)
		return;
	while (before->next != tc)
		before = before->next;
	before->next = tc->next;
	tc->next = t->cache;
	t->cache = tc;
}

static struct vs_tcache *cache_for(struct vs_thread *t, struct vs_pool *pool,
				   struct vs_ctx *ctx)
{
	struct vs_tcache *tc = vs_tcache_find(t, ctx->handle);

	return tc && tc->ctx == ctx ? tc : vs_tcache_make(t, pool, ctx);
}

/* This thread's cache for its current context, made if need be. */
static struct vs_tcache *cache_of_context(struct vs_thread *t,
					  CUcontext current)
{
	struct vs_tcache *tc = t->cache;
	struct vs_pool *pool;
	struct vs_ctx *ctx;

	if (tc && tc->handle == current &&
	    !atomic_load_explicit(&tc->ctx->is_dead, memory_order_relaxed))
		return tc;
	if (vs_knobs.ipc == VS_IPC_NATIVE) /* so no thread has any */
		return NULL;
	ctx = vs_ctx_of(t, current);
	pool = ctx ? vs_pool_for(ctx->device) : NULL;
	tc = pool ? cache_for(t, pool, ctx) : NULL;
	if (tc)
		move_to_front(t, tc);
	return tc;
}

/* A small object: refill, or make a slab and try again. */
static CUresult alloc_small(struct vs_tcache *tc, size_t size, CUdeviceptr *out)
{
	unsigned class = vs_class_of(size);
	bool is_miss = false;

	for (;;) {
		CUdeviceptr p = vs_tcache_take(tc, size);
		CUresult r;

		if (p) {
			if (is_miss)
				vs_stat_add(&tc->pool->stats, small_miss, 1);
			*out = p;
			return CUDA_SUCCESS;
		}
		vs_repack(tc->pool);
		p = vs_tcache_take_near_again(tc, size);
		if (!p && vs_tcache_refill(tc, class))
			continue;
		if (!p)
			p = vs_tcache_take_instead(tc, size);
		if (p) {
			*out = p;
			return CUDA_SUCCESS;
		}
		/* another thread ends the context: the driver words it */
		if (atomic_load(&tc->ctx->is_dead))
			return VS_PASS;
		/* no host memory for what a slab would be taken into */
		if (!tc->bin[class].idle)
			return VS_PASS;
		r = vs_range_slab(tc->pool, tc->ctx, class);
		/* some may be back, of slabs that others are live in */
		if (r != CUDA_SUCCESS && !vs_tcache_refill(tc, class))
			return r == CUDA_ERROR_OUT_OF_MEMORY
				       ? vs_range_last_resort(tc->pool, tc->ctx,
							      tc, size, out)
				       : r;
		is_miss = r == CUDA_SUCCESS;
	}
}

/* Knobs GUARD, ZERO, JUNK; what cannot be cleared is not handed out. */
static CUresult fill(struct vs_tcache *tc, CUdeviceptr p, size_t size)
{
	CUresult r = vs_fill_fresh(tc->ctx, p, size);

	vs_guard_served(tc->pool, p, size);
	if (r == CUDA_SUCCESS)
		return r;
	if (vs_pool_free(p) == VS_PASS)
		vs_capture_free_beside(p); /* the last resort's */
	return r == CUDA_ERROR_CONTEXT_IS_DESTROYED ? VS_PASS : r;
}

/*
 * One of several contexts was not seen born: it comes to the pool now. Not by
 * `is_barred`: another thread may still wait, or none have to.
 */
static inline bool has_newcomer(const struct vs_pool *pool)
{
	return pool->fence.may_order && vs_pool_ctx_count() > 1 &&
	       !atomic_load(&pool->fence.is_lent);
}

static CUresult alloc_slow(struct vs_thread *t, CUcontext current, size_t size,
			   CUdeviceptr *out)
{
	struct vs_tcache *tc = cache_of_context(t, current);
	struct vs_pool *pool = tc ? tc->pool : NULL;
	CUresult r = VS_PASS;
	CUdeviceptr p;

	if (!pool || size == 0)
		return VS_PASS;
	if (size > pool->total) { /* the driver says so */
		vs_stat_add(&pool->stats, failed, 1);
		return VS_PASS;
	}
	if (__builtin_expect(has_newcomer(pool), 0))
		vs_pool_lend_all();
	/* or from what is idle all the same: no chunk of it may be so whole */
	if (atomic_load(&pool->fence.is_broken))
		r = vs_trouble_alloc_beside(pool, size, out);
	if (r == VS_PASS &&
	    atomic_load_explicit(&tc->ctx->trouble, memory_order_relaxed))
		r = vs_trouble_alloc(pool, tc->ctx, size, out);
	if (r != VS_PASS)
		return r;
	if (pool->is_fussy && pool->guard.base)
		r = vs_guard_alloc(pool, tc->ctx, size, &p);
	if (r != VS_PASS)
		; /* guarded */
	else if (size > VS_SMALL_MAX)
		r = vs_range_alloc(pool, tc->ctx, size, &p);
	else
		r = alloc_small(tc, size, &p);
	/* the driver refused a chunk, but not for want of memory */
	if (r == VS_PASS)
		r = vs_trouble_alloc_beside(pool, size, &p);
	if (r == CUDA_SUCCESS && pool->is_fussy)
		r = fill(tc, p, size);
	if (r == CUDA_SUCCESS)
		*out = p;
	return r;
}

/* Past the caches while a thread is short: Note [Hoards] in pool/ladder.c. */
static CUresult free_small(struct vs_thread *t, struct vs_pool *pool,
			   struct vs_ctx *ctx, CUdeviceptr p)
{
	struct vs_slab *slab = vs_slab_at(pool, p);
	CUresult r = VS_PASS;
	struct vs_ctx *owner;
	struct vs_tcache *tc;

	if (!slab)
		return VS_PASS;
	owner = __atomic_load_n(&slab->ctx, __ATOMIC_ACQUIRE);
	tc = atomic_load(&pool->n_short) ? NULL : cache_for(t, pool, owner);
	if (tc && tc->ctx == ctx)
		move_to_front(t, tc);
	/* if it was dead before the slab was looked at, that is another's */
	if (atomic_load(&ctx->is_dead))
		return VS_PASS;
	/* it looks by itself whether frees of the slab go by caches still */
	if (tc)
		r = vs_tcache_put(tc, slab, p);
	return r != VS_PASS ? r : vs_tcache_put_elsewhere(pool, ctx, slab, p);
}

/*
 * A context that another thread has ended stays current to this one (CUDA's
 * documentation of cuCtxDestroy, which promises an error). So nothing is freed
 * under it. It may end meanwhile: what is freed was looked at before its end
 * was looked for.
 */
static CUresult free_slow(struct vs_thread *t, CUcontext current,
			  struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_ctx *ctx = vs_ctx_of(t, current), *owner;
	struct vs_span span;
	CUresult r;

	if (!ctx)
		return VS_PASS;
	/* the driver's waits for the memory's own, whichever is current */
	owner = atomic_load(&pool->n_short) > 0 && vs_pool_find(p, &span)
			? vs_ctx_peek(span.ctx)
			: NULL;
	if (atomic_load_explicit(&pool->is_wary, memory_order_relaxed)) {
		if (!vs_pool_find(p, &span) || span.base != p)
			return VS_PASS;
		/* if it was dead before, what was found is another's */
		if (atomic_load(&ctx->is_dead))
			return VS_PASS;
		if (pool->is_sync) /* which may be what tells */
			vs_range_sync_free(pool);
		r = vs_trouble_free();
		if (r != CUDA_SUCCESS)
			return r;
		vs_fill_freed(pool, &span);
		if (vs_guard_holds(pool, p))
			return vs_guard_free(pool, ctx, p);
	}
	r = p >= pool->slabs_end ? vs_range_free(pool, ctx, p)
				 : free_small(t, pool, ctx, p);
	if (r == CUDA_SUCCESS && owner)
		vs_ladder_heed(pool, owner);
	return r;
}

/* Gives another device access to every chunk, present and future. */
static CUresult allow_peer(struct vs_pool *pool, CUdevice peer)
{
	uint64_t bit = (uint64_t)1 << peer, before;
	CUresult r;

	pthread_mutex_lock(&pool->grow);
	before = atomic_fetch_or(&pool->peers, bit);
	atomic_fetch_or(&pool->reach, bit);
	r = vs_grow_allow(pool);
	if (r == CUDA_SUCCESS)
		r = vs_guard_allow(pool);
	/* or no chunk could be mapped any more; another context may have it */
	if (r != CUDA_SUCCESS && !(before & bit))
		atomic_fetch_and(&pool->peers, ~bit);
	pthread_mutex_unlock(&pool->grow);
	return r;
}

CUresult vs_pool_peer(CUcontext ctx, CUcontext peer, bool is_enabled)
{
	struct vs_ctx *from = vs_ctx_get(ctx), *to = vs_ctx_get(peer);
	CUresult r = CUDA_SUCCESS;
	struct vs_pool *pool;
	uint64_t bit, before;

	/* access left in place harms nobody: without it a kernel would fault */
	if (!from || !to || !is_enabled || from->device == to->device)
		return CUDA_SUCCESS;
	bit = (uint64_t)1 << from->device;
	pthread_mutex_lock(&making);
	before = atomic_fetch_or(&peers_of[to->device], bit);
	pool = vs_pool_of(to->device);
	pthread_mutex_unlock(&making);
	if (pool) {
		r = allow_peer(pool, from->device);
		vs_newcomer_welcome(pool, from->device);
	}
	if (r != CUDA_SUCCESS && !(before & bit))
		atomic_fetch_and(&peers_of[to->device], ~bit);
	return r;
}

CUresult vs_pool_reach(CUdeviceptr p, CUdevice device, bool is_opened)
{
	struct vs_pool *pool = vs_pool_at(p);
	uint64_t bit = (uint64_t)1 << device, open;

	if (!pool || device == pool->dev.device)
		return CUDA_SUCCESS;
	vs_newcomer_reach(pool, device);
	if (!is_opened)
		return CUDA_SUCCESS;
	open = atomic_load(&pool->peers) & bit;
	if (open) {
		/* another thread may still be at it, and be refused */
		pthread_mutex_lock(&pool->grow);
		open = atomic_load(&pool->peers) & bit;
		pthread_mutex_unlock(&pool->grow);
	}
	return open ? CUDA_SUCCESS : allow_peer(pool, device);
}

uint64_t vs_pool_peers(CUdevice device)
{
	return device >= 0 && device < VS_MAX_DEVICES
		       ? atomic_load(&peers_of[device])
		       : 0;
}

int vs_pool_count(void)
{
	return atomic_load_explicit(&vs_hot.n_pools, memory_order_acquire);
}

struct vs_pool *vs_pool_by_index(int i)
{
	return i < vs_pool_count() ? vs_hot.pools[i] : NULL;
}

const struct vs_stats *vs_pool_stats(int i, CUdevice *device_out)
{
	*device_out = vs_hot.pools[i]->dev.device;
	return &vs_hot.pools[i]->stats;
}

void vs_pool_forked(void)
{
	pthread_mutex_init(&making, NULL);
	atomic_store(&vs_hot.n_pools, 0);
	memset(is_refused, 0, sizeof(is_refused));
	vs_ctx_forked();
	vs_capture_forked();
}
