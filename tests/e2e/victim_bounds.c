/* SPDX-License-Identifier: MIT
 *
 * victim_bounds: copies and sets that run past the end of an allocation, which
 * the driver refuses to the byte and else does not mind, and those that just do
 * not. What lies behind is not touched.
 */
#include "victim_link.h"

#define PITCH 128

static char host[64 * KiB];
static CUcontext ctx;
static CUstream stream;

static void say(const char *what, CUresult result)
{
	printf("%s: %s\n", what, victim_name(result));
}

#define SAY(call) say(#call, call)

static void rows(CUdeviceptr p, size_t n, CUdeviceptr q)
{
	TRY(cuMemcpyDtoD(p, q, n));
	TRY(cuMemsetD8(p, 1, n));
	TRY(cuMemsetD8(p + n, 1, 0));
	TRY(cuMemcpyDtoH(host, p + n, 0));
	SAY(cuMemcpyDtoD(p, q, n + 1));
	SAY(cuMemcpyDtoD(p + 1, q, n));
	SAY(cuMemcpy(p, q, n + 1));
	SAY(cuMemcpyAsync(p + n - 4, q, 5, stream));
	SAY(cuMemcpyHtoD(p + n - 4, host, 5));
	SAY(cuMemcpyDtoH(host, p + n - 4, 5));
	SAY(cuMemcpyHtoDAsync(p + n - 4, host, 5, stream));
	SAY(cuMemcpyDtoHAsync(host, p + n - 4, 5, stream));
	SAY(cuMemcpyPeer(p + n - 4, ctx, q, ctx, 5));
	SAY(cuMemcpyPeerAsync(p, ctx, q + n - 4, ctx, 5, stream));
	SAY(cuMemsetD8(p, 1, n + 1));
	SAY(cuMemsetD16(p, 1, n / 2 + 1));
	SAY(cuMemsetD32(p, 1, n / 4 + 1));
	SAY(cuMemsetD8Async(p + n - 1, 1, 2, stream));
	SAY(cuMemsetD16Async(p, 1, n / 2 + 1, stream));
}

/* `height` rows, the last of which ends where the allocation does. */
static void planes(CUdeviceptr p, size_t width, size_t height, CUdeviceptr q)
{
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = p,
			   .srcPitch = PITCH,
			   .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			   .dstDevice = q,
			   .dstPitch = PITCH,
			   .WidthInBytes = width,
			   .Height = height};
	CUDA_MEMCPY3D d = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = p,
			   .srcPitch = PITCH,
			   .srcHeight = height,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = q,
			   .dstPitch = PITCH,
			   .dstHeight = height,
			   .WidthInBytes = width,
			   .Height = height,
			   .Depth = 1};

	TRY(cuMemcpy2D(&c));
	TRY(cuMemcpy3D(&d));
	TRY(cuMemsetD2D8(p, PITCH, 1, width, height));
	c.srcXInBytes = 1;
	SAY(cuMemcpy2D(&c));
	SAY(cuMemcpy2DUnaligned(&c));
	c.srcXInBytes = 0;
	c.dstY = 1;
	SAY(cuMemcpy2DAsync(&c, stream));
	c.Height = 0;
	SAY(cuMemcpy2D(&c));
	d.srcXInBytes = 1;
	SAY(cuMemcpy3D(&d));
	d.srcXInBytes = 0;
	d.dstY = 1;
	SAY(cuMemcpy3DAsync(&d, stream));
	SAY(cuMemsetD2D8(p, PITCH, 1, width, height + 1));
	SAY(cuMemsetD2D8(p + 1, PITCH, 1, width, height));
	SAY(cuMemsetD2D32Async(p + PITCH, PITCH, 1, width / 4, height, stream));
	SAY(cuMemsetD2D8(p + PITCH, PITCH, 1, width, 0));
}

/* The same, by the calls that name contexts. */
static void peer_planes(CUdeviceptr p, size_t width, size_t height,
			CUdeviceptr q)
{
	CUDA_MEMCPY3D_PEER c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
				.srcDevice = p,
				.srcContext = ctx,
				.srcPitch = PITCH,
				.srcHeight = height,
				.dstMemoryType = CU_MEMORYTYPE_DEVICE,
				.dstDevice = q,
				.dstContext = ctx,
				.dstPitch = PITCH,
				.dstHeight = height,
				.WidthInBytes = width,
				.Height = height,
				.Depth = 1};

	TRY(cuMemcpy3DPeer(&c));
	/* writes there, as what was done so far, but in another stream */
	TRY(cuCtxSynchronize());
	TRY(cuMemcpy3DPeerAsync(&c, stream));
	TRY(cuCtxSynchronize());
	c.srcXInBytes = 1;
	SAY(cuMemcpy3DPeer(&c));
	SAY(cuMemcpy3DPeerAsync(&c, stream));
	c.srcXInBytes = 0;
	c.dstY = 1;
	SAY(cuMemcpy3DPeer(&c));
	SAY(cuMemcpy3DPeerAsync(&c, stream));
}

/* The base lies elsewhere: in a block, or in nothing that is live. */
static void shifted(CUdeviceptr p, CUdeviceptr q)
{
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = p,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = q,
			   .WidthInBytes = 8,
			   .Height = 1};
	CUDA_MEMCPY3D d = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = p,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = q,
			   .WidthInBytes = 8,
			   .Height = 1,
			   .Depth = 1};
	size_t gaps[] = {8, 256, 4096, (size_t)1 << 36};

	for (int i = 0; i < 4; i++) {
		c.srcDevice = p - gaps[i];
		c.srcXInBytes = gaps[i];
		SAY(cuMemcpy2D(&c));
		c.srcDevice = p;
		c.srcXInBytes = 0;
		c.dstDevice = q - gaps[i];
		c.dstPitch = gaps[i];
		c.dstY = 1;
		SAY(cuMemcpy2D(&c));
		c.dstDevice = q;
		c.dstPitch = c.dstY = 0;
		d.dstDevice = q - gaps[i];
		d.dstPitch = gaps[i];
		d.dstHeight = d.dstZ = 1;
		SAY(cuMemcpy3D(&d));
	}
}

/* In and out of an array, which holds them. */
static void array_copies(CUdeviceptr p, size_t n)
{
	CUDA_ARRAY_DESCRIPTOR bytes = {.Width = 32 * KiB,
				       .Format = CU_AD_FORMAT_UNSIGNED_INT8,
				       .NumChannels = 1};
	size_t m = n < bytes.Width ? n : bytes.Width;
	CUarray array;

	TRY(cuArrayCreate(&array, &bytes));
	TRY(cuMemcpyDtoA(array, 0, p + n - m, m));
	TRY(cuMemcpyAtoD(p + n - m, array, 0, m));
	SAY(cuMemcpyDtoA(array, 0, p + n - 4, 5));
	SAY(cuMemcpyAtoD(p + n - 4, array, 0, 5));
	SAY(cuMemcpyAtoD(p + n - 4, array, bytes.Width - 4, 4));
	SAY(cuMemcpyDtoA(array, bytes.Width - 3, p, 4));
	TRY(cuCtxSynchronize());
	TRY(cuArrayDestroy(array));
}

#if CUDA_VERSION >= 13000
/* The second of two, in rows of PITCH or alone. */
static void boxes(CUdeviceptr p, size_t n, CUdeviceptr q)
{
	size_t height = (n - 1) / PITCH + 1,
	       width = n - (n - 1) / PITCH * PITCH;
	CUDA_MEMCPY3D_BATCH_OP one = {
		.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
		.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
		.extent = {n, 1, 1},
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUDA_MEMCPY3D_BATCH_OP ops[2];

	one.src.op.ptr.ptr = q;
	one.dst.op.ptr.ptr = p;
	ops[0] = ops[1] = one;
	SAY(cuMemcpy3DBatchAsync(2, ops, 0, stream));
	ops[1].extent.width = n + 1;
	SAY(cuMemcpy3DBatchAsync(2, ops, 0, stream));
	ops[1].extent = (CUextent3D){width, height, 1};
	ops[1].src.op.ptr.rowLength = ops[1].dst.op.ptr.rowLength = PITCH;
	SAY(cuMemcpy3DBatchAsync(2, ops, 0, stream));
	ops[1].extent.width++;
	SAY(cuMemcpy3DBatchAsync(2, ops, 0, stream));
	ops[1].extent = (CUextent3D){width, height / 2, 2};
	ops[1].src.op.ptr.layerHeight = height;
	SAY(cuMemcpy3DBatchAsync(2, ops, 0, stream));
}
#endif

#if CUDA_VERSION >= 13000
/* Before CUDA 13 a batch says which of its copies it is; boxes do not. */
static void older_batches(CUdeviceptr p, size_t n, CUdeviceptr q)
{
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUDA_MEMCPY3D_BATCH_OP box = {
		.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
		.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
		.extent = {n, 1, 1},
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr to[] = {p, p}, from[] = {q, q};
	size_t sizes[] = {n, n + 1}, first = 0, failed = 7;
	CUDA_MEMCPY3D_BATCH_OP boxes[2];
	CUdriverProcAddressQueryResult found;
	victim_older_batch_fn older;
	CUresult(CUDAAPI * older_3d)(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *,
				     unsigned long long, CUstream);

	TRY(cuGetProcAddress_v2("cuMemcpyBatchAsync", (void **)&older, 12080, 0,
				&found));
	TRY(cuGetProcAddress_v2("cuMemcpy3DBatchAsync", (void **)&older_3d,
				12080, 0, &found));
	SAY(older(to, from, sizes, 2, &attributes, &first, 1, &failed, stream));
	printf("copy %zd\n", failed);
	box.src.op.ptr.ptr = q;
	box.dst.op.ptr.ptr = p;
	boxes[0] = boxes[1] = box;
	boxes[1].extent.width++;
	failed = 7;
	SAY(older_3d(2, boxes, &failed, 0, stream));
	printf("copy %zd\n", failed);
}
#endif

/* The second of two. */
static void batch(CUdeviceptr p, size_t n, CUdeviceptr q)
{
#if CUDA_VERSION >= 13000
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr to[] = {p, p}, from[] = {q, q};
	size_t sizes[] = {n, n + 1}, first = 0;

	SAY(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1,
			       stream));
	SAY(cuMemcpyBatchAsync(to, from, sizes, 1, &attributes, &first, 1,
			       stream));
	boxes(p, n, q);
	older_batches(p, n, q);
#else
	(void)p, (void)n, (void)q;
#endif
}

static void nodes(CUdeviceptr p, size_t n, CUdeviceptr q)
{
	CUDA_MEMCPY3D row = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			     .srcDevice = p,
			     .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			     .dstDevice = q,
			     .WidthInBytes = n + 1,
			     .Height = 1,
			     .Depth = 1};
	CUDA_MEMSET_NODE_PARAMS set = {
		.dst = p, .elementSize = 1, .width = n + 1, .height = 1};
	CUgraphNode node;
	CUgraph graph;

	TRY(cuGraphCreate(&graph, 0));
	SAY(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &row, ctx));
	SAY(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, ctx));
	TRY(cuGraphDestroy(graph));
}

/* The capture goes on. */
static void captured(CUdeviceptr p, size_t n, CUdeviceptr q)
{
	CUstreamCaptureStatus status;

	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	SAY(cuMemcpyAsync(p, q, n + 1, stream));
	SAY(cuMemcpyDtoD(p, q, n + 1));
	SAY(cuMemsetD8(p, 1, n + 1));
	TRY(cuStreamIsCapturing(stream, &status));
	printf("captures: %d\n", status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	victim_end_capture(stream);
}

/* A capture elsewhere changes nothing. */
static void beside_a_capture(CUdeviceptr p, size_t n)
{
	CUstream other, created;

	TRY(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&created, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
	SAY(cuMemsetD8Async(p, 1, n + 1, stream));
	SAY(cuMemsetD8Async(p + n - 1, 1, 2, created));
	SAY(cuMemsetD2D8Async(p, PITCH, 1, 1, n / PITCH + 2, stream));
	SAY(cuMemsetD8Async(p, 1, n + 1, CU_STREAM_LEGACY));
	SAY(cuMemsetD8Async(p, 1, n + 1, CU_STREAM_PER_THREAD));
	victim_end_capture(other);
	TRY(cuStreamDestroy(created));
	TRY(cuStreamDestroy(other));
}

static void without_context(CUdeviceptr p, size_t n, CUdeviceptr q)
{
	CUcontext popped;

	TRY(cuCtxPopCurrent(&popped));
	SAY(cuMemcpyDtoD(p, q, n + 1));
	SAY(cuMemsetD8(p, 1, n + 1));
	TRY(cuCtxPushCurrent(popped));
}

int main(void)
{
	static const size_t sizes[] = {1000, 70 * KiB, 5 * MiB + 300};
	CUdeviceptr p, q, behind;

	ctx = victim_start(0);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 3; i++) {
		size_t n = sizes[i];

		printf("-- %zu bytes\n", n);
		p = victim_alloc(n);
		q = victim_alloc(n);
		behind = victim_alloc(n);
		TRY(cuMemsetD8(behind, 9, n));
		rows(p, n, q);
		shifted(p, q);
		planes(p, n - (n - 1) / PITCH * PITCH, (n - 1) / PITCH + 1, q);
		peer_planes(p, n - (n - 1) / PITCH * PITCH, (n - 1) / PITCH + 1,
			    q);
		array_copies(p, n);
		batch(p, n, q);
		nodes(p, n, q);
		captured(p, n, q);
		beside_a_capture(p, n);
		without_context(p, n, q);
		TRY(cuCtxSynchronize());
		printf("behind: %d\n", victim_is_filled(behind, n, 9));
		victim_free(p);
		victim_free(q);
		victim_free(behind);
	}
	return 0;
}
