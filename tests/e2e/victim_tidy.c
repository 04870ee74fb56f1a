/* SPDX-License-Identifier: MIT
 *
 * victim_tidy: a program that makes no error. Its contexts end in each way,
 * with another one current, or none, or in another thread.
 */
#include <pthread.h>

#include "victim_link.h"

static CUdevice device;

static void work(void)
{
	CUdeviceptr p[14];

	for (int i = 0; i < 14; i++) {
		p[i] = victim_alloc((size_t)1000 << i);
		TRY(cuMemsetD8(p[i], 1, 1000));
	}
	for (int i = 0; i < 14; i++)
		victim_free(p[i]);
}

/* Memory that goes with its context. */
static void leave(void)
{
	sim_client_note_free((void *)(uintptr_t)victim_alloc(700));
	sim_client_note_free((void *)(uintptr_t)victim_alloc(9 * MiB));
}

static CUcontext create(void)
{
	CUcontext ctx;

	TRY(cuCtxCreate_v2(&ctx, 0, device));
	work();
	leave();
	return ctx;
}

static void destroys(CUcontext primary)
{
	CUcontext ctx;
	CUdeviceptr p;

	TRY(cuCtxDestroy(create()));
	ctx = create();
	TRY(cuCtxSetCurrent(primary));
	work();
	TRY(cuCtxDestroy(ctx));
	ctx = create();
	p = victim_alloc(3 * MiB);
	TRY(cuCtxSetCurrent(NULL));
	victim_free(p); /* needs no context */
	TRY(cuCtxDestroy(ctx));
	TRY(cuCtxSetCurrent(primary));
	work();
}

/* As cudaDeviceReset does, and a program that ends it twice. */
static void resets(void)
{
	for (int i = 0; i < 3; i++) {
		work();
		leave();
		TRY(cuDevicePrimaryCtxReset(device));
		if (i == 1)
			TRY(cuDevicePrimaryCtxReset(device));
		TRY(cuDevicePrimaryCtxRelease(device));
		victim_start(0);
	}
}

static void releases(void)
{
	for (int i = 0; i < 4; i++) {
		work();
		leave();
		if (i % 2)
			TRY(cuCtxSetCurrent(NULL));
		TRY(cuDevicePrimaryCtxRelease(device));
		victim_start(0);
	}
}

static void *come(void *arg)
{
	(void)arg;
	victim_start(0);
	work();
	TRY(cuCtxSetCurrent(NULL));
	TRY(cuDevicePrimaryCtxRelease(device));
	return NULL;
}

static void threads(void)
{
	pthread_t all[8];

	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&all[i], NULL, come, NULL) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(pthread_join(all[i], NULL) == 0);
}

static void streams(void)
{
	CUstream stream;
	CUdeviceptr p;

	for (unsigned i = 0; i < 8; i++) {
		TRY(cuStreamCreate(&stream, i % 2));
		p = victim_alloc(MiB);
		TRY(cuMemsetD8Async(p, 1, MiB, stream));
		sim_client_note_free((void *)(uintptr_t)p);
		TRY(cuMemFreeAsync(p, stream));
		TRY(cuStreamDestroy(stream));
	}
}

/* The driver frees in a stream also where no context is current. */
static void free_without_context(CUcontext primary)
{
	CUstream stream;
	CUdeviceptr p;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	p = victim_alloc(MiB);
	TRY(cuCtxSetCurrent(NULL));
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(cuMemFreeAsync(p, stream));
	TRY(cuCtxSetCurrent(primary));
	TRY(cuStreamDestroy(stream));
}

static void captures(CUstreamCaptureMode mode)
{
	CUdeviceptr p = victim_alloc(MiB);
	CUgraphExec exec;
	CUstream stream;
	CUgraph graph;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, mode));
	TRY(cuMemsetD8Async(p, 1, MiB, stream));
	if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		work();
	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	TRY(cuGraphLaunch(exec, stream));
	TRY(cuStreamSynchronize(stream));
	victim_free(p);
	TRY(cuGraphExecDestroy(exec));
	TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
}

int main(void)
{
	CUcontext primary = victim_start(0);

	TRY(cuDeviceGet(&device, 0));
	work();
	streams();
	free_without_context(primary);
	captures(CU_STREAM_CAPTURE_MODE_GLOBAL);
	captures(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	captures(CU_STREAM_CAPTURE_MODE_RELAXED);
	destroys(primary);
	threads();
	releases();
	resets();
	work();
	printf("done\n");
	return 0;
}
