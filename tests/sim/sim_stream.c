/* SPDX-License-Identifier: MIT */
#include "sim_stream.h"

#include <stdlib.h>

#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_handle.h"
#include "sim_pool.h"
#include "sim_work.h"

static uint64_t last_id;

struct sim_stream *sim_stream_new(struct sim_context *ctx, unsigned flags,
				  int priority)
{
	struct sim_stream *stream = sim_zalloc(sizeof(*stream));

	stream->id = ++last_id;
	stream->ctx = ctx;
	stream->flags = flags;
	/* none has in a green context (an H100, 580.159.04) */
	stream->blocking = !(flags & CU_STREAM_NON_BLOCKING) && !ctx->parent;
	stream->priority = priority;
	stream->refs = 1;
	stream->ctx_waits = (uint64_t)-1;
	pthread_cond_init(&stream->done, NULL);
	stream->next = ctx->streams;
	if (stream->next)
		stream->next->prev = stream;
	ctx->streams = stream;
	return stream;
}

struct sim_stream *sim_stream_hold(struct sim_stream *stream)
{
	stream->refs++;
	return stream;
}

void sim_stream_drop(struct sim_stream *stream)
{
	if (--stream->refs)
		return;
	sim_vclock_clear(&stream->behind);
	sim_vclock_clear(&stream->waits);
	free(stream->joins);
	if (stream->prev)
		stream->prev->next = stream->next;
	else if (stream->ctx->streams == stream)
		stream->ctx->streams = stream->next;
	if (stream->next)
		stream->next->prev = stream->prev;
	pthread_cond_destroy(&stream->done);
	free(stream);
}

void sim_stream_destroy(struct sim_stream *stream)
{
	if (stream->handle)
		sim_handle_free(stream->handle);
	stream->handle = 0;
	stream->destroyed = true;
	sim_stream_drop(stream);
}

static struct sim_stream *per_thread_stream(struct sim_context *ctx)
{
	uint64_t thread = sim_thread_id();
	struct sim_stream *stream;

	for (stream = ctx->streams; stream; stream = stream->next)
		if (stream->thread == thread && !stream->destroyed)
			return stream;
	stream = sim_stream_new(ctx, CU_STREAM_DEFAULT, 0);
	stream->thread = thread;
	return stream;
}

CUresult sim_stream_get(CUstream handle, struct sim_stream **stream_out)
{
	struct sim_context *ctx = sim_thread.current;
	struct sim_stream *stream;

	if (handle == NULL)
		handle = sim_thread.per_thread ? CU_STREAM_PER_THREAD
					       : CU_STREAM_LEGACY;
	if (handle == CU_STREAM_LEGACY)
		stream = ctx->legacy;
	else if (handle == CU_STREAM_PER_THREAD)
		/* a green context has none (an H100, 580.159.04) */
		stream = ctx->green_handle ? NULL : per_thread_stream(ctx);
	else
		stream = sim_handle_get(SIM_STREAM, SIM_OF(handle));
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->ctx->sticky)
		return stream->ctx->sticky;
	*stream_out = stream;
	return CUDA_SUCCESS;
}

void sim_stream_wait_for(struct sim_stream *stream,
			 const struct sim_vclock *clock)
{
	sim_vclock_merge(&stream->behind, clock);
	sim_vclock_merge(&stream->waits, clock);
}

static void wait_for_stream(struct sim_stream *stream, struct sim_stream *other)
{
	sim_stream_wait_for(stream, &other->behind);
	sim_vclock_add(&stream->behind, other, other->submitted);
	sim_vclock_add(&stream->waits, other, other->submitted);
}

void sim_stream_order(struct sim_stream *stream)
{
	struct sim_context *ctx = stream->ctx;
	struct sim_stream *other;

	sim_vclock_prune(&stream->behind);
	sim_vclock_prune(&stream->waits);
	if (stream->ctx_waits != ctx->n_waits) {
		sim_stream_wait_for(stream, &ctx->waits);
		stream->ctx_waits = ctx->n_waits;
	}
	if (!stream->blocking)
		return;
	if (!stream->legacy) {
		wait_for_stream(stream, ctx->legacy);
		return;
	}
	for (other = ctx->streams; other; other = other->next)
		if (!other->legacy && other->blocking)
			wait_for_stream(stream, other);
}

void sim_stream_clock(struct sim_stream *stream, struct sim_vclock *clock)
{
	sim_vclock_merge(clock, &stream->behind);
	sim_vclock_add(clock, stream, stream->submitted);
}

/* What a query of the stream asks about; orders nothing. */
static void query_clock(struct sim_stream *stream, struct sim_vclock *clock)
{
	struct sim_stream *other;

	sim_stream_clock(stream, clock);
	if (!stream->legacy)
		return;
	for (other = stream->ctx->streams; other; other = other->next)
		if (other->blocking)
			sim_stream_clock(other, clock);
}

static void wait_stream(struct sim_stream *stream, uint64_t n)
{
	while (stream->completed < n) {
		if (!sim_config.manual)
			sim_wait(&stream->done);
		else if (!sim_clock_step(UINT64_MAX))
			/* Nobody signals a flag in host memory. */
			sim_wait_ns(&stream->done, 1000000);
	}
}

void sim_wait_clock(struct sim_vclock *clock)
{
	unsigned i;

	for (i = 0; i < clock->n; i++)
		wait_stream(clock->points[i].stream, clock->points[i].n);
	sim_vclock_see(clock);
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags,
					int priority)
{
	struct sim_stream *stream;

	if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	stream = sim_stream_new(sim_thread.current, flags, priority);
	stream->handle = sim_handle_new(SIM_STREAM, stream);
	*phStream = SIM_AS(CUstream, stream->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	return sim_cuStreamCreateWithPriority(phStream, Flags, 0);
}

/* Does not wait: work that is queued goes on (cuda.h). */
CUresult sim_cuStreamDestroy_v2(CUstream hStream)
{
	struct sim_stream *stream = sim_handle_get(SIM_STREAM, SIM_OF(hStream));

	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_capture_leave(stream);
	sim_stream_destroy(stream);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamDestroy(CUstream hStream)
{
	return sim_cuStreamDestroy_v2(hStream);
}

CUresult sim_cuStreamQuery(CUstream hStream)
{
	struct sim_vclock clock = {0};
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = sim_capture_check_sync(stream);
	if (result != CUDA_SUCCESS)
		return result;
	query_clock(stream, &clock);
	if (sim_vclock_complete(&clock))
		sim_vclock_see(&clock);
	else
		result = CUDA_ERROR_NOT_READY;
	sim_vclock_clear(&clock);
	return result;
}

CUresult sim_cuStreamSynchronize(CUstream hStream)
{
	struct sim_vclock clock = {0};
	struct sim_stream *stream;
	struct sim_context *ctx;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	result = sim_capture_check_sync(stream);
	if (result != CUDA_SUCCESS)
		return result;
	ctx = stream->ctx;
	query_clock(stream, &clock);
	sim_wait_clock(&clock);
	sim_pool_synchronized(ctx->device);
	return ctx->sticky;
}

CUresult sim_cuStreamGetFlags(CUstream hStream, unsigned int *flags)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = stream->flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetPriority(CUstream hStream, int *priority)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	*priority = stream->priority;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetId(CUstream hStream, unsigned long long *streamId)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!streamId)
		return CUDA_ERROR_INVALID_VALUE;
	*streamId = stream->id;
	return CUDA_SUCCESS;
}

/* Of a green context's stream the converted one (cuda.h). */
CUresult sim_cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = SIM_AS(CUcontext, stream->ctx->handle);
	return CUDA_SUCCESS;
}

/* Of a green context's stream the primary one and that (cuda.h). */
CUresult sim_cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx,
			       CUgreenCtx *pGreenCtx)
{
	struct sim_stream *stream;
	struct sim_context *parent;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pCtx || !pGreenCtx)
		return CUDA_ERROR_INVALID_VALUE;
	parent = stream->ctx->parent;
	*pCtx = SIM_AS(CUcontext, (parent ? parent : stream->ctx)->handle);
	*pGreenCtx =
		parent ? SIM_AS(CUgreenCtx, stream->ctx->green_handle) : NULL;
	return CUDA_SUCCESS;
}
