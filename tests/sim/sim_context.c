/* SPDX-License-Identifier: MIT */
#include "sim_context.h"

#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_array.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_device.h"
#include "sim_event.h"
#include "sim_handle.h"
#include "sim_ipc.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_module.h"
#include "sim_pool.h"
#include "sim_work.h"

static struct sim_context *contexts;
static uint64_t last_id;

struct sim_context *sim_context_first(void)
{
	return contexts;
}

static void come_to_life(struct sim_context *ctx)
{
	ctx->alive = true;
	ctx->attached = 1;
	ctx->id = ++last_id;
	ctx->sticky = CUDA_SUCCESS;
	ctx->n_peers = 0;
	ctx->legacy = sim_stream_new(ctx, CU_STREAM_DEFAULT, 0);
	ctx->legacy->legacy = true;
}

static struct sim_context *context_new(int device, unsigned flags)
{
	struct sim_context *ctx = sim_zalloc(sizeof(*ctx));

	ctx->device = device;
	ctx->flags = flags;
	ctx->handle = sim_handle_new(SIM_CONTEXT, ctx);
	ctx->next = contexts;
	contexts = ctx;
	come_to_life(ctx);
	return ctx;
}

/*
 * SIM_HANDLE_REUSE: the oldest of the device's dead contexts whose handle
 * nobody keeps.
 */
static struct sim_context *take_dead(int device)
{
	struct sim_device *d = &sim_devices[device];
	struct sim_context *ctx, *oldest = NULL;

	if (!sim_config.handle_reuse)
		return NULL;
	for (ctx = contexts; ctx; ctx = ctx->next)
		if (!ctx->alive && !ctx->parent && ctx->device == device &&
		    !(ctx->primary && d->primary_refs))
			oldest = ctx;
	if (oldest && oldest->primary) {
		oldest->primary = false;
		d->primary = NULL;
	}
	return oldest;
}

/* By cuCtxCreate. */
static struct sim_context *context_create(int device, unsigned flags)
{
	struct sim_context *ctx = take_dead(device);

	if (!ctx)
		return context_new(device, flags);
	ctx->flags = flags;
	come_to_life(ctx);
	return ctx;
}

struct sim_context *sim_context_new_green(struct sim_context *parent)
{
	struct sim_context *ctx = context_new(parent->device, parent->flags);

	ctx->parent = parent;
	return ctx;
}

void sim_context_clock(struct sim_context *ctx, struct sim_vclock *clock)
{
	struct sim_context *other;
	struct sim_stream *stream;

	for (stream = ctx->streams; stream; stream = stream->next)
		if (stream->seen < stream->submitted || stream->behind.n)
			sim_stream_clock(stream, clock);
	for (other = contexts; other; other = other->next)
		if (other->parent == ctx)
			sim_context_clock(other, clock);
}

void sim_context_device_clock(int device, struct sim_vclock *clock)
{
	struct sim_context *ctx;

	for (ctx = contexts; ctx; ctx = ctx->next)
		if (ctx->device == device && !ctx->parent)
			sim_context_clock(ctx, clock);
}

unsigned sim_context_count(int device)
{
	const struct sim_context *ctx;
	unsigned n = 0;

	for (ctx = contexts; ctx; ctx = ctx->next)
		n += ctx->alive && ctx->device == device;
	return n;
}

struct sim_context *sim_context_owner(struct sim_context *ctx)
{
	return ctx->parent ? ctx->parent : ctx;
}

bool sim_context_reaches(const struct sim_context *ctx,
			 const struct sim_context *owner)
{
	unsigned i;

	if (ctx->parent)
		ctx = ctx->parent;
	for (i = 0; i < ctx->n_peers; i++)
		if (ctx->peers[i] == owner)
			return true;
	return false;
}

static void destroy_stream_of(void *object, void *arg)
{
	struct sim_stream *stream = object;

	if (stream->ctx == arg)
		sim_stream_destroy(stream);
}

static void drop_default_streams(struct sim_context *ctx)
{
	struct sim_stream *stream, *next;

	for (stream = ctx->streams; stream; stream = next) {
		next = stream->next;
		if ((stream->legacy || stream->thread) && !stream->destroyed)
			sim_stream_destroy(stream);
	}
	ctx->legacy = NULL;
}

/*
 * All work is seen, so no order is left to remember; streams that refer to
 * one another would keep each other alive.
 */
static void forget_order(struct sim_context *ctx)
{
	struct sim_stream *stream, *next;

	for (stream = ctx->streams; stream; stream = stream->next)
		sim_stream_hold(stream);
	for (stream = ctx->streams; stream; stream = stream->next) {
		sim_vclock_clear(&stream->behind);
		sim_vclock_clear(&stream->waits);
	}
	for (stream = ctx->streams; stream; stream = next) {
		next = stream->next;
		sim_stream_drop(stream);
	}
}

static void forget_as_peer(struct sim_context *gone)
{
	struct sim_context *ctx;
	unsigned i;

	for (ctx = contexts; ctx; ctx = ctx->next)
		for (i = 0; i < ctx->n_peers; i++)
			if (ctx->peers[i] == gone)
				ctx->peers[i--] = ctx->peers[--ctx->n_peers];
}

/*
 * VMM memory belongs to no context and stays (an H200), and so does that of
 * pools (cuda.h).
 */
void sim_context_end(struct sim_context *ctx)
{
	struct sim_vclock clock = {0};
	struct sim_context *child;
	struct sim_stream *stream;

	for (stream = ctx->streams; stream; stream = stream->next)
		sim_capture_leave(stream);
	sim_context_clock(ctx, &clock);
	sim_ipc_copies(ctx, &clock);
	sim_wait_clock(&clock);
	if (!ctx->alive)
		return; /* another thread was quicker */
	ctx->alive = false;
	for (child = contexts; child; child = child->next)
		if (child->parent == ctx && child->alive)
			sim_context_end(child);
	forget_order(ctx);
	sim_legacy_free_context(ctx);
	sim_ipc_free_context(ctx);
	sim_array_free_context(ctx);
	sim_module_free_context(ctx);
	sim_event_free_context(ctx);
	sim_context_drop_limits(ctx);
	sim_handle_each(SIM_STREAM, destroy_stream_of, ctx);
	drop_default_streams(ctx);
	sim_vclock_clear(&ctx->waits);
	forget_as_peer(ctx);
	if (ctx->green_handle)
		sim_handle_free(ctx->green_handle);
	if (ctx->parent || !(ctx->primary || sim_config.handle_reuse))
		sim_handle_free(ctx->handle);
}

void sim_context_reset(void)
{
	struct sim_context *ctx, *next;

	for (ctx = contexts; ctx; ctx = ctx->next)
		if (ctx->alive)
			sim_context_end(ctx);
	for (ctx = contexts; ctx; ctx = next) {
		next = ctx->next;
		sim_vclock_clear(&ctx->waits);
		free(ctx);
	}
	contexts = NULL;
	sim_thread.depth = 0;
	sim_thread.current = NULL;
	sim_thread.mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_context_current(struct sim_context **ctx_out)
{
	struct sim_context *ctx;

	if (!sim_thread.depth || !sim_thread.stack[sim_thread.depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	ctx = sim_handle_peek(SIM_CONTEXT,
			      sim_thread.stack[sim_thread.depth - 1]);
	if (!ctx || !ctx->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ctx_out = ctx;
	return ctx->sticky;
}

/* Dead ones too, whose handles are not live any more. */
static struct sim_context *any_of(uint64_t handle)
{
	struct sim_context *ctx = contexts;

	while (ctx && ctx->handle != handle)
		ctx = ctx->next;
	return ctx;
}

struct sim_context *sim_context_bound(void)
{
	struct sim_context *ctx = NULL;

	if (sim_thread.depth)
		ctx = any_of(sim_thread.stack[sim_thread.depth - 1]);
	if (ctx && !ctx->alive && !ctx->primary)
		sim_violation(SIM_V_STALE, "%s reads a destroyed context %#llx",
			      sim_thread.call, (unsigned long long)ctx->handle);
	return ctx;
}

CUresult sim_context_get(CUcontext handle, struct sim_context **ctx_out)
{
	struct sim_context *ctx = sim_handle_get(SIM_CONTEXT, SIM_OF(handle));

	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ctx->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ctx_out = ctx;
	return CUDA_SUCCESS;
}

CUresult sim_context_get_or_current(CUcontext handle,
				    struct sim_context **ctx_out)
{
	return handle ? sim_context_get(handle, ctx_out)
		      : sim_context_current(ctx_out);
}

void sim_set_sticky(void *handle, int code)
{
	struct sim_context *ctx;

	sim_lock();
	if (sim_context_get(handle, &ctx) == CUDA_SUCCESS)
		ctx->sticky = (CUresult)code;
	sim_unlock();
}

/* ---- primary contexts ------------------------------------------------ */

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	struct sim_device *d = &sim_devices[dev];

	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!d->primary) {
		d->primary = context_new(dev, d->primary_flags);
		d->primary->primary = true;
	} else if (!d->primary->alive) {
		/*
		 * The same handle for a new context: programs that key
		 * tables by handle must cope.
		 */
		come_to_life(d->primary);
	}
	d->primary_refs++;
	*pctx = SIM_AS(CUcontext, d->primary->handle);
	return CUDA_SUCCESS;
}

/* Green contexts that hold the primary one. */
static unsigned count_green(const struct sim_context *primary)
{
	const struct sim_context *c;
	unsigned n = 0;

	for (c = contexts; c; c = c->next)
		n += c->alive && c->parent == primary;
	return n;
}

/* Green contexts' holds are not for others to release (an H200). */
CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	struct sim_device *d = &sim_devices[dev];

	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!d->primary_refs)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (d->primary_refs == count_green(d->primary))
		return CUDA_ERROR_NOT_PERMITTED;
	if (--d->primary_refs == 0 && d->primary->alive)
		sim_context_end(d->primary);
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return sim_cuDevicePrimaryCtxRelease_v2(dev);
}

/*
 * Ends the context, keeps the references (cuda.h); not under a green one (an
 * H200).
 */
CUresult sim_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	struct sim_context *primary;

	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	primary = sim_devices[dev].primary;
	if (!primary || !primary->alive)
		return CUDA_SUCCESS;
	if (count_green(primary) > 0)
		return CUDA_ERROR_NOT_PERMITTED;
	sim_context_end(primary);
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxReset(CUdevice dev)
{
	return sim_cuDevicePrimaryCtxReset_v2(dev);
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	sim_devices[dev].primary_flags = flags;
	if (sim_devices[dev].primary)
		sim_devices[dev].primary->flags = flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return sim_cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags,
					int *active)
{
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = sim_devices[dev].primary_flags;
	*active = sim_devices[dev].primary && sim_devices[dev].primary->alive;
	return CUDA_SUCCESS;
}

/* ---- created contexts ------------------------------------------------ */

static CUresult push(uint64_t handle)
{
	if (sim_thread.depth == SIM_STACK)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_thread.stack[sim_thread.depth++] = handle;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
			    unsigned int flags, CUdevice dev)
{
	struct sim_context *ctx;

	(void)ctxCreateParams;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	ctx = context_create(dev, flags);
	*pctx = SIM_AS(CUcontext, ctx->handle);
	return push(ctx->handle);
}

CUresult sim_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray,
			    int numParams, unsigned int flags, CUdevice dev)
{
	(void)paramsArray;
	(void)numParams;
	return sim_cuCtxCreate_v4(pctx, NULL, flags, dev);
}

CUresult sim_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return sim_cuCtxCreate_v4(pctx, NULL, flags, dev);
}

CUresult sim_cuCtxDestroy_v2(CUcontext ctx)
{
	struct sim_context *c;
	CUresult result = sim_context_get(ctx, &c);

	if (result != CUDA_SUCCESS)
		return result;
	/* Those of primary and green contexts have calls of their own. */
	if (c->primary || c->parent)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (sim_thread.depth &&
	    sim_thread.stack[sim_thread.depth - 1] == c->handle)
		sim_thread.depth--;
	sim_context_end(c);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxDestroy(CUcontext ctx)
{
	return sim_cuCtxDestroy_v2(ctx);
}

CUresult sim_cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
	struct sim_context *ctx;
	CUresult result = sim_context_current(&ctx);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	ctx->attached++;
	*pctx = SIM_AS(CUcontext, ctx->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxDetach(CUcontext ctx)
{
	struct sim_context *c;
	CUresult result = sim_context_get(ctx, &c);

	if (result != CUDA_SUCCESS)
		return result;
	if (c->attached > 1) {
		c->attached--;
		return CUDA_SUCCESS;
	}
	return sim_cuCtxDestroy_v2(ctx);
}

/* Of one that was destroyed, too (an H200): calls under it say so. */
CUresult sim_cuCtxPushCurrent_v2(CUcontext ctx)
{
	return any_of(SIM_OF(ctx)) ? push(SIM_OF(ctx))
				   : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxPushCurrent(CUcontext ctx)
{
	return sim_cuCtxPushCurrent_v2(ctx);
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *pctx)
{
	if (!sim_thread.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_thread.depth--;
	if (pctx)
		*pctx = SIM_AS(CUcontext, sim_thread.stack[sim_thread.depth]);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxPopCurrent(CUcontext *pctx)
{
	return sim_cuCtxPopCurrent_v2(pctx);
}

CUresult sim_cuCtxSetCurrent(CUcontext ctx)
{
	if (ctx && !any_of(SIM_OF(ctx)))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (sim_thread.depth)
		sim_thread.depth--;
	return ctx ? push(SIM_OF(ctx)) : CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCurrent(CUcontext *pctx)
{
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = NULL;
	if (sim_thread.depth)
		*pctx = SIM_AS(CUcontext,
			       sim_thread.stack[sim_thread.depth - 1]);
	return CUDA_SUCCESS;
}
