/* SPDX-License-Identifier: MIT
 *
 * copy_set: the family of cuMemset; see Note [Sets between devices].
 */
#include "hook/copy.h"

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value,
					 size_t n)
{
	vs_enter(VS_API_cuMemsetD8_v2);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD8_v2(dst, value, n));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr dst,
					      unsigned char value, size_t n)
{
	vs_enter(VS_API_cuMemsetD8_v2_ptds);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD8_v2_ptds(dst, value, n));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value,
					   size_t n, CUstream stream)
{
	vs_enter(VS_API_cuMemsetD8Async);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD8Async(dst, value, n, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr dst,
						unsigned char value, size_t n,
						CUstream stream)
{
	vs_enter(VS_API_cuMemsetD8Async_ptsz);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD8Async_ptsz(dst, value, n, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dst, unsigned short value,
					  size_t n)
{
	vs_enter(VS_API_cuMemsetD16_v2);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD16_v2(dst, value, n));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2_ptds(CUdeviceptr dst,
					       unsigned short value, size_t n)
{
	vs_enter(VS_API_cuMemsetD16_v2_ptds);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD16_v2_ptds(dst, value, n));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dst,
					    unsigned short value, size_t n,
					    CUstream stream)
{
	vs_enter(VS_API_cuMemsetD16Async);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD16Async(dst, value, n, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async_ptsz(CUdeviceptr dst,
						 unsigned short value, size_t n,
						 CUstream stream)
{
	vs_enter(VS_API_cuMemsetD16Async_ptsz);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD16Async_ptsz(dst, value, n, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value,
					  size_t n)
{
	vs_enter(VS_API_cuMemsetD32_v2);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD32_v2(dst, value, n));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2_ptds(CUdeviceptr dst,
					       unsigned int value, size_t n)
{
	vs_enter(VS_API_cuMemsetD32_v2_ptds);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD32_v2_ptds(dst, value, n));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value,
					    size_t n, CUstream stream)
{
	vs_enter(VS_API_cuMemsetD32Async);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD32Async(dst, value, n, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async_ptsz(CUdeviceptr dst,
						 unsigned int value, size_t n,
						 CUstream stream)
{
	vs_enter(VS_API_cuMemsetD32Async_ptsz);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD32Async_ptsz(dst, value, n, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch,
					   unsigned char value, size_t width,
					   size_t height)
{
	vs_enter(VS_API_cuMemsetD2D8_v2);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(
		vs_real.cuMemsetD2D8_v2(dst, pitch, value, width, height));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch,
						unsigned char value,
						size_t width, size_t height)
{
	vs_enter(VS_API_cuMemsetD2D8_v2_ptds);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(
		vs_real.cuMemsetD2D8_v2_ptds(dst, pitch, value, width, height));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch,
					     unsigned char value, size_t width,
					     size_t height, CUstream stream)
{
	vs_enter(VS_API_cuMemsetD2D8Async);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D8Async(dst, pitch, value, width,
						 height, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch,
						  unsigned char value,
						  size_t width, size_t height,
						  CUstream stream)
{
	vs_enter(VS_API_cuMemsetD2D8Async_ptsz);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D8Async_ptsz(dst, pitch, value, width,
						      height, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch,
					    unsigned short value, size_t width,
					    size_t height)
{
	vs_enter(VS_API_cuMemsetD2D16_v2);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(
		vs_real.cuMemsetD2D16_v2(dst, pitch, value, width, height));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned short value,
						 size_t width, size_t height)
{
	vs_enter(VS_API_cuMemsetD2D16_v2_ptds);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D16_v2_ptds(dst, pitch, value, width,
						     height));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch,
					      unsigned short value,
					      size_t width, size_t height,
					      CUstream stream)
{
	vs_enter(VS_API_cuMemsetD2D16Async);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D16Async(dst, pitch, value, width,
						  height, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned short value,
						   size_t width, size_t height,
						   CUstream stream)
{
	vs_enter(VS_API_cuMemsetD2D16Async_ptsz);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D16Async_ptsz(dst, pitch, value, width,
						       height, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch,
					    unsigned int value, size_t width,
					    size_t height)
{
	vs_enter(VS_API_cuMemsetD2D32_v2);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(
		vs_real.cuMemsetD2D32_v2(dst, pitch, value, width, height));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned int value,
						 size_t width, size_t height)
{
	vs_enter(VS_API_cuMemsetD2D32_v2_ptds);
	if (vs_set_is_refused(dst, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D32_v2_ptds(dst, pitch, value, width,
						     height));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch,
					      unsigned int value, size_t width,
					      size_t height, CUstream stream)
{
	vs_enter(VS_API_cuMemsetD2D32Async);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D32Async(dst, pitch, value, width,
						  height, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned int value,
						   size_t width, size_t height,
						   CUstream stream)
{
	vs_enter(VS_API_cuMemsetD2D32Async_ptsz);
	if (vs_set_is_refused(dst, stream))
		return CUDA_ERROR_INVALID_VALUE;
	return vs_seen(vs_real.cuMemsetD2D32Async_ptsz(dst, pitch, value, width,
						       height, stream));
}
