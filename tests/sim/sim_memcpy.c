/* SPDX-License-Identifier: MIT */
/* The family of copy calls: each tells sim_transfer() what it means. */
#include "sim_context.h"
#include "sim_copy.h"
#include "sim_memory.h"
#include "sim_vmm.h"

static CUresult linear(CUdeviceptr dst, enum sim_side dst_side, CUdeviceptr src,
		       enum sim_side src_side, size_t size, bool async,
		       CUstream stream)
{
	struct sim_transfer t = {
		.copy = {.dst = dst,
			 .src = src,
			 .width = size,
			 .height = 1,
			 .depth = 1},
		.dst = dst_side,
		.src = src_side,
		.async = async,
	};

	return sim_transfer(&t, stream);
}

CUresult sim_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	return linear(dst, SIM_ANY_SIDE, src, SIM_ANY_SIDE, ByteCount, false,
		      NULL);
}

CUresult sim_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
			   CUstream hStream)
{
	return linear(dst, SIM_ANY_SIDE, src, SIM_ANY_SIDE, ByteCount, true,
		      hStream);
}

CUresult sim_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost,
			     size_t ByteCount)
{
	return linear(dstDevice, SIM_DEVICE_SIDE, (CUdeviceptr)srcHost,
		      SIM_HOST_SIDE, ByteCount, false, NULL);
}

CUresult sim_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice,
			     size_t ByteCount)
{
	return linear((CUdeviceptr)dstHost, SIM_HOST_SIDE, srcDevice,
		      SIM_DEVICE_SIDE, ByteCount, false, NULL);
}

CUresult sim_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
			     size_t ByteCount)
{
	return linear(dstDevice, SIM_DEVICE_SIDE, srcDevice, SIM_DEVICE_SIDE,
		      ByteCount, false, NULL);
}

CUresult sim_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost,
				  size_t ByteCount, CUstream hStream)
{
	return linear(dstDevice, SIM_DEVICE_SIDE, (CUdeviceptr)srcHost,
		      SIM_HOST_SIDE, ByteCount, true, hStream);
}

CUresult sim_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice,
				  size_t ByteCount, CUstream hStream)
{
	return linear((CUdeviceptr)dstHost, SIM_HOST_SIDE, srcDevice,
		      SIM_DEVICE_SIDE, ByteCount, true, hStream);
}

CUresult sim_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
				  size_t ByteCount, CUstream hStream)
{
	return linear(dstDevice, SIM_DEVICE_SIDE, srcDevice, SIM_DEVICE_SIDE,
		      ByteCount, true, hStream);
}

static CUresult peer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
		     CUcontext src_ctx, size_t size, bool async,
		     CUstream stream)
{
	struct sim_transfer t = {
		.copy = {.dst = dst,
			 .src = src,
			 .width = size,
			 .height = 1,
			 .depth = 1},
		.dst = SIM_DEVICE_SIDE,
		.src = SIM_DEVICE_SIDE,
		.peer = true,
		.async = async,
	};

	if (sim_context_get_or_current(dst_ctx, &t.named[0]) != CUDA_SUCCESS ||
	    sim_context_get_or_current(src_ctx, &t.named[1]) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_CONTEXT;
	return sim_transfer(&t, stream);
}

CUresult sim_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext,
			  CUdeviceptr srcDevice, CUcontext srcContext,
			  size_t ByteCount)
{
	return peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
		    false, NULL);
}

CUresult sim_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
			       CUdeviceptr srcDevice, CUcontext srcContext,
			       size_t ByteCount, CUstream hStream)
{
	return peer(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
		    true, hStream);
}

/* One end of a copy with pitch; false for arrays, which hold no data here. */
static bool pitched(CUmemorytype type, const void *host, CUdeviceptr device,
		    uint64_t offset, uint64_t *addr_out,
		    enum sim_side *side_out)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		*addr_out = (uint64_t)host + offset;
		*side_out = SIM_HOST_SIDE;
		return true;
	case CU_MEMORYTYPE_DEVICE:
		*addr_out = device + offset;
		*side_out = SIM_DEVICE_SIDE;
		return true;
	case CU_MEMORYTYPE_UNIFIED:
		*addr_out = device + offset;
		*side_out = SIM_ANY_SIDE;
		return true;
	default:
		return false;
	}
}

/* A copy is judged by what its base lies in, not its first byte (an H100). */
static bool is_stray(CUmemorytype type, CUdeviceptr base, uint64_t start)
{
	return type == CU_MEMORYTYPE_DEVICE && start != base &&
	       sim_memory_find(base) != sim_memory_find(start) &&
	       !sim_vmm_find(base);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *p, bool async, CUstream stream)
{
	struct sim_transfer t = {.async = async};
	size_t dst_pitch, src_pitch;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	dst_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
	src_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
	if (p->Height > 1 &&
	    (dst_pitch < p->WidthInBytes || src_pitch < p->WidthInBytes))
		return CUDA_ERROR_INVALID_VALUE;
	t.copy = (struct sim_copy){
		.dst_pitch = dst_pitch,
		.src_pitch = src_pitch,
		.width = p->WidthInBytes,
		.height = p->Height,
		.depth = 1,
	};
	if (!pitched(p->dstMemoryType, p->dstHost, p->dstDevice,
		     p->dstY * dst_pitch + p->dstXInBytes, &t.copy.dst,
		     &t.dst) ||
	    !pitched(p->srcMemoryType, p->srcHost, p->srcDevice,
		     p->srcY * src_pitch + p->srcXInBytes, &t.copy.src, &t.src))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (is_stray(p->dstMemoryType, p->dstDevice, t.copy.dst) ||
	    is_stray(p->srcMemoryType, p->srcDevice, t.copy.src))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_transfer(&t, stream);
}

CUresult sim_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
	return copy_2d(pCopy, false, NULL);
}

CUresult sim_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
	return copy_2d(pCopy, false, NULL);
}

CUresult sim_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
	return copy_2d(pCopy, true, hStream);
}

/* 0 stands for "as the copy itself" (cuda.h). */
static size_t size_or(size_t size, size_t otherwise)
{
	return size ? size : otherwise;
}

CUresult sim_copy_describe(const CUDA_MEMCPY3D *p, struct sim_transfer *t)
{
	struct sim_copy *c = &t->copy;

	c->width = p->WidthInBytes;
	c->height = p->Height;
	c->depth = p->Depth;
	c->dst_pitch = size_or(p->dstPitch, c->width);
	c->src_pitch = size_or(p->srcPitch, c->width);
	c->dst_slice = c->dst_pitch * size_or(p->dstHeight, c->height);
	c->src_slice = c->src_pitch * size_or(p->srcHeight, c->height);
	if (!pitched(p->dstMemoryType, p->dstHost, p->dstDevice,
		     p->dstZ * c->dst_slice + p->dstY * c->dst_pitch +
			     p->dstXInBytes,
		     &c->dst, &t->dst) ||
	    !pitched(p->srcMemoryType, p->srcHost, p->srcDevice,
		     p->srcZ * c->src_slice + p->srcY * c->src_pitch +
			     p->srcXInBytes,
		     &c->src, &t->src))
		return CUDA_ERROR_NOT_SUPPORTED;
	return is_stray(p->dstMemoryType, p->dstDevice, c->dst) ||
			       is_stray(p->srcMemoryType, p->srcDevice, c->src)
		       ? CUDA_ERROR_INVALID_VALUE
		       : CUDA_SUCCESS;
}

/* `t` has what the description does not tell. */
static CUresult copy_3d(const CUDA_MEMCPY3D *p, struct sim_transfer *t,
			CUstream stream)
{
	CUresult result;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_copy_describe(p, t);
	return result == CUDA_SUCCESS ? sim_transfer(t, stream) : result;
}

CUresult sim_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
	struct sim_transfer t = {.async = false};

	return copy_3d(pCopy, &t, NULL);
}

CUresult sim_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
	struct sim_transfer t = {.async = true};

	return copy_3d(pCopy, &t, hStream);
}

/* NULL, too, if it is none: addresses tell their devices. */
static struct sim_context *named(CUcontext handle)
{
	struct sim_context *ctx = NULL;

	if (handle && sim_context_get(handle, &ctx) != CUDA_SUCCESS)
		return NULL;
	return ctx;
}

static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *p, bool async,
			     CUstream stream)
{
	struct sim_transfer t = {.peer = true, .async = async};
	CUDA_MEMCPY3D plain;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	plain = (CUDA_MEMCPY3D){
		.srcXInBytes = p->srcXInBytes,
		.srcY = p->srcY,
		.srcZ = p->srcZ,
		.srcMemoryType = p->srcMemoryType,
		.srcHost = p->srcHost,
		.srcDevice = p->srcDevice,
		.srcPitch = p->srcPitch,
		.srcHeight = p->srcHeight,
		.dstXInBytes = p->dstXInBytes,
		.dstY = p->dstY,
		.dstZ = p->dstZ,
		.dstMemoryType = p->dstMemoryType,
		.dstHost = p->dstHost,
		.dstDevice = p->dstDevice,
		.dstPitch = p->dstPitch,
		.dstHeight = p->dstHeight,
		.WidthInBytes = p->WidthInBytes,
		.Height = p->Height,
		.Depth = p->Depth,
	};
	t.named[0] = named(p->dstContext);
	t.named[1] = named(p->srcContext);
	return copy_3d(&plain, &t, stream);
}

CUresult sim_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
	return copy_3d_peer(pCopy, false, NULL);
}

CUresult sim_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy,
				 CUstream hStream)
{
	return copy_3d_peer(pCopy, true, hStream);
}
