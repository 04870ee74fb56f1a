/* SPDX-License-Identifier: MIT
 *
 * copy_pitched: copies of rows and of layers; see Note [Copies between
 * devices] and Note [Order of copies].
 */
#include "hook/copy.h"

static CUDA_MEMCPY3D layer(const CUDA_MEMCPY2D *c)
{
	return (CUDA_MEMCPY3D){.dstXInBytes = c->dstXInBytes,
			       .dstY = c->dstY,
			       .dstMemoryType = c->dstMemoryType,
			       .dstHost = c->dstHost,
			       .dstDevice = c->dstDevice,
			       .dstArray = c->dstArray,
			       .dstPitch = c->dstPitch,
			       .srcXInBytes = c->srcXInBytes,
			       .srcY = c->srcY,
			       .srcMemoryType = c->srcMemoryType,
			       .srcHost = c->srcHost,
			       .srcDevice = c->srcDevice,
			       .srcArray = c->srcArray,
			       .srcPitch = c->srcPitch,
			       .WidthInBytes = c->WidthInBytes,
			       .Height = c->Height,
			       .Depth = 1};
}

static bool is_beyond_2d(const CUDA_MEMCPY2D *c)
{
	CUDA_MEMCPY3D copy;

	if (!c || vs_pool_count() == 0)
		return false;
	copy = layer(c);
	return vs_copy_is_beyond(&copy);
}

static bool is_beyond_3d(const CUDA_MEMCPY3D *c)
{
	return c && vs_pool_count() > 0 && vs_copy_is_beyond(c);
}

static bool open_2d(const CUDA_MEMCPY2D *c, struct vs_way way)
	__attribute__((cold));

static bool open_2d(const CUDA_MEMCPY2D *c, struct vs_way way)
{
	CUDA_MEMCPY3D copy;

	if (!c)
		return false;
	copy = layer(c);
	return vs_copy_open(&copy, way);
}

static CUresult between_2d(const CUDA_MEMCPY2D *c, struct vs_way way)
	__attribute__((cold));

static CUresult between_2d(const CUDA_MEMCPY2D *c, struct vs_way way)
{
	CUDA_MEMCPY3D copy;

	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	copy = layer(c);
	return vs_copy_between(&copy, way);
}

static bool open_3d(const CUDA_MEMCPY3D *c, struct vs_way way)
{
	return c && vs_copy_open(c, way);
}

static CUresult between_3d(const CUDA_MEMCPY3D *c, struct vs_way way)
{
	return c ? vs_copy_between(c, way) : CUDA_ERROR_INVALID_VALUE;
}

static void begin_2d(struct vs_order *order, const CUDA_MEMCPY2D *c,
		     struct vs_way way) __attribute__((cold));

static void begin_2d(struct vs_order *order, const CUDA_MEMCPY2D *c,
		     struct vs_way way)
{
	CUDA_MEMCPY3D copy;

	if (!c)
		return;
	copy = layer(c);
	vs_copy_begin(order, &copy, way);
}

static void begin_3d(struct vs_order *order, const CUDA_MEMCPY3D *c,
		     struct vs_way way)
{
	if (c)
		vs_copy_begin(order, c, way);
}

/* 2d or 3d, how, and the driver's arguments. */
#define COPIED(api, kind, how, ...)                                            \
	VS_COPIED(api, how, is_beyond_##kind(copy),                            \
		  begin_##kind(&order, copy, way), open_##kind(copy, way),     \
		  between_##kind(copy, way), __VA_ARGS__)

VS_EXPORT CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	return COPIED(cuMemcpy2D_v2, 2d, VS_PLAIN, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	return COPIED(cuMemcpy2D_v2_ptds, 2d, VS_PLAIN_PT, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	return COPIED(cuMemcpy2DUnaligned_v2, 2d, VS_PLAIN, copy);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	return COPIED(cuMemcpy2DUnaligned_v2_ptds, 2d, VS_PLAIN_PT, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy,
					      CUstream stream)
{
	return COPIED(cuMemcpy2DAsync_v2, 2d, VS_ASYNC(stream), copy, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy,
						   CUstream stream)
{
	return COPIED(cuMemcpy2DAsync_v2_ptsz, 2d, VS_ASYNC_PT(stream), copy,
		      stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	return COPIED(cuMemcpy3D_v2, 3d, VS_PLAIN, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy)
{
	return COPIED(cuMemcpy3D_v2_ptds, 3d, VS_PLAIN_PT, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy,
					      CUstream stream)
{
	return COPIED(cuMemcpy3DAsync_v2, 3d, VS_ASYNC(stream), copy, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy,
						   CUstream stream)
{
	return COPIED(cuMemcpy3DAsync_v2_ptsz, 3d, VS_ASYNC_PT(stream), copy,
		      stream);
}

static bool is_beyond_peer(const CUDA_MEMCPY3D_PEER *c)
{
	CUDA_MEMCPY3D copy;

	if (!c || vs_pool_count() == 0)
		return false;
	copy = (CUDA_MEMCPY3D){.dstXInBytes = c->dstXInBytes,
			       .dstY = c->dstY,
			       .dstZ = c->dstZ,
			       .dstMemoryType = c->dstMemoryType,
			       .dstHost = c->dstHost,
			       .dstDevice = c->dstDevice,
			       .dstPitch = c->dstPitch,
			       .dstHeight = c->dstHeight,
			       .srcXInBytes = c->srcXInBytes,
			       .srcY = c->srcY,
			       .srcZ = c->srcZ,
			       .srcMemoryType = c->srcMemoryType,
			       .srcHost = c->srcHost,
			       .srcDevice = c->srcDevice,
			       .srcPitch = c->srcPitch,
			       .srcHeight = c->srcHeight,
			       .WidthInBytes = c->WidthInBytes,
			       .Height = c->Height,
			       .Depth = c->Depth};
	return vs_copy_is_beyond(&copy);
}

static CUdeviceptr end_of_peer(CUmemorytype type, CUdeviceptr p)
{
	return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED
		       ? p
		       : 0;
}

/* Before the copy; what the driver is to be given for it, `with` or `c`. */
static const CUDA_MEMCPY3D_PEER *peer_3d(struct vs_copier *copier,
					 const CUDA_MEMCPY3D_PEER *c,
					 CUDA_MEMCPY3D_PEER *with,
					 CUstream stream)
{
	CUdeviceptr dst, src;

	if (!c)
		return NULL;
	dst = end_of_peer(c->dstMemoryType, c->dstDevice);
	src = end_of_peer(c->srcMemoryType, c->srcDevice);
	*with = *c;
	vs_copy_begin_peer(copier, dst, &with->dstContext, src,
			   &with->srcContext, stream);
	return with;
}

/* After it, as the driver answered. */
static CUresult peer_3d_ended(CUresult result, const struct vs_copier *copier,
			      const CUDA_MEMCPY3D_PEER *c, struct vs_way way)
{
	vs_copier_end(copier);
	if (result == CUDA_SUCCESS)
		result = vs_copy_ended(
			result, end_of_peer(c->dstMemoryType, c->dstDevice),
			end_of_peer(c->srcMemoryType, c->srcDevice), way);
	return vs_seen(result);
}

/* How, and the driver's arguments. */
#define PEER(api, how, ...)                                                    \
	__extension__({                                                        \
		const struct vs_way way = how;                                 \
		struct vs_copier copier = {0};                                 \
		CUDA_MEMCPY3D_PEER with;                                       \
		CUresult result;                                               \
                                                                               \
		if (VS_ENTER_WORK(api, way.stream) && is_beyond_peer(copy)) {  \
			result = vs_seen(CUDA_ERROR_INVALID_VALUE);            \
		} else {                                                       \
			copy = peer_3d(&copier, copy, &with, way.stream);      \
			result = peer_3d_ended(vs_real.api(__VA_ARGS__),       \
					       &copier, copy, way);            \
		}                                                              \
		result;                                                        \
	})

VS_EXPORT CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy)
{
	return PEER(cuMemcpy3DPeer, VS_PLAIN, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy)
{
	return PEER(cuMemcpy3DPeer_ptds, VS_PLAIN_PT, copy);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy,
					       CUstream stream)
{
	return PEER(cuMemcpy3DPeerAsync, VS_ASYNC(stream), copy, stream);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
	return PEER(cuMemcpy3DPeerAsync_ptsz, VS_ASYNC_PT(stream), copy,
		    stream);
}
