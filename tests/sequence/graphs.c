/* SPDX-License-Identifier: MIT
 *
 * graphs: captures, and the graphs that come of them.
 */
#include "sequence.h"

/* ---- captures ----------------------------------------------------------- */

/* Of its own, now and then. */
bool harms_no_capture(void)
{
	return harms_none(chance(4) > 0);
}

void op_capture_begin(void)
{
	uint32_t mode = chance(2) ? CU_STREAM_CAPTURE_MODE_RELAXED : chance(3);
	struct stream *s = some_stream();
	CUresult result;

	if (!s || current() < 0 ||
	    (s >= streams + N_CREATED && !s->is_legacy) ||
	    (s->is_blocking && chance(6) > 0))
		return;
	printf(" %s", mode_names[mode]);
	result = cuStreamBeginCapture(name_of(s), (CUstreamCaptureMode)mode);
	if (say(result) == CUDA_SUCCESS)
		capture_began(s, (CUstreamCaptureMode)mode);
}

/* One that another thread began goes on, unless it was relaxed. */
void end_capture(struct stream *s)
{
	CUgraph graph = NULL;
	CUresult result = say(cuStreamEndCapture(s->handle, &graph));

	if (is_capturing(s)) {
		printf(" goes on");
		return;
	}
	if (!capture_ended(s, result == CUDA_SUCCESS ? graph : NULL))
		say(cuGraphDestroy(graph));
}

bool set_aside(struct stream *s, struct stream *side, const struct action *a)
{
	CUevent out, back;
	CUresult result;

	TRY(cuEventCreate(&out, CU_EVENT_DISABLE_TIMING));
	TRY(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
	result = say(cuEventRecord(out, s->handle));
	if (result == CUDA_SUCCESS)
		result = say(cuStreamWaitEvent(side->handle, out, 0));
	if (result == CUDA_SUCCESS)
		result = say(cuMemsetD8Async(blocks[a->to].p + a->dst.at,
					     (unsigned char)a->value, a->width,
					     side->handle));
	if (result == CUDA_SUCCESS)
		result = say(cuEventRecord(back, side->handle));
	if (result == CUDA_SUCCESS)
		result = say(cuStreamWaitEvent(s->handle, back, 0));
	TRY(cuEventDestroy(out));
	TRY(cuEventDestroy(back));
	return result == CUDA_SUCCESS;
}

/* Made and freed within the graph, so that it can be launched again. */
void op_capture_alloc(void)
{
	struct stream *s = some_capture();
	size_t size = 1 + chance(MiB);
	CUdeviceptr p = 0;

	if (!s)
		return;
	printf(" %zu", size);
	if (say(cuMemAllocAsync(&p, size, s->handle)) != CUDA_SUCCESS)
		return;
	say(cuMemsetD8Async(p, 5, size, s->handle));
	say(cuMemFreeAsync(p, s->handle));
}

typedef CUresult(CUDAAPI *dependencies_fn)(CUstream, CUgraphNode *, size_t,
					   unsigned);

void op_capture_look(void)
{
	struct stream *s = some_capture();
	CUstreamCaptureStatus status;
	dependencies_fn update;

	if (!s)
		return;
	switch (chance(8)) {
	case 0:
		say(cuStreamSynchronize(s->handle));
		break;
	case 1:
		/* adds none */
		update = (dependencies_fn)find(
			"cuStreamUpdateCaptureDependencies", 11030);
		if (update)
			say(update(s->handle, NULL, 0, 0));
		break;
	default:
		say(cuStreamIsCapturing(s->handle, &status));
		printf(" %d", (int)status);
	}
}

void op_capture_mode(void)
{
	CUstreamCaptureMode mode = (CUstreamCaptureMode)chance(3);

	printf(" %s", mode_names[mode]);
	own_mode[me] = mode;
	say(cuThreadExchangeStreamCaptureMode(&mode));
	printf(" before %s", mode_names[mode]);
}

/* ---- graphs -------------------------------------------------------------- */

void op_graph_make(void)
{
	struct graph *g = some_graph();

	if (g && !g->exec && current() == g->ctx)
		say(cuGraphInstantiateWithFlags(&g->exec, g->graph, 0));
}

/* Of its own context; into a capture, too. */
void op_graph_launch(void)
{
	struct graph *g = some_graph();
	struct stream *s = some_stream();
	CUresult result;

	/* which of both a capture takes is nowhere said */
	if (!g || !s || s->ctx != g->ctx || (s->capture && g->is_changed))
		return;
	if (!g->exec) {
		if (current() != g->ctx ||
		    say(cuGraphInstantiateWithFlags(&g->exec, g->graph, 0)) !=
			    CUDA_SUCCESS)
			return;
	}
	if (!begin_work(s, g->does.actions, g->does.n))
		return;
	result = cuGraphLaunch(g->exec, name_of(s));
	end_work(s, g->does.actions, g->does.n, result);
	if (result == CUDA_SUCCESS)
		note_calls(s, g->does.n_calls);
}

/*
 * By itself: a copy node of memory of cuMemAlloc may become one of other memory
 * than without the shim (README.md, Limits).
 */
void op_graph_update(void)
{
	struct graph *g = some_graph();
	CUresult(CUDAAPI * update)(CUgraphExec, CUgraph,
				   CUgraphExecUpdateResultInfo *) = NULL;
	CUgraphExecUpdateResultInfo info;

	*(void **)&update = find("cuGraphExecUpdate", 12000);
	if (!g || !g->exec || !update || g->is_changed ||
	    say(update(g->exec, g->graph, &info)) == CUDA_SUCCESS)
		return;
	say(cuGraphExecDestroy(g->exec));
	g->exec = NULL;
}

void drop_graph(struct graph *g)
{
	if (g->exec)
		say(cuGraphExecDestroy(g->exec));
	say(cuGraphDestroy(g->graph));
	*g = (struct graph){0};
}
