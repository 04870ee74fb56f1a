/* SPDX-License-Identifier: MIT
 *
 * graphs: captures, and the graphs that come of them.
 */
#include "sequence.h"

struct graph graphs[N_GRAPHS];

static const char *const modes[] = {"global", "thread", "relaxed"};

CUstreamCaptureMode own_mode[N_THREADS];

/* ---- captures ------------------------------------------------------------ */

/*
 * Under the shim none of another thread is (README.md, "watched: captures").
 * Of its own, now and then.
 */
bool harms_no_capture(void)
{
	bool is_own = chance(4) > 0;

	if (own_mode[me] == CU_STREAM_CAPTURE_MODE_RELAXED)
		return true;
	for (int i = 0; i < N_CREATED; i++) {
		const struct stream *s = &streams[i];

		if (!s->capture || s->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
		    (s->capturer == me && !is_own) ||
		    (s->capturer != me &&
		     (s->mode != CU_STREAM_CAPTURE_MODE_GLOBAL ||
		      own_mode[me] != CU_STREAM_CAPTURE_MODE_GLOBAL)))
			continue;
		printf(" beside a capture");
		return false;
	}
	return true;
}

static struct stream *some_capture(void)
{
	struct stream *found[N_CREATED], *s;
	uint32_t n = 0;

	for (s = streams; s < streams + N_CREATED; s++)
		if (s->capture && current() >= 0)
			found[n++] = s;
	if (n == 0) {
		printf(" no capture");
		return NULL;
	}
	s = found[chance(n)];
	printf(" s%d", (int)(s - streams));
	return s;
}

bool is_capturer(void)
{
	bool is = false;

	for (int i = 0; i < N_CREATED; i++)
		is = is || (streams[i].capture && streams[i].capturer == me);
	return is;
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
	printf(" %s", modes[mode]);
	result = cuStreamBeginCapture(name_of(s), (CUstreamCaptureMode)mode);
	if (say(result) != CUDA_SUCCESS)
		return;
	s->capture = calloc(1, sizeof(*s->capture));
	CHECK(s->capture);
	s->capturer = me;
	s->mode = (CUstreamCaptureMode)mode;
}

static void keep_graph(CUgraph graph, const struct stream *s)
{
	int i = 0;

	while (i < N_GRAPHS && graphs[i].graph)
		i++;
	if (i == N_GRAPHS) {
		say(cuGraphDestroy(graph));
		return;
	}
	printf(" g%d of %d", i, s->capture->n);
	graphs[i] = (struct graph){
		.graph = graph, .ctx = s->ctx, .does = *s->capture};
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
	if (result == CUDA_SUCCESS && graph)
		keep_graph(graph, s);
	free(s->capture);
	s->capture = NULL;
}

void op_capture_end(void)
{
	struct stream *s = some_capture();

	if (s && (s->capturer == me || chance(4) == 0))
		end_capture(s);
}

/* A set in another stream between two events: joined, unless a call fails. */
static bool set_aside(struct stream *s, struct stream *side,
		      const struct action *a)
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

void op_capture_fork(void)
{
	struct stream *s = some_capture();
	struct stream *side = streams;
	struct block *b = some_block(is_linear);
	struct action a;

	if (!s || !b || current() != s->ctx)
		return;
	while (side < streams + N_CREATED &&
	       (!side->is_live || side->ctx != s->ctx || is_capturing(side) ||
		chance(3) == 0))
		side++;
	if (side == streams + N_CREATED)
		return;
	a = set_of(b, 0, 1 + chance((uint32_t)b->size), chance(256), 1);
	printf(" by s%d %zu", (int)(side - streams), a.width);
	if (begin_work(s, &a, 1) && set_aside(s, side, &a))
		s->capture->actions[s->capture->n++] = a;
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

	printf(" %s", modes[mode]);
	own_mode[me] = mode;
	say(cuThreadExchangeStreamCaptureMode(&mode));
	printf(" before %s", modes[mode]);
}

/* ---- graphs -------------------------------------------------------------- */

/* One of which all memory is there: what else a copy of it does is not said. */
struct graph *some_graph(void)
{
	struct graph *found[N_GRAPHS], *g;
	uint32_t n = 0;

	for (g = graphs; g < graphs + N_GRAPHS; g++)
		if (g->graph && is_live(&g->does))
			found[n++] = g;
	if (n == 0) {
		printf(" no graph");
		return NULL;
	}
	g = found[chance(n)];
	printf(" g%d", (int)(g - graphs));
	return g;
}

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

void op_graph_destroy(void)
{
	struct graph *g = &graphs[chance(N_GRAPHS)];

	printf(" g%d", (int)(g - graphs));
	if (g->graph)
		drop_graph(g);
}
