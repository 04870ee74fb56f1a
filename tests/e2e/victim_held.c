/* SPDX-License-Identifier: MIT
 *
 * victim_held: that what is given to a context after cuCtxWaitEvent waits for
 * the event, in whatever way it comes to the memory; policies stream and
 * ordered rest on it. The event stands behind a kernel that runs until the host
 * raises a flag, which it does when the other thread had time enough to come
 * through.
 */
#include <pthread.h>
#include <unistd.h>

#include "victim_link.h"

enum { LONG_ENOUGH_MS = 200, MOST = MiB };

static CUcontext ctx, green;
static CUstream old, green_stream;
static CUdeviceptr p;
static CUgraphExec graph;
static _Atomic bool is_through;

static void set_in(CUstream stream)
{
	TRY(cuMemsetD32Async(p, 1, 1, stream));
	TRY(cuStreamSynchronize(stream));
}

static void in_an_old_stream(void)
{
	set_in(old);
}

static void in_the_null_stream(void)
{
	set_in(CU_STREAM_LEGACY);
}

static void in_its_own_stream(void)
{
	set_in(CU_STREAM_PER_THREAD);
}

static void in_a_new_stream(void)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	set_in(stream);
	TRY(cuStreamDestroy(stream));
}

static void in_an_urgent_stream(void)
{
	CUstream stream = victim_urgent_stream();

	set_in(stream);
	TRY(cuStreamDestroy(stream));
}

static void in_a_graph(void)
{
	TRY(cuGraphLaunch(graph, old));
	TRY(cuStreamSynchronize(old));
}

/* Of a word, of what still may go with the commands, and of more. */
static void by_copies_to_it(void)
{
	static char bytes[MOST];

	for (size_t size = 4; size <= MOST; size *= 512)
		TRY(cuMemcpyHtoD(p, bytes, size));
}

static void by_a_copy_from_it(void)
{
	uint32_t word;

	TRY(cuMemcpyDtoH(&word, p, sizeof(word)));
}

/* What waits is the primary context. */
static void in_a_green_context(void)
{
	set_in(green_stream);
}

static void in_its_null_stream(void)
{
	TRY(cuCtxSetCurrent(green));
	set_in(NULL);
}

static const struct road {
	const char *name;
	void (*come)(void);
} roads[] = {{"a stream that there was", in_an_old_stream},
	     {"a stream that is made", in_a_new_stream},
	     {"the same, of high priority", in_an_urgent_stream},
	     {"a thread's own stream", in_its_own_stream},
	     {"the NULL stream", in_the_null_stream},
	     {"a graph that there was", in_a_graph},
	     {"a copy to it", by_copies_to_it},
	     {"a copy from it", by_a_copy_from_it},
	     {"a green context", in_a_green_context},
	     {"a green context's NULL stream", in_its_null_stream}};

static void *come(void *road)
{
	TRY(cuCtxSetCurrent(ctx));
	((const struct road *)road)->come();
	is_through = true;
	return NULL;
}

static void capture(void)
{
	CUgraph captured;

	TRY(cuStreamBeginCapture(old, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuMemsetD32Async(p, 3, 1, old));
	TRY(cuStreamEndCapture(old, &captured));
	TRY(cuGraphInstantiate(&graph, captured, 0));
	TRY(cuGraphUpload(graph, old));
	TRY(cuGraphDestroy(captured));
}

int main(void)
{
	_Atomic uint32_t *flag;
	CUdeviceptr at;
	CUfunction spin;
	CUstream stream;
	CUevent event;
	int status = 0;
	void *arguments[] = {&at};

	ctx = victim_start(0);
	TRY(cuMemHostAlloc((void **)&flag, sizeof(*flag),
			   CU_MEMHOSTALLOC_DEVICEMAP));
	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&old, CU_STREAM_NON_BLOCKING));
	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	spin = victim_kernel("vs_spin_flag");
	p = victim_alloc(MOST);
	green = victim_green(0, &green_stream);
	capture();
	for (size_t i = 0; i < sizeof(roads) / sizeof(roads[0]); i++) {
		pthread_t thread;

		TRY(cuCtxSynchronize());
		*flag = 0;
		is_through = false;
		victim_launch(spin, stream, arguments);
		TRY(cuCtxRecordEvent(ctx, event));
		TRY(cuCtxWaitEvent(ctx, event));
		CHECK(pthread_create(&thread, NULL, come, (void *)&roads[i]) ==
		      0);
		for (int ms = 0; ms < LONG_ENOUGH_MS && !is_through; ms++)
			usleep(1000);
		printf("%s: %s\n", roads[i].name,
		       is_through ? "NOT HELD" : "held");
		if (is_through)
			status = 70;
		*flag = 1;
		CHECK(pthread_join(thread, NULL) == 0);
	}
	return status;
}
