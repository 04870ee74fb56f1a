/* SPDX-License-Identifier: MIT
 *
 * retry: other calls that take device memory. One that is out of it is made
 * once more after the pool gave its idle memory up.
 */
#include "hook/hook.h"

VS_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *out, size_t size,
					   CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemAllocAsync);
	result = vs_real.cuMemAllocAsync(out, size, stream);
	if (vs_again(result))
		result = vs_real.cuMemAllocAsync(out, size, stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size,
						CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemAllocAsync_ptsz);
	result = vs_real.cuMemAllocAsync_ptsz(out, size, stream);
	if (vs_again(result))
		result = vs_real.cuMemAllocAsync_ptsz(out, size, stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *out,
						   size_t size,
						   CUmemoryPool pool,
						   CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemAllocFromPoolAsync);
	result = vs_real.cuMemAllocFromPoolAsync(out, size, pool, stream);
	if (vs_again(result))
		result = vs_real.cuMemAllocFromPoolAsync(out, size, pool,
							 stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out,
							size_t size,
							CUmemoryPool pool,
							CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemAllocFromPoolAsync_ptsz);
	result = vs_real.cuMemAllocFromPoolAsync_ptsz(out, size, pool, stream);
	if (vs_again(result))
		result = vs_real.cuMemAllocFromPoolAsync_ptsz(out, size, pool,
							      stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *out, size_t size,
					     unsigned int flags)
{
	CUresult result;

	vs_enter(VS_API_cuMemAllocManaged);
	result = vs_real.cuMemAllocManaged(out, size, flags);
	if (vs_again(result))
		result = vs_real.cuMemAllocManaged(out, size, flags);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *out,
				       size_t size,
				       const CUmemAllocationProp *prop,
				       unsigned long long flags)
{
	CUresult result;

	vs_enter(VS_API_cuMemCreate);
	result = vs_real.cuMemCreate(out, size, prop, flags);
	if (vs_again(result))
		result = vs_real.cuMemCreate(out, size, prop, flags);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI
cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *description)
{
	CUresult result;

	vs_enter(VS_API_cuArrayCreate_v2);
	result = vs_real.cuArrayCreate_v2(out, description);
	if (vs_again(result))
		result = vs_real.cuArrayCreate_v2(out, description);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI
cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *description)
{
	CUresult result;

	vs_enter(VS_API_cuArray3DCreate_v2);
	result = vs_real.cuArray3DCreate_v2(out, description);
	if (vs_again(result))
		result = vs_real.cuArray3DCreate_v2(out, description);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(
	CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *description,
	unsigned int n_levels)
{
	CUresult result;

	vs_enter(VS_API_cuMipmappedArrayCreate);
	result = vs_real.cuMipmappedArrayCreate(out, description, n_levels);
	if (vs_again(result))
		result = vs_real.cuMipmappedArrayCreate(out, description,
							n_levels);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule *out, const char *path)
{
	CUresult result;

	vs_enter(VS_API_cuModuleLoad);
	result = vs_real.cuModuleLoad(out, path);
	if (vs_again(result))
		result = vs_real.cuModuleLoad(out, path);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *out, const void *image)
{
	CUresult result;

	vs_enter(VS_API_cuModuleLoadData);
	result = vs_real.cuModuleLoadData(out, image);
	if (vs_again(result))
		result = vs_real.cuModuleLoadData(out, image);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *out, const void *image,
					      unsigned int n,
					      CUjit_option *options,
					      void **values)
{
	CUresult result;

	vs_enter(VS_API_cuModuleLoadDataEx);
	result = vs_real.cuModuleLoadDataEx(out, image, n, options, values);
	if (vs_again(result))
		result = vs_real.cuModuleLoadDataEx(out, image, n, options,
						    values);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *out,
						 const void *image)
{
	CUresult result;

	vs_enter(VS_API_cuModuleLoadFatBinary);
	result = vs_real.cuModuleLoadFatBinary(out, image);
	if (vs_again(result))
		result = vs_real.cuModuleLoadFatBinary(out, image);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary *out, const void *image,
					     CUjit_option *jit_options,
					     void **jit_values,
					     unsigned int n_jit,
					     CUlibraryOption *options,
					     void **values, unsigned int n)
{
	CUresult result;

	vs_enter(VS_API_cuLibraryLoadData);
	result = vs_real.cuLibraryLoadData(out, image, jit_options, jit_values,
					   n_jit, options, values, n);
	if (vs_again(result))
		result = vs_real.cuLibraryLoadData(out, image, jit_options,
						   jit_values, n_jit, options,
						   values, n);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(
	CUlibrary *out, const char *path, CUjit_option *jit_options,
	void **jit_values, unsigned int n_jit, CUlibraryOption *options,
	void **values, unsigned int n)
{
	CUresult result;

	vs_enter(VS_API_cuLibraryLoadFromFile);
	result = vs_real.cuLibraryLoadFromFile(
		out, path, jit_options, jit_values, n_jit, options, values, n);
	if (vs_again(result))
		result = vs_real.cuLibraryLoadFromFile(out, path, jit_options,
						       jit_values, n_jit,
						       options, values, n);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
	CUresult result;

	vs_enter(VS_API_cuKernelGetFunction);
	result = vs_real.cuKernelGetFunction(out, kernel);
	if (vs_again(result))
		result = vs_real.cuKernelGetFunction(out, kernel);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule module,
					       const char *name)
{
	CUresult result;

	vs_enter(VS_API_cuModuleGetFunction);
	result = vs_real.cuModuleGetFunction(out, module, name);
	if (vs_again(result))
		result = vs_real.cuModuleGetFunction(out, module, name);
	return vs_seen(result);
}

/* A module that is loaded lazily is, when something of it is asked for. */
VS_EXPORT CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *size,
						CUmodule module,
						const char *name)
{
	CUresult result;

	vs_enter(VS_API_cuModuleGetGlobal_v2);
	result = vs_real.cuModuleGetGlobal_v2(out, size, module, name);
	if (vs_again(result))
		result = vs_real.cuModuleGetGlobal_v2(out, size, module, name);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
	CUresult result;

	vs_enter(VS_API_cuLibraryGetModule);
	result = vs_real.cuLibraryGetModule(out, library);
	if (vs_again(result))
		result = vs_real.cuLibraryGetModule(out, library);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *out, size_t *size,
					      CUlibrary library,
					      const char *name)
{
	CUresult result;

	vs_enter(VS_API_cuLibraryGetGlobal);
	result = vs_real.cuLibraryGetGlobal(out, size, library, name);
	if (vs_again(result))
		result = vs_real.cuLibraryGetGlobal(out, size, library, name);
	return vs_seen(result);
}

/* Of programs built before CUDA 12. */
VS_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *out, CUgraph graph,
					      CUgraphNode *failed, char *log,
					      size_t log_size)
{
	CUresult result;

	vs_enter(VS_API_cuGraphInstantiate);
	result = vs_real.cuGraphInstantiate(out, graph, failed, log, log_size);
	if (vs_again(result))
		result = vs_real.cuGraphInstantiate(out, graph, failed, log,
						    log_size);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *out,
						 CUgraph graph,
						 CUgraphNode *failed, char *log,
						 size_t log_size)
{
	CUresult result;

	vs_enter(VS_API_cuGraphInstantiate_v2);
	result = vs_real.cuGraphInstantiate_v2(out, graph, failed, log,
					       log_size);
	if (vs_again(result))
		result = vs_real.cuGraphInstantiate_v2(out, graph, failed, log,
						       log_size);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out,
						       CUgraph graph,
						       unsigned long long flags)
{
	CUresult result;

	vs_enter(VS_API_cuGraphInstantiateWithFlags);
	result = vs_real.cuGraphInstantiateWithFlags(out, graph, flags);
	if (vs_again(result))
		result = vs_real.cuGraphInstantiateWithFlags(out, graph, flags);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(
	CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult result;

	vs_enter(VS_API_cuGraphInstantiateWithParams);
	result = vs_real.cuGraphInstantiateWithParams(out, graph, params);
	if (vs_again(result))
		result = vs_real.cuGraphInstantiateWithParams(out, graph,
							      params);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(
	CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	CUresult result;

	vs_enter(VS_API_cuGraphInstantiateWithParams_ptsz);
	result = vs_real.cuGraphInstantiateWithParams_ptsz(out, graph, params);
	if (vs_again(result))
		result = vs_real.cuGraphInstantiateWithParams_ptsz(out, graph,
								   params);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuGraphUpload);
	result = vs_real.cuGraphUpload(exec, stream);
	if (vs_again(result))
		result = vs_real.cuGraphUpload(exec, stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuGraphUpload_ptsz);
	result = vs_real.cuGraphUpload_ptsz(exec, stream);
	if (vs_again(result))
		result = vs_real.cuGraphUpload_ptsz(exec, stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuGraphLaunch);
	result = vs_real.cuGraphLaunch(exec, stream);
	if (vs_again(result))
		result = vs_real.cuGraphLaunch(exec, stream);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuGraphLaunch_ptsz);
	result = vs_real.cuGraphLaunch_ptsz(exec, stream);
	if (vs_again(result))
		result = vs_real.cuGraphLaunch_ptsz(exec, stream);
	return vs_seen(result);
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
	CUresult result;

	vs_enter(VS_API_cuLaunchKernel);
	result = vs_real.cuLaunchKernel(f, grid_x, grid_y, grid_z, block_x,
					block_y, block_z, shared_bytes, stream,
					params, extra);
	if (vs_again(result))
		result = vs_real.cuLaunchKernel(
			f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
			shared_bytes, stream, params, extra);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLaunchKernel_ptsz(
	CUfunction f, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	void **params, void **extra)
{
	CUresult result;

	vs_enter(VS_API_cuLaunchKernel_ptsz);
	result = vs_real.cuLaunchKernel_ptsz(f, grid_x, grid_y, grid_z, block_x,
					     block_y, block_z, shared_bytes,
					     stream, params, extra);
	if (vs_again(result))
		result = vs_real.cuLaunchKernel_ptsz(
			f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
			shared_bytes, stream, params, extra);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config,
					    CUfunction f, void **params,
					    void **extra)
{
	CUresult result;

	vs_enter(VS_API_cuLaunchKernelEx);
	result = vs_real.cuLaunchKernelEx(config, f, params, extra);
	if (vs_again(result))
		result = vs_real.cuLaunchKernelEx(config, f, params, extra);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config,
						 CUfunction f, void **params,
						 void **extra)
{
	CUresult result;

	vs_enter(VS_API_cuLaunchKernelEx_ptsz);
	result = vs_real.cuLaunchKernelEx_ptsz(config, f, params, extra);
	if (vs_again(result))
		result =
			vs_real.cuLaunchKernelEx_ptsz(config, f, params, extra);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel(
	CUfunction f, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	void **params)
{
	CUresult result;

	vs_enter(VS_API_cuLaunchCooperativeKernel);
	result = vs_real.cuLaunchCooperativeKernel(
		f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared_bytes, stream, params);
	if (vs_again(result))
		result = vs_real.cuLaunchCooperativeKernel(
			f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
			shared_bytes, stream, params);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(
	CUfunction f, unsigned int grid_x, unsigned int grid_y,
	unsigned int grid_z, unsigned int block_x, unsigned int block_y,
	unsigned int block_z, unsigned int shared_bytes, CUstream stream,
	void **params)
{
	CUresult result;

	vs_enter(VS_API_cuLaunchCooperativeKernel_ptsz);
	result = vs_real.cuLaunchCooperativeKernel_ptsz(
		f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
		shared_bytes, stream, params);
	if (vs_again(result))
		result = vs_real.cuLaunchCooperativeKernel_ptsz(
			f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
			shared_bytes, stream, params);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
	CUresult result;

	vs_enter(VS_API_cuCtxSetLimit);
	result = vs_real.cuCtxSetLimit(limit, value);
	if (vs_again(result))
		result = vs_real.cuCtxSetLimit(limit, value);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *out, unsigned int flags)
{
	CUresult result;

	vs_enter(VS_API_cuStreamCreate);
	result = vs_real.cuStreamCreate(out, flags);
	if (vs_again(result))
		result = vs_real.cuStreamCreate(out, flags);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *out,
						      unsigned int flags,
						      int priority)
{
	CUresult result;

	vs_enter(VS_API_cuStreamCreateWithPriority);
	result = vs_real.cuStreamCreateWithPriority(out, flags, priority);
	if (vs_again(result))
		result = vs_real.cuStreamCreateWithPriority(out, flags,
							    priority);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI
cuImportExternalMemory(CUexternalMemory *out,
		       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
	CUresult result;

	vs_enter(VS_API_cuImportExternalMemory);
	result = vs_real.cuImportExternalMemory(out, description);
	if (vs_again(result))
		result = vs_real.cuImportExternalMemory(out, description);
	return vs_seen(result);
}
