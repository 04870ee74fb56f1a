/* SPDX-License-Identifier: MIT */
#include "sim_event.h"

#include <stdlib.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_handle.h"
#include "sim_pool.h"
#include "sim_work.h"

#define KNOWN_FLAGS                                                            \
	(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |                    \
	 CU_EVENT_INTERPROCESS)

void sim_event_begin(struct sim_event *event)
{
	sim_vclock_clear(&event->clock);
	free(event->captured);
	event->captured = NULL;
	if (event->captured_stream)
		sim_stream_drop(event->captured_stream);
	event->captured_stream = NULL;
	event->capture_id = 0;
}

static void event_free(struct sim_event *event)
{
	sim_event_begin(event);
	sim_handle_free(event->handle);
	free(event);
}

static void free_if_of(void *object, void *arg)
{
	struct sim_event *event = object;

	if (event->ctx == arg)
		event_free(event);
}

void sim_event_free_context(struct sim_context *ctx)
{
	sim_handle_each(SIM_EVENT, free_if_of, ctx);
}

static CUresult event_get(CUevent handle, struct sim_event **event_out)
{
	struct sim_event *event = sim_handle_get(SIM_EVENT, SIM_OF(handle));

	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	*event_out = event;
	return event->ctx->sticky;
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
	struct sim_event *event;

	if (!phEvent || (Flags & ~(unsigned)KNOWN_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if ((Flags & CU_EVENT_INTERPROCESS) &&
	    !(Flags & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_VALUE;
	event = sim_zalloc(sizeof(*event));
	event->ctx = sim_thread.current;
	event->flags = Flags;
	event->handle = sim_handle_new(SIM_EVENT, event);
	*phEvent = SIM_AS(CUevent, event->handle);
	sim_cost(SIM_COST_EVENT_CREATE, 0, 1);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventDestroy_v2(CUevent hEvent)
{
	struct sim_event *event = sim_handle_get(SIM_EVENT, SIM_OF(hEvent));

	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	event_free(event);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventDestroy(CUevent hEvent)
{
	return sim_cuEventDestroy_v2(hEvent);
}

/* The work before is complete: note the time, if the event is still there. */
static void stamp(const struct sim_op *op, struct sim_context *ctx)
{
	struct sim_event *event = sim_handle_peek(SIM_EVENT, op->u.any.value);

	(void)ctx;
	if (event)
		event->time_ns = sim_clock_now();
}

CUresult sim_cuEventRecordWithFlags(CUevent hEvent, CUstream hStream,
				    unsigned int flags)
{
	struct sim_op op = {
		.name = "event", .call = sim_thread.call, .finish = stamp};
	struct sim_event *event;
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = event_get(hEvent, &event);
	if (result == CUDA_SUCCESS)
		result = sim_capture_check_submit(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->ctx != stream->ctx && event->ctx != stream->ctx->parent)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capture)
		return sim_capture_record(stream, event);
	sim_event_begin(event);
	op.u.any.value = event->handle;
	/* Only a time needs a place in the queue. */
	if (event->flags & CU_EVENT_DISABLE_TIMING)
		sim_stream_order(stream);
	else
		sim_submit(stream, &op, 1);
	event->time_ns = sim_clock_now();
	sim_stream_clock(stream, &event->clock);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventRecord(CUevent hEvent, CUstream hStream)
{
	return sim_cuEventRecordWithFlags(hEvent, hStream, 0);
}

CUresult sim_event_check_captured(struct sim_event *event)
{
	if (!event->capture_id)
		return CUDA_SUCCESS;
	if (event->captured_stream && event->captured_stream->capture)
		sim_capture_kill(event->captured_stream->capture);
	return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_cuEventQuery(CUevent hEvent)
{
	struct sim_event *event;
	CUresult result = event_get(hEvent, &event);

	if (result == CUDA_SUCCESS)
		result = sim_event_check_captured(event);
	if (result != CUDA_SUCCESS)
		return result;
	sim_cost(SIM_COST_EVENT_QUERY, 0, 1);
	if (!sim_vclock_complete(&event->clock))
		return CUDA_ERROR_NOT_READY;
	sim_vclock_see(&event->clock);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventSynchronize(CUevent hEvent)
{
	struct sim_vclock clock = {0};
	struct sim_event *event;
	struct sim_context *ctx;
	CUresult result = event_get(hEvent, &event);

	if (result == CUDA_SUCCESS)
		result = sim_event_check_captured(event);
	if (result != CUDA_SUCCESS)
		return result;
	/* A copy: another thread may record the event anew meanwhile. */
	ctx = event->ctx;
	sim_vclock_merge(&clock, &event->clock);
	sim_wait_clock(&clock);
	sim_pool_synchronized(ctx->device);
	return ctx->sticky;
}

CUresult sim_cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart,
				   CUevent hEnd)
{
	struct sim_event *start, *end;
	CUresult result = event_get(hStart, &start);

	if (result == CUDA_SUCCESS)
		result = event_get(hEnd, &end);
	if (result != CUDA_SUCCESS)
		return result;
	if (!pMilliseconds)
		return CUDA_ERROR_INVALID_VALUE;
	if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) ||
	    !start->time_ns || !end->time_ns)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!sim_vclock_complete(&start->clock) ||
	    !sim_vclock_complete(&end->clock))
		return CUDA_ERROR_NOT_READY;
	*pMilliseconds =
		(float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
	return CUDA_SUCCESS;
}

CUresult sim_cuEventElapsedTime(float *pMilliseconds, CUevent hStart,
				CUevent hEnd)
{
	return sim_cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

/* Waiting for work of another stream, or joining its capture. */
CUresult sim_cuStreamWaitEvent(CUstream hStream, CUevent hEvent,
			       unsigned int Flags)
{
	struct sim_event *event;
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = event_get(hEvent, &event);
	if (result == CUDA_SUCCESS)
		result = sim_capture_check_submit(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
		return CUDA_ERROR_INVALID_VALUE;
	if (event->capture_id || stream->capture)
		return sim_capture_wait(stream, event);
	sim_stream_wait_for(stream, &event->clock);
	return CUDA_SUCCESS;
}

/* No events between processes here. */
CUresult sim_cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
	(void)pHandle;
	(void)event;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
	(void)phEvent;
	(void)handle;
	return CUDA_ERROR_NOT_SUPPORTED;
}
