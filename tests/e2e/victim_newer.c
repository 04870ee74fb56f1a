/* SPDX-License-Identifier: MIT
 *
 * victim_newer captures|copy|3d|node|batch|bind|green: what drivers since
 * CUDA 13.1 have and cuda.h may not: captures that begin in new ways, beside
 * frees and allocations; copies between devices that are no enabled peers;
 * memory that is bound to a multicast object. What the driver lacks is said.
 */
#include "victim_link.h"

#include "base/newer.h"

#define SIZE (3 * MiB)

static CUstream stream;

/* The function of that version or before; NULL: not in this driver. */
static void *find(const char *name, int version)
{
	CUdriverProcAddressQueryResult found;
	void *address = NULL;

	if (cuGetProcAddress_v2(name, &address, version, 0, &found) !=
	    CUDA_SUCCESS)
		address = NULL;
	if (!address)
		printf("%s: not in this driver\n", name);
	return address;
}

#define FIND_OR_RETURN(symbol, name, version)                                  \
	__typeof__(symbol) *symbol##_ = find(name, version);                   \
	if (!symbol##_)                                                        \
	return

/* What sets a marker, unless the capture was seen to begin. */
static void churn(void)
{
	for (size_t i = 0; i < 40; i++)
		victim_free(victim_alloc((i % 7 + 1) * SIZE));
}

static void recapture(CUdeviceptr p)
{
	CUgraph graph, same;
	CUgraphExec exec;
	CUresult result;

	FIND_OR_RETURN(cuStreamBeginRecaptureToGraph,
		       "cuStreamBeginRecaptureToGraph", 13030);
	TRY(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuMemsetD8Async(p, 5, SIZE, stream));
	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuStreamBeginRecaptureToGraph_(
		stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL, NULL));
	churn();
	TRY(cuMemsetD8Async(p, 6, SIZE, stream));
	churn();
	result = cuStreamEndCapture(stream, &same);
	printf("captured again: %s\n", victim_name(result));
	if (result != CUDA_SUCCESS)
		return;
	TRY(cuGraphInstantiateWithFlags(&exec, same, 0));
	TRY(cuGraphLaunch(exec, stream));
	TRY(cuStreamSynchronize(stream));
	printf("its work: %d\n", victim_is_filled(p, SIZE, 6));
	TRY(cuGraphExecDestroy(exec));
	TRY(cuGraphDestroy(same));
}

/* Without a command list of a graphics API the real driver refuses. */
static void capture_to_cig(CUdeviceptr p)
{
	void *no_list[4] = {NULL};
	CUresult result;

	FIND_OR_RETURN(cuStreamBeginCaptureToCig, "cuStreamBeginCaptureToCig",
		       13010);
	FIND_OR_RETURN(cuStreamEndCaptureToCig, "cuStreamEndCaptureToCig",
		       13010);
	result = cuStreamBeginCaptureToCig_(stream, (void *)no_list);
	printf("to a command list: %s\n", victim_name(result));
	if (result != CUDA_SUCCESS)
		return;
	churn();
	TRY(cuMemsetD8Async(p, 7, SIZE, stream));
	printf("its end: %s\n", victim_name(cuStreamEndCaptureToCig_(stream)));
}

static void captures(void)
{
	CUdeviceptr p;

	victim_start(0);
	p = victim_alloc(SIZE);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	recapture(p);
	capture_to_cig(p);
	TRY(cuStreamDestroy(stream));
	/* no capture is taken for open: frees wait for nothing */
	churn();
	victim_free(p);
}

static void tell(const char *what, CUdeviceptr there, int byte)
{
	TRY(cuStreamSynchronize(stream));
	printf("%s: %d\n", what, victim_is_filled(there, SIZE, byte));
}

#if CUDA_VERSION >= 12080
static void copy(CUdeviceptr there, CUdeviceptr here)
{
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

	FIND_OR_RETURN(cuMemcpyWithAttributesAsync,
		       "cuMemcpyWithAttributesAsync", 13020);
	TRY(cuMemcpyWithAttributesAsync_(there, here, SIZE, &attributes,
					 stream));
	tell("with attributes", there, 2);
}

static CUmemcpy3DOperand operand(CUdeviceptr p)
{
	CUmemcpy3DOperand o = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER};

	o.op.ptr.ptr = p;
	return o;
}

static void copy_3d(CUdeviceptr there, CUdeviceptr here)
{
	CUDA_MEMCPY3D_BATCH_OP c = {
		.src = operand(here),
		.dst = operand(there),
		.extent = {.width = SIZE, .height = 1, .depth = 1},
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

	FIND_OR_RETURN(cuMemcpy3DWithAttributesAsync,
		       "cuMemcpy3DWithAttributesAsync", 13020);
	TRY(cuMemcpy3DWithAttributesAsync_(&c, 0, stream));
	tell("with attributes, 3D", there, 2);
}
#else
static void copy(CUdeviceptr there, CUdeviceptr here)
{
	TRY(cuMemcpyDtoDAsync(there, here, SIZE, stream));
}

static void copy_3d(CUdeviceptr there, CUdeviceptr here)
{
	copy(there, here);
}
#endif

static void run(CUgraph graph)
{
	CUgraphExec exec;

	TRY(cuGraphInstantiateWithFlags(&exec, graph, 0));
	TRY(cuGraphLaunch(exec, stream));
	TRY(cuStreamSynchronize(stream));
	TRY(cuGraphExecDestroy(exec));
	TRY(cuGraphDestroy(graph));
}

static void copy_by_node(CUdeviceptr there, CUdeviceptr here, CUdeviceptr own)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUDA_MEMCPY3D *c = &params.memcpy.copyParams;
	CUgraphNode node;
	CUgraph graph;

	FIND_OR_RETURN(cuGraphAddNode_v3, "cuGraphAddNode", 13040);
	FIND_OR_RETURN(cuGraphNodeSetParams_v2, "cuGraphNodeSetParams", 13040);
	*c = (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			     .dstDevice = own,
			     .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			     .srcDevice = here,
			     .WidthInBytes = SIZE,
			     .Height = 1,
			     .Depth = 1};
	TRY(cuCtxGetCurrent(&params.memcpy.copyCtx));
	TRY(cuGraphCreate(&graph, 0));
	TRY(cuGraphAddNode_v3_(&node, graph, NULL, NULL, 0, &params));
	c->dstDevice = there;
	TRY(cuGraphNodeSetParams_v2_(node, &params));
	run(graph);
	tell("a node", there, 2);
}

#if CUDA_VERSION >= 12080
static void copy_by_batch_node(CUdeviceptr there, CUdeviceptr here)
{
	CUgraphNodeParams params = {.type = VS_NODE_MEMCPY_BATCH};
	struct vs_batch_node *batch = (void *)params.reserved1;
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t size = SIZE, index = 0;
	CUgraphNode node;
	CUgraph graph;

	FIND_OR_RETURN(cuGraphAddNode_v3, "cuGraphAddNode", 13040);
	*batch = (struct vs_batch_node){.count = 1,
					.dsts = &there,
					.srcs = &here,
					.sizes = &size,
					.attributes = &attributes,
					.indices = &index,
					.n_attributes = 1};
	TRY(cuCtxGetCurrent(&batch->ctx));
	TRY(cuGraphCreate(&graph, 0));
	TRY(cuGraphAddNode_v3_(&node, graph, NULL, NULL, 0, &params));
	run(graph);
	tell("a node that copies a batch", there, 2);
}
#else
static void copy_by_batch_node(CUdeviceptr there, CUdeviceptr here)
{
	copy(there, here);
}
#endif

/* One in each process: it may open memory for those after it. */
static void copies(const char *how)
{
	CUdeviceptr there, here, own;

	victim_start(1);
	there = victim_alloc(SIZE);
	TRY(cuMemsetD8(there, 1, SIZE));
	TRY(cuCtxSynchronize());
	victim_start(0);
	here = victim_alloc(SIZE);
	own = victim_alloc(SIZE);
	TRY(cuMemsetD8(here, 2, SIZE));
	TRY(cuCtxSynchronize());
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (!strcmp(how, "copy"))
		copy(there, here);
	else if (!strcmp(how, "3d"))
		copy_3d(there, here);
	else if (!strcmp(how, "node"))
		copy_by_node(there, here, own);
	else
		copy_by_batch_node(there, here);
}

/* In a stream of a green context, of the program's only device. */
static void copies_in_green(void)
{
	CUdeviceptr there, here;
	CUdevice device;
	CUgreenCtx green;

	victim_start(0);
	TRY(cuDeviceGet(&device, 0));
	TRY(cuGreenCtxCreate(&green, victim_units(device), device,
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
	there = victim_alloc(SIZE);
	here = victim_alloc(SIZE);
	TRY(cuMemsetD8Async(here, 2, SIZE, stream));
	copy(there, here);
	TRY(cuMemsetD8Async(there, 1, SIZE, stream));
	copy_3d(there, here);
	victim_free(there);
	victim_free(here);
}

/* Memory of cuMemAlloc is refused, whatever of it lies in one piece. */
static void bind_one(CUmemGenericAllocationHandle object, CUdeviceptr p,
		     size_t size)
{
	FIND_OR_RETURN(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010);
	printf("%zu bytes: %s", size,
	       victim_name(cuMulticastBindAddr(object, 0, p, size, 0)));
	printf(", of a device: %s\n",
	       victim_name(cuMulticastBindAddr_v2_(object, 0, 0, p, size, 0)));
}

/*
 * As NCCL does with each buffer of a collective that is captured: it goes on
 * without where the driver does not take the memory, on all ranks.
 */
static void bind(void)
{
	CUmulticastObjectProp prop = {
		.numDevices = 1,
		.size = 64 * MiB,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUmemGenericAllocationHandle object;
	CUresult result;

	victim_start(0);
	result = cuMulticastCreate(&object, &prop);
	if (result == CUDA_SUCCESS)
		result = cuMulticastAddDevice(object, 0);
	printf("an object of one device: %s\n", victim_name(result));
	for (size_t size = 2 * MiB; result == CUDA_SUCCESS && size <= prop.size;
	     size *= 2)
		bind_one(object, victim_alloc(size), size);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "bind"))
		bind();
	else if (argc > 1 && !strcmp(argv[1], "green"))
		copies_in_green();
	else if (argc > 1 && strcmp(argv[1], "captures") != 0)
		copies(argv[1]);
	else
		captures();
	return 0;
}
