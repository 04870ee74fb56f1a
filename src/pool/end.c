/* SPDX-License-Identifier: MIT
 *
 * end: contexts that end, by the hooks of pool/pool.h, and what goes with them.
 */
#include <stdatomic.h>

#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/mark.h"
#include "pool/pool.h"
#include "pool/range.h"
#include "pool/tcache.h"
#include "pool/trim.h"
#include "pool/trouble.h"

/* How long the end of a context may wait for the work of other devices. */
#define PEER_PATIENCE ((uint64_t)1000000000)

void (*_Atomic vs_pool_on_lost)(uint64_t id);

void vs_pool_green_born(CUcontext green, CUcontext primary)
{
	vs_ctx_alias(green, primary);
}

/*
 * Whether the driver waits for the work of a green context that it destroys
 * is not known. A marker before covers that work, and no later marker counts
 * before this one does. While a capture is open there can be none.
 */
void vs_pool_green_dying(CUdevice device)
{
	uint64_t bit = (uint64_t)1 << device;
	struct vs_pool *pool;

	for (int i = 0; (pool = vs_pool_by_index(i)); i++) {
		if (!(atomic_load(&pool->reach) & bit))
			continue;
		if (!vs_fence_record(&pool->fence) &&
		    vs_fence_poll(&pool->fence))
			vs_fence_record(&pool->fence);
		vs_fence_keep(&pool->fence);
	}
}

void vs_pool_green_gone(CUcontext green)
{
	if (green)
		vs_ctx_unalias(green);
}

/*
 * Without context events, or when they fail, a wait of the fence has no
 * patience. So an event in the NULL stream, where copies between contexts have
 * their order.
 */
static void wait_for_peer(struct vs_ctx *ctx, uint64_t began)
{
	CUstreamCaptureMode saved;
	CUevent event;
	bool is_recorded;

	if (!vs_ctx_use(ctx))
		return;
	if (!vs_capture_shut_out()) {
		vs_ctx_unuse(ctx);
		return;
	}
	is_recorded = vs_vmm_event_mark(ctx->handle, &event) == CUDA_SUCCESS;
	vs_capture_let_in();
	if (is_recorded) {
		vs_vmm_relax(&saved);
		for (unsigned round = 0;
		     vs_vmm_event_query(event) == CUDA_ERROR_NOT_READY &&
		     vs_vmm_clock() - began < PEER_PATIENCE;
		     round++)
			vs_vmm_pause(round);
		vs_vmm_event_destroy(event);
		vs_vmm_unrelax(saved);
	}
	vs_ctx_unuse(ctx);
}

/*
 * Another device may be in the middle of a copy of what goes with a context,
 * and the copy comes before whatever follows on either of them (Programming
 * Guide, peer-to-peer memory copy). Not for ever: other work of that device may
 * wait for the program. True if all of it is done, in any stream: without
 * context events that is known only where nothing was freed, of which a copy in
 * a stream of the peer's own may be left.
 */
static bool wait_for_peers(struct vs_pool *pool)
{
	uint64_t own = (uint64_t)1 << pool->dev.device;
	uint64_t peers = atomic_load(&pool->reach) & ~own;
	uint64_t began = vs_vmm_clock();
	struct vs_fence *f = &pool->fence;
	struct vs_ctx_set set;
	bool is_done = true;

	if (!vs_ctx_gather(&set, peers))
		return false;
	if (set.n > 0 && vs_fence_has_events(f)) {
		is_done = vs_fence_wait_tag(f, vs_fence_tag(f), PEER_PATIENCE);
	} else if (set.n > 0) {
		for (int i = 0; i < set.n; i++)
			wait_for_peer(set.list[i], began);
		is_done = vs_fence_is_complete(f, vs_mark_newest(pool));
	}
	vs_ctx_scatter(&set);
	return is_done;
}

/* The context that its pool was told of is idle, and nobody uses it. */
static void take_back(struct vs_ctx *ctx)
{
	struct vs_pool *own = vs_pool_of(ctx->device), *pool;
	bool is_quiet;
	uint64_t epoch;

	vs_capture_ctx_dying(ctx->handle);
	is_quiet = own && wait_for_peers(own);
	if (own) {
		vs_tcache_drop_ctx(own, ctx);
		vs_range_drop_ctx(own, ctx);
	}
	for (int i = 0; (pool = vs_pool_by_index(i)); i++)
		vs_fence_forget(&pool->fence, ctx);
	if (!own)
		return;
	vs_trouble_beware(own);
	epoch = vs_fence_turn(&own->fence);
	/* the last context of a device takes all of the pool's memory along */
	if (vs_ctx_any(ctx->device)) {
		/* a program may leave its frees to the ends of contexts */
		vs_mark_wait_at_free(own);
		return;
	}
	if (is_quiet)
		vs_fence_waited(&own->fence, epoch);
	atomic_store(&own->is_left, !is_quiet);
	vs_trim(own);
}

struct vs_ctx *vs_pool_ctx_dying(CUcontext handle)
{
	struct vs_ctx *ctx = vs_ctx_ending(handle);
	CUresult result = CUDA_SUCCESS;

	if (!ctx || atomic_load(&ctx->is_dead))
		return ctx;
	/* its work must be done before its memory goes; an error means that
	   the context is beyond work */
	if (vs_pool_count() > 0)
		result = vs_vmm_ctx_wait(ctx->handle);
	/* the last who held it was not seen to: its events went with it */
	ctx->has_ended = result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (result != CUDA_SUCCESS && vs_capture_count() > 0)
		vs_capture_barrier(ctx); /* a capture dies with it */
	vs_ctx_bury(ctx);
	take_back(ctx);
	return ctx;
}
