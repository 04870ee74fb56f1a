/* SPDX-License-Identifier: MIT */
/* Contexts, continued: queries, waiting, markers, peers. */
#include "sim.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_event.h"
#include "sim_handle.h"
#include "sim_pool.h"

CUresult sim_cuCtxGetDevice(CUdevice *device)
{
	const struct sim_context *c = sim_context_bound();

	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = c->device;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	struct sim_context *c;
	CUresult result = sim_context_get_or_current(ctx, &c);

	if (result != CUDA_SUCCESS)
		return result;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = c->device;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
	struct sim_context *c;
	CUresult result = sim_context_get_or_current(ctx, &c);

	if (result != CUDA_SUCCESS)
		return result;
	if (!ctxId)
		return CUDA_ERROR_INVALID_VALUE;
	*ctxId = c->id;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetFlags(unsigned int *flags)
{
	const struct sim_context *c = sim_context_bound();

	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = c->flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetFlags(unsigned int flags)
{
	sim_thread.current->flags = flags;
	return CUDA_SUCCESS;
}

/* Of a handle only whether it is live; of the current one, more (an H200). */
CUresult sim_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	struct sim_context *c = sim_handle_peek(SIM_CONTEXT, SIM_OF(ctx));
	CUresult result = CUDA_SUCCESS;

	if (!ctx)
		result = sim_context_current(&c);
	else if (!c || !c->alive)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (result != CUDA_SUCCESS)
		return result;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 3020;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetStreamPriorityRange(int *leastPriority,
					 int *greatestPriority)
{
	if (leastPriority)
		*leastPriority = 0;
	if (greatestPriority)
		*greatestPriority = -5;
	return CUDA_SUCCESS;
}

/* What a context is created with is not counted. */
#define STACK_SIZE ((uint64_t)1024)
#define HEAP_SIZE ((uint64_t)8 << 20)
/* Each thread that the device can hold has a stack (sim_device.c). */
#define N_THREADS ((uint64_t)132 * 2048)

CUresult sim_cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
	const struct sim_context *ctx = sim_thread.current;

	if (!pvalue)
		return CUDA_ERROR_INVALID_VALUE;
	if (limit == CU_LIMIT_STACK_SIZE)
		*pvalue = STACK_SIZE + ctx->stack_bytes / N_THREADS;
	else if (limit == CU_LIMIT_MALLOC_HEAP_SIZE)
		*pvalue = ctx->heap_limit ? ctx->heap_limit : HEAP_SIZE;
	else
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	return CUDA_SUCCESS;
}

static bool resize(struct sim_context *ctx, uint64_t *held, uint64_t bytes)
{
	if (bytes > *held && !sim_device_take(ctx->device, bytes - *held))
		return false;
	if (bytes < *held)
		sim_device_give(ctx->device, *held - bytes);
	*held = bytes;
	return true;
}

CUresult sim_cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct sim_context *ctx = sim_thread.current;
	uint64_t more = value > STACK_SIZE ? value - STACK_SIZE : 0;

	if (limit == CU_LIMIT_MALLOC_HEAP_SIZE)
		ctx->heap_limit = value;
	else if (limit != CU_LIMIT_STACK_SIZE)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	else if (!resize(ctx, &ctx->stack_bytes, more * N_THREADS))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

bool sim_context_take_heap(struct sim_context *ctx)
{
	return ctx->heap_limit <= HEAP_SIZE + ctx->heap_bytes ||
	       resize(ctx, &ctx->heap_bytes, ctx->heap_limit - HEAP_SIZE);
}

void sim_context_drop_limits(struct sim_context *ctx)
{
	resize(ctx, &ctx->heap_bytes, 0);
	resize(ctx, &ctx->stack_bytes, 0);
	ctx->heap_limit = 0;
}

/* ---- waiting and markers --------------------------------------------- */

static CUresult synchronize(struct sim_context *ctx)
{
	struct sim_vclock clock = {0};
	CUresult result = sim_capture_check_context(ctx);

	if (result == CUDA_SUCCESS)
		result = sim_capture_check_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	sim_context_clock(ctx, &clock);
	sim_wait_clock(&clock);
	sim_pool_synchronized(ctx->device);
	return ctx->sticky;
}

CUresult sim_cuCtxSynchronize(void)
{
	return synchronize(sim_thread.current);
}

CUresult sim_cuCtxSynchronize_v2(CUcontext ctx)
{
	struct sim_context *c;
	CUresult result = sim_context_get_or_current(ctx, &c);

	return result == CUDA_SUCCESS ? synchronize(c) : result;
}

/*
 * Covers every stream of the context, destroyed ones and those of other
 * threads too, and needs no current context (an H200).
 */
static CUresult record(struct sim_context *ctx, CUevent hEvent)
{
	struct sim_event *event = sim_handle_get(SIM_EVENT, SIM_OF(hEvent));
	CUresult result;

	if (!event || event->ctx != ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (ctx->sticky)
		return ctx->sticky;
	result = sim_capture_check_context(ctx);
	if (result != CUDA_SUCCESS)
		return result;
	sim_event_begin(event);
	sim_context_clock(ctx, &event->clock);
	sim_vclock_merge(&event->clock, &ctx->waits);
	event->time_ns = sim_clock_now();
	sim_cost(SIM_COST_CTX_RECORD, 0, 1);
	return CUDA_SUCCESS;
}

static CUresult wait_event(struct sim_context *ctx, CUevent hEvent)
{
	struct sim_event *event = sim_handle_get(SIM_EVENT, SIM_OF(hEvent));
	struct sim_context *child;
	CUresult result;

	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	if (ctx->sticky)
		return ctx->sticky;
	result = sim_capture_check_context(ctx);
	if (result == CUDA_SUCCESS)
		result = sim_event_check_captured(event);
	if (result != CUDA_SUCCESS)
		return result;
	for (child = sim_context_first(); child; child = child->next) {
		if (child != ctx && child->parent != ctx)
			continue;
		sim_vclock_prune(&child->waits);
		sim_vclock_merge(&child->waits, &event->clock);
		child->n_waits++;
	}
	sim_cost(SIM_COST_CTX_WAIT, 0, 1);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent)
{
	struct sim_context *ctx;
	CUresult result = sim_context_get_or_current(hCtx, &ctx);

	return result == CUDA_SUCCESS ? record(ctx, hEvent) : result;
}

CUresult sim_cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
	struct sim_context *ctx;
	CUresult result = sim_context_get_or_current(hCtx, &ctx);

	return result == CUDA_SUCCESS ? wait_event(ctx, hEvent) : result;
}

CUresult sim_cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
	struct sim_context *ctx = sim_handle_get(SIM_GREEN, SIM_OF(hCtx));

	return ctx ? record(ctx, hEvent) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
	struct sim_context *ctx = sim_handle_get(SIM_GREEN, SIM_OF(hCtx));

	return ctx ? wait_event(ctx, hEvent) : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- peers ----------------------------------------------------------- */

CUresult sim_cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
	struct sim_context *ctx = sim_context_owner(sim_thread.current), *peer;
	CUresult result = sim_context_get(peerContext, &peer);

	if (result != CUDA_SUCCESS || sim_context_owner(peer) == ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	peer = sim_context_owner(peer);
	if (Flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_may_be_peers(ctx->device, peer->device))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (sim_context_reaches(ctx, peer))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	if (ctx->n_peers == sizeof(ctx->peers) / sizeof(ctx->peers[0]))
		return CUDA_ERROR_TOO_MANY_PEERS;
	ctx->peers[ctx->n_peers++] = peer;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxDisablePeerAccess(CUcontext peerContext)
{
	struct sim_context *ctx = sim_context_owner(sim_thread.current), *peer;
	CUresult result = sim_context_get(peerContext, &peer);
	unsigned i;

	if (result != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_CONTEXT;
	peer = sim_context_owner(peer);
	for (i = 0; i < ctx->n_peers; i++) {
		if (ctx->peers[i] != peer)
			continue;
		ctx->peers[i] = ctx->peers[--ctx->n_peers];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
