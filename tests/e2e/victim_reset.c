/* SPDX-License-Identifier: MIT
 *
 * victim_reset: contexts are reset and destroyed with memory live, and the
 * program goes on.
 */
#define CUDA_ENABLE_DEPRECATED /* attaches, to cuda.h */
#include <limits.h>

#include "victim_link.h"

/* By the names of before CUDA 3.2, 4.0 and 11.0, which need no header. */
#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuStreamDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
CUresult CUDAAPI cuCtxCreate(CUcontext *, unsigned, CUdevice);
CUresult CUDAAPI cuCtxDestroy(CUcontext);
CUresult CUDAAPI cuStreamDestroy(CUstream);
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext);
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice);
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice);
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice);

static CUresult(CUDAAPI *release)(CUdevice) = cuDevicePrimaryCtxRelease_v2;
static CUresult(CUDAAPI *reset)(CUdevice) = cuDevicePrimaryCtxReset_v2;

static void fill(const char *what)
{
	CUdeviceptr small = victim_alloc(1000), large = victim_alloc(9 * MiB);

	TRY(cuMemsetD8(small, 1, 1000));
	TRY(cuMemsetD8(large, 2, 9 * MiB));
	printf("%s: %d %d\n", what, victim_is_filled(small, 1000, 1),
	       victim_is_filled(large, 9 * MiB, 2));
	victim_free(small);
	victim_free(large);
}

/* A context that dies with memory live and freed, and in a capture. */
static void old_names(CUdevice device)
{
	CUdeviceptr p, q;
	CUstream stream;
	CUcontext ctx;

	for (int i = 0; i < 3; i++) {
		TRY(cuCtxCreate(&ctx, 0, device));
		p = victim_alloc(6 * MiB);
		q = victim_alloc(700);
		fill("old names");
		sim_client_note_free((void *)(uintptr_t)p);
		sim_client_note_free((void *)(uintptr_t)q);
		TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		TRY(cuStreamBeginCapture(stream,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
		TRY(cuStreamDestroy(stream));
		TRY(cuCtxDestroy(ctx));
	}
}

static CUcontext create_attached(CUdevice device)
{
	CUcontext ctx, same;

	TRY(cuCtxCreate(&ctx, 0, device));
	TRY(cuCtxAttach(&same, 0));
	CHECK(same == ctx);
	return ctx;
}

/* Created and ended by its only detach, with memory live. */
static void create_and_detach(CUdevice device)
{
	CUdeviceptr p;
	CUcontext ctx;

	TRY(cuCtxCreate(&ctx, 0, device));
	p = victim_alloc(64 * MiB);
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(cuCtxDetach(ctx));
}

/* Attaches count for their own context, and as long as that lives. */
static void attaches(CUdevice device)
{
	CUcontext ctx = create_attached(device);
	CUdeviceptr p = victim_alloc(64 * MiB);

	TRY(cuMemsetD8(p, 5, 64 * MiB));
	create_and_detach(device);
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuCtxDetach(ctx));
	fill("attached");
	printf("kept: %d\n", victim_is_filled(p, 64 * MiB, 5));
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(cuCtxDetach(ctx));

	ctx = create_attached(device);
	TRY(cuCtxDestroy_v2(ctx));
	create_and_detach(device);
}

/* A context is created when the primary one is gone, and destroyed. */
static void after_the_last_release(CUdevice device)
{
	size_t before, after, total;
	CUdeviceptr p;
	CUcontext ctx;
	unsigned flags;
	int is_active = 1;

	TRY(cuMemGetInfo(&before, &total));
	TRY(cuCtxSetCurrent(NULL));
	while (is_active) {
		TRY(release(device));
		TRY(cuDevicePrimaryCtxGetState(device, &flags, &is_active));
	}
	TRY(cuCtxCreate_v2(&ctx, 0, device));
	p = victim_alloc(64 * MiB);
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(cuCtxDestroy_v2(ctx));
	victim_start(0);
	TRY(cuMemGetInfo(&after, &total));
	printf("after the last release: %d\n", after + 32 * MiB >= before);
}

/* The primary context ends while nobody can retain it, for want of memory. */
static void end_unnamed(CUdevice device, bool is_reset)
{
	CUdeviceptr small = victim_alloc(700), large = victim_alloc(64 * MiB);
	size_t before, after, total;
	CUcontext ctx;

	TRY(cuMemGetInfo(&before, &total));
	sim_client_note_free((void *)(uintptr_t)small);
	sim_client_note_free((void *)(uintptr_t)large);
	TRY(is_reset ? reset(device) : release(device));
	while (cuDevicePrimaryCtxRetain(&ctx, device) ==
	       CUDA_ERROR_OUT_OF_MEMORY)
		;
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuMemGetInfo(&after, &total));
	printf("memory came back: %d\n", after >= before + 64 * MiB);
	printf("free afterwards: %s, %s\n", victim_name(cuMemFree(small)),
	       victim_name(cuMemFree(large)));
	fill("afterwards");
}

/* Whoever holds the primary context holds the one after its reset, too. */
static CUcontext hold_over_a_reset(CUdevice device)
{
	CUdeviceptr p;
	CUcontext ctx;

	TRY(reset(device));
	TRY(release(device));
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	p = victim_alloc(64 * MiB);
	TRY(cuMemsetD8(p, 7, 64 * MiB));
	TRY(release(device));
	printf("held over a reset: %d\n", victim_is_filled(p, 64 * MiB, 7));
	victim_free(p);
	return ctx;
}

int main(int argc, char **argv)
{
	CUcontext ctx = victim_start(0), second;
	size_t before, after, total;
	CUdeviceptr p, q;
	bool is_old = argc > 1 && !strcmp(argv[1], "old");
	CUdevice device;

	if (is_old) {
		release = cuDevicePrimaryCtxRelease;
		reset = cuDevicePrimaryCtxReset;
	}
	TRY(cuDeviceGet(&device, 0));
	if (argc > 2) {
		end_unnamed(device, !strcmp(argv[2], "reset"));
		return 0;
	}
	p = victim_alloc(4 * MiB);
	fill("first");

	sim_client_note_free((void *)(uintptr_t)p);
	TRY(reset(device));
	printf("free after reset: %s\n", victim_name(cuMemFree(p)));
	printf("reset of no device: %s, %s\n", victim_name(reset(-1)),
	       victim_name(reset(INT_MAX)));
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	fill("after reset");
	ctx = hold_over_a_reset(device);
	TRY(cuMemGetInfo(&before, &total));

	TRY(cuCtxCreate_v2(&second, 0, device));
	p = victim_alloc(6 * MiB);
	q = victim_alloc(700);
	fill("second context");
	sim_client_note_free((void *)(uintptr_t)p);
	sim_client_note_free((void *)(uintptr_t)q);
	TRY(cuCtxDestroy_v2(second));

	TRY(cuCtxSetCurrent(ctx));
	printf("free after destroy: %s, %s\n", victim_name(cuMemFree(p)),
	       victim_name(cuMemFree(q)));
	TRY(cuMemGetInfo(&after, &total));
	printf("memory came back: %d\n", after + 2 * MiB >= before);
	if (is_old) {
		old_names(device);
		attaches(device);
		TRY(cuCtxSetCurrent(ctx));
		TRY(cuMemGetInfo(&after, &total));
		printf("and again: %d\n", after + 2 * MiB >= before);
	}
	after_the_last_release(device);
	fill("at the end");
	TRY(release(device));
	return 0;
}
