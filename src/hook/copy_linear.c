/* SPDX-License-Identifier: MIT
 *
 * copy_linear: copies of bytes in a row; see Note [Copies between devices]
 * and Note [Order of copies].
 */
#include "hook/copy.h"

bool vs_copy_open_row(CUdeviceptr dst, CUdeviceptr src, size_t size,
		      struct vs_way way)
{
	CUDA_MEMCPY3D copy = vs_copy_row(dst, src, size);

	return vs_copy_open(&copy, way);
}

CUresult vs_copy_between_row(CUdeviceptr dst, CUdeviceptr src, size_t size,
			     struct vs_way way)
{
	CUDA_MEMCPY3D copy = vs_copy_row(dst, src, size);

	return vs_copy_between(&copy, way);
}

#define COPIED VS_COPIED_ROW

static CUdeviceptr address(const void *host)
{
	return (CUdeviceptr)(uintptr_t)host;
}

VS_EXPORT CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src,
				    size_t size)
{
	return COPIED(cuMemcpy, dst, src, size, VS_PLAIN, dst, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src,
					 size_t size)
{
	return COPIED(cuMemcpy_ptds, dst, src, size, VS_PLAIN_PT, dst, src,
		      size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src,
					 size_t size, CUstream stream)
{
	return COPIED(cuMemcpyAsync, dst, src, size, VS_ASYNC(stream), dst, src,
		      size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src,
					      size_t size, CUstream stream)
{
	return COPIED(cuMemcpyAsync_ptsz, dst, src, size, VS_ASYNC_PT(stream),
		      dst, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src,
					   size_t size)
{
	return COPIED(cuMemcpyDtoD_v2, dst, src, size, VS_PLAIN, dst, src,
		      size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoD_v2_ptds(CUdeviceptr dst,
						CUdeviceptr src, size_t size)
{
	return COPIED(cuMemcpyDtoD_v2_ptds, dst, src, size, VS_PLAIN_PT, dst,
		      src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dst,
						CUdeviceptr src, size_t size,
						CUstream stream)
{
	return COPIED(cuMemcpyDtoDAsync_v2, dst, src, size, VS_ASYNC(stream),
		      dst, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dst,
						     CUdeviceptr src,
						     size_t size,
						     CUstream stream)
{
	return COPIED(cuMemcpyDtoDAsync_v2_ptsz, dst, src, size,
		      VS_ASYNC_PT(stream), dst, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src,
					   size_t size)
{
	return COPIED(cuMemcpyHtoD_v2, dst, address(src), size, VS_PLAIN, dst,
		      src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr dst,
						const void *src, size_t size)
{
	return COPIED(cuMemcpyHtoD_v2_ptds, dst, address(src), size,
		      VS_PLAIN_PT, dst, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dst,
						const void *src, size_t size,
						CUstream stream)
{
	return COPIED(cuMemcpyHtoDAsync_v2, dst, address(src), size,
		      VS_ASYNC(stream), dst, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst,
						     const void *src,
						     size_t size,
						     CUstream stream)
{
	return COPIED(cuMemcpyHtoDAsync_v2_ptsz, dst, address(src), size,
		      VS_ASYNC_PT(stream), dst, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2(void *dst, CUdeviceptr src,
					   size_t size)
{
	return COPIED(cuMemcpyDtoH_v2, address(dst), src, size, VS_PLAIN, dst,
		      src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src,
						size_t size)
{
	return COPIED(cuMemcpyDtoH_v2_ptds, address(dst), src, size,
		      VS_PLAIN_PT, dst, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src,
						size_t size, CUstream stream)
{
	return COPIED(cuMemcpyDtoHAsync_v2, address(dst), src, size,
		      VS_ASYNC(stream), dst, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src,
						     size_t size,
						     CUstream stream)
{
	return COPIED(cuMemcpyDtoHAsync_v2_ptsz, address(dst), src, size,
		      VS_ASYNC_PT(stream), dst, src, size, stream);
}

/* A peer copy: how, and the driver's arguments after the four ends. */
#define PEER(api, how, ...)                                                    \
	__extension__({                                                        \
		const struct vs_way way = how;                                 \
		CUresult result = CUDA_ERROR_INVALID_VALUE;                    \
		struct vs_copier copier = {0};                                 \
                                                                               \
		if (!(VS_ENTER_WORK(api, way.stream) &&                        \
		      vs_row_is_beyond(dst, src, size))) {                     \
			vs_copy_begin_peer(&copier, dst, &dst_ctx, src,        \
					   &src_ctx, way.stream);              \
			result = vs_real.api(dst, dst_ctx, src, src_ctx,       \
					     __VA_ARGS__);                     \
			vs_copier_end(&copier);                                \
			result = vs_copy_ended(result, dst, src, way);         \
		}                                                              \
		vs_seen(result);                                               \
	})

VS_EXPORT CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx,
					CUdeviceptr src, CUcontext src_ctx,
					size_t size)
{
	return PEER(cuMemcpyPeer, VS_PLAIN, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext dst_ctx,
					     CUdeviceptr src, CUcontext src_ctx,
					     size_t size)
{
	return PEER(cuMemcpyPeer_ptds, VS_PLAIN_PT, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx,
					     CUdeviceptr src, CUcontext src_ctx,
					     size_t size, CUstream stream)
{
	return PEER(cuMemcpyPeerAsync, VS_ASYNC(stream), size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyPeerAsync_ptsz(CUdeviceptr dst,
						  CUcontext dst_ctx,
						  CUdeviceptr src,
						  CUcontext src_ctx,
						  size_t size, CUstream stream)
{
	return PEER(cuMemcpyPeerAsync_ptsz, VS_ASYNC_PT(stream), size, stream);
}
