/* SPDX-License-Identifier: MIT
 *
 * copy_array: copies of bytes in a row between memory and a one-dimensional
 * array; see Note [Copies between devices], Note [Order of copies] and Note
 * [Bounds]. (Those of more dimensions are in copy_pitched.)
 */
#include "hook/copy.h"

static CUDA_MEMCPY3D to_array(CUarray dst, size_t offset, CUdeviceptr src,
			      size_t size)
{
	return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_ARRAY,
			       .dstArray = dst,
			       .dstXInBytes = offset,
			       .srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = src,
			       .WidthInBytes = size,
			       .Height = 1,
			       .Depth = 1};
}

static CUDA_MEMCPY3D from_array(CUdeviceptr dst, CUarray src, size_t offset,
				size_t size)
{
	return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstDevice = dst,
			       .srcMemoryType = CU_MEMORYTYPE_ARRAY,
			       .srcArray = src,
			       .srcXInBytes = offset,
			       .WidthInBytes = size,
			       .Height = 1,
			       .Depth = 1};
}

/* What is copied, how, and the driver's arguments. */
#define COPIED(api, how, what, ...)                                            \
	__extension__({                                                        \
		const CUDA_MEMCPY3D copy = what;                               \
                                                                               \
		VS_COPIED(api, how, vs_copy_is_beyond(&copy),                  \
			  vs_copy_begin(&order, &copy, way),                   \
			  vs_copy_open(&copy, way),                            \
			  vs_copy_between(&copy, way), __VA_ARGS__);           \
	})

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoA_v2(CUarray dst, size_t offset,
					   CUdeviceptr src, size_t size)
{
	return COPIED(cuMemcpyDtoA_v2, VS_PLAIN,
		      to_array(dst, offset, src, size), dst, offset, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoA_v2_ptds(CUarray dst, size_t offset,
						CUdeviceptr src, size_t size)
{
	return COPIED(cuMemcpyDtoA_v2_ptds, VS_PLAIN_PT,
		      to_array(dst, offset, src, size), dst, offset, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoD_v2(CUdeviceptr dst, CUarray src,
					   size_t offset, size_t size)
{
	return COPIED(cuMemcpyAtoD_v2, VS_PLAIN,
		      from_array(dst, src, offset, size), dst, src, offset,
		      size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoD_v2_ptds(CUdeviceptr dst, CUarray src,
						size_t offset, size_t size)
{
	return COPIED(cuMemcpyAtoD_v2_ptds, VS_PLAIN_PT,
		      from_array(dst, src, offset, size), dst, src, offset,
		      size);
}
