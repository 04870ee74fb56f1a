/* SPDX-License-Identifier: MIT */
#include "sim_capture.h"

#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_context.h"
#include "sim_event.h"
#include "sim_graph.h"
#include "sim_handle.h"

static struct sim_capture *captures;
static uint64_t last_id;
static unsigned long n_killed;

unsigned sim_captures(void)
{
	const struct sim_capture *c;
	unsigned n = 0;

	sim_lock();
	for (c = captures; c; c = c->next)
		n++;
	sim_unlock();
	return n;
}

unsigned long sim_captures_killed(void)
{
	unsigned long n;

	sim_lock();
	n = n_killed;
	sim_unlock();
	return n;
}

void sim_capture_kill(struct sim_capture *capture)
{
	if (!capture->killed)
		n_killed++;
	capture->killed = true;
}

/* ---- what is prohibited ---------------------------------------------- */

/*
 * Does an unsafe call of this thread collide with the capture?  The thread's
 * own mode decides how far it looks (cuda.h): relaxed not at all,
 * thread-local at its own captures, global at all global ones too.
 */
static bool prohibits(const struct sim_capture *c)
{
	if (sim_thread.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (c->thread == sim_thread_id())
		return c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return sim_thread.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_check_unsafe(void)
{
	CUresult result = CUDA_SUCCESS;
	struct sim_capture *c;

	for (c = captures; c; c = c->next) {
		if (c->killed || !prohibits(c))
			continue;
		sim_capture_kill(c);
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

/* Work on the legacy stream would have to wait for the capturing one. */
static CUresult check_implicit(const struct sim_stream *legacy)
{
	CUresult result = CUDA_SUCCESS;
	struct sim_stream *s;

	for (s = legacy->ctx->streams; captures && s; s = s->next) {
		if (!s->capture || !s->blocking)
			continue;
		sim_capture_kill(s->capture);
		result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return result;
}

CUresult sim_capture_check_submit(struct sim_stream *stream)
{
	if (stream->capture && stream->capture->killed)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->legacy)
		return check_implicit(stream);
	return CUDA_SUCCESS;
}

CUresult sim_capture_check_sync(struct sim_stream *stream)
{
	if (stream->capture) {
		sim_capture_kill(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	if (stream->legacy)
		return check_implicit(stream);
	return CUDA_SUCCESS;
}

/* Whatever the mode of the thread or the capture (an H200). */
CUresult sim_capture_check_context(struct sim_context *ctx)
{
	CUresult result = CUDA_SUCCESS;
	struct sim_capture *c;
	struct sim_stream *s;

	for (c = captures; c; c = c->next) {
		for (s = c->streams; s; s = s->capture_next) {
			if (s->ctx != ctx && s->ctx->parent != ctx)
				continue;
			sim_capture_kill(c);
			result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return result;
}

/* ---- streams in a capture -------------------------------------------- */

static bool join(struct sim_capture *capture, struct sim_stream *stream)
{
	if (capture->n_streams == SIM_MAX_JOINS)
		return false;
	stream->capture = capture;
	stream->capture_index = capture->n_streams++;
	stream->joins = sim_zalloc(sizeof(*stream->joins));
	stream->capture_next = capture->streams;
	capture->streams = sim_stream_hold(stream);
	return true;
}

static void capture_free(struct sim_capture *capture)
{
	struct sim_capture **link = &captures;
	struct sim_stream *stream = capture->streams, *next;

	while (*link != capture)
		link = &(*link)->next;
	*link = capture->next;
	for (; stream; stream = next) {
		next = stream->capture_next;
		stream->capture = NULL;
		free(stream->joins);
		stream->joins = NULL;
		sim_stream_drop(stream);
	}
	free(capture);
}

void sim_capture_leave(struct sim_stream *stream)
{
	struct sim_capture *capture = stream->capture;

	if (!capture)
		return;
	sim_capture_kill(capture);
	if (capture->origin != stream)
		return;
	if (capture->graph)
		sim_graph_free(capture->graph);
	capture_free(capture);
}

void sim_capture_thread_ended(void)
{
	struct sim_capture *capture = captures, *next;

	for (; capture; capture = next) {
		next = capture->next;
		if (capture->origin->thread == sim_thread_id())
			sim_capture_leave(capture->origin);
	}
}

void sim_capture_reset(void)
{
	while (captures)
		capture_free(captures);
	n_killed = 0;
}

CUresult sim_capture_append(struct sim_stream *stream, const struct sim_op *ops,
			    unsigned n)
{
	unsigned i;

	for (i = 0; i < n; i++)
		sim_graph_add(stream->capture->graph, &ops[i]);
	stream->joins->n[stream->capture_index] += n;
	return CUDA_SUCCESS;
}

CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event)
{
	sim_event_begin(event);
	event->capture_id = stream->capture->id;
	event->captured_stream = sim_stream_hold(stream);
	event->captured = sim_zalloc(sizeof(*event->captured));
	*event->captured = *stream->joins;
	return CUDA_SUCCESS;
}

static CUresult kill_with(struct sim_capture *capture, CUresult result)
{
	if (capture)
		sim_capture_kill(capture);
	return result;
}

CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event)
{
	struct sim_capture *capture = stream->capture, *other;
	unsigned i;

	/* A captured stream cannot wait for work outside, except none. */
	if (!event->capture_id) {
		if (!event->time_ns)
			return CUDA_SUCCESS;
		return kill_with(capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	}
	other = event->captured_stream->capture;
	if (!other || other->id != event->capture_id)
		return kill_with(capture, CUDA_ERROR_CAPTURED_EVENT);
	if (other->killed)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->legacy)
		return kill_with(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (capture && capture != other) {
		sim_capture_kill(other);
		return kill_with(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (!capture && !join(other, stream))
		return kill_with(other, CUDA_ERROR_NOT_SUPPORTED);
	for (i = 0; i < SIM_MAX_JOINS; i++)
		if (stream->joins->n[i] < event->captured->n[i])
			stream->joins->n[i] = event->captured->n[i];
	return CUDA_SUCCESS;
}

/* ---- driver functions ------------------------------------------------ */

static CUresult begin(CUstream hStream, CUstreamCaptureMode mode,
		      struct sim_graph *graph)
{
	struct sim_capture *capture;
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL &&
	    mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
	    mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return kill_with(stream->capture, CUDA_ERROR_ILLEGAL_STATE);
	capture = sim_zalloc(sizeof(*capture));
	capture->id = ++last_id;
	capture->origin = stream;
	capture->mode = mode;
	capture->thread = sim_thread_id();
	capture->graph = graph ? graph : sim_graph_new();
	capture->next = captures;
	captures = capture;
	join(capture, stream);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
	return begin(hStream, mode, NULL);
}

CUresult sim_cuStreamBeginCapture(CUstream hStream)
{
	return begin(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL);
}

CUresult sim_cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
					 const CUgraphNode *dependencies,
					 const CUgraphEdgeData *dependencyData,
					 size_t numDependencies,
					 CUstreamCaptureMode mode)
{
	struct sim_graph *graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));

	(void)dependencies;
	(void)dependencyData;
	(void)numDependencies;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	return begin(hStream, mode, graph);
}

/* That the graph comes out the same, but for parameters, is not looked at. */
CUresult sim_cuStreamBeginRecaptureToGraph(
	CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
	CUgraphRecaptureCallback callbackFunc, void *userData)
{
	struct sim_graph *graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));
	CUresult result;

	(void)callbackFunc;
	(void)userData;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	result = begin(hStream, mode, graph);
	if (result == CUDA_SUCCESS)
		sim_graph_clear(graph);
	return result;
}

/* There is no command list of a graphics API: what it gets is dropped. */
CUresult sim_cuStreamBeginCaptureToCig(CUstream hStream,
				       CUstreamCigCaptureParams *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	return begin(hStream, CU_STREAM_CAPTURE_MODE_RELAXED, NULL);
}

/* Every stream that took part must have been joined by the origin again. */
static bool all_joined(const struct sim_capture *capture)
{
	const struct sim_stream *s;

	for (s = capture->streams; s; s = s->capture_next)
		if (capture->origin->joins->n[s->capture_index] <
		    s->joins->n[s->capture_index])
			return false;
	return true;
}

CUresult sim_cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
	struct sim_capture *capture;
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!phGraph)
		return CUDA_ERROR_INVALID_VALUE;
	capture = stream->capture;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->origin != stream)
		return kill_with(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    capture->thread != sim_thread_id())
		return kill_with(capture,
				 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	if (capture->killed)
		result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!all_joined(capture))
		result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	*phGraph = NULL;
	if (result == CUDA_SUCCESS)
		*phGraph = SIM_AS(CUgraph, capture->graph->handle);
	else
		sim_graph_free(capture->graph);
	capture_free(capture);
	return result;
}

CUresult sim_cuStreamEndCaptureToCig(CUstream hStream)
{
	CUgraph graph;
	CUresult result = sim_cuStreamEndCapture(hStream, &graph);

	if (result == CUDA_SUCCESS)
		sim_graph_free(sim_handle_get(SIM_GRAPH, SIM_OF(graph)));
	return result;
}

static CUstreamCaptureStatus status_of(const struct sim_stream *stream)
{
	if (!stream->capture)
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return stream->capture->killed ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
				       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* The legacy stream cannot be asked while a blocking one captures (cuda.h). */
static CUresult get_for_query(CUstream hStream, struct sim_stream **stream_out)
{
	CUresult result = sim_stream_get(hStream, stream_out);
	struct sim_stream *s;

	if (result != CUDA_SUCCESS || !(*stream_out)->legacy)
		return result;
	for (s = (*stream_out)->ctx->streams; s; s = s->next)
		if (s->capture && s->blocking)
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamIsCapturing(CUstream hStream,
				 CUstreamCaptureStatus *captureStatus)
{
	struct sim_stream *stream;
	CUresult result = get_for_query(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!captureStatus)
		return CUDA_ERROR_INVALID_VALUE;
	*captureStatus = status_of(stream);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCaptureInfo_v3(CUstream hStream,
				       CUstreamCaptureStatus *captureStatus_out,
				       cuuint64_t *id_out, CUgraph *graph_out,
				       const CUgraphNode **dependencies_out,
				       const CUgraphEdgeData **edgeData_out,
				       size_t *numDependencies_out)
{
	struct sim_stream *stream;
	CUresult result = get_for_query(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!captureStatus_out)
		return CUDA_ERROR_INVALID_VALUE;
	*captureStatus_out = status_of(stream);
	if (id_out)
		*id_out = stream->capture ? stream->capture->id : 0;
	if (graph_out)
		*graph_out = stream->capture
				     ? SIM_AS(CUgraph,
					      stream->capture->graph->handle)
				     : NULL;
	if (dependencies_out)
		*dependencies_out = NULL;
	if (edgeData_out)
		*edgeData_out = NULL;
	if (numDependencies_out)
		*numDependencies_out = 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCaptureInfo_v2(CUstream hStream,
				       CUstreamCaptureStatus *captureStatus_out,
				       cuuint64_t *id_out, CUgraph *graph_out,
				       const CUgraphNode **dependencies_out,
				       size_t *numDependencies_out)
{
	return sim_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out,
					     graph_out, dependencies_out, NULL,
					     numDependencies_out);
}

CUresult sim_cuStreamGetCaptureInfo(CUstream hStream,
				    CUstreamCaptureStatus *captureStatus_out,
				    cuuint64_t *id_out)
{
	return sim_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out,
					     NULL, NULL, NULL, NULL);
}

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = sim_thread.mode;

	if (!mode || (*mode != CU_STREAM_CAPTURE_MODE_GLOBAL &&
		      *mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
		      *mode != CU_STREAM_CAPTURE_MODE_RELAXED))
		return CUDA_ERROR_INVALID_VALUE;
	sim_thread.mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
