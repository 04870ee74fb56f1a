/* SPDX-License-Identifier: MIT
 *
 * copy_set: the family of cuMemset; see Note [Copies between devices].
 */
#include "hook/copy.h"

static bool open_row(CUdeviceptr dst, size_t size, struct vs_way way)
{
	return vs_copy_open_at(dst, size, way);
}

static bool open_rows(CUdeviceptr dst, size_t pitch, size_t row, size_t height,
		      struct vs_way way)
{
	return height > 0 &&
	       vs_copy_open_at(dst, (height - 1) * pitch + row, way);
}

static CUresult set_row(CUdeviceptr dst, unsigned value, unsigned element,
			size_t n, struct vs_way way) __attribute__((cold));

static CUresult set_row(CUdeviceptr dst, unsigned value, unsigned element,
			size_t n, struct vs_way way)
{
	struct vs_set set = {.dst = dst,
			     .value = value,
			     .element = element,
			     .width = n,
			     .height = 1};

	return vs_copy_set_there(&set, way);
}

static CUresult set_rows(CUdeviceptr dst, size_t pitch, unsigned value,
			 unsigned element, size_t width, size_t height,
			 struct vs_way way) __attribute__((cold));

static CUresult set_rows(CUdeviceptr dst, size_t pitch, unsigned value,
			 unsigned element, size_t width, size_t height,
			 struct vs_way way)
{
	struct vs_set set = {.dst = dst,
			     .pitch = pitch,
			     .value = value,
			     .element = element,
			     .width = width,
			     .height = height};

	return vs_copy_set_there(&set, way);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dst, unsigned char value,
					 size_t n)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD8_v2);
	result = vs_real.cuMemsetD8_v2(dst, value, n);
	if (vs_refused(result) && open_row(dst, n, VS_PLAIN))
		result = vs_real.cuMemsetD8_v2(dst, value, n);
	if (vs_refused(result))
		result = set_row(dst, value, 1, n, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr dst,
					      unsigned char value, size_t n)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD8_v2_ptds);
	result = vs_real.cuMemsetD8_v2_ptds(dst, value, n);
	if (vs_refused(result) && open_row(dst, n, VS_PLAIN_PT))
		result = vs_real.cuMemsetD8_v2_ptds(dst, value, n);
	if (vs_refused(result))
		result = set_row(dst, value, 1, n, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value,
					   size_t n, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD8Async);
	result = vs_real.cuMemsetD8Async(dst, value, n, stream);
	if (vs_refused(result) && open_row(dst, n, VS_ASYNC(stream)))
		result = vs_real.cuMemsetD8Async(dst, value, n, stream);
	if (vs_refused(result))
		result = set_row(dst, value, 1, n, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr dst,
						unsigned char value, size_t n,
						CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD8Async_ptsz);
	result = vs_real.cuMemsetD8Async_ptsz(dst, value, n, stream);
	if (vs_refused(result) && open_row(dst, n, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemsetD8Async_ptsz(dst, value, n, stream);
	if (vs_refused(result))
		result = set_row(dst, value, 1, n, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dst, unsigned short value,
					  size_t n)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD16_v2);
	result = vs_real.cuMemsetD16_v2(dst, value, n);
	if (vs_refused(result) && open_row(dst, n * 2, VS_PLAIN))
		result = vs_real.cuMemsetD16_v2(dst, value, n);
	if (vs_refused(result))
		result = set_row(dst, value, 2, n, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16_v2_ptds(CUdeviceptr dst,
					       unsigned short value, size_t n)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD16_v2_ptds);
	result = vs_real.cuMemsetD16_v2_ptds(dst, value, n);
	if (vs_refused(result) && open_row(dst, n * 2, VS_PLAIN_PT))
		result = vs_real.cuMemsetD16_v2_ptds(dst, value, n);
	if (vs_refused(result))
		result = set_row(dst, value, 2, n, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dst,
					    unsigned short value, size_t n,
					    CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD16Async);
	result = vs_real.cuMemsetD16Async(dst, value, n, stream);
	if (vs_refused(result) && open_row(dst, n * 2, VS_ASYNC(stream)))
		result = vs_real.cuMemsetD16Async(dst, value, n, stream);
	if (vs_refused(result))
		result = set_row(dst, value, 2, n, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD16Async_ptsz(CUdeviceptr dst,
						 unsigned short value, size_t n,
						 CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD16Async_ptsz);
	result = vs_real.cuMemsetD16Async_ptsz(dst, value, n, stream);
	if (vs_refused(result) && open_row(dst, n * 2, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemsetD16Async_ptsz(dst, value, n, stream);
	if (vs_refused(result))
		result = set_row(dst, value, 2, n, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dst, unsigned int value,
					  size_t n)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD32_v2);
	result = vs_real.cuMemsetD32_v2(dst, value, n);
	if (vs_refused(result) && open_row(dst, n * 4, VS_PLAIN))
		result = vs_real.cuMemsetD32_v2(dst, value, n);
	if (vs_refused(result))
		result = set_row(dst, value, 4, n, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32_v2_ptds(CUdeviceptr dst,
					       unsigned int value, size_t n)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD32_v2_ptds);
	result = vs_real.cuMemsetD32_v2_ptds(dst, value, n);
	if (vs_refused(result) && open_row(dst, n * 4, VS_PLAIN_PT))
		result = vs_real.cuMemsetD32_v2_ptds(dst, value, n);
	if (vs_refused(result))
		result = set_row(dst, value, 4, n, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dst, unsigned int value,
					    size_t n, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD32Async);
	result = vs_real.cuMemsetD32Async(dst, value, n, stream);
	if (vs_refused(result) && open_row(dst, n * 4, VS_ASYNC(stream)))
		result = vs_real.cuMemsetD32Async(dst, value, n, stream);
	if (vs_refused(result))
		result = set_row(dst, value, 4, n, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD32Async_ptsz(CUdeviceptr dst,
						 unsigned int value, size_t n,
						 CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD32Async_ptsz);
	result = vs_real.cuMemsetD32Async_ptsz(dst, value, n, stream);
	if (vs_refused(result) && open_row(dst, n * 4, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemsetD32Async_ptsz(dst, value, n, stream);
	if (vs_refused(result))
		result = set_row(dst, value, 4, n, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch,
					   unsigned char value, size_t width,
					   size_t height)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D8_v2);
	result = vs_real.cuMemsetD2D8_v2(dst, pitch, value, width, height);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width, height, VS_PLAIN))
		result = vs_real.cuMemsetD2D8_v2(dst, pitch, value, width,
						 height);
	if (vs_refused(result))
		result =
			set_rows(dst, pitch, value, 1, width, height, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch,
						unsigned char value,
						size_t width, size_t height)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D8_v2_ptds);
	result = vs_real.cuMemsetD2D8_v2_ptds(dst, pitch, value, width, height);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width, height, VS_PLAIN_PT))
		result = vs_real.cuMemsetD2D8_v2_ptds(dst, pitch, value, width,
						      height);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 1, width, height,
				  VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch,
					     unsigned char value, size_t width,
					     size_t height, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D8Async);
	result = vs_real.cuMemsetD2D8Async(dst, pitch, value, width, height,
					   stream);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width, height, VS_ASYNC(stream)))
		result = vs_real.cuMemsetD2D8Async(dst, pitch, value, width,
						   height, stream);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 1, width, height,
				  VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch,
						  unsigned char value,
						  size_t width, size_t height,
						  CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D8Async_ptsz);
	result = vs_real.cuMemsetD2D8Async_ptsz(dst, pitch, value, width,
						height, stream);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width, height, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemsetD2D8Async_ptsz(dst, pitch, value,
							width, height, stream);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 1, width, height,
				  VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch,
					    unsigned short value, size_t width,
					    size_t height)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D16_v2);
	result = vs_real.cuMemsetD2D16_v2(dst, pitch, value, width, height);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 2, height, VS_PLAIN))
		result = vs_real.cuMemsetD2D16_v2(dst, pitch, value, width,
						  height);
	if (vs_refused(result))
		result =
			set_rows(dst, pitch, value, 2, width, height, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned short value,
						 size_t width, size_t height)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D16_v2_ptds);
	result =
		vs_real.cuMemsetD2D16_v2_ptds(dst, pitch, value, width, height);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 2, height, VS_PLAIN_PT))
		result = vs_real.cuMemsetD2D16_v2_ptds(dst, pitch, value, width,
						       height);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 2, width, height,
				  VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch,
					      unsigned short value,
					      size_t width, size_t height,
					      CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D16Async);
	result = vs_real.cuMemsetD2D16Async(dst, pitch, value, width, height,
					    stream);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 2, height, VS_ASYNC(stream)))
		result = vs_real.cuMemsetD2D16Async(dst, pitch, value, width,
						    height, stream);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 2, width, height,
				  VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D16Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned short value,
						   size_t width, size_t height,
						   CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D16Async_ptsz);
	result = vs_real.cuMemsetD2D16Async_ptsz(dst, pitch, value, width,
						 height, stream);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 2, height, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemsetD2D16Async_ptsz(dst, pitch, value,
							 width, height, stream);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 2, width, height,
				  VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch,
					    unsigned int value, size_t width,
					    size_t height)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D32_v2);
	result = vs_real.cuMemsetD2D32_v2(dst, pitch, value, width, height);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 4, height, VS_PLAIN))
		result = vs_real.cuMemsetD2D32_v2(dst, pitch, value, width,
						  height);
	if (vs_refused(result))
		result =
			set_rows(dst, pitch, value, 4, width, height, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32_v2_ptds(CUdeviceptr dst, size_t pitch,
						 unsigned int value,
						 size_t width, size_t height)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D32_v2_ptds);
	result =
		vs_real.cuMemsetD2D32_v2_ptds(dst, pitch, value, width, height);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 4, height, VS_PLAIN_PT))
		result = vs_real.cuMemsetD2D32_v2_ptds(dst, pitch, value, width,
						       height);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 4, width, height,
				  VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch,
					      unsigned int value, size_t width,
					      size_t height, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D32Async);
	result = vs_real.cuMemsetD2D32Async(dst, pitch, value, width, height,
					    stream);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 4, height, VS_ASYNC(stream)))
		result = vs_real.cuMemsetD2D32Async(dst, pitch, value, width,
						    height, stream);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 4, width, height,
				  VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemsetD2D32Async_ptsz(CUdeviceptr dst,
						   size_t pitch,
						   unsigned int value,
						   size_t width, size_t height,
						   CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemsetD2D32Async_ptsz);
	result = vs_real.cuMemsetD2D32Async_ptsz(dst, pitch, value, width,
						 height, stream);
	if (vs_refused(result) &&
	    open_rows(dst, pitch, width * 4, height, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemsetD2D32Async_ptsz(dst, pitch, value,
							 width, height, stream);
	if (vs_refused(result))
		result = set_rows(dst, pitch, value, 4, width, height,
				  VS_ASYNC_PT(stream));
	return vs_seen(result);
}
