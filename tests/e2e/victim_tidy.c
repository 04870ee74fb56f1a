/* SPDX-License-Identifier: MIT
 *
 * victim_tidy [unseen]: a program that makes no error. Its contexts end in each
 * way, with another one current, or none, or in another thread; or the primary
 * one is held by who is not seen to.
 */
#include <pthread.h>

#include "victim_link.h"

#include "image.h"

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

/* What goes with the context that is current. */
static void leave_much(void)
{
	sim_client_note_free((void *)(uintptr_t)victim_alloc(64 * MiB));
}

/*
 * The driver's own libraries hold the primary context, too, and let it go,
 * where nobody sees it.
 */
static void held_unseen(void)
{
	void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuDevicePrimaryCtxRelease) *release;
	size_t before, after, total;
	CUdeviceptr p;
	CUcontext ctx;

	CHECK(handle);
	*(void **)&retain = in_image(handle, "cuDevicePrimaryCtxRetain");
	*(void **)&release = in_image(handle, "cuDevicePrimaryCtxRelease_v2");
	CHECK(retain && release);
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(retain(&ctx, device));
	victim_start(0);
	p = victim_alloc(9 * MiB);
	TRY(cuMemsetD8(p, 5, 9 * MiB));
	TRY(cuDevicePrimaryCtxRelease(device));
	printf("held by another: %d\n", victim_is_filled(p, 9 * MiB, 5));
	victim_free(p);
	victim_start(0);
	TRY(cuMemGetInfo(&before, &total));
	leave_much();
	TRY(release(device));
	/* the last, which the shim cannot know */
	TRY(cuDevicePrimaryCtxRelease(device));
	victim_start(0);
	TRY(cuMemGetInfo(&after, &total));
	printf("all is back: %d\n", after + 32 * MiB >= before);
	work();
	/* an end that is not seen at all; another may have its handle then */
	TRY(retain(&ctx, device));
	TRY(cuDevicePrimaryCtxRelease(device));
	TRY(release(device));
	TRY(cuCtxCreate_v2(&ctx, 0, device));
	leave_much();
	TRY(cuCtxDestroy(ctx));
	victim_start(0);
	TRY(cuMemGetInfo(&after, &total));
	printf("that of another, too: %d\n", after + 32 * MiB >= before);
}

int main(int argc, char **argv)
{
	CUcontext primary;

	(void)argv;
	if (argc > 1) {
		held_unseen();
		return 0;
	}
	primary = victim_start(0);
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
