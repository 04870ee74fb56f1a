/* SPDX-License-Identifier: MIT
 *
 * victim_memops: SYNC_MEMOPS is set for an allocation, as who registers it with
 * a NIC does; from then on a plain copy or set of it has ended when it returns,
 * whatever flags the program gives the context, and none of other memory.
 */
#include "victim_link.h"

#include "blocks.h"

#define SIZE ((size_t)3 * MiB)

static _Atomic bool is_over;

static void CUDA_CB end_late(void *unused)
{
	(void)unused;
	usleep(50000);
	is_over = true;
}

/* Copies and sets, all plain, none of which waits by itself. */
static void copy_linear(CUdeviceptr to, CUdeviceptr from)
{
	TRY(cuMemcpyDtoD(to, from, SIZE));
}

static void copy_unified(CUdeviceptr to, CUdeviceptr from)
{
	TRY(cuMemcpy(to, from, SIZE));
}

static void copy_pitched(CUdeviceptr to, CUdeviceptr from)
{
	CUDA_MEMCPY2D c = {.dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = to,
			   .dstPitch = 4096,
			   .srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = from,
			   .srcPitch = 4096,
			   .WidthInBytes = 4000,
			   .Height = 500};

	TRY(cuMemcpy2D(&c));
}

static void copy_peer(CUdeviceptr to, CUdeviceptr from)
{
	CUcontext ctx;

	TRY(cuCtxGetCurrent(&ctx));
	TRY(cuMemcpyPeer(to, ctx, from, ctx, SIZE));
}

static void copy_peer_3d(CUdeviceptr to, CUdeviceptr from)
{
	CUcontext ctx;
	CUDA_MEMCPY3D_PEER c = {.dstMemoryType = CU_MEMORYTYPE_DEVICE,
				.dstDevice = to,
				.dstPitch = 4096,
				.dstHeight = 500,
				.srcMemoryType = CU_MEMORYTYPE_DEVICE,
				.srcDevice = from,
				.srcPitch = 4096,
				.srcHeight = 500,
				.WidthInBytes = 4000,
				.Height = 500,
				.Depth = 1};

	TRY(cuCtxGetCurrent(&ctx));
	c.dstContext = c.srcContext = ctx;
	TRY(cuMemcpy3DPeer(&c));
}

static void set_bytes(CUdeviceptr to, CUdeviceptr from)
{
	(void)from;
	TRY(cuMemsetD8(to, 7, SIZE));
}

static void set_rows(CUdeviceptr to, CUdeviceptr from)
{
	(void)from;
	TRY(cuMemsetD2D32(to, 4096, 7, 1000, 500));
}

static CUarray array;

static void copy_to_array(CUdeviceptr to, CUdeviceptr from)
{
	(void)to;
	TRY(cuMemcpyDtoA(array, 0, from, 32 * KiB));
}

static void copy_from_array(CUdeviceptr to, CUdeviceptr from)
{
	(void)from;
	TRY(cuMemcpyAtoD(to, array, 0, 32 * KiB));
}

static const struct {
	const char *name;
	void (*make)(CUdeviceptr to, CUdeviceptr from);
} calls[] = {
	{"copy", copy_linear},
	{"unified copy", copy_unified},
	{"pitched copy", copy_pitched},
	{"peer copy", copy_peer},
	{"3D peer copy", copy_peer_3d},
	{"set", set_bytes},
	{"set of rows", set_rows},
	{"copy to an array", copy_to_array},
	{"copy from an array", copy_from_array},
};

/* One call, behind some work of the NULL stream. */
static void try_call(const char *when, int i, CUdeviceptr to, CUdeviceptr from)
{
	is_over = false;
	TRY(cuLaunchHostFunc(NULL, end_late, NULL));
	calls[i].make(to, from);
	printf("%s: %s, ended when it returns: %d\n", when, calls[i].name,
	       is_over);
	TRY(cuCtxSynchronize());
}

static void copy(const char *when, CUdeviceptr to, CUdeviceptr from)
{
	try_call(when, 0, to, from);
}

static void try_all(const char *when, CUdeviceptr to, CUdeviceptr from)
{
	for (int i = 0; i < (int)(sizeof(calls) / sizeof(calls[0])); i++)
		try_call(when, i, to, from);
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

/* A plain set of it waits, which harms no capture. */
static void beside_a_capture(CUdeviceptr p, CUstreamCaptureMode mode)
{
	CUstream stream;
	CUgraph graph = NULL;
	CUresult result;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, mode));
	result = cuMemsetD8(p, 1, SIZE);
	printf("beside a capture: %s, ", victim_name(result));
	printf("end %s\n", victim_name(cuStreamEndCapture(stream, &graph)));
	if (graph)
		TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
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

/* Of many allocations for which it was set most are freed. */
static void many(void)
{
	CUdeviceptr kept[20], p;
	unsigned yes = 1, is_set, n_kept = 0;

	for (int i = 0; i < 400; i++) {
		p = victim_alloc(32 * KiB);
		TRY(cuPointerSetAttribute(&yes,
					  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
		if (i % 20 == 7)
			kept[n_kept++] = p;
		else
			victim_free(p);
	}
	for (unsigned i = 0; i < n_kept; i++) {
		TRY(cuPointerGetAttribute(
			&is_set, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, kept[i]));
		CHECK(is_set);
	}
	for (unsigned i = 0; i < n_kept; i++)
		victim_free(kept[i]);
	printf("%u of many kept\n", n_kept);
}

/* What the program frees another may reach still, who registered it. */
static void free_what_was_set(size_t size)
{
	CUdeviceptr p = victim_alloc(size), q;
	unsigned yes = 1;

	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	victim_free(p);
	TRY(cuCtxSynchronize());
	q = victim_alloc(size);
	/* the driver's own may, since it knows who that is */
	CHECK(q != p || pool_blocks() < 0);
	victim_free(q);
}

int main(void)
{
	CUdeviceptr p, q, other[2];
	unsigned yes = 1, no = 0;
	CUDA_ARRAY_DESCRIPTOR bytes = {.Width = 32 * KiB,
				       .Format = CU_AD_FORMAT_UNSIGNED_INT8,
				       .NumChannels = 1};
	CUdevice device;

	victim_start(0);
	free_what_was_set(SIZE);
	free_what_was_set(KiB);
	TRY(cuDeviceGet(&device, 0));
	TRY(cuArrayCreate(&array, &bytes));
	p = victim_alloc(SIZE);
	q = victim_alloc(SIZE);
	for (int i = 0; i < 2; i++)
		other[i] = victim_alloc(SIZE);
	try_all("not set", q, p);
	within_a_capture(p, 1);
	TRY(cuCtxSetFlags(CU_CTX_SCHED_SPIN));
	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	within_a_capture(p, 0);
	beside_a_capture(p, CU_STREAM_CAPTURE_MODE_GLOBAL);
	beside_a_capture(p, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	try_all("set, from it", q, p);
	try_all("set, to it", p, q);
	try_all("other memory", other[0], other[1]);
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
	copy("context's flags, all of it", other[0], other[1]);
	TRY(cuPointerSetAttribute(&no, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	try_all("set to 0", p, q);
	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	victim_free(p);
	victim_free(q);
	copy("freed", other[0], other[1]);
	many();
	for (int i = 0; i < 2; i++)
		victim_free(other[i]);
	TRY(cuArrayDestroy(array));
	print_flags(device);
	for (unsigned i = 0; i < 4; i++)
		another(device, i % 2 ? CU_CTX_SYNC_MEMOPS : 0);
	return 0;
}
