/* SPDX-License-Identifier: MIT
 *
 * retried [all|stream|null]: makes calls that take device memory, each with
 * idle memory in the pool, and prints what they answer; without an argument
 * only their names. stream: what takes it for a stream of another device, where
 * the idle memory is. null: without what they are to look into.
 */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "../sim/kernels_ptx.h"

static CUcontext contexts[2];
static CUmodule module;
static CUlibrary library;
static CUkernel kernel;
static CUgreenCtx green;
static CUgraph graph;
static CUgraphNode node;
static CUgraphExec executable;
static CUdeviceptr filled;
static uint32_t value = 1;
static uint64_t n_words = 256;
static void *arguments[] = {&filled, &value, &n_words};

static CUresult instantiate(void)
{
	CUgraphExec exec;

	return cuGraphInstantiate(&exec, graph, NULL, NULL, 0);
}

static CUresult instantiate_v2(void)
{
	CUgraphExec exec;

	return cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0);
}

static CUresult instantiate_with_flags(void)
{
	return cuGraphInstantiateWithFlags(&executable, graph, 0);
}

static CUresult load(void)
{
	return cuModuleLoadData(&module, vs_kernels_ptx);
}

static CUresult load_with_options(void)
{
	CUmodule other;

	return cuModuleLoadDataEx(&other, vs_kernels_ptx, 0, NULL, NULL);
}

static CUresult load_fat_binary(void)
{
	CUmodule other;

	return cuModuleLoadFatBinary(&other, vs_kernels_ptx);
}

static CUresult load_library(void)
{
	CUlibrary other;

	return cuLibraryLoadData(&other, vs_kernels_ptx, NULL, NULL, 0, NULL,
				 NULL, 0);
}

static CUresult get_function(void)
{
	CUfunction function;

	return cuModuleGetFunction(&function, module, "vs_fill");
}

static CUresult get_global(void)
{
	CUdeviceptr p;
	size_t size;

	return cuModuleGetGlobal_v2(&p, &size, module, "vs_counter");
}

static CUresult get_module(void)
{
	CUmodule of_library;

	return cuLibraryGetModule(&of_library, library);
}

static CUresult set_attribute(void)
{
	return cuKernelSetAttribute(
		CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, kernel,
		0);
}

static CUresult ask_parameter(void)
{
	size_t offset, size;

	return cuKernelGetParamInfo(kernel, 0, &offset, &size);
}

/* Of a kernel, as of a function. */
static CUresult occupancy(void)
{
	int n;

	return cuOccupancyMaxActiveBlocksPerMultiprocessor(
		&n, (CUfunction)kernel, 128, 0);
}

static CUresult occupancy_with_flags(void)
{
	int n;

	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
		&n, (CUfunction)kernel, 128, 0, 0);
}

static CUresult block_size(void)
{
	int n, size;

	return cuOccupancyMaxPotentialBlockSize(&n, &size, (CUfunction)kernel,
						NULL, 0, 0);
}

static CUresult block_size_with_flags(void)
{
	int n, size;

	return cuOccupancyMaxPotentialBlockSizeWithFlags(
		&n, &size, (CUfunction)kernel, NULL, 0, 0, 0);
}

static CUresult shared_memory(void)
{
	size_t size;

	return cuOccupancyAvailableDynamicSMemPerBlock(
		&size, (CUfunction)kernel, 1, 128);
}

static CUlaunchConfig launch = {.gridDimX = 1,
				.gridDimY = 1,
				.gridDimZ = 1,
				.blockDimX = 32,
				.blockDimY = 1,
				.blockDimZ = 1};

static CUresult cluster_size(void)
{
	int n;

	return cuOccupancyMaxPotentialClusterSize(&n, (CUfunction)kernel,
						  &launch);
}

static CUresult clusters(void)
{
	int n;

	return cuOccupancyMaxActiveClusters(&n, (CUfunction)kernel, &launch);
}

static CUDA_KERNEL_NODE_PARAMS work(void)
{
	return (CUDA_KERNEL_NODE_PARAMS){.gridDimX = 1,
					 .gridDimY = 1,
					 .gridDimZ = 1,
					 .blockDimX = 32,
					 .blockDimY = 1,
					 .blockDimZ = 1,
					 .kernelParams = arguments,
					 .kern = kernel};
}

static CUgraphNodeParams any_work(void)
{
	CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
	CUDA_KERNEL_NODE_PARAMS params = work();

	memcpy(&any.kernel, &params, sizeof(params)); /* of one layout */
	return any;
}

static CUresult add_kernel(void)
{
	CUDA_KERNEL_NODE_PARAMS params = work();

	return cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params);
}

static CUresult set_kernel(void)
{
	CUDA_KERNEL_NODE_PARAMS params = work();

	return cuGraphKernelNodeSetParams_v2(node, &params);
}

static CUresult set_kernel_in_exec(void)
{
	CUDA_KERNEL_NODE_PARAMS params = work();

	return cuGraphExecKernelNodeSetParams_v2(executable, node, &params);
}

static CUresult add_node(void)
{
	CUgraphNodeParams params = any_work();
	CUgraphNode other;

	return cuGraphAddNode(&other, graph, NULL, 0, &params);
}

static CUresult add_node_v2(void)
{
	CUgraphNodeParams params = any_work();
	CUgraphNode other;

	return cuGraphAddNode_v2(&other, graph, NULL, NULL, 0, &params);
}

static CUresult set_node(void)
{
	CUgraphNodeParams params = any_work();

	return cuGraphNodeSetParams(node, &params);
}

static CUresult set_node_in_exec(void)
{
	CUgraphNodeParams params = any_work();

	return cuGraphExecNodeSetParams(executable, node, &params);
}

static CUresult instantiate_with_params(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
	CUgraphExec exec;

	return cuGraphInstantiateWithParams(&exec, graph, &params);
}

static CUfunction fill(void)
{
	CUfunction function;

	return cuKernelGetFunction(&function, kernel) ? NULL : function;
}

static CUresult get_kernel_function(void)
{
	return fill() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult launch_kernel(void)
{
	return cuLaunchKernel(fill(), 1, 1, 1, 32, 1, 1, 0, NULL, arguments,
			      NULL);
}

static CUresult launch_kernel_ex(void)
{
	return cuLaunchKernelEx(&launch, fill(), arguments, NULL);
}

static CUresult enable_peer(void)
{
	return cuCtxEnablePeerAccess(contexts[1], 0);
}

static CUresult create_stream(void)
{
	CUstream stream;

	return cuStreamCreate(&stream, 0);
}

static CUresult create_urgent_stream(void)
{
	CUstream stream;

	return cuStreamCreateWithPriority(&stream, 0, 0);
}

static CUresult create_green_stream(void)
{
	CUstream stream;

	return cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING,
				      0);
}

/* Too wide for the pool. */
static CUresult allocate_pitched(void)
{
	CUdeviceptr p;
	size_t pitch;

	return cuMemAllocPitch_v2(&p, &pitch, (size_t)3 << 30, 1, 4);
}

static CUresult allocate_managed(void)
{
	CUdeviceptr p;

	return cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL);
}

static CUresult allocate_async(void)
{
	CUdeviceptr p;

	return cuMemAllocAsync(&p, 4096, NULL);
}

static CUresult allocate_from_pool(void)
{
	CUmemoryPool pool;
	CUdeviceptr p;

	if (cuDeviceGetDefaultMemPool(&pool, 0))
		return CUDA_ERROR_UNKNOWN;
	return cuMemAllocFromPoolAsync(&p, 4096, pool, NULL);
}

static CUresult create_array(void)
{
	const CUDA_ARRAY_DESCRIPTOR description = {16, 16, CU_AD_FORMAT_FLOAT,
						   1};
	CUarray array;

	return cuArrayCreate_v2(&array, &description);
}

static const CUDA_ARRAY3D_DESCRIPTOR cube = {16, 16, 16, CU_AD_FORMAT_FLOAT,
					     1,	 0};

static CUresult create_array_3d(void)
{
	CUarray array;

	return cuArray3DCreate_v2(&array, &cube);
}

static CUresult create_mipmapped_array(void)
{
	CUmipmappedArray array;

	return cuMipmappedArrayCreate(&array, &cube, 2);
}

static CUresult set_limit(void)
{
	return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048);
}

static const struct {
	const char *name;
	CUresult (*make)(void);
} calls[] = {
	{"cuModuleLoadData", load},
	{"cuModuleLoadDataEx", load_with_options},
	{"cuModuleLoadFatBinary", load_fat_binary},
	{"cuLibraryLoadData", load_library},
	{"cuModuleGetFunction", get_function},
	{"cuModuleGetGlobal_v2", get_global},
	{"cuLibraryGetModule", get_module},
	{"cuKernelSetAttribute", set_attribute},
	{"cuKernelGetParamInfo", ask_parameter},
	{"cuOccupancyMaxActiveBlocksPerMultiprocessor", occupancy},
	{"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
	 occupancy_with_flags},
	{"cuOccupancyMaxPotentialBlockSize", block_size},
	{"cuOccupancyMaxPotentialBlockSizeWithFlags", block_size_with_flags},
	{"cuOccupancyAvailableDynamicSMemPerBlock", shared_memory},
	{"cuOccupancyMaxPotentialClusterSize", cluster_size},
	{"cuOccupancyMaxActiveClusters", clusters},
	{"cuGraphAddKernelNode_v2", add_kernel},
	{"cuGraphKernelNodeSetParams_v2", set_kernel},
	{"cuGraphAddNode", add_node},
	{"cuGraphAddNode_v2", add_node_v2},
	{"cuGraphNodeSetParams", set_node},
	{"cuGraphInstantiate", instantiate},
	{"cuGraphInstantiate_v2", instantiate_v2},
	{"cuGraphInstantiateWithFlags", instantiate_with_flags},
	{"cuGraphInstantiateWithParams", instantiate_with_params},
	{"cuGraphExecKernelNodeSetParams_v2", set_kernel_in_exec},
	{"cuGraphExecNodeSetParams", set_node_in_exec},
	{"cuKernelGetFunction", get_kernel_function},
	{"cuLaunchKernel", launch_kernel},
	{"cuLaunchKernelEx", launch_kernel_ex},
	{"cuCtxEnablePeerAccess", enable_peer},
	{"cuCtxSetLimit", set_limit},
	{"cuStreamCreate", create_stream},
	{"cuStreamCreateWithPriority", create_urgent_stream},
	{"cuGreenCtxStreamCreate", create_green_stream},
	{"cuMemAllocPitch_v2", allocate_pitched},
	{"cuMemAllocManaged", allocate_managed},
	{"cuMemAllocAsync", allocate_async},
	{"cuMemAllocFromPoolAsync", allocate_from_pool},
	{"cuArrayCreate_v2", create_array},
	{"cuArray3DCreate_v2", create_array_3d},
	{"cuMipmappedArrayCreate", create_mipmapped_array},
};

#define N_CALLS (sizeof(calls) / sizeof(calls[0]))

static int start(void)
{
	CUdevResource units;
	CUdevResourceDesc description;

	if (cuInit(0))
		return 1;
	for (int i = 0; i < 2; i++)
		if (cuDevicePrimaryCtxRetain(&contexts[i], i))
			return 1;
	return cuCtxSetCurrent(contexts[0]) || cuMemAlloc_v2(&filled, 1024) ||
	       cuGraphCreate(&graph, 0) ||
	       cuLibraryLoadData(&library, vs_kernels_ptx, NULL, NULL, 0, NULL,
				 NULL, 0) ||
	       cuLibraryGetKernel(&kernel, library, "vs_fill") ||
	       cuDeviceGetDevResource(0, &units, CU_DEV_RESOURCE_TYPE_SM) ||
	       cuDevResourceGenerateDesc(&description, &units, 1) ||
	       cuGreenCtxCreate(&green, description, 0,
				CU_GREEN_CTX_DEFAULT_STREAM);
}

/* So much is idle on a device; that of the first is current. */
static int leave_idle(int device)
{
	CUdeviceptr p;

	return cuCtxSetCurrent(contexts[device]) ||
	       cuMemAlloc_v2(&p, 256 << 20) || cuMemFree_v2(p) ||
	       cuCtxSetCurrent(contexts[0]);
}

static int make_all(void)
{
	for (size_t i = 0; i < N_CALLS; i++) {
		if (leave_idle(0))
			return 1;
		printf("%s %d\n", calls[i].name, (int)calls[i].make());
	}
	return 0;
}

/* Nothing is idle on the first device: this is out of memory. */
static CUresult take_all(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;

	return cuMemCreate(&handle, (size_t)1 << 50, &prop, 0);
}

static int make_in_stream(void)
{
	if (cuCtxSetCurrent(contexts[1]) ||
	    cuStreamCreate(&launch.hStream, CU_STREAM_NON_BLOCKING) ||
	    take_all() != CUDA_ERROR_OUT_OF_MEMORY || leave_idle(1))
		return 1;
	printf("%d\n", (int)cluster_size());
	if (leave_idle(1))
		return 1;
	printf("%d\n", (int)clusters());
	return 0;
}

static int make_of_nothing(void)
{
	CUmemGenericAllocationHandle handle;
	CUmodule other;
	int n;

	printf("%d %d %d %d\n",
	       (int)cuModuleLoadDataEx(&other, vs_kernels_ptx, 3, NULL, NULL),
	       (int)cuLaunchKernelEx(NULL, fill(), arguments, NULL),
	       (int)cuOccupancyMaxActiveClusters(&n, fill(), NULL),
	       (int)cuMemCreate(&handle, 2 << 20, NULL, 0));
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		for (size_t i = 0; i < N_CALLS; i++)
			printf("%s\n", calls[i].name);
		return 0;
	}
	if (start())
		return 1;
	if (strcmp(argv[1], "null") == 0)
		return make_of_nothing();
	return strcmp(argv[1], "stream") == 0 ? make_in_stream() : make_all();
}
