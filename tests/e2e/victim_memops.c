/* SPDX-License-Identifier: MIT
 *
 * victim_memops: SYNC_MEMOPS is set for an allocation, as who registers it with
 * a NIC does; from then on a plain copy has ended when it returns, whatever
 * flags the program gives the context.
 */
#include "victim_link.h"

#define SIZE ((size_t)3 * MiB)

static _Atomic bool is_over;

static void CUDA_CB end_late(void *unused)
{
	(void)unused;
	usleep(50000);
	is_over = true;
}

/* One context's memory, copied behind some work of its NULL stream. */
static void copy(const char *when, CUdeviceptr to, CUdeviceptr from)
{
	is_over = false;
	TRY(cuLaunchHostFunc(NULL, end_late, NULL));
	TRY(cuMemcpyDtoD(to, from, SIZE));
	printf("%s: copied when it returns: %d\n", when, is_over);
	TRY(cuCtxSynchronize());
}

/* What the program has set for the context, and for the device's. */
static void print_flags(CUdevice device)
{
	unsigned own = 0, primary = 0;
	int is_active = 0;

	TRY(cuCtxGetFlags(&own));
	TRY(cuDevicePrimaryCtxGetState(device, &primary, &is_active));
	printf("polite: %d, synchronous: %d %d, active: %d\n",
	       !!(own & CU_CTX_SCHED_BLOCKING_SYNC),
	       !!(own & CU_CTX_SYNC_MEMOPS), !!(primary & CU_CTX_SYNC_MEMOPS),
	       is_active);
}

/* Another context, at the handle of one that had such memory, perhaps. */
static void another(CUdevice device, unsigned flags)
{
	unsigned yes = 1;
	CUdeviceptr p;
	CUcontext ctx;

	TRY(cuCtxCreate_v2(&ctx, flags, device));
	print_flags(device);
	p = victim_alloc(SIZE);
	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	print_flags(device);
	victim_free(p);
	TRY(cuCtxDestroy(ctx));
}

/* A copy of such memory under a context that has none. */
static void elsewhere(CUdevice device, CUdeviceptr from)
{
	CUcontext ctx;
	CUdeviceptr to;

	TRY(cuCtxCreate_v2(&ctx, 0, device));
	to = victim_alloc(SIZE);
	copy("another context", to, from);
	victim_free(to);
	TRY(cuCtxDestroy(ctx));
}

/* Refused, and not taken for set. */
static void within_a_capture(CUdeviceptr p, unsigned wanted)
{
	unsigned is_sync = 7;
	CUstream stream;
	CUgraph graph = NULL;
	CUresult result, end;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	result = cuPointerSetAttribute(&wanted,
				       CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
	end = cuStreamEndCapture(stream, &graph);
	TRY(cuPointerGetAttribute(&is_sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
				  p));
	printf("within a capture: %u: %s, end %s, is %u\n", wanted,
	       victim_name(result), victim_name(end), is_sync);
	if (graph)
		TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
}

int main(void)
{
	CUdeviceptr p, q;
	unsigned yes = 1;
	CUdevice device;

	victim_start(0);
	TRY(cuDeviceGet(&device, 0));
	p = victim_alloc(SIZE);
	q = victim_alloc(SIZE);
	within_a_capture(p, 1);
	TRY(cuCtxSetFlags(CU_CTX_SCHED_SPIN));
	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	within_a_capture(p, 0);
	copy("set", q, p);
	print_flags(device);
	elsewhere(device, p);
	TRY(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
	print_flags(device);
	copy("context's flags", p, q);
	TRY(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_SPIN));
	print_flags(device);
	copy("primary context's flags", p, q);
	TRY(cuCtxSetFlags(CU_CTX_SYNC_MEMOPS));
	print_flags(device);
	TRY(cuCtxSetFlags(CU_CTX_SCHED_SPIN));
	print_flags(device);
	victim_free(p);
	victim_free(q);
	print_flags(device);
	for (unsigned i = 0; i < 4; i++)
		another(device, i % 2 ? CU_CTX_SYNC_MEMOPS : 0);
	return 0;
}
