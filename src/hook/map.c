/* SPDX-License-Identifier: MIT
 *
 * map: mappings of the program's own. What the pool maps, or an import, looks
 * like memory of cuMemAlloc, which these calls refuse: a program may ask them
 * for which of the two it has. With a chunk's own bounds they would succeed,
 * and take the memory away under the pool.
 *
 * Note [Bound memory]
 * So do those that bind memory to a multicast object or an endpoint: it must be
 * of cuMemCreate or cudaMallocAsync (cuda.h), and that of cuMemAlloc is refused
 * (CUDA_ERROR_INVALID_VALUE; NCCL's issue 1584). NCCL asks for each buffer of a
 * captured collective and goes on without, if it is refused. It relies on all
 * ranks getting the same answer, and what one of the pool's chunks holds on one
 * of them lies in two on another.
 */
#include "hook/hook.h"
#include "hook/ipc.h"
#include "pool/pool.h"

/* The address to ask the driver about: of the pool's it is to know nothing. */
static CUdeviceptr hidden(enum vs_api api, CUdeviceptr p)
{
	if (vs_enter(api) && (vs_pool_is_inside(p) || vs_ipc_is_inside(p)))
		return vs_unknown_address();
	return p;
}

VS_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr p, size_t size, size_t offset,
				    CUmemGenericAllocationHandle handle,
				    unsigned long long flags)
{
	CUdeviceptr at = hidden(VS_API_cuMemMap, p);

	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuMemMap, at, size, offset, handle,
			 flags);
}

VS_EXPORT CUresult CUDAAPI cuMemSetAccess(CUdeviceptr p, size_t size,
					  const CUmemAccessDesc *access,
					  size_t n)
{
	CUdeviceptr at = hidden(VS_API_cuMemSetAccess, p);

	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuMemSetAccess, at, size, access, n);
}

VS_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr p, size_t size)
{
	return vs_seen(vs_real.cuMemUnmap(hidden(VS_API_cuMemUnmap, p), size));
}

VS_EXPORT CUresult CUDAAPI cuMemAddressFree(CUdeviceptr p, size_t size)
{
	return vs_seen(vs_real.cuMemAddressFree(
		hidden(VS_API_cuMemAddressFree, p), size));
}

/* Succeeds for VMM memory only, and tells it from other memory. */
VS_EXPORT CUresult CUDAAPI
cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUdeviceptr p = hidden(VS_API_cuMemRetainAllocationHandle,
			       (CUdeviceptr)(uintptr_t)address);

	return vs_seen(vs_real.cuMemRetainAllocationHandle(
		handle, (void *)(uintptr_t)p));
}

/* See Note [Bound memory]. */
VS_EXPORT CUresult CUDAAPI
cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset,
		    CUdeviceptr p, size_t size, unsigned long long flags)
{
	CUdeviceptr at = hidden(VS_API_cuMulticastBindAddr, p);

	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuMulticastBindAddr, multicast, offset,
			 at, size, flags);
}

VS_EXPORT CUresult CUDAAPI cuMulticastBindAddr_v2(
	CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
	CUdeviceptr p, size_t size, unsigned long long flags)
{
	CUdeviceptr at = hidden(VS_API_cuMulticastBindAddr_v2, p);

	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuMulticastBindAddr_v2, multicast,
			 device, offset, at, size, flags);
}

VS_EXPORT CUresult CUDAAPI cuLogicalEndpointBindAddr(
	cuuint32_t endpoint, CUdevice device, cuuint64_t offset, void *address,
	cuuint64_t size, unsigned long long flags)
{
	CUdeviceptr p = hidden(VS_API_cuLogicalEndpointBindAddr,
			       (CUdeviceptr)(uintptr_t)address);
	void *at = (void *)(uintptr_t)p;

	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuLogicalEndpointBindAddr, endpoint,
			 device, offset, at, size, flags);
}
