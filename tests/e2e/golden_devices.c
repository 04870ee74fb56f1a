/* SPDX-License-Identifier: MIT
 *
 * golden_devices: every kind of copy and set between memory of two devices,
 * with either of them current, before, during and after peer access.
 */
#include "golden.h"

#define SIZE GOLDEN_SIZE
#define PITCH ((size_t)4096)
#define WIDTH ((size_t)1000)
#define ROWS (SIZE / PITCH)

static CUdeviceptr block[2];
static CUstream streams[2]; /* of each device */
static int can;		    /* be peers */
static unsigned char *host;

static CUDA_MEMCPY2D rows(const struct golden_job *j)
{
	return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = j->src,
			       .srcPitch = PITCH,
			       .srcXInBytes = 8,
			       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .dstDevice = j->dst,
			       .dstPitch = PITCH,
			       .dstY = 1,
			       .WidthInBytes = WIDTH,
			       .Height = ROWS - 1};
}

static CUDA_MEMCPY3D layers(const struct golden_job *j)
{
	return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = j->src,
			       .srcPitch = PITCH,
			       .srcHeight = ROWS / 4,
			       .srcZ = 1,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstDevice = j->dst,
			       .dstPitch = PITCH,
			       .dstHeight = ROWS / 4,
			       .dstXInBytes = 16,
			       .WidthInBytes = WIDTH,
			       .Height = ROWS / 4 - 1,
			       .Depth = 3};
}

static CUDA_MEMCPY3D_PEER peer_layers(const struct golden_job *j)
{
	return (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
				    .srcDevice = j->src,
				    .srcContext = j->src_ctx,
				    .srcPitch = PITCH,
				    .srcHeight = ROWS,
				    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
				    .dstDevice = j->dst,
				    .dstContext = j->dst_ctx,
				    .dstPitch = PITCH,
				    .dstHeight = ROWS,
				    .WidthInBytes = WIDTH,
				    .Height = ROWS,
				    .Depth = 1};
}

#define JOB(name, call)                                                        \
	static CUresult do_##name(const struct golden_job *j)                  \
	{                                                                      \
		return j->calls->call;                                         \
	}
#define JOB_2D(name, call)                                                     \
	static CUresult do_##name(const struct golden_job *j)                  \
	{                                                                      \
		CUDA_MEMCPY2D c = rows(j);                                     \
                                                                               \
		return j->calls->call;                                         \
	}
#define JOB_3D(name, call)                                                     \
	static CUresult do_##name(const struct golden_job *j)                  \
	{                                                                      \
		CUDA_MEMCPY3D c = layers(j);                                   \
                                                                               \
		return j->calls->call;                                         \
	}
#define JOB_PEER(name, call)                                                   \
	static CUresult do_##name(const struct golden_job *j)                  \
	{                                                                      \
		CUDA_MEMCPY3D_PEER c = peer_layers(j);                         \
                                                                               \
		return j->calls->call;                                         \
	}
JOB(plain, cuMemcpy(j->dst, j->src, SIZE))
JOB(plain_async, cuMemcpyAsync(j->dst, j->src, SIZE, j->stream))
JOB(dtod, cuMemcpyDtoD_v2(j->dst, j->src, SIZE))
JOB(dtod_async, cuMemcpyDtoDAsync_v2(j->dst, j->src, SIZE, j->stream))
JOB(interior, cuMemcpyDtoD_v2(j->dst + 1000, j->src + 77, 100))
JOB(htod, cuMemcpyHtoD_v2(j->dst, host, SIZE))
JOB(htod_async, cuMemcpyHtoDAsync_v2(j->dst, host, SIZE, j->stream))
JOB(dtoh, cuMemcpyDtoH_v2(host, j->src, SIZE))
JOB(dtoh_async, cuMemcpyDtoHAsync_v2(host, j->src, SIZE, j->stream))
JOB(from_host, cuMemcpy(j->dst, (CUdeviceptr)(uintptr_t)host, SIZE))
JOB_2D(rows, cuMemcpy2D_v2(&c))
JOB_2D(rows_unaligned, cuMemcpy2DUnaligned_v2(&c))
JOB_2D(rows_async, cuMemcpy2DAsync_v2(&c, j->stream))
JOB_3D(layers, cuMemcpy3D_v2(&c))
JOB_3D(layers_async, cuMemcpy3DAsync_v2(&c, j->stream))
JOB(peer, cuMemcpyPeer(j->dst, j->dst_ctx, j->src, j->src_ctx, SIZE))
JOB(peer_async,
    cuMemcpyPeerAsync(j->dst, j->dst_ctx, j->src, j->src_ctx, SIZE, j->stream))
JOB_PEER(peer_layers, cuMemcpy3DPeer(&c))
JOB_PEER(peer_layers_async, cuMemcpy3DPeerAsync(&c, j->stream))
JOB(set, cuMemsetD8_v2(j->dst, 5, SIZE))
JOB(set_16, cuMemsetD16_v2(j->dst, 0x1234, SIZE / 2))
JOB(set_32, cuMemsetD32_v2(j->dst, 0x12345678, SIZE / 4))
JOB(set_async, cuMemsetD8Async(j->dst, 6, SIZE, j->stream))
JOB(set_32_async, cuMemsetD32Async(j->dst, 0x23456789, SIZE / 4, j->stream))
JOB(set_rows, cuMemsetD2D8_v2(j->dst, PITCH, 7, WIDTH, ROWS))
JOB(set_rows_32, cuMemsetD2D32_v2(j->dst, PITCH, 8, WIDTH / 4, ROWS))

static const struct golden_kind jobs[] = {
	{"cuMemcpy", do_plain, false},
	{"cuMemcpyAsync", do_plain_async, false},
	{"cuMemcpyDtoD", do_dtod, false},
	{"cuMemcpyDtoDAsync", do_dtod_async, false},
	{"cuMemcpyDtoD inside", do_interior, false},
	{"cuMemcpyHtoD", do_htod, false},
	{"cuMemcpyHtoDAsync", do_htod_async, false},
	{"cuMemcpyDtoH", do_dtoh, false},
	{"cuMemcpyDtoHAsync", do_dtoh_async, false},
	{"cuMemcpy from the host", do_from_host, false},
	{"cuMemcpy2D", do_rows, false},
	{"cuMemcpy2DUnaligned", do_rows_unaligned, false},
	{"cuMemcpy2DAsync", do_rows_async, false},
	{"cuMemcpy3D", do_layers, false},
	{"cuMemcpy3DAsync", do_layers_async, false},
	{"cuMemcpyPeer", do_peer, false},
	{"cuMemcpyPeerAsync", do_peer_async, false},
	{"cuMemcpy3DPeer", do_peer_layers, false},
	{"cuMemcpy3DPeerAsync", do_peer_layers_async, false},
	{"cuMemsetD8", do_set, false},
	{"cuMemsetD16", do_set_16, false},
	{"cuMemsetD32", do_set_32, false},
	{"cuMemsetD8Async", do_set_async, false},
	{"cuMemsetD32Async", do_set_32_async, false},
	{"cuMemsetD2D8", do_set_rows, false},
	{"cuMemsetD2D32", do_set_rows_32, false},
};

static void fill(int device, unsigned seed)
{
	uint64_t random = seed;

	for (size_t i = 0; i < SIZE; i += 4) {
		uint32_t word = victim_random(&random);

		memcpy(host + i, &word, 4);
	}
	TRY(cu.cuCtxSetCurrent(golden_ctx[device]));
	TRY(cu.cuMemcpyHtoD_v2(block[device], host, SIZE));
	TRY(cu.cuCtxSynchronize());
}

static uint64_t hash_of(int device)
{
	static unsigned char *data;

	if (!data)
		data = malloc(SIZE);
	CHECK(data);
	TRY(cu.cuCtxSetCurrent(golden_ctx[device]));
	TRY(cu.cuMemcpyDtoH_v2(data, block[device], SIZE));
	return victim_hash(HASH_START, data, SIZE);
}

static void wait_all(void)
{
	for (int i = 0; i < 2; i++) {
		TRY(cu.cuCtxSetCurrent(golden_ctx[i]));
		TRY(cu.cuCtxSynchronize());
	}
}

static void one(const char *title, const struct golden_kind *kind,
		const struct golden_job *j, unsigned seed)
{
	int to = j->dst == block[1];
	uint64_t host_hash;
	CUresult result;

	fill(to, 1000);
	fill(!to, seed);
	TRY(cu.cuCtxSetCurrent(j->here));
	result = kind->run(j);
	printf("%s: %s: %s", title, kind->name, golden_code(result));
	if (result == CUDA_SUCCESS) {
		wait_all();
		host_hash = victim_hash(HASH_START, host, SIZE);
		printf(" %016" PRIx64 " %016" PRIx64, hash_of(to), host_hash);
	}
	printf("\n");
}

/* One copy of each kind, on stream `stream`, with device `here` current. */
static void copies(const char *when, int from, int to, int here,
		   CUstream stream, const struct golden_calls *calls)
{
	struct golden_job j = {.dst = block[to],
			       .src = block[from],
			       .dst_ctx = golden_ctx[to],
			       .src_ctx = golden_ctx[from],
			       .here = golden_ctx[here],
			       .other = golden_ctx[!here],
			       .stream = stream,
			       .calls = calls};
	char title[80];

	snprintf(title, sizeof(title), "%s, %d to %d on %d", when, from, to,
		 here);
	for (size_t i = 0; i < golden_n_nodes; i++)
		if (can || !golden_nodes[i].needs_peers)
			one(title, &golden_nodes[i], &j, (unsigned)i + 101);
	for (size_t i = 0; i < sizeof(jobs) / sizeof(*jobs); i++)
		one(title, &jobs[i], &j, (unsigned)i + 1);
}

static void replay(const char *when, const char *what, CUgraph graph)
{
	CUgraphExec exec;
	CUresult result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);

	printf("%s: %s: instantiate %s", when, what, golden_code(result));
	if (result == CUDA_SUCCESS) {
		result = cu.cuGraphLaunch(exec, streams[0]);
		TRY(cu.cuStreamSynchronize(streams[0]));
		wait_all();
		printf(", launch %s %016" PRIx64, golden_code(result),
		       hash_of(0));
		TRY(cu.cuGraphExecDestroy(exec));
	}
	printf("\n");
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
	TRY(cu.cuGraphDestroy(graph));
}

static void captured(const char *when)
{
	CUgraph graph;
	CUresult result;

	fill(1, 77);
	fill(0, 1000);
	TRY(cu.cuStreamBeginCapture_v2(streams[0],
				       CU_STREAM_CAPTURE_MODE_GLOBAL));
	result = cu.cuMemcpyAsync(block[0], block[1], SIZE, streams[0]);
	printf("%s: captured copy: %s\n", when, golden_code(result));
	result = cu.cuStreamEndCapture(streams[0], &graph);
	printf("%s: end of capture: %s\n", when, golden_code(result));
	if (result == CUDA_SUCCESS && graph)
		replay(when, "captured copy", graph);
}

static void all(const char *when, bool is_thorough)
{
	for (int k = 0; k < (is_thorough ? 4 : 1); k++)
		copies(when, k & 1, !(k & 1), k >> 1, streams[k >> 1], &cu);
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
	captured(when);
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
}

/* What is known of the other device's memory. */
static void look(const char *when)
{
	printf("== %s\n", when);
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
	golden_describe("theirs", block[1] + 512);
	golden_codes("theirs", block[1]);
	TRY(cu.cuCtxSetCurrent(golden_ctx[1]));
	golden_describe("ours", block[0] + 512);
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
}

static void peers(void)
{
#define SAY(call) printf("peers: %s: %s\n", #call, golden_code(cu.call))
	SAY(cuCtxDisablePeerAccess(golden_ctx[1]));
	SAY(cuCtxEnablePeerAccess(golden_ctx[0], 0));
	SAY(cuCtxEnablePeerAccess(golden_ctx[1], 1));
	SAY(cuCtxEnablePeerAccess(golden_ctx[1], 0));
	SAY(cuCtxEnablePeerAccess(golden_ctx[1], 0));
	look("one way");
	TRY(cu.cuCtxSetCurrent(golden_ctx[1]));
	SAY(cuCtxEnablePeerAccess(golden_ctx[0], 0));
	look("peers");
	all("peers", true);
	TRY(cu.cuCtxSetCurrent(golden_ctx[1]));
	SAY(cuCtxDisablePeerAccess(golden_ctx[0]));
	SAY(cuCtxDisablePeerAccess(golden_ctx[0]));
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
	SAY(cuCtxDisablePeerAccess(golden_ctx[1]));
	look("no peers again");
	all("no peers again", false);
#undef SAY
}

static void make_block(int device)
{
	TRY(cu.cuCtxSetCurrent(golden_ctx[device]));
	block[device] = golden_alloc(device ? "D1" : "D0", SIZE);
	TRY(cu.cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING));
}

void golden_devices(void)
{
	host = malloc(SIZE);
	CHECK(host);
	TRY(cu.cuDevicePrimaryCtxRetain(&golden_ctx[1], 1));
	make_block(0);
	make_block(1);
	TRY(cu.cuDeviceCanAccessPeer(&can, 0, 1));
	printf("can be peers: %d\n", can);
	look("no peers");
	all("no peers", true);
	look("after copies");
	/* a stream of the other device; default streams of the thread */
	copies("stream of the other", 1, 0, 0, streams[1], &cu);
	copies("per thread", 1, 0, 0, NULL, &cu_pt);
	/* blocks that are born later */
	for (int i = 0; i < 2; i++) {
		TRY(cu.cuCtxSetCurrent(golden_ctx[1 - i]));
		printf("free under the other: %s\n",
		       golden_code(cu.cuMemFree_v2(block[i])));
		printf("and twice: %s\n",
		       golden_code(cu.cuMemFree_v2(block[i])));
		make_block(i);
	}
	all("new blocks", false);
	if (can)
		peers();
	else
		printf("enable: %s\n",
		       golden_code(cu.cuCtxEnablePeerAccess(golden_ctx[1], 0)));
	for (int i = 0; i < 2; i++)
		printf("free: %s\n", golden_code(cu.cuMemFree_v2(block[i])));
	free(host);
}
