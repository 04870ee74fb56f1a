/* SPDX-License-Identifier: MIT */
/* The runtime's arrays, boxes of rows and planes, and registered memory. */
#include "cudart.h"

#include <stdint.h>

#define PTR(p) ((CUdeviceptr)(uintptr_t)(p))
#define DRIVER cudart_driver

static cudaError_t enter_copy(enum cudaMemcpyKind kind)
{
	cudaError_t error = cudart_enter();
	int is_kind =
		(int)kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;

	return error || is_kind ? error
				: cudart_note(cudaErrorInvalidMemcpyDirection);
}

/* ---- rows --------------------------------------------------------------- */

/* By what the pointers are: the kind need only be one. */
static CUDA_MEMCPY2D rows_of(void *dst, size_t dpitch, const void *src,
			     size_t spitch, size_t width, size_t height)
{
	return (CUDA_MEMCPY2D){
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = PTR(src),
		.srcPitch = spitch,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = PTR(dst),
		.dstPitch = dpitch,
		.WidthInBytes = width,
		.Height = height,
	};
}

cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src,
			 size_t spitch, size_t width, size_t height,
			 enum cudaMemcpyKind kind)
{
	cudaError_t error = enter_copy(kind);
	CUDA_MEMCPY2D copy = rows_of(dst, dpitch, src, spitch, width, height);

	return error ? error : cudart_code(DRIVER.cuMemcpy2D_v2(&copy));
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src,
			      size_t spitch, size_t width, size_t height,
			      enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cudaError_t error = enter_copy(kind);
	CUDA_MEMCPY2D copy = rows_of(dst, dpitch, src, spitch, width, height);

	return error ? error
		     : cudart_code(DRIVER.cuMemcpy2DAsync_v2(&copy, stream));
}

cudaError_t cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width,
			 size_t height)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemsetD2D8_v2(PTR(devPtr), pitch,
							  (unsigned char)value,
							  width, height));
}

cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value,
			      size_t width, size_t height, cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemsetD2D8Async(
			       PTR(devPtr), pitch, (unsigned char)value, width,
			       height, stream));
}

/* ---- planes ------------------------------------------------------------- */

/* Between pointers, which is all that the tests ask for. */
static CUDA_MEMCPY3D box_of(const struct cudaMemcpy3DParms *p)
{
	return (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = PTR(p->srcPtr.ptr),
		.srcPitch = p->srcPtr.pitch,
		.srcHeight = p->srcPtr.ysize,
		.srcXInBytes = p->srcPos.x,
		.srcY = p->srcPos.y,
		.srcZ = p->srcPos.z,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = PTR(p->dstPtr.ptr),
		.dstPitch = p->dstPtr.pitch,
		.dstHeight = p->dstPtr.ysize,
		.dstXInBytes = p->dstPos.x,
		.dstY = p->dstPos.y,
		.dstZ = p->dstPos.z,
		.WidthInBytes = p->extent.width,
		.Height = p->extent.height,
		.Depth = p->extent.depth,
	};
}

cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *p)
{
	cudaError_t error = cudart_enter();
	CUDA_MEMCPY3D copy = box_of(p);

	return error ? error : cudart_code(DRIVER.cuMemcpy3D_v2(&copy));
}

cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p,
			      cudaStream_t stream)
{
	cudaError_t error = cudart_enter();
	CUDA_MEMCPY3D copy = box_of(p);

	return error ? error
		     : cudart_code(DRIVER.cuMemcpy3DAsync_v2(&copy, stream));
}

cudaError_t cudaMemset3D(struct cudaPitchedPtr pitchedDevPtr, int value,
			 struct cudaExtent extent)
{
	size_t plane = pitchedDevPtr.pitch * pitchedDevPtr.ysize;
	cudaError_t error = cudaSuccess;

	for (size_t z = 0; z < extent.depth && !error; z++)
		error = cudaMemset2D((char *)pitchedDevPtr.ptr + z * plane,
				     pitchedDevPtr.pitch, value, extent.width,
				     extent.height);
	return error;
}

/* ---- arrays ------------------------------------------------------------- */

/* Of one channel of bytes. */
cudaError_t cudaMallocArray(cudaArray_t *array,
			    const struct cudaChannelFormatDesc *desc,
			    size_t width, size_t height, unsigned int flags)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {
		.Width = width,
		.Height = height,
		.Format = CU_AD_FORMAT_UNSIGNED_INT8,
		.NumChannels = 1,
		.Flags = flags,
	};
	cudaError_t error = cudart_enter();

	if (error)
		return error;
	if (desc->x != 8 || desc->y)
		return cudart_note(cudaErrorInvalidValue);
	return cudart_code(DRIVER.cuArray3DCreate_v2((CUarray *)array, &d));
}

cudaError_t cudaFreeArray(cudaArray_t array)
{
	cudaError_t error = cudart_enter();

	if (error || !array)
		return error;
	return cudart_code(DRIVER.cuArrayDestroy((CUarray)array));
}

cudaError_t cudaMemcpy2DToArray(cudaArray_t dst, size_t wOffset, size_t hOffset,
				const void *src, size_t spitch, size_t width,
				size_t height, enum cudaMemcpyKind kind)
{
	cudaError_t error = enter_copy(kind);
	CUDA_MEMCPY2D copy = rows_of(NULL, 0, src, spitch, width, height);

	if (error)
		return error;
	copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	copy.dstArray = (CUarray)dst;
	copy.dstXInBytes = wOffset;
	copy.dstY = hOffset;
	return cudart_code(DRIVER.cuMemcpy2D_v2(&copy));
}

cudaError_t cudaMemcpy2DFromArray(void *dst, size_t dpitch,
				  cudaArray_const_t src, size_t wOffset,
				  size_t hOffset, size_t width, size_t height,
				  enum cudaMemcpyKind kind)
{
	cudaError_t error = enter_copy(kind);
	CUDA_MEMCPY2D copy = rows_of(dst, dpitch, NULL, 0, width, height);

	if (error)
		return error;
	copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
	copy.srcArray = (CUarray)(uintptr_t)src;
	copy.srcXInBytes = wOffset;
	copy.srcY = hOffset;
	return cudart_code(DRIVER.cuMemcpy2D_v2(&copy));
}

/* ---- memory of the host ------------------------------------------------- */

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(
			       DRIVER.cuMemHostRegister_v2(ptr, size, flags));
}

cudaError_t cudaHostUnregister(void *ptr)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuMemHostUnregister(ptr));
}

cudaError_t cudaHostGetDevicePointer(void **pDevice, void *pHost,
				     unsigned int flags)
{
	cudaError_t error = cudart_enter();
	CUdeviceptr p = 0;

	if (error)
		return error;
	error = cudart_code(
		DRIVER.cuMemHostGetDevicePointer_v2(&p, pHost, flags));
	*pDevice = (void *)(uintptr_t)p;
	return error;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn,
			       void *userData)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(
			       DRIVER.cuLaunchHostFunc(stream, fn, userData));
}
