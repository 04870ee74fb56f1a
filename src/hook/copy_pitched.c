/* SPDX-License-Identifier: MIT
 *
 * copy_pitched: copies of rows and of layers; see Note [Copies between
 * devices].
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

VS_EXPORT CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy2D_v2);
	result = vs_real.cuMemcpy2D_v2(copy);
	if (vs_refused(result) && open_2d(copy, VS_PLAIN))
		result = vs_real.cuMemcpy2D_v2(copy);
	if (vs_refused(result))
		result = between_2d(copy, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy2D_v2_ptds);
	result = vs_real.cuMemcpy2D_v2_ptds(copy);
	if (vs_refused(result) && open_2d(copy, VS_PLAIN_PT))
		result = vs_real.cuMemcpy2D_v2_ptds(copy);
	if (vs_refused(result))
		result = between_2d(copy, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy2DUnaligned_v2);
	result = vs_real.cuMemcpy2DUnaligned_v2(copy);
	if (vs_refused(result) && open_2d(copy, VS_PLAIN))
		result = vs_real.cuMemcpy2DUnaligned_v2(copy);
	if (vs_refused(result))
		result = between_2d(copy, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy2DUnaligned_v2_ptds);
	result = vs_real.cuMemcpy2DUnaligned_v2_ptds(copy);
	if (vs_refused(result) && open_2d(copy, VS_PLAIN_PT))
		result = vs_real.cuMemcpy2DUnaligned_v2_ptds(copy);
	if (vs_refused(result))
		result = between_2d(copy, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy,
					      CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy2DAsync_v2);
	result = vs_real.cuMemcpy2DAsync_v2(copy, stream);
	if (vs_refused(result) && open_2d(copy, VS_ASYNC(stream)))
		result = vs_real.cuMemcpy2DAsync_v2(copy, stream);
	if (vs_refused(result))
		result = between_2d(copy, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *copy,
						   CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy2DAsync_v2_ptsz);
	result = vs_real.cuMemcpy2DAsync_v2_ptsz(copy, stream);
	if (vs_refused(result) && open_2d(copy, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemcpy2DAsync_v2_ptsz(copy, stream);
	if (vs_refused(result))
		result = between_2d(copy, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy3D_v2);
	result = vs_real.cuMemcpy3D_v2(copy);
	if (vs_refused(result) && open_3d(copy, VS_PLAIN))
		result = vs_real.cuMemcpy3D_v2(copy);
	if (vs_refused(result))
		result = between_3d(copy, VS_PLAIN);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy3D_v2_ptds);
	result = vs_real.cuMemcpy3D_v2_ptds(copy);
	if (vs_refused(result) && open_3d(copy, VS_PLAIN_PT))
		result = vs_real.cuMemcpy3D_v2_ptds(copy);
	if (vs_refused(result))
		result = between_3d(copy, VS_PLAIN_PT);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy,
					      CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy3DAsync_v2);
	result = vs_real.cuMemcpy3DAsync_v2(copy, stream);
	if (vs_refused(result) && open_3d(copy, VS_ASYNC(stream)))
		result = vs_real.cuMemcpy3DAsync_v2(copy, stream);
	if (vs_refused(result))
		result = between_3d(copy, VS_ASYNC(stream));
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *copy,
						   CUstream stream)
{
	CUresult result;

	vs_enter(VS_API_cuMemcpy3DAsync_v2_ptsz);
	result = vs_real.cuMemcpy3DAsync_v2_ptsz(copy, stream);
	if (vs_refused(result) && open_3d(copy, VS_ASYNC_PT(stream)))
		result = vs_real.cuMemcpy3DAsync_v2_ptsz(copy, stream);
	if (vs_refused(result))
		result = between_3d(copy, VS_ASYNC_PT(stream));
	return vs_seen(result);
}

static void peer_3d(const CUDA_MEMCPY3D_PEER *c, CUstream stream)
{
	CUdeviceptr dst = 0, src = 0;

	if (!c)
		return;
	if (c->dstMemoryType == CU_MEMORYTYPE_DEVICE ||
	    c->dstMemoryType == CU_MEMORYTYPE_UNIFIED)
		dst = c->dstDevice;
	if (c->srcMemoryType == CU_MEMORYTYPE_DEVICE ||
	    c->srcMemoryType == CU_MEMORYTYPE_UNIFIED)
		src = c->srcDevice;
	vs_copy_peer(dst, src, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy)
{
	vs_enter(VS_API_cuMemcpy3DPeer);
	peer_3d(copy, NULL);
	return vs_seen(vs_real.cuMemcpy3DPeer(copy));
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy)
{
	vs_enter(VS_API_cuMemcpy3DPeer_ptds);
	peer_3d(copy, NULL);
	return vs_seen(vs_real.cuMemcpy3DPeer_ptds(copy));
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy,
					       CUstream stream)
{
	vs_enter(VS_API_cuMemcpy3DPeerAsync);
	peer_3d(copy, stream);
	return vs_seen(vs_real.cuMemcpy3DPeerAsync(copy, stream));
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
	vs_enter(VS_API_cuMemcpy3DPeerAsync_ptsz);
	peer_3d(copy, stream);
	return vs_seen(vs_real.cuMemcpy3DPeerAsync_ptsz(copy, stream));
}
