/* SPDX-License-Identifier: MIT
 *
 * victim_abroad [late]: a graph that is launched in a stream of device 0, and
 * whose kernel is one of device 1, on memory there, which is freed while the
 * graph is under way: the driver's cuMemFree waits for it. After a kernel of
 * device 0 that waited for the host for more than a second.
 */
#include "victim_link.h"

#define SIZE ((size_t)20 * MiB)
#define N_WORDS ((uint64_t)SIZE / 4)
enum { ROUNDS = 12 };

static CUcontext ctx[2];
static CUstream stream[2];
static CUfunction fill;

static void fill_with(CUdeviceptr p, unsigned int word)
{
	uint64_t n_words = N_WORDS;
	void *arguments[] = {&p, &word, &n_words};

	victim_launch(fill, stream[1], arguments);
}

/* Captured from device 0's stream on: a nap, and then the kernel. */
static CUgraphExec make_graph(CUdeviceptr p, unsigned int word)
{
	CUevent fork, join;
	CUgraphExec exec;
	CUgraph graph;

	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	TRY(cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuLaunchHostFunc(stream[0], victim_nap, NULL));
	TRY(cuEventRecord(fork, stream[0]));
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamWaitEvent(stream[1], fork, 0));
	fill_with(p, word);
	TRY(cuEventRecord(join, stream[1]));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuStreamWaitEvent(stream[0], join, 0));
	TRY(cuStreamEndCapture(stream[0], &graph));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	TRY(cuGraphDestroy(graph));
	TRY(cuEventDestroy(fork));
	TRY(cuEventDestroy(join));
	return exec;
}

/* Only then are markers of device 1 for hardly more than its own work. */
static void wait_for_the_host(void)
{
	static _Atomic bool is_over;
	size_t free_bytes, total;

	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuCtxEnablePeerAccess(ctx[1], 0));
	TRY(cuLaunchHostFunc(stream[0], victim_wait_for, (void *)&is_over));
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuMemGetInfo(&free_bytes, &total));
	victim_go_round(stream[1], total / 2, 6);
	is_over = true;
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuStreamSynchronize(stream[0]));
}

/* Whether nobody else wrote into the block that came next. */
static bool go_round(int i)
{
	CUdeviceptr p, next;
	CUgraphExec exec;
	bool is_right;

	TRY(cuCtxSetCurrent(ctx[1]));
	p = victim_alloc(SIZE);
	exec = make_graph(p, 0x01010101U * (unsigned int)(i + 1));
	TRY(cuGraphLaunch(exec, stream[0]));
	TRY(cuCtxSetCurrent(ctx[1]));
	victim_free(p);
	next = victim_alloc(SIZE);
	TRY(cuMemsetD8Async(next, 99, SIZE, stream[1]));
	TRY(cuStreamSynchronize(stream[1]));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuStreamSynchronize(stream[0]));
	TRY(cuGraphExecDestroy(exec));
	TRY(cuCtxSetCurrent(ctx[1]));
	is_right = victim_is_filled(next, SIZE, 99);
	victim_free(next);
	return is_right;
}

int main(int argc, char **argv)
{
	int n_right = 0;

	for (int i = 0; i < 2; i++) {
		ctx[i] = victim_start(i);
		TRY(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
		/* a pool on each */
		victim_free(victim_alloc(MiB));
	}
	fill = victim_kernel("vs_fill");
	if (argc > 1 && !strcmp(argv[1], "late"))
		wait_for_the_host();
	for (int i = 0; i < ROUNDS; i++)
		n_right += go_round(i);
	printf("%d of %d\n", n_right, (int)ROUNDS);
	return 0;
}
