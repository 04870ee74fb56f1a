/* SPDX-License-Identifier: MIT
 *
 * retry: other calls that take device memory. One that is out of it is made
 * again after the pool gave its idle memory up, and what was freed: that of the
 * device which the call is short of, where it tells.
 */
#include "hook/hook.h"

/* What each of them does. */
#define RETURN_RETRIED(devices, call, ...)                                     \
	do {                                                                   \
		vs_enter(VS_API_##call);                                       \
		VS_RETURN_ANSWER(devices, call, __VA_ARGS__);                  \
	} while (0)
/* The same, of what comes in a stream, but is no work of the GPU's. */
#define RETURN_RETRIED_IN(devices, call, stream, ...)                          \
	do {                                                                   \
		VS_ENTER_STREAM(call, stream);                                 \
		VS_RETURN_ANSWER(devices, call, __VA_ARGS__);                  \
	} while (0)
/* The same, of what gives a stream work. */
#define RETURN_RETRIED_WORK(call, stream, ...)                                 \
	do {                                                                   \
		VS_ENTER_WORK(call, stream);                                   \
		VS_RETURN_ANSWER(vs_devices_of(stream), call, __VA_ARGS__);    \
	} while (0)
/* The same, of what makes a stream. */
#define RETURN_RETRIED_STREAM(devices, call, ...)                              \
	do {                                                                   \
		if (vs_enter(VS_API_##call))                                   \
			vs_stream_made();                                      \
		VS_RETURN_ANSWER(devices, call, __VA_ARGS__);                  \
	} while (0)

/*
 * The compiler's logs: the driver writes how much it said over how much the
 * buffer holds, also where the load is out of memory then (H100, a log of 310
 * bytes). A load that is made again needs what the program wrote there.
 */
struct log_sizes {
	unsigned n, at[2];
	void *before[2];
};

static struct log_sizes log_sizes(unsigned n, const CUjit_option *options,
				  void *const *values)
{
	struct log_sizes s = {0};

	if (!options || !values)
		return s;
	for (unsigned i = 0; i < n && s.n < 2; i++)
		if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
		    options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
			s.at[s.n] = i;
			s.before[s.n++] = values[i];
		}
	return s;
}

static void restore(const struct log_sizes *s, void **values)
{
	for (unsigned i = 0; i < s->n; i++)
		values[s->at[i]] = s->before[i];
}

#define RETURN_LOADED(devices, call, n, options, values, ...)                  \
	do {                                                                   \
		struct log_sizes sizes;                                        \
		CUresult result;                                               \
                                                                               \
		vs_enter(VS_API_##call);                                       \
		sizes = log_sizes(n, options, values);                         \
		result = vs_real.call(__VA_ARGS__);                            \
		VS_AGAIN(                                                      \
			devices, result,                                       \
			(restore(&sizes, values), vs_real.call(__VA_ARGS__))); \
		return vs_seen(result);                                        \
	} while (0)

/* Memory of the host is of no device; it may be short of any. */
static uint64_t device_of(const CUmemAllocationProp *prop)
{
	return prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE
		       ? vs_device_bit(prop->location.id)
		       : VS_ANY_DEVICE;
}

VS_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *out, size_t size,
					   CUstream stream)
{
	RETURN_RETRIED_IN(vs_devices_of(stream), cuMemAllocAsync, stream, out,
			  size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size,
						CUstream stream)
{
	RETURN_RETRIED_IN(vs_devices_of(stream), cuMemAllocAsync_ptsz, stream,
			  out, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *out,
						   size_t size,
						   CUmemoryPool pool,
						   CUstream stream)
{
	RETURN_RETRIED_IN(VS_ANY_DEVICE, cuMemAllocFromPoolAsync, stream, out,
			  size, pool, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out,
							size_t size,
							CUmemoryPool pool,
							CUstream stream)
{
	RETURN_RETRIED_IN(VS_ANY_DEVICE, cuMemAllocFromPoolAsync_ptsz, stream,
			  out, size, pool, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *out, size_t size,
					     unsigned int flags)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuMemAllocManaged, out, size, flags);
}

VS_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *out,
				       size_t size,
				       const CUmemAllocationProp *prop,
				       unsigned long long flags)
{
	if (vs_enter(VS_API_cuMemCreate))
		vs_look_before(device_of(prop));
	VS_RETURN_ANSWER(device_of(prop), cuMemCreate, out, size, prop, flags);
}

VS_EXPORT CUresult CUDAAPI
cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *description)
{
	RETURN_RETRIED(vs_device_here(), cuArrayCreate_v2, out, description);
}

VS_EXPORT CUresult CUDAAPI
cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *description)
{
	RETURN_RETRIED(vs_device_here(), cuArray3DCreate_v2, out, description);
}

VS_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(
	CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *description,
	unsigned int n_levels)
{
	RETURN_RETRIED(vs_device_here(), cuMipmappedArrayCreate, out,
		       description, n_levels);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule *out, const char *path)
{
	RETURN_RETRIED(vs_device_here(), cuModuleLoad, out, path);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *out, const void *image)
{
	RETURN_RETRIED(vs_device_here(), cuModuleLoadData, out, image);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *out, const void *image,
					      unsigned int n,
					      CUjit_option *options,
					      void **values)
{
	RETURN_LOADED(vs_device_here(), cuModuleLoadDataEx, n, options, values,
		      out, image, n, options, values);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *out,
						 const void *image)
{
	RETURN_RETRIED(vs_device_here(), cuModuleLoadFatBinary, out, image);
}

VS_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary *out, const void *image,
					     CUjit_option *jit_options,
					     void **jit_values,
					     unsigned int n_jit,
					     CUlibraryOption *options,
					     void **values, unsigned int n)
{
	RETURN_LOADED(VS_ANY_DEVICE, cuLibraryLoadData, n_jit, jit_options,
		      jit_values, out, image, jit_options, jit_values, n_jit,
		      options, values, n);
}

VS_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(
	CUlibrary *out, const char *path, CUjit_option *jit_options,
	void **jit_values, unsigned int n_jit, CUlibraryOption *options,
	void **values, unsigned int n)
{
	RETURN_LOADED(VS_ANY_DEVICE, cuLibraryLoadFromFile, n_jit, jit_options,
		      jit_values, out, path, jit_options, jit_values, n_jit,
		      options, values, n);
}

VS_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	RETURN_RETRIED(vs_device_here(), cuKernelGetFunction, out, kernel);
}

VS_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule module,
					       const char *name)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuModuleGetFunction, out, module, name);
}

VS_EXPORT CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuFuncLoad, function);
}

/* Of a kernel no function was asked for yet: these load it on the device. */
VS_EXPORT CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute,
						int value, CUkernel kernel,
						CUdevice device)
{
	RETURN_RETRIED(vs_device_bit(device), cuKernelSetAttribute, attribute,
		       value, kernel, device);
}

VS_EXPORT CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel,
						  CUfunc_cache config,
						  CUdevice device)
{
	RETURN_RETRIED(vs_device_bit(device), cuKernelSetCacheConfig, kernel,
		       config, device);
}

/*
 * These do on an H100, for the device of the current context. Of a function,
 * which is loaded, they take nothing.
 */
VS_EXPORT CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index,
						size_t *offset, size_t *size)
{
	RETURN_RETRIED(vs_device_here(), cuKernelGetParamInfo, kernel, index,
		       offset, size);
}

VS_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(
	int *out, CUfunction function, int n_threads, size_t shared)
{
	RETURN_RETRIED(vs_device_here(),
		       cuOccupancyMaxActiveBlocksPerMultiprocessor, out,
		       function, n_threads, shared);
}

VS_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
	int *out, CUfunction function, int n_threads, size_t shared,
	unsigned int flags)
{
	RETURN_RETRIED(vs_device_here(),
		       cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
		       out, function, n_threads, shared, flags);
}

VS_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(
	int *n_blocks, int *n_threads, CUfunction function,
	CUoccupancyB2DSize shared_for, size_t shared, int limit)
{
	RETURN_RETRIED(vs_device_here(), cuOccupancyMaxPotentialBlockSize,
		       n_blocks, n_threads, function, shared_for, shared,
		       limit);
}

VS_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(
	int *n_blocks, int *n_threads, CUfunction function,
	CUoccupancyB2DSize shared_for, size_t shared, int limit,
	unsigned int flags)
{
	RETURN_RETRIED(vs_device_here(),
		       cuOccupancyMaxPotentialBlockSizeWithFlags, n_blocks,
		       n_threads, function, shared_for, shared, limit, flags);
}

VS_EXPORT CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(
	size_t *out, CUfunction function, int n_blocks, int n_threads)
{
	RETURN_RETRIED(vs_device_here(),
		       cuOccupancyAvailableDynamicSMemPerBlock, out, function,
		       n_blocks, n_threads);
}

/* The stream of a launch; the driver words what is wrong with none. */
static inline CUstream stream_of(const CUlaunchConfig *config)
{
	return config ? config->hStream : NULL;
}

/* In the stream that is to launch it (cuda.h). */
VS_EXPORT CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(
	int *out, CUfunction function, const CUlaunchConfig *config)
{
	RETURN_RETRIED(vs_devices_of(stream_of(config)),
		       cuOccupancyMaxPotentialClusterSize, out, function,
		       config);
}

VS_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveClusters(
	int *out, CUfunction function, const CUlaunchConfig *config)
{
	RETURN_RETRIED(vs_devices_of(stream_of(config)),
		       cuOccupancyMaxActiveClusters, out, function, config);
}

/* A node loads its kernel. */
VS_EXPORT CUresult CUDAAPI cuGraphAddKernelNode_v2(
	CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
	size_t n_after, const CUDA_KERNEL_NODE_PARAMS *params)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphAddKernelNode_v2, out, graph,
		       after, n_after, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(
	CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphKernelNodeSetParams_v2, node,
		       params);
}

VS_EXPORT CUresult CUDAAPI
cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
				  const CUDA_KERNEL_NODE_PARAMS *params)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphExecKernelNodeSetParams_v2, exec,
		       node, params);
}

/* A module that is loaded lazily is, when something of it is asked for. */
VS_EXPORT CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *size,
						CUmodule module,
						const char *name)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuModuleGetGlobal_v2, out, size, module,
		       name);
}

VS_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	RETURN_RETRIED(vs_device_here(), cuLibraryGetModule, out, library);
}

VS_EXPORT CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *out, size_t *size,
					      CUlibrary library,
					      const char *name)
{
	RETURN_RETRIED(vs_device_here(), cuLibraryGetGlobal, out, size, library,
		       name);
}

/* Of programs built before CUDA 12. */
VS_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph,
					      CUgraphNode *failed, char *log,
					      size_t log_size)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphInstantiate, out, graph, failed,
		       log, log_size);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *out,
						 CUgraph graph,
						 CUgraphNode *failed, char *log,
						 size_t log_size)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphInstantiate_v2, out, graph, failed,
		       log, log_size);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out,
						       CUgraph graph,
						       unsigned long long flags)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphInstantiateWithFlags, out, graph,
		       flags);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(
	CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphInstantiateWithParams, out, graph,
		       params);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuGraphInstantiateWithParams_ptsz, out,
		       graph, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	RETURN_RETRIED_IN(VS_ANY_DEVICE, cuGraphUpload, stream, exec, stream);
}

VS_EXPORT CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	RETURN_RETRIED_IN(VS_ANY_DEVICE, cuGraphUpload_ptsz, stream, exec,
			  stream);
}

/*
 * Kernels take memory for local variables, stacks and heap, and for their own
 * code where modules are loaded lazily.
 */
VS_EXPORT CUresult CUDAAPI
cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y,
	       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	       unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	       void **params, void **extra)
{
	RETURN_RETRIED_WORK(cuLaunchKernel, stream, f, grid_x, grid_y, grid_z,
			    block_x, block_y, block_z, shared_bytes, stream,
			    params, extra);
}

VS_EXPORT CUresult CUDAAPI cuLaunchKernel_ptsz(
	CUfunction f, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	void **params, void **extra)
{
	RETURN_RETRIED_WORK(cuLaunchKernel_ptsz, stream, f, grid_x, grid_y,
			    grid_z, block_x, block_y, block_z, shared_bytes,
			    stream, params, extra);
}

VS_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config,
					    CUfunction f, void **params,
					    void **extra)
{
	RETURN_RETRIED_WORK(cuLaunchKernelEx, stream_of(config), config, f,
			    params, extra);
}

VS_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config,
						 CUfunction f, void **params,
						 void **extra)
{
	RETURN_RETRIED_WORK(cuLaunchKernelEx_ptsz, stream_of(config), config, f,
			    params, extra);
}

VS_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel(
	CUfunction f, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	void **params)
{
	RETURN_RETRIED_WORK(cuLaunchCooperativeKernel, stream, f, grid_x,
			    grid_y, grid_z, block_x, block_y, block_z,
			    shared_bytes, stream, params);
}

VS_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(
	CUfunction f, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	void **params)
{
	RETURN_RETRIED_WORK(cuLaunchCooperativeKernel_ptsz, stream, f, grid_x,
			    grid_y, grid_z, block_x, block_y, block_z,
			    shared_bytes, stream, params);
}

/* All of them are one piece of work, in as many streams. */
VS_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(
	CUDA_LAUNCH_PARAMS *params, unsigned int n, unsigned int flags)
{
	bool is_open = VS_ENTER_WORK(cuLaunchCooperativeKernelMultiDevice,
				     params && n > 0 ? params->hStream : NULL);

	for (unsigned int i = 1; is_open && params && i < n; i++)
		vs_stream_given(params[i].hStream, false);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuLaunchCooperativeKernelMultiDevice,
			 params, n, flags);
}

VS_EXPORT CUresult CUDAAPI cuLaunch(CUfunction f)
{
	RETURN_RETRIED_WORK(cuLaunch, NULL, f);
}

VS_EXPORT CUresult CUDAAPI cuLaunchGrid(CUfunction f, int width, int height)
{
	RETURN_RETRIED_WORK(cuLaunchGrid, NULL, f, width, height);
}

VS_EXPORT CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int width,
					     int height, CUstream stream)
{
	RETURN_RETRIED_WORK(cuLaunchGridAsync, stream, f, width, height,
			    stream);
}

VS_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
	RETURN_RETRIED(vs_device_here(), cuCtxSetLimit, limit, value);
}

VS_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *out, unsigned int flags)
{
	RETURN_RETRIED_STREAM(vs_device_here(), cuStreamCreate, out, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *out,
						      unsigned int flags,
						      int priority)
{
	RETURN_RETRIED_STREAM(vs_device_here(), cuStreamCreateWithPriority, out,
			      flags, priority);
}

VS_EXPORT CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *out,
						  CUgreenCtx green,
						  unsigned int flags,
						  int priority)
{
	RETURN_RETRIED_STREAM(VS_ANY_DEVICE, cuGreenCtxStreamCreate, out, green,
			      flags, priority);
}

VS_EXPORT CUresult CUDAAPI
cuImportExternalMemory(CUexternalMemory *out,
		       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	RETURN_RETRIED(VS_ANY_DEVICE, cuImportExternalMemory, out, description);
}
