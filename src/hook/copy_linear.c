/* SPDX-License-Identifier: MIT
 *
 * copy_linear: copies of bytes in a row; see Note [Copies between devices].
 */
#include "hook/copy.h"

static CUDA_MEMCPY3D row(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .dstDevice = dst,
			       .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .srcDevice = src,
			       .WidthInBytes = size,
			       .Height = 1,
			       .Depth = 1};
}

static bool open_row(CUdeviceptr dst, CUdeviceptr src, size_t size,
		     struct vs_way way) __attribute__((cold));

static bool open_row(CUdeviceptr dst, CUdeviceptr src, size_t size,
		     struct vs_way way)
{
	CUDA_MEMCPY3D copy = row(dst, src, size);

	return vs_copy_open(&copy, way);
}

static CUresult between(CUdeviceptr dst, CUdeviceptr src, size_t size,
			struct vs_way way) __attribute__((cold));

static CUresult between(CUdeviceptr dst, CUdeviceptr src, size_t size,
			struct vs_way way)
{
	CUDA_MEMCPY3D copy = row(dst, src, size);

	return vs_copy_between(&copy, way);
}

static CUdeviceptr address(const void *host)
{
	return (CUdeviceptr)(uintptr_t)host;
}

VS_EXPORT CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src,
				    size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy);
	result = vs_real.cuMemcpy(dst, src, size);
	if (vs_refused(result) && open_row(dst, src, size, VS_PLAIN))
		result = vs_real.cuMemcpy(dst, src, size);
	if (vs_refused(result))
		result = between(dst, src, size, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src,
					 size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy_ptds);
	result = vs_real.cuMemcpy_ptds(dst, src, size);
	if (vs_refused(result) && open_row(dst, src, size, VS_PLAIN_PT))
		result = vs_real.cuMemcpy_ptds(dst, src, size);
	if (vs_refused(result))
		result = between(dst, src, size, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src,
					 size_t size, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyAsync);
	result = vs_real.cuMemcpyAsync(dst, src, size, stream);
	if (vs_refused(result) && open_row(dst, src, size, VS_ASYNC(stream)))
		result = vs_real.cuMemcpyAsync(dst, src, size, stream);
	if (vs_refused(result))
		result = between(dst, src, size, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src,
					      size_t size, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyAsync_ptsz);
	result = vs_real.cuMemcpyAsync_ptsz(dst, src, size, stream);
	if (vs_refused(result) && open_row(dst, src, size, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemcpyAsync_ptsz(dst, src, size, stream);
	if (vs_refused(result))
		result = between(dst, src, size, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src,
					   size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoD_v2);
	result = vs_real.cuMemcpyDtoD_v2(dst, src, size);
	if (vs_refused(result) && open_row(dst, src, size, VS_PLAIN))
		result = vs_real.cuMemcpyDtoD_v2(dst, src, size);
	if (vs_refused(result))
		result = between(dst, src, size, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoD_v2_ptds(CUdeviceptr dst,
						CUdeviceptr src, size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoD_v2_ptds);
	result = vs_real.cuMemcpyDtoD_v2_ptds(dst, src, size);
	if (vs_refused(result) && open_row(dst, src, size, VS_PLAIN_PT))
		result = vs_real.cuMemcpyDtoD_v2_ptds(dst, src, size);
	if (vs_refused(result))
		result = between(dst, src, size, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dst,
						CUdeviceptr src, size_t size,
						CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoDAsync_v2);
	result = vs_real.cuMemcpyDtoDAsync_v2(dst, src, size, stream);
	if (vs_refused(result) && open_row(dst, src, size, VS_ASYNC(stream)))
		result = vs_real.cuMemcpyDtoDAsync_v2(dst, src, size, stream);
	if (vs_refused(result))
		result = between(dst, src, size, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dst,
						     CUdeviceptr src,
						     size_t size,
						     CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoDAsync_v2_ptsz);
	result = vs_real.cuMemcpyDtoDAsync_v2_ptsz(dst, src, size, stream);
	if (vs_refused(result) && open_row(dst, src, size, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemcpyDtoDAsync_v2_ptsz(dst, src, size,
							   stream);
	if (vs_refused(result))
		result = between(dst, src, size, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src,
					   size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyHtoD_v2);
	result = vs_real.cuMemcpyHtoD_v2(dst, src, size);
	if (vs_refused(result) && open_row(dst, address(src), size, VS_PLAIN))
		result = vs_real.cuMemcpyHtoD_v2(dst, src, size);
	if (vs_refused(result))
		result = between(dst, address(src), size, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr dst,
						const void *src, size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyHtoD_v2_ptds);
	result = vs_real.cuMemcpyHtoD_v2_ptds(dst, src, size);
	if (vs_refused(result) &&
	    open_row(dst, address(src), size, VS_PLAIN_PT))
		result = vs_real.cuMemcpyHtoD_v2_ptds(dst, src, size);
	if (vs_refused(result))
		result = between(dst, address(src), size, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dst,
						const void *src, size_t size,
						CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyHtoDAsync_v2);
	result = vs_real.cuMemcpyHtoDAsync_v2(dst, src, size, stream);
	if (vs_refused(result) &&
	    open_row(dst, address(src), size, VS_ASYNC(stream)))
		result = vs_real.cuMemcpyHtoDAsync_v2(dst, src, size, stream);
	if (vs_refused(result))
		result = between(dst, address(src), size, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst,
						     const void *src,
						     size_t size,
						     CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyHtoDAsync_v2_ptsz);
	result = vs_real.cuMemcpyHtoDAsync_v2_ptsz(dst, src, size, stream);
	if (vs_refused(result) &&
	    open_row(dst, address(src), size, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemcpyHtoDAsync_v2_ptsz(dst, src, size,
							   stream);
	if (vs_refused(result))
		result = between(dst, address(src), size, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2(void *dst, CUdeviceptr src,
					   size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoH_v2);
	result = vs_real.cuMemcpyDtoH_v2(dst, src, size);
	if (vs_refused(result) && open_row(address(dst), src, size, VS_PLAIN))
		result = vs_real.cuMemcpyDtoH_v2(dst, src, size);
	if (vs_refused(result))
		result = between(address(dst), src, size, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src,
						size_t size)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoH_v2_ptds);
	result = vs_real.cuMemcpyDtoH_v2_ptds(dst, src, size);
	if (vs_refused(result) &&
	    open_row(address(dst), src, size, VS_PLAIN_PT))
		result = vs_real.cuMemcpyDtoH_v2_ptds(dst, src, size);
	if (vs_refused(result))
		result = between(address(dst), src, size, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src,
						size_t size, CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoHAsync_v2);
	result = vs_real.cuMemcpyDtoHAsync_v2(dst, src, size, stream);
	if (vs_refused(result) &&
	    open_row(address(dst), src, size, VS_ASYNC(stream)))
		result = vs_real.cuMemcpyDtoHAsync_v2(dst, src, size, stream);
	if (vs_refused(result))
		result = between(address(dst), src, size, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src,
						     size_t size,
						     CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpyDtoHAsync_v2_ptsz);
	result = vs_real.cuMemcpyDtoHAsync_v2_ptsz(dst, src, size, stream);
	if (vs_refused(result) &&
	    open_row(address(dst), src, size, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemcpyDtoHAsync_v2_ptsz(dst, src, size,
							   stream);
	if (vs_refused(result))
		result = between(address(dst), src, size, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx,
					CUdeviceptr src, CUcontext src_ctx,
					size_t size)
{
	vs_enter(VS_API_cuMemcpyPeer);
	vs_copy_peer(dst, src, NULL);
	return vs_seen(vs_real.cuMemcpyPeer(dst, dst_ctx, src, src_ctx, size));
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext dst_ctx,
					     CUdeviceptr src, CUcontext src_ctx,
					     size_t size)
{
	vs_enter(VS_API_cuMemcpyPeer_ptds);
	vs_copy_peer(dst, src, NULL);
	return vs_seen(
		vs_real.cuMemcpyPeer_ptds(dst, dst_ctx, src, src_ctx, size));
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx,
					     CUdeviceptr src, CUcontext src_ctx,
					     size_t size, CUstream stream)
{
	vs_enter(VS_API_cuMemcpyPeerAsync);
	vs_copy_peer(dst, src, stream);
	return vs_seen(vs_real.cuMemcpyPeerAsync(dst, dst_ctx, src, src_ctx,
						 size, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeerAsync_ptsz(CUdeviceptr dst,
						  CUcontext dst_ctx,
						  CUdeviceptr src,
						  CUcontext src_ctx,
						  size_t size, CUstream stream)
{
	vs_enter(VS_API_cuMemcpyPeerAsync_ptsz);
	vs_copy_peer(dst, src, stream);
	return vs_seen(vs_real.cuMemcpyPeerAsync_ptsz(dst, dst_ctx, src,
						      src_ctx, size, stream));
}
