/* SPDX-License-Identifier: MIT
 *
 * victim_peer copy|rows|batch|set|node [captured|late|bare]: a stream of a
 * device copies or sets blocks of another one, which frees them at once: the
 * driver's cuMemFree waits for that. Beside an open capture; after a kernel of
 * the peer that waited for the host for more than a second; in a batch that is
 * given without a current context.
 *
 * victim_peer attributes [green]: by the function for one copy of CUDA 13.2 (or
 * not, where it is not there); in a stream of a green context of the peer.
 *
 * victim_peer kernel [late|bare]: a kernel of the peer fills them, and they are
 * freed in the order of its stream (cuMemFreeAsync).
 *
 * victim_peer copy|peer|box closed: where no peer access is enabled, by copies
 * that may be refused first, or that need none.
 *
 * victim_peer graph: by a graph that was captured long before.
 *
 * victim_peer calls: a device copies and sets its own memory, which a peer may
 * reach and never does. What is asked of the driver beside that is little.
 */
#include "victim_link.h"

#include "base/newer.h"

#define SIZE ((size_t)20 * MiB)
#define ROUNDS 20

static CUcontext owner, peer;
static CUstream stream; /* of the peer */
static CUdeviceptr mine[ROUNDS];
static CUgraphExec exec;
static CUfunction fill; /* of the peer */
static bool is_bare;	/* no context is current, where none need be */

static void copy_rows(CUdeviceptr to, CUdeviceptr from)
{
	CUDA_MEMCPY2D c = {.dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = to,
			   .dstPitch = MiB,
			   .srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = from,
			   .srcPitch = MiB,
			   .WidthInBytes = MiB,
			   .Height = SIZE / MiB};

	TRY(cuMemcpy2DAsync(&c, stream));
}

static void copy_box(CUdeviceptr to, CUdeviceptr from)
{
	CUDA_MEMCPY3D_PEER c = {.dstMemoryType = CU_MEMORYTYPE_DEVICE,
				.dstDevice = to,
				.dstContext = peer,
				.dstPitch = SIZE,
				.dstHeight = 1,
				.srcMemoryType = CU_MEMORYTYPE_DEVICE,
				.srcDevice = from,
				.srcContext = owner,
				.srcPitch = SIZE,
				.srcHeight = 1,
				.WidthInBytes = SIZE,
				.Height = 1,
				.Depth = 1};

	TRY(cuMemcpy3DPeerAsync(&c, stream));
}

static void copy_batch(CUdeviceptr to, CUdeviceptr from)
{
#if CUDA_VERSION >= 13000
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t size = SIZE, index = 0;

	if (is_bare)
		TRY(cuCtxSetCurrent(NULL));
	TRY(cuMemcpyBatchAsync(&to, &from, &size, 1, &attributes, &index, 1,
			       stream));
#else
	TRY(cuMemcpyDtoDAsync(to, from, SIZE, stream));
#endif
}

/* What a driver lacks is not tried. */
static void copy_with_attributes(CUdeviceptr to, CUdeviceptr from)
{
#if CUDA_VERSION >= 12080
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	__typeof__(cuMemcpyWithAttributesAsync) *copy = NULL;
	CUdriverProcAddressQueryResult found;

	if (cuGetProcAddress_v2("cuMemcpyWithAttributesAsync", (void **)&copy,
				13020, 0, &found) == CUDA_SUCCESS &&
	    copy) {
		TRY(copy(to, from, SIZE, &attributes, stream));
		return;
	}
#endif
	TRY(cuMemcpyDtoDAsync(to, from, SIZE, stream));
}

static CUDA_MEMSET_NODE_PARAMS node_of(CUdeviceptr p)
{
	return (CUDA_MEMSET_NODE_PARAMS){.dst = p,
					 .value = 200,
					 .elementSize = 1,
					 .width = SIZE,
					 .height = 1};
}

/* A node that was made for the peer's memory gets the owner's. */
static void set_by_node(CUdeviceptr p)
{
	CUDA_MEMSET_NODE_PARAMS here = node_of(mine[0]), there = node_of(p);
	CUgraphNode node;
	CUgraph graph;

	TRY(cuGraphCreate(&graph, 0));
	TRY(cuGraphAddMemsetNode(&node, graph, NULL, 0, &here, peer));
	TRY(cuCtxSetCurrent(owner));
	TRY(cuGraphMemsetNodeSetParams(node, &there));
	TRY(cuCtxSetCurrent(peer));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	TRY(cuGraphLaunch(exec, stream));
	TRY(cuGraphDestroy(graph));
}

/* One that was captured, long before. */
static void copy_by_graph(CUdeviceptr to, CUdeviceptr from)
{
	CUgraph graph;

	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuMemcpyDtoDAsync(to, from, SIZE, stream));
	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuGraphInstantiateWithFlags(&exec, graph, 0));
	TRY(cuGraphDestroy(graph));
	TRY(cuStreamSynchronize(stream));
	TRY(cuCtxSetCurrent(owner));
	victim_free(victim_alloc(KiB));
	TRY(cuCtxSynchronize());
	victim_free(victim_alloc(KiB));
	TRY(cuCtxSetCurrent(peer));
	TRY(cuLaunchHostFunc(stream, victim_nap, NULL));
	TRY(cuGraphLaunch(exec, stream));
}

static void fill_and_free(CUdeviceptr p)
{
	unsigned value = 200;
	uint64_t n = SIZE / sizeof(value);
	void *arguments[] = {&p, &value, &n};

	victim_launch(fill, stream, arguments);
	sim_client_note_free((void *)(uintptr_t)p);
	if (is_bare)
		TRY(cuCtxSetCurrent(NULL));
	TRY(cuMemFreeAsync(p, stream));
}

static void work(const char *what, CUdeviceptr to, CUdeviceptr from)
{
	if (!strcmp(what, "copy"))
		TRY(cuMemcpyDtoDAsync(to, from, SIZE, stream));
	else if (!strcmp(what, "peer"))
		TRY(cuMemcpyPeerAsync(to, peer, from, owner, SIZE, stream));
	else if (!strcmp(what, "box"))
		copy_box(to, from);
	else if (!strcmp(what, "rows"))
		copy_rows(to, from);
	else if (!strcmp(what, "batch"))
		copy_batch(to, from);
	else if (!strcmp(what, "graph"))
		copy_by_graph(to, from);
	else if (!strcmp(what, "attributes"))
		copy_with_attributes(to, from);
	else if (!strcmp(what, "set"))
		TRY(cuMemsetD8Async(from, 200, SIZE, stream));
	else if (fill)
		fill_and_free(from);
	else
		set_by_node(from);
}

static _Atomic bool may_go_on;

static void wait_for_the_host(void)
{
	size_t available, total;

	TRY(cuLaunchHostFunc(stream, victim_wait_for, &may_go_on));
	TRY(cuCtxSetCurrent(owner));
	TRY(cuMemGetInfo(&available, &total));
	victim_go_round(NULL, available / 10, 30);
	may_go_on = true;
	TRY(cuCtxSetCurrent(peer));
	TRY(cuStreamSynchronize(stream));
}

/* One device's block, and what the other does with it. */
static void round_of(const char *what, int i, CUstream own)
{
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(owner));
	p = victim_alloc(SIZE);
	TRY(cuMemsetD8Async(p, (unsigned char)(i + 1), SIZE, own));
	TRY(cuStreamSynchronize(own));
	TRY(cuCtxSetCurrent(peer));
	TRY(cuLaunchHostFunc(stream, victim_nap, NULL));
	work(what, mine[i], p);
	TRY(cuCtxSetCurrent(owner));
	if (!fill)
		victim_free(p);
	if (exec)
		TRY(cuGraphExecDestroy(exec));
	exec = NULL;
}

static _Atomic int n_calls;

/* The simulator's. */
static void hear(const char *call)
{
	(void)call;
	n_calls++;
}

static void count_calls(CUstream own)
{
	enum { COPIES = 100, BATCH = 50 };
	CUdeviceptr to = victim_alloc(SIZE), from = victim_alloc(SIZE);
#if CUDA_VERSION >= 13000
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdeviceptr dsts[BATCH], srcs[BATCH];
	size_t sizes[BATCH], index = 0;

	for (int i = 0; i < BATCH; i++) {
		dsts[i] = to + (size_t)i * KiB;
		srcs[i] = from + (size_t)i * KiB;
		sizes[i] = KiB;
	}
#endif
	sim_client_on_call(hear);
	for (int i = 0; i < COPIES; i++) {
		TRY(cuMemcpyDtoDAsync(to, from, KiB, own));
		TRY(cuMemsetD8Async(from, 1, KiB, own));
#if CUDA_VERSION >= 13000
		TRY(cuMemcpyBatchAsync(dsts, srcs, sizes, BATCH, &attributes,
				       &index, 1, own));
#endif
	}
	sim_client_on_call(NULL);
	/* itself, which context is current, and that of the stream */
	printf("few calls: %d\n", n_calls <= 3 * 3 * COPIES + COPIES);
	TRY(cuStreamSynchronize(own));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "copy";
	const char *when = argc > 2 ? argv[2] : "";
	bool is_copy = strcmp(what, "set") != 0 && strcmp(what, "node") != 0 &&
		       strcmp(what, "kernel") != 0;
	bool is_captured = !strcmp(when, "captured");
	CUstream own, captured;
	CUgraph graph;

	is_bare = !strcmp(when, "bare");
	peer = victim_start(1);
	owner = victim_start(0);
	TRY(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	TRY(cuCtxSetCurrent(peer));
	if (!strcmp(when, "green"))
		victim_green(1, &stream);
	else
		TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (strcmp(when, "closed") != 0)
		TRY(cuCtxEnablePeerAccess(owner, 0));
	if (!strcmp(what, "kernel"))
		fill = victim_kernel("vs_fill");
	for (int i = 0; i < ROUNDS; i++)
		mine[i] = victim_alloc(SIZE);
	if (!strcmp(when, "late"))
		wait_for_the_host();
	TRY(cuCtxSetCurrent(owner));
	if (!strcmp(what, "calls")) {
		count_calls(own);
		return 0;
	}
	if (is_captured)
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
	for (int i = 0; i < ROUNDS; i++)
		round_of(what, i, own);
	if (is_captured)
		TRY(cuStreamEndCapture(captured, &graph));
	TRY(cuCtxSetCurrent(peer));
	TRY(cuStreamSynchronize(stream));
	for (int i = 0; is_copy && i < ROUNDS; i++)
		printf("%d: %d\n", i, victim_is_filled(mine[i], SIZE, i + 1));
	puts(what);
	return 0;
}
