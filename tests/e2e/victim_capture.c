/* SPDX-License-Identifier: MIT
 *
 * victim_capture [wait]: a stream is captured in each mode while a second
 * thread allocates and frees; the graph must be whole and give the right data.
 * A context dies beside a capture that began while it was current. What the
 * capturing thread itself must not do is refused, and spoils the capture: a
 * program that goes on without a graph then must not get one. Or a program
 * whose only wait is cuMemFree, which waits beside a capture, too: so does mode
 * sync.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "victim_link.h"

#define SIZE (3 * MiB)

static CUcontext ctx;
static atomic_bool is_open, is_done;
static atomic_int n_rounds;

/* The global mode forbids unsafe calls to every thread that does not opt out.
 */
static void *other(void *arg)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	(void)arg;
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	for (size_t i = 1; !is_done; i++) {
		CUdeviceptr p = victim_alloc(i % 40 * 100 * KiB + 1);

		victim_free(p);
		if (is_open)
			n_rounds++;
	}
	return NULL;
}

/* Time for the second thread to do what might spoil the capture. */
static void let_other_work(void)
{
	n_rounds = 0;
	is_open = true;
	while (n_rounds < 60)
		sched_yield();
	is_open = false;
}

static void capture(const char *name, CUstreamCaptureMode mode)
{
	CUdeviceptr a = victim_alloc(SIZE), b = victim_alloc(SIZE), extra = 0;
	CUstream stream;
	CUgraph graph = NULL;
	CUgraphExec exec;
	size_t n_nodes = 0;
	CUresult result;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuMemsetD8(a, 0, SIZE));
	TRY(cuMemsetD8(b, 0, SIZE));
	TRY(cuCtxSynchronize());
	TRY(cuStreamBeginCapture(stream, mode));
	TRY(cuMemsetD8Async(a, 5, SIZE, stream));
	let_other_work();
	if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
		extra = victim_alloc(SIZE); /* allowed in this mode alone */
		victim_free(victim_alloc(2 * SIZE));
	}
	TRY(cuMemcpyDtoDAsync(b, a, SIZE, stream));
	let_other_work();
	result = cuStreamEndCapture(stream, &graph);
	printf("%s: %s", name, victim_name(result));
	if (result == CUDA_SUCCESS) {
		TRY(cuGraphGetNodes(graph, NULL, &n_nodes));
		TRY(cuGraphInstantiate(&exec, graph, 0));
		for (int i = 0; i < 3; i++) {
			TRY(cuMemsetD8(b, 0, SIZE));
			TRY(cuCtxSynchronize());
			TRY(cuGraphLaunch(exec, stream));
			TRY(cuStreamSynchronize(stream));
			printf(" %d", victim_is_filled(b, SIZE, 5));
		}
		TRY(cuGraphExecDestroy(exec));
		TRY(cuGraphDestroy(graph));
	}
	printf(", %zu nodes\n", n_nodes);
	if (extra)
		victim_free(extra);
	victim_free(a);
	victim_free(b);
	TRY(cuStreamDestroy(stream));
}

/* The stream is of the first context, whatever is current at the begin. */
static void a_context_dies(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr a = victim_alloc(SIZE);
	CUcontext second;
	CUstream stream;
	CUdevice device;
	CUgraph graph;

	TRY(cuCtxGetDevice(&device));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuCtxCreate_v2(&second, 0, device));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuCtxDestroy(second));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	for (size_t i = 0; i < 40; i++)
		victim_free(victim_alloc((i % 7 + 1) * SIZE));
	TRY(cuMemsetD8Async(a, 5, SIZE, stream));
	printf("a context dies: %s\n",
	       victim_name(cuStreamEndCapture(stream, &graph)));
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
	victim_free(a);
}

/* The calling thread's own mode may allow what the capture's does not. */
static void try_inside(const char *name, CUstreamCaptureMode mode,
		       CUstreamCaptureMode own)
{
	static const char *const names[] = {"alloc", "free", "free of a small",
					    "free without a context",
					    "free in another stream"};
	CUdeviceptr used = victim_alloc(KiB), large, small, b = 0;
	CUstream stream, idle;
	CUgraph graph = NULL;

	TRY(cuMemAlloc(&large, SIZE));
	TRY(cuMemAlloc(&small, KiB));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 5; i++) {
		CUdeviceptr p = i == 2 ? small : large;
		CUresult r, end;

		TRY(cuStreamBeginCapture(stream, mode));
		TRY(cuThreadExchangeStreamCaptureMode(&own));
		TRY(cuMemsetD8Async(used, 5, KiB, stream));
		if (i == 3)
			TRY(cuCtxSetCurrent(NULL));
		r = i == 0   ? cuMemAlloc(&b, SIZE)
		    : i == 4 ? cuMemFreeAsync(p, idle)
			     : cuMemFree(p);
		TRY(cuCtxSetCurrent(ctx));
		TRY(cuThreadExchangeStreamCaptureMode(&own));
		end = cuStreamEndCapture(stream, &graph);
		printf("%s, %s: %s, %s\n", name, names[i], victim_name(r),
		       victim_name(end));
		if (end == CUDA_SUCCESS)
			TRY(cuGraphDestroy(graph));
		if (i > 0 && r != CUDA_SUCCESS) {
			TRY(cuMemFree(p)); /* it was not, before */
			CHECK(cuMemFree(p) != CUDA_SUCCESS);
		}
		if (p == large && i > 0)
			TRY(cuMemAlloc(&large, SIZE));
	}
	TRY(cuMemFree(large));
	if (b)
		TRY(cuMemFree(b));
	victim_free(used);
	TRY(cuStreamDestroy(idle));
	TRY(cuStreamDestroy(stream));
}

/* What is asked of no context says nothing of the capture. */
static void try_without_context(void)
{
	CUdeviceptr p;
	CUstream stream;
	CUgraph graph = NULL;
	CUresult none, end;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	TRY(cuCtxSetCurrent(NULL));
	none = cuMemAlloc(&p, SIZE);
	TRY(cuCtxSetCurrent(ctx));
	printf("without a context: %s", victim_name(none));
	printf(", with it %s", victim_name(cuMemAlloc(&p, SIZE)));
	end = cuStreamEndCapture(stream, &graph);
	printf(", end %s\n", victim_name(end));
	if (graph)
		TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
}

/*
 * A thread's own stream is another one in each context: when the capture of
 * this one ends, that of the second goes on, in its own mode.
 */
static void own_streams(const char *name, CUstreamCaptureMode here,
			CUstreamCaptureMode there)
{
	CUgraph graph = NULL;
	CUresult inside, end;
	CUcontext second;
	CUdeviceptr p;
	CUdevice device;

	TRY(cuCtxGetDevice(&device));
	TRY(cuCtxCreate_v2(&second, 0, device));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamBeginCapture(CU_STREAM_PER_THREAD, here));
	TRY(cuCtxSetCurrent(second));
	TRY(cuStreamBeginCapture(CU_STREAM_PER_THREAD, there));
	TRY(cuCtxSetCurrent(ctx));
	victim_end_capture(CU_STREAM_PER_THREAD);
	inside = cuMemAlloc(&p, SIZE);
	TRY(cuCtxSetCurrent(second));
	end = cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph);
	printf("%s: %s, end %s\n", name, victim_name(inside), victim_name(end));
	if (graph)
		TRY(cuGraphDestroy(graph));
	TRY(cuCtxDestroy(second));
	TRY(cuCtxSetCurrent(ctx));
	if (inside == CUDA_SUCCESS)
		TRY(cuMemFree(p));
}

/* It goes on behind an end that is refused, and a free beside it harms none. */
static void end_in_vain(void)
{
	CUstream stream, other;
	CUgraph graph = NULL;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	printf("end without a graph: %s",
	       victim_name(cuStreamEndCapture(stream, NULL)));
	victim_free(victim_alloc(SIZE));
	TRY(cuStreamSynchronize(other));
	printf(", and with one: %s\n",
	       victim_name(cuStreamEndCapture(stream, &graph)));
	if (graph)
		TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(other));
	TRY(cuStreamDestroy(stream));
}

static _Atomic int answer;

static void CUDA_CB answer_late(void *unused)
{
	(void)unused;
	usleep(100000);
	answer = 42;
}

static void free_waits(const char *name, size_t size)
{
	CUdeviceptr p = victim_alloc(size);
	CUstream stream, captured;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	answer = 0;
	TRY(cuMemsetD8Async(p, 1, size, stream));
	TRY(cuLaunchHostFunc(stream, answer_late, NULL));
	victim_free(p);
	printf("%s: after its free %d\n", name, answer);
	victim_end_capture(captured);
	TRY(cuStreamDestroy(captured));
	TRY(cuStreamDestroy(stream));
}

int main(int argc, char **argv)
{
	const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
	const CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
	const CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	pthread_t thread;

	(void)argv;
	ctx = victim_start(0);
	if (argc > 1) {
		free_waits("large", SIZE);
		free_waits("small", KiB);
		return 0;
	}
	CHECK(pthread_create(&thread, NULL, other, NULL) == 0);
	for (int i = 0; i < 3; i++) {
		capture("global", CU_STREAM_CAPTURE_MODE_GLOBAL);
		capture("thread local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
		capture("relaxed", CU_STREAM_CAPTURE_MODE_RELAXED);
	}
	is_done = true;
	CHECK(pthread_join(thread, NULL) == 0);
	a_context_dies();
	try_without_context();
	end_in_vain();
	for (int i = 0; i < 2; i++) {
		try_inside("within global", global, global);
		try_inside("within global, relaxed itself", global, relaxed);
		try_inside("within thread local", local, global);
		try_inside("within relaxed", relaxed, global);
	}
	own_streams("a strict one after a relaxed one", relaxed, global);
	own_streams("a relaxed one after a strict one", global, relaxed);
	return 0;
}
