/* SPDX-License-Identifier: MIT
 *
 * runtime_graphs: captures, and the graphs that come of them.
 */
#include "runtime.h"

/* ---- captures ----------------------------------------------------------- */

/* Of its own, now and then. */
bool harms_no_capture(void)
{
	return harms_none(chance(2));
}

void op_capture_begin(void)
{
	uint32_t mode = chance(3);
	struct stream *s = some_stream();

	if (!s || (s >= streams + N_CREATED && !s->is_legacy) ||
	    ((s->is_blocking || s->is_legacy) && chance(6) > 0))
		return;
	printf(" %s", mode_names[mode]);
	if (say(cudaStreamBeginCapture(name_of(s),
				       (enum cudaStreamCaptureMode)mode)) ==
	    cudaSuccess)
		capture_began(s, (CUstreamCaptureMode)mode);
}

/* One that another thread began goes on, unless it was relaxed. */
void end_capture(struct stream *s)
{
	cudaGraph_t graph = NULL;
	cudaError_t result = say(cudaStreamEndCapture(s->handle, &graph));

	if (is_capturing(s)) {
		printf(" goes on");
		return;
	}
	if (!capture_ended(s, result == cudaSuccess ? graph : NULL))
		say(cudaGraphDestroy(graph));
}

bool set_aside(struct stream *s, struct stream *side, const struct action *a)
{
	cudaEvent_t out, back;
	cudaError_t result;

	TRY(cudaEventCreateWithFlags(&out, cudaEventDisableTiming));
	TRY(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
	result = say(cudaEventRecord(out, s->handle));
	if (result == cudaSuccess)
		result = say(cudaStreamWaitEvent(side->handle, out, 0));
	if (result == cudaSuccess)
		result = say(cudaMemsetAsync(blocks[a->to].bytes + a->dst.at,
					     (int)a->value, a->width,
					     side->handle));
	if (result == cudaSuccess)
		result = say(cudaEventRecord(back, side->handle));
	if (result == cudaSuccess)
		result = say(cudaStreamWaitEvent(s->handle, back, 0));
	TRY(cudaEventDestroy(out));
	TRY(cudaEventDestroy(back));
	return result == cudaSuccess;
}

/* Made and freed within the graph, so that it can be launched again. */
void op_capture_alloc(void)
{
	struct stream *s = some_capture();
	size_t size = 1 + chance(MiB);
	void *p = NULL;

	if (!s || current() != s->device)
		return;
	printf(" %zu", size);
	if (say(cudaMallocAsync(&p, size, s->handle)) != cudaSuccess)
		return;
	say(cudaMemsetAsync(p, 5, size, s->handle));
	say(cudaFreeAsync(p, s->handle));
}

void op_capture_look(void)
{
	struct stream *s = some_capture();
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

	if (!s)
		return;
	if (chance(6) == 0) {
		say(cudaStreamSynchronize(s->handle));
		return;
	}
	say(cudaStreamIsCapturing(s->handle, &status));
	printf(" %d", (int)status);
}

void op_capture_mode(void)
{
	enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)chance(3);

	printf(" %s", mode_names[mode]);
	own_mode[me] = (CUstreamCaptureMode)mode;
	say(cudaThreadExchangeStreamCaptureMode(&mode));
	printf(" before %s", mode_names[mode]);
}

/* ---- graphs ------------------------------------------------------------- */

/* Into a capture, too. */
void op_graph_launch(void)
{
	struct graph *g = some_graph();
	struct stream *s = some_stream();
	cudaError_t result;

	if (!g || !s || s->device != g->device || current() != g->device)
		return;
	if (!g->exec &&
	    say(cudaGraphInstantiate(&g->exec, g->graph, 0)) != cudaSuccess)
		return;
	if (!begin_work(s, g->does.actions, g->does.n))
		return;
	result = cudaGraphLaunch(g->exec, name_of(s));
	end_work(s, g->does.actions, g->does.n, result);
	if (result == cudaSuccess)
		count_calls(s, g->does.n_calls);
}

/* A graph that makes memory, sets it to `value` and leaves it. */
static bool capture_block(struct stream *s, void **p, size_t size, int value,
			  cudaGraph_t *graph)
{
	bool is_made;

	if (say(cudaStreamBeginCapture(s->handle,
				       cudaStreamCaptureModeThreadLocal)) !=
	    cudaSuccess)
		return false;
	is_made = also("alloc", cudaMallocAsync(p, size, s->handle)) ==
			  cudaSuccess &&
		  also("set", cudaMemsetAsync(*p, value, size, s->handle)) ==
			  cudaSuccess;
	also("end", cudaStreamEndCapture(s->handle, graph));
	return is_made;
}

static void launch_once(struct stream *s, cudaGraphExec_t exec, void *p,
			size_t size, int value)
{
	struct block *b = new_block(ASYNC, p, size);
	struct action a = set_of(b, 0, size, (uint32_t)value, 1);

	end_work(s, &a, 1, cudaGraphLaunch(exec, s->handle));
	also("again", cudaGraphLaunch(exec, s->handle));
}

/* It outlives its graph, and is freed as any other; the simulator refuses. */
void op_graph_alloc(void)
{
	struct stream *s = some_stream();
	size_t size = 1 + chance(MiB);
	cudaGraphExec_t exec = NULL;
	cudaGraph_t graph = NULL;
	void *p = NULL;

	if (!s || s >= streams + N_CREATED || s->device != current() ||
	    !has_room(size) || !no_captures() || is_capturing(s))
		return;
	if (capture_block(s, &p, size, 6, &graph) &&
	    also("make", cudaGraphInstantiate(&exec, graph, 0)) ==
		    cudaSuccess) {
		launch_once(s, exec, p, size, 6);
		also("drop", cudaGraphExecDestroy(exec));
	}
	if (graph)
		also("drop", cudaGraphDestroy(graph));
}

void drop_graph(struct graph *g)
{
	if (g->exec)
		say(cudaGraphExecDestroy(g->exec));
	say(cudaGraphDestroy(g->graph));
	*g = (struct graph){0};
}
