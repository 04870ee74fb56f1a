/* SPDX-License-Identifier: MIT
 *
 * copy_set: the family of cuMemset; see Note [Sets between devices].
 */
#include "hook/copy.h"

#include "pool/capture.h"

static inline bool is_beyond(CUdeviceptr dst, size_t size, CUstream stream)
{
	return vs_copy_leaves(dst, size) && !(stream && vs_capture_count() > 0);
}

/*
 * The driver's function of this row, on a stream or NULL, for so many bytes,
 * and its arguments.
 */
#define SET(api, stream, size, dst, ...)                                       \
	((vs_enter_work(VS_API_##api) && is_beyond(dst, size, stream)) ||      \
			 vs_set_is_refused(dst, stream)                        \
		 ? CUDA_ERROR_INVALID_VALUE                                    \
		 : vs_seen(vs_real.api(dst, __VA_ARGS__)))

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value,
					 size_t n)
{
	return SET(cuMemsetD8_v2, NULL, n, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr dst,
					      unsigned char value, size_t n)
{
	return SET(cuMemsetD8_v2_ptds, NULL, n, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value,
					   size_t n, CUstream stream)
{
	return SET(cuMemsetD8Async, stream, n, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr dst,
						unsigned char value, size_t n,
						CUstream stream)
{
	return SET(cuMemsetD8Async_ptsz, stream, n, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dst, unsigned short value,
					  size_t n)
{
	return SET(cuMemsetD16_v2, NULL, n * 2, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2_ptds(CUdeviceptr dst,
					       unsigned short value, size_t n)
{
	return SET(cuMemsetD16_v2_ptds, NULL, n * 2, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dst,
					    unsigned short value, size_t n,
					    CUstream stream)
{
	return SET(cuMemsetD16Async, stream, n * 2, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async_ptsz(CUdeviceptr dst,
						 unsigned short value, size_t n,
						 CUstream stream)
{
	return SET(cuMemsetD16Async_ptsz, stream, n * 2, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value,
					  size_t n)
{
	return SET(cuMemsetD32_v2, NULL, n * 4, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2_ptds(CUdeviceptr dst,
					       unsigned int value, size_t n)
{
	return SET(cuMemsetD32_v2_ptds, NULL, n * 4, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value,
					    size_t n, CUstream stream)
{
	return SET(cuMemsetD32Async, stream, n * 4, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async_ptsz(CUdeviceptr dst,
						 unsigned int value, size_t n,
						 CUstream stream)
{
	return SET(cuMemsetD32Async_ptsz, stream, n * 4, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch,
					   unsigned char value, size_t width,
					   size_t height)
{
	return SET(cuMemsetD2D8_v2, NULL, vs_set_extent(pitch, width, height),
		   dst, pitch, value, width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch,
						unsigned char value,
						size_t width, size_t height)
{
	return SET(cuMemsetD2D8_v2_ptds, NULL,
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch,
					     unsigned char value, size_t width,
					     size_t height, CUstream stream)
{
	return SET(cuMemsetD2D8Async, stream,
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch,
						  unsigned char value,
						  size_t width, size_t height,
						  CUstream stream)
{
	return SET(cuMemsetD2D8Async_ptsz, stream,
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch,
					    unsigned short value, size_t width,
					    size_t height)
{
	return SET(cuMemsetD2D16_v2, NULL,
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned short value,
						 size_t width, size_t height)
{
	return SET(cuMemsetD2D16_v2_ptds, NULL,
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch,
					      unsigned short value,
					      size_t width, size_t height,
					      CUstream stream)
{
	return SET(cuMemsetD2D16Async, stream,
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned short value,
						   size_t width, size_t height,
						   CUstream stream)
{
	return SET(cuMemsetD2D16Async_ptsz, stream,
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch,
					    unsigned int value, size_t width,
					    size_t height)
{
	return SET(cuMemsetD2D32_v2, NULL,
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned int value,
						 size_t width, size_t height)
{
	return SET(cuMemsetD2D32_v2_ptds, NULL,
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch,
					      unsigned int value, size_t width,
					      size_t height, CUstream stream)
{
	return SET(cuMemsetD2D32Async, stream,
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned int value,
						   size_t width, size_t height,
						   CUstream stream)
{
	return SET(cuMemsetD2D32Async_ptsz, stream,
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height, stream);
}
