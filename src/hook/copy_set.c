/* SPDX-License-Identifier: MIT
 *
 * copy_set: the family of cuMemset; see Note [Sets between devices].
 */
#include "hook/copy.h"

/* The driver's function of this row, on a stream or NULL, and its arguments. */
#define SET(api, stream, dst, ...)                                             \
	(vs_enter(VS_API_##api),                                               \
	 vs_set_is_refused(dst, stream)                                        \
		 ? CUDA_ERROR_INVALID_VALUE                                    \
		 : vs_seen(vs_real.api(dst, __VA_ARGS__)))

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value,
					 size_t n)
{
	return SET(cuMemsetD8_v2, NULL, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr dst,
					      unsigned char value, size_t n)
{
	return SET(cuMemsetD8_v2_ptds, NULL, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value,
					   size_t n, CUstream stream)
{
	return SET(cuMemsetD8Async, stream, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr dst,
						unsigned char value, size_t n,
						CUstream stream)
{
	return SET(cuMemsetD8Async_ptsz, stream, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dst, unsigned short value,
					  size_t n)
{
	return SET(cuMemsetD16_v2, NULL, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2_ptds(CUdeviceptr dst,
					       unsigned short value, size_t n)
{
	return SET(cuMemsetD16_v2_ptds, NULL, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dst,
					    unsigned short value, size_t n,
					    CUstream stream)
{
	return SET(cuMemsetD16Async, stream, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async_ptsz(CUdeviceptr dst,
						 unsigned short value, size_t n,
						 CUstream stream)
{
	return SET(cuMemsetD16Async_ptsz, stream, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value,
					  size_t n)
{
	return SET(cuMemsetD32_v2, NULL, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2_ptds(CUdeviceptr dst,
					       unsigned int value, size_t n)
{
	return SET(cuMemsetD32_v2_ptds, NULL, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value,
					    size_t n, CUstream stream)
{
	return SET(cuMemsetD32Async, stream, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async_ptsz(CUdeviceptr dst,
						 unsigned int value, size_t n,
						 CUstream stream)
{
	return SET(cuMemsetD32Async_ptsz, stream, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch,
					   unsigned char value, size_t width,
					   size_t height)
{
	return SET(cuMemsetD2D8_v2, NULL, dst, pitch, value, width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch,
						unsigned char value,
						size_t width, size_t height)
{
	return SET(cuMemsetD2D8_v2_ptds, NULL, dst, pitch, value, width,
		   height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch,
					     unsigned char value, size_t width,
					     size_t height, CUstream stream)
{
	return SET(cuMemsetD2D8Async, stream, dst, pitch, value, width, height,
		   stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch,
						  unsigned char value,
						  size_t width, size_t height,
						  CUstream stream)
{
	return SET(cuMemsetD2D8Async_ptsz, stream, dst, pitch, value, width,
		   height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch,
					    unsigned short value, size_t width,
					    size_t height)
{
	return SET(cuMemsetD2D16_v2, NULL, dst, pitch, value, width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned short value,
						 size_t width, size_t height)
{
	return SET(cuMemsetD2D16_v2_ptds, NULL, dst, pitch, value, width,
		   height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch,
					      unsigned short value,
					      size_t width, size_t height,
					      CUstream stream)
{
	return SET(cuMemsetD2D16Async, stream, dst, pitch, value, width, height,
		   stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned short value,
						   size_t width, size_t height,
						   CUstream stream)
{
	return SET(cuMemsetD2D16Async_ptsz, stream, dst, pitch, value, width,
		   height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch,
					    unsigned int value, size_t width,
					    size_t height)
{
	return SET(cuMemsetD2D32_v2, NULL, dst, pitch, value, width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned int value,
						 size_t width, size_t height)
{
	return SET(cuMemsetD2D32_v2_ptds, NULL, dst, pitch, value, width,
		   height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch,
					      unsigned int value, size_t width,
					      size_t height, CUstream stream)
{
	return SET(cuMemsetD2D32Async, stream, dst, pitch, value, width, height,
		   stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned int value,
						   size_t width, size_t height,
						   CUstream stream)
{
	return SET(cuMemsetD2D32Async_ptsz, stream, dst, pitch, value, width,
		   height, stream);
}
