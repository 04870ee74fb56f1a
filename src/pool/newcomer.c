/* SPDX-License-Identifier: MIT */
#include "pool/newcomer.h"

#include "base/thread.h"
#include "pool/mark.h"
#include "pool/pool.h"
#include "pool/state.h"

/* ns to wait for a context that comes to memory and cannot be told. */
#define WELCOME_PATIENCE ((uint64_t)1000000000)

/* See vs_fence_lend(): not from a profiler's callback within that. */
static void lend(struct vs_pool *pool)
{
	struct vs_thread *t = vs_thread_self();

	vs_thread_go_deeper(t);
	vs_fence_lend(&pool->fence);
	vs_thread_come_back(t);
}

void vs_pool_lend_all(void)
{
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++)
		lend(pool);
}

void vs_pool_lend(CUdeviceptr p)
{
	struct vs_pool *pool = vs_pool_at(p);

	if (pool)
		lend(pool);
}

/*
 * What policy ordered hands out is ordered behind its last work in the contexts
 * that there were. Those of a device that come to the memory later are told;
 * if one captures, which cannot be told, the host waits.
 */
static void welcome(struct vs_pool *pool, struct vs_ctx **list, int n)
{
	for (int i = 0; i < n; i++) {
		if (!vs_fence_welcome(&pool->fence, list[i]))
			vs_fence_wait_tag(&pool->fence,
					  vs_fence_tag(&pool->fence),
					  WELCOME_PATIENCE);
	}
}

void vs_newcomer_welcome(struct vs_pool *pool, CUdevice device)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_ctx_set set;

	vs_thread_go_deeper(t);
	if (vs_ctx_gather(&set, (uint64_t)1 << device)) {
		welcome(pool, set.list, set.n);
		vs_ctx_scatter(&set);
	} else if (pool->fence.is_ordered) { /* no host memory: as above */
		vs_fence_wait_tag(&pool->fence, vs_fence_tag(&pool->fence),
				  WELCOME_PATIENCE);
	}
	vs_thread_come_back(t);
	atomic_fetch_or(&pool->welcomed, (uint64_t)1 << device);
}

void vs_newcomer_reach(struct vs_pool *pool, CUdevice device)
{
	uint64_t bit = (uint64_t)1 << device;

	/* not by `reach`: another thread may still be at it */
	if (atomic_load(&pool->welcomed) & bit)
		return;
	atomic_fetch_or(&pool->reach, bit);
	vs_newcomer_welcome(pool, device);
}

void vs_pool_ctx_born(CUcontext handle, CUdevice device)
{
	struct vs_ctx *ctx = vs_ctx_born(handle, device);
	struct vs_pool *pool;

	for (int i = 0; ctx && (pool = vs_pool_by_index(i)); i++) {
		if (atomic_load(&pool->reach) >> device & 1)
			welcome(pool, &ctx, 1);
	}
}

void vs_pool_ctx_come(void)
{
	if (vs_pool_ctx_count() > 1)
		vs_pool_lend_all();
}

/* The driver may call back: not under the lock of a fence, then. */
static bool add_copy(struct vs_fence *f, CUstream stream)
{
	struct vs_thread *t = vs_thread_self();
	bool is_added;

	if (!vs_thread_go_within(t))
		return false;
	is_added = vs_copies_add(f, stream);
	vs_thread_come_out(t);
	return is_added;
}

static uint64_t uncounted(struct vs_pool *pool)
{
	return atomic_load(&pool->reach) & ~atomic_load(&pool->counting);
}

static void copied(struct vs_pool *pool, uint64_t devices, CUstream stream)
{
	devices &= uncounted(pool);
	if (!devices || add_copy(&pool->fence, stream))
		return;
	for (; devices; devices &= devices - 1)
		vs_fence_note_copy(&pool->fence, __builtin_ctzll(devices));
	vs_mark_copied(pool);
}

void vs_pool_copied(CUdeviceptr p, uint64_t devices, CUstream stream)
{
	struct vs_pool *pool = vs_pool_at(p);

	if (pool)
		copied(pool, devices, stream);
}

void vs_pool_launches(uint64_t devices)
{
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++) {
		for (uint64_t left = devices; left; left &= left - 1)
			vs_newcomer_reach(pool, __builtin_ctzll(left));
	}
}

void vs_pool_launched(uint64_t devices, CUstream stream)
{
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++)
		copied(pool, devices, stream);
}

void vs_pool_copies(CUdeviceptr p, uint64_t devices)
{
	struct vs_pool *pool = vs_pool_at(p);

	devices &= pool ? uncounted(pool) : 0;
	if (devices)
		atomic_fetch_or(&pool->counting, devices);
}

uint64_t vs_pool_uncounted(CUdeviceptr p)
{
	struct vs_pool *pool = vs_pool_at(p);

	return pool ? uncounted(pool) : 0;
}
