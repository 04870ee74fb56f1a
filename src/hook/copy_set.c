/* SPDX-License-Identifier: MIT
 *
 * copy_set: the family of cuMemset; see Note [Sets between devices].
 */
#include "hook/copy.h"

#include "pool/capture.h"

/*
 * The driver lets a set in a captured stream pass. A stream that it cannot tell
 * of is its own to judge, but for the legacy one, which no capture is of.
 */
static __attribute__((cold)) bool is_captured(struct vs_way way)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	__typeof__(cuStreamIsCapturing) *ask =
		way.is_per_thread ? vs_real.cuStreamIsCapturing_ptsz
				  : vs_real.cuStreamIsCapturing;
	CUresult result;

	if (!way.is_async || vs_order_is_due(way) || vs_capture_count() == 0)
		return false;
	result = ask ? ask(way.stream, &status) : CUDA_ERROR_NOT_SUPPORTED;
	return result != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static inline bool is_beyond(CUdeviceptr dst, size_t size, struct vs_way way)
{
	return vs_unlikely(vs_copy_leaves(dst, size)) && !is_captured(way);
}

/*
 * The driver's function of this row, made so, for so many bytes, and its
 * arguments.
 */
#define SET(api, how, size, dst, ...)                                          \
	__extension__({                                                        \
		const struct vs_way way = how;                                 \
		CUresult result = CUDA_ERROR_INVALID_VALUE;                    \
		struct vs_copier copier = {0};                                 \
                                                                               \
		if (!(VS_ENTER_WORK(api, way.stream) &&                        \
		      is_beyond(dst, size, way)) &&                            \
		    !vs_set_is_refused(&copier, dst, way.stream)) {            \
			result = vs_real.api(dst, __VA_ARGS__);                \
			vs_copier_end(&copier);                                \
			result = vs_seen(vs_copy_ended(result, dst, 0, way));  \
		}                                                              \
		result;                                                        \
	})

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value,
					 size_t n)
{
	return SET(cuMemsetD8_v2, VS_PLAIN, n, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr dst,
					      unsigned char value, size_t n)
{
	return SET(cuMemsetD8_v2_ptds, VS_PLAIN_PT, n, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value,
					   size_t n, CUstream stream)
{
	return SET(cuMemsetD8Async, VS_ASYNC(stream), n, dst, value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr dst,
						unsigned char value, size_t n,
						CUstream stream)
{
	return SET(cuMemsetD8Async_ptsz, VS_ASYNC_PT(stream), n, dst, value, n,
		   stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dst, unsigned short value,
					  size_t n)
{
	return SET(cuMemsetD16_v2, VS_PLAIN, n * 2, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2_ptds(CUdeviceptr dst,
					       unsigned short value, size_t n)
{
	return SET(cuMemsetD16_v2_ptds, VS_PLAIN_PT, n * 2, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dst,
					    unsigned short value, size_t n,
					    CUstream stream)
{
	return SET(cuMemsetD16Async, VS_ASYNC(stream), n * 2, dst, value, n,
		   stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async_ptsz(CUdeviceptr dst,
						 unsigned short value, size_t n,
						 CUstream stream)
{
	return SET(cuMemsetD16Async_ptsz, VS_ASYNC_PT(stream), n * 2, dst,
		   value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value,
					  size_t n)
{
	return SET(cuMemsetD32_v2, VS_PLAIN, n * 4, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2_ptds(CUdeviceptr dst,
					       unsigned int value, size_t n)
{
	return SET(cuMemsetD32_v2_ptds, VS_PLAIN_PT, n * 4, dst, value, n);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value,
					    size_t n, CUstream stream)
{
	return SET(cuMemsetD32Async, VS_ASYNC(stream), n * 4, dst, value, n,
		   stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async_ptsz(CUdeviceptr dst,
						 unsigned int value, size_t n,
						 CUstream stream)
{
	return SET(cuMemsetD32Async_ptsz, VS_ASYNC_PT(stream), n * 4, dst,
		   value, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch,
					   unsigned char value, size_t width,
					   size_t height)
{
	return SET(cuMemsetD2D8_v2, VS_PLAIN,
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch,
						unsigned char value,
						size_t width, size_t height)
{
	return SET(cuMemsetD2D8_v2_ptds, VS_PLAIN_PT,
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch,
					     unsigned char value, size_t width,
					     size_t height, CUstream stream)
{
	return SET(cuMemsetD2D8Async, VS_ASYNC(stream),
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch,
						  unsigned char value,
						  size_t width, size_t height,
						  CUstream stream)
{
	return SET(cuMemsetD2D8Async_ptsz, VS_ASYNC_PT(stream),
		   vs_set_extent(pitch, width, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch,
					    unsigned short value, size_t width,
					    size_t height)
{
	return SET(cuMemsetD2D16_v2, VS_PLAIN,
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned short value,
						 size_t width, size_t height)
{
	return SET(cuMemsetD2D16_v2_ptds, VS_PLAIN_PT,
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch,
					      unsigned short value,
					      size_t width, size_t height,
					      CUstream stream)
{
	return SET(cuMemsetD2D16Async, VS_ASYNC(stream),
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned short value,
						   size_t width, size_t height,
						   CUstream stream)
{
	return SET(cuMemsetD2D16Async_ptsz, VS_ASYNC_PT(stream),
		   vs_set_extent(pitch, width * 2, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch,
					    unsigned int value, size_t width,
					    size_t height)
{
	return SET(cuMemsetD2D32_v2, VS_PLAIN,
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned int value,
						 size_t width, size_t height)
{
	return SET(cuMemsetD2D32_v2_ptds, VS_PLAIN_PT,
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch,
					      unsigned int value, size_t width,
					      size_t height, CUstream stream)
{
	return SET(cuMemsetD2D32Async, VS_ASYNC(stream),
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned int value,
						   size_t width, size_t height,
						   CUstream stream)
{
	return SET(cuMemsetD2D32Async_ptsz, VS_ASYNC_PT(stream),
		   vs_set_extent(pitch, width * 4, height), dst, pitch, value,
		   width, height, stream);
}
