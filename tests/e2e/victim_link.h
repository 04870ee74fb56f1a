/* SPDX-License-Identifier: MIT
 *
 * victim_link: for the victims that are linked against the driver (-lcuda).
 */
#ifndef VICTIM_LINK_H
#define VICTIM_LINK_H

#include <unistd.h>

#include "../sim/kernels_ptx.h"
#include "victim.h"

/* Every driver has this one, whichever cuda.h means by cuCtxCreate. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags,
				CUdevice device);

#if CUDA_VERSION >= 12080
/* cuMemcpyBatchAsync as cuda.h had it before 13.0. */
typedef CUresult(CUDAAPI *victim_older_batch_fn)(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *how, size_t *from, size_t n_how, size_t *failed,
	CUstream stream);
#endif

/* Makes device `ordinal` current by its primary context, as cudart does. */
static inline CUcontext victim_start(int ordinal)
{
	CUdevice device;
	CUcontext ctx;

	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, ordinal));
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	return ctx;
}

static inline CUdeviceptr victim_alloc(size_t size)
{
	CUdeviceptr p = 0;

	TRY(cuMemAlloc(&p, size));
	sim_client_note_alloc((void *)(uintptr_t)p, size);
	return p;
}

static inline void victim_free(CUdeviceptr p)
{
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(cuMemFree(p));
}

/*
 * This program once more, before it uses CUDA, with the arguments "second" and
 * the descriptors to read from and write to. Returns its PID.
 */
static inline pid_t victim_start_second(char *self, int *to_out, int *from_out)
{
	int to[2], from[2];
	pid_t pid;

	CHECK(pipe(to) == 0 && pipe(from) == 0);
	pid = fork();
	if (pid == 0) {
		char in[16], out[16];

		close(to[1]);
		close(from[0]);
		snprintf(in, sizeof(in), "%d", to[0]);
		snprintf(out, sizeof(out), "%d", from[1]);
		execl("/proc/self/exe", self, "second", in, out, (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	*to_out = to[1];
	*from_out = from[0];
	return pid;
}

/* Nothing is done with what was captured. */
static inline void victim_end_capture(CUstream stream)
{
	CUgraph graph;

	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuGraphDestroy(graph));
}

static inline CUstream victim_urgent_stream(void)
{
	int least, greatest;
	CUstream stream;

	TRY(cuCtxGetStreamPriorityRange(&least, &greatest));
	TRY(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
				       greatest));
	return stream;
}

/* Whether all bytes of a device range are `byte`; reads through the host. */
static inline bool victim_is_filled(CUdeviceptr p, size_t size, int byte)
{
	unsigned char *host = malloc(size);
	bool is_filled = true;

	CHECK(host);
	TRY(cuMemcpyDtoH(host, p, size));
	for (size_t i = 0; i < size && is_filled; i++)
		is_filled = host[i] == (unsigned char)byte;
	free(host);
	return is_filled;
}

/* One of the kernels of kernels_ptx.h, for the current context. */
static inline CUfunction victim_kernel(const char *name)
{
	CUmodule module;
	CUfunction kernel;

	TRY(cuModuleLoadData(&module, vs_kernels_ptx));
	TRY(cuModuleGetFunction(&kernel, module, name));
	return kernel;
}

static inline void victim_launch(CUfunction kernel, CUstream stream,
				 void **arguments)
{
	TRY(cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, stream, arguments,
			   NULL));
}

/* Blocks one after the other, each a MiB larger, whose work is complete. */
static inline void victim_go_round(CUstream stream, size_t first, int n)
{
	for (int i = 0; i < n; i++) {
		CUdeviceptr p = victim_alloc(first + (size_t)i * MiB);

		TRY(cuMemsetD8Async(p, (unsigned char)i, MiB, stream));
		TRY(cuStreamSynchronize(stream));
		victim_free(p);
	}
}

static inline void CUDA_CB victim_nap(void *data)
{
	(void)data;
	usleep(20000);
}

/* Work that waits until the host sets the flag, an _Atomic bool. */
static inline void CUDA_CB victim_wait_for(void *flag)
{
	while (!*(_Atomic bool *)flag)
		usleep(1000);
}

/* Some work in the NULL stream of the current context. */
static inline void victim_delay(void)
{
	TRY(cuLaunchHostFunc(NULL, victim_nap, NULL));
}

/* All of a device, for a green context. */
static inline CUdevResourceDesc victim_units(CUdevice device)
{
	CUdevResourceDesc units;
	CUdevResource all;

	TRY(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
	TRY(cuDevResourceGenerateDesc(&units, &all, 1));
	return units;
}

/* A green context of the device with all its units, and a stream of it. */
static inline CUcontext victim_green(CUdevice device, CUstream *stream_out)
{
	CUgreenCtx green;
	CUcontext made;

	TRY(cuGreenCtxCreate(&green, victim_units(device), device,
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuCtxFromGreenCtx(&made, green));
	TRY(cuGreenCtxStreamCreate(stream_out, green, CU_STREAM_NON_BLOCKING,
				   0));
	return made;
}

/* The name of a result, for printing. */
static inline const char *victim_name(CUresult result)
{
	const char *name = "?";

	if (result == CUDA_SUCCESS)
		return "CUDA_SUCCESS";
	cuGetErrorName(result, &name);
	return name;
}

#endif
