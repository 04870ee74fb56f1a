/* SPDX-License-Identifier: MIT
 *
 * victim_covered: that an event of cuCtxRecordEvent covers work that is under
 * way, in whatever way that was given and whatever became of its stream; all
 * markers rest on it. The work is a kernel (or a function of the host) that
 * runs until the host raises a flag.
 */
#include <pthread.h>
#include <unistd.h>

#include "victim_link.h"

enum { LONG_ENOUGH_US = 100000 };

static CUcontext ctx, green;
static CUstream green_stream;
static CUfunction spin;
static CUdeviceptr at;
static _Atomic uint32_t *flag;

static void spin_in(CUstream stream)
{
	void *arguments[] = {&at};

	victim_launch(spin, stream, arguments);
}

static void in_the_null_stream(void)
{
	spin_in(CU_STREAM_LEGACY);
}
static void in_its_own_stream(void)
{
	spin_in(CU_STREAM_PER_THREAD);
}

static void *come_and_go(void *unused)
{
	TRY(cuCtxSetCurrent(ctx));
	spin_in(CU_STREAM_PER_THREAD);
	return unused;
}
static void in_that_of_a_thread_that_is_gone(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, come_and_go, NULL) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}
static void in_a_stream_that_is_gone(void)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	spin_in(stream);
	TRY(cuStreamDestroy(stream));
}
/* so that whatever the driver keeps of the old one is used again */
static void in_one_whose_place_is_taken(void)
{
	CUstream stream;

	in_a_stream_that_is_gone();
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamDestroy(stream));
}
static void in_an_urgent_stream(void)
{
	CUstream stream = victim_urgent_stream();

	spin_in(stream);
	TRY(cuStreamDestroy(stream));
}
static void in_a_graph_that_is_gone(void)
{
	CUstream stream;
	CUgraphExec exec;
	CUgraph graph;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	spin_in(stream);
	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	TRY(cuGraphLaunch(exec, stream));
	TRY(cuGraphExecDestroy(exec));
	TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
}
static void CUDA_CB wait_for_flag(void *unused)
{
	(void)unused;
	while (!*flag)
		usleep(1000);
}
static void in_a_host_function(void)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuLaunchHostFunc(stream, wait_for_flag, NULL));
	TRY(cuStreamDestroy(stream));
}
/* The event is the primary context's. */
static void in_a_green_context(void)
{
	spin_in(green_stream);
}
static void in_its_null_stream(void)
{
	TRY(cuCtxSetCurrent(green));
	spin_in(NULL);
	TRY(cuCtxSetCurrent(ctx));
}
static const struct road {
	const char *name;
	void (*come)(void);
} roads[] = {
	{"the NULL stream", in_the_null_stream},
	{"a thread's own", in_its_own_stream},
	{"that of a thread that is gone", in_that_of_a_thread_that_is_gone},
	{"a stream that is gone", in_a_stream_that_is_gone},
	{"one whose place is taken", in_one_whose_place_is_taken},
	{"an urgent one that is gone", in_an_urgent_stream},
	{"a graph that is gone", in_a_graph_that_is_gone},
	{"a host function", in_a_host_function},
	{"a green context", in_a_green_context},
	{"a green context's NULL stream", in_its_null_stream}};

int main(void)
{
	int status = 0;
	CUevent event;

	ctx = victim_start(0);
	TRY(cuMemHostAlloc((void **)&flag, sizeof(*flag),
			   CU_MEMHOSTALLOC_DEVICEMAP));
	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	spin = victim_kernel("vs_spin_flag");
	green = victim_green(0, &green_stream);
	*flag = 1;
	spin_in(NULL); /* loads it */
	for (size_t i = 0; i < sizeof(roads) / sizeof(roads[0]); i++) {
		CUresult r;

		TRY(cuCtxSynchronize());
		*flag = 0;
		roads[i].come();
		TRY(cuCtxRecordEvent(ctx, event));
		usleep(LONG_ENOUGH_US);
		r = cuEventQuery(event);
		printf("%s: %s\n", roads[i].name,
		       r == CUDA_ERROR_NOT_READY ? "covered" : "NOT COVERED");
		if (r != CUDA_ERROR_NOT_READY)
			status = 70;
		fflush(stdout);
		*flag = 1;
		TRY(cuEventSynchronize(event));
	}
	return status;
}
