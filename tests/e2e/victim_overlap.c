/* SPDX-License-Identifier: MIT
 *
 * victim_overlap [full | within]: frees memory while the GPU is idle, gives it
 * work for a while, and allocates as much again meanwhile. The driver has the
 * memory back by then, and the host goes on beside the work. `full`: all the
 * rest of the device is in use. `within`: the work is a function of the host
 * that makes calls itself, all of which the driver refuses there.
 */
#include "victim_link.h"

#define MOST 16384
#define WORK_US 200000

static CUfunction kernel;
static CUstream stream;
static CUgraphExec graph;
static CUdeviceptr target;

static void kernel_works(void)
{
	uint64_t ns = WORK_US * UINT64_C(1000), n = 1;
	uint32_t value = 1;
	void *arguments[] = {&ns, &target, &value, &n};

	victim_launch(kernel, stream, arguments);
}

static void graph_works(void)
{
	TRY(cuGraphLaunch(graph, stream));
}

static void CUDA_CB nap(void *data)
{
	(void)data;
	usleep(WORK_US);
}

static void host_works(void)
{
	TRY(cuLaunchHostFunc(stream, nap, NULL));
}

static void CUDA_CB nap_of_stream(CUstream of, CUresult status, void *data)
{
	(void)of;
	(void)status;
	nap(data);
}

static void callback_works(void)
{
	TRY(cuStreamAddCallback(stream, nap_of_stream, NULL, 0));
}

static void make_graph(void)
{
	CUgraph captured;

	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	kernel_works();
	TRY(cuStreamEndCapture(stream, &captured));
	TRY(cuGraphInstantiate(&graph, captured, 0));
	TRY(cuGraphDestroy(captured));
}

/* All of the device but so many bytes. */
static CUmemGenericAllocationHandle fill_but(size_t rest)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemGenericAllocationHandle handle;
	size_t available, total;

	TRY(cuMemGetInfo(&available, &total));
	TRY(cuMemCreate(&handle, (available - rest) / (2 * MiB) * (2 * MiB),
			&prop, 0));
	return handle;
}

static void round_of(const char *name, void (*work)(void), size_t size,
		     size_t bytes)
{
	static CUdeviceptr p[MOST];
	int n = (int)(bytes / size);
	CUevent end;

	CHECK(n <= MOST);
	for (int i = 0; i < n; i++)
		p[i] = victim_alloc(size);
	TRY(cuMemsetD8(p[0], 1, size));
	TRY(cuCtxSynchronize());
	for (int i = 0; i < n; i++)
		victim_free(p[i]);
	TRY(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
	work();
	TRY(cuEventRecord(end, stream));
	for (int i = 0; i < n; i++)
		p[i] = victim_alloc(size);
	printf("%s, %d of %zu KiB: %s\n", name, n, size / KiB,
	       cuEventQuery(end) == CUDA_ERROR_NOT_READY ? "beside it"
							 : "after it");
	TRY(cuStreamSynchronize(stream));
	TRY(cuMemsetD8(p[n - 1], 2, size));
	for (int i = 0; i < n; i++)
		victim_free(p[i]);
	TRY(cuEventDestroy(end));
}

static CUresult answers[2];

static void CUDA_CB call_the_driver(void *unused)
{
	uint32_t word;

	(void)unused;
	for (int i = 0; i < 200; i++) {
		answers[0] = cuMemcpyDtoH(&word, target, sizeof(word));
		answers[1] = cuStreamSynchronize(NULL);
		usleep(100);
	}
}

/* Blocks come and go meanwhile, so that something may always be bare. */
static void calls_within(size_t size)
{
	TRY(cuLaunchHostFunc(stream, call_the_driver, NULL));
	for (int i = 0; i < 1000; i++) {
		victim_free(victim_alloc(size));
		usleep(20);
	}
	TRY(cuStreamSynchronize(stream));
	printf("%zu KiB, within: %s, %s\n", size / KiB, victim_name(answers[0]),
	       victim_name(answers[1]));
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {8 * KiB, 512 * KiB, 3 * MiB, 64 * MiB};
	bool is_full = argc > 1 && !strcmp(argv[1], "full");
	bool is_within = argc > 1 && !strcmp(argv[1], "within");
	CUmemGenericAllocationHandle rest = 0;

	victim_start(0);
	kernel = victim_kernel("vs_sleep");
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	target = victim_alloc(4 * KiB);
	make_graph();
	graph_works();
	host_works();
	callback_works();
	TRY(cuStreamSynchronize(stream));
	if (is_full)
		rest = fill_but(120 * MiB);
	for (int i = 0; i < 4 && is_within; i++)
		calls_within(sizes[i]);
	for (int i = 0; i < 4 && !is_within; i++) {
		round_of("kernel", kernel_works, sizes[i], 64 * MiB);
		round_of("graph", graph_works, sizes[i], 64 * MiB);
		round_of("host function", host_works, sizes[i], 64 * MiB);
		round_of("callback", callback_works, sizes[i], 64 * MiB);
	}
	if (is_full)
		TRY(cuMemRelease(rest));
	victim_free(target);
	TRY(cuGraphExecDestroy(graph));
	TRY(cuStreamDestroy(stream));
	return 0;
}
