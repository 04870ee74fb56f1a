/* SPDX-License-Identifier: MIT */
/* The runtime's functions: translate, call the driver, remember errors. */
#include "cudart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sim_client.h"

#define PTR(p) ((CUdeviceptr)(uintptr_t)(p))
#define DRIVER cudart_driver

/*
 * SIM_CUDART_NOTES=1: announce every allocation to the judge, for programs
 * that do not do it themselves.
 */
static int notes(void)
{
	const char *text = getenv("SIM_CUDART_NOTES");

	return text && strcmp(text, "1") == 0;
}

/* ---- device ----------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count)
{
	cudaError_t error = cudart_load();

	return error ? error : cudart_code(DRIVER.cuDeviceGetCount(count));
}

cudaError_t cudaSetDevice(int device)
{
	return cudart_set_device(device);
}

cudaError_t cudaGetDevice(int *device)
{
	cudaError_t error = cudart_load();

	if (error)
		return error;
	if (!device)
		return cudart_note(cudaErrorInvalidValue);
	*device = cudart_device();
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
				   int device)
{
	cudaError_t error = cudart_load();

	return error ? error
		     : cudart_code(DRIVER.cuDeviceGetAttribute(
			       value, (CUdevice_attribute)attr, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device,
				    int peerDevice)
{
	cudaError_t error = cudart_load();

	return error ? error
		     : cudart_code(DRIVER.cuDeviceCanAccessPeer(
			       canAccessPeer, device, peerDevice));
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
{
	cudaError_t error = cudart_enter();
	CUcontext peer;

	if (error)
		return error;
	error = cudart_primary(peerDevice, &peer);
	return error ? error
		     : cudart_code(DRIVER.cuCtxEnablePeerAccess(peer, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice)
{
	cudaError_t error = cudart_enter();
	CUcontext peer;

	if (error)
		return error;
	error = cudart_primary(peerDevice, &peer);
	return error ? error : cudart_code(DRIVER.cuCtxDisablePeerAccess(peer));
}

cudaError_t cudaDeviceSynchronize(void)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void)
{
	return cudart_reset_device();
}

cudaError_t cudaDriverGetVersion(int *driverVersion)
{
	cudaError_t error = cudart_load();

	return error ? error
		     : cudart_code(DRIVER.cuDriverGetVersion(driverVersion));
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
	if (!runtimeVersion)
		return cudart_note(cudaErrorInvalidValue);
	*runtimeVersion = CUDART_VERSION;
	return cudaSuccess;
}

/* ---- errors ----------------------------------------------------------- */

cudaError_t cudaGetLastError(void)
{
	return cudart_last(1);
}

cudaError_t cudaPeekAtLastError(void)
{
	return cudart_last(0);
}

/* The names that programs print; the rest by the driver's own. */
const char *cudaGetErrorName(cudaError_t error)
{
	const char *name = NULL;

	switch ((int)error) {
	case cudaSuccess:
		return "cudaSuccess";
	case cudaErrorInvalidValue:
		return "cudaErrorInvalidValue";
	case cudaErrorMemoryAllocation:
		return "cudaErrorMemoryAllocation";
	case cudaErrorNotReady:
		return "cudaErrorNotReady";
	case cudaErrorIllegalAddress:
		return "cudaErrorIllegalAddress";
	case cudaErrorInsufficientDriver:
		return "cudaErrorInsufficientDriver";
	case cudaErrorStubLibrary:
		return "cudaErrorStubLibrary";
	default:
		break;
	}
	if (DRIVER.cuGetErrorName)
		DRIVER.cuGetErrorName((CUresult)error, &name);
	return name ? name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	const char *text = NULL;

	if (error == cudaSuccess)
		return "no error";
	if (error == cudaErrorInsufficientDriver)
		return "CUDA driver version is insufficient for CUDA runtime "
		       "version";
	if (DRIVER.cuGetErrorString)
		DRIVER.cuGetErrorString((CUresult)error, &text);
	return text ? text : "unrecognized error code";
}

/* ---- memory ----------------------------------------------------------- */

cudaError_t cudaMalloc(void **devPtr, size_t size)
{
	cudaError_t error = cudart_enter();
	CUdeviceptr p = 0;

	if (error)
		return error;
	if (!devPtr)
		return cudart_note(cudaErrorInvalidValue);
	/* An H200: no bytes are a success, a failure sets NULL. */
	*devPtr = NULL;
	if (!size)
		return cudaSuccess;
	error = cudart_code(DRIVER.cuMemAlloc_v2(&p, size));
	if (error)
		return error;
	*devPtr = (void *)(uintptr_t)p;
	if (notes())
		sim_client_note_alloc(*devPtr, size);
	return cudaSuccess;
}

cudaError_t cudaMallocPitch(void **devPtr, size_t *pitch, size_t width,
			    size_t height)
{
	cudaError_t error = cudart_enter();
	CUdeviceptr p = 0;

	if (error)
		return error;
	if (!devPtr || !pitch)
		return cudart_note(cudaErrorInvalidValue);
	*devPtr = NULL;
	*pitch = 0;
	if (!width || !height)
		return cudaSuccess;
	error = cudart_code(
		DRIVER.cuMemAllocPitch_v2(&p, pitch, width, height, 4));
	if (error)
		return error;
	*devPtr = (void *)(uintptr_t)p;
	if (notes())
		sim_client_note_alloc(*devPtr, *pitch * height);
	return cudaSuccess;
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr *pitchedDevPtr,
			 struct cudaExtent extent)
{
	cudaError_t error;

	if (!pitchedDevPtr)
		return cudart_note(cudaErrorInvalidValue);
	error = cudaMallocPitch(&pitchedDevPtr->ptr, &pitchedDevPtr->pitch,
				extent.width, extent.height * extent.depth);
	pitchedDevPtr->xsize = extent.width;
	pitchedDevPtr->ysize = extent.height;
	return error;
}

cudaError_t cudaFree(void *devPtr)
{
	cudaError_t error = cudart_enter();

	if (error)
		return error;
	if (devPtr && notes())
		sim_client_note_free(devPtr);
	return cudart_code(DRIVER.cuMemFree_v2(PTR(devPtr)));
}

cudaError_t cudaMallocManaged(void **devPtr, size_t size, unsigned int flags)
{
	cudaError_t error = cudart_enter();
	CUdeviceptr p = 0;

	if (error)
		return error;
	if (!devPtr)
		return cudart_note(cudaErrorInvalidValue);
	error = cudart_code(DRIVER.cuMemAllocManaged(&p, size, flags));
	*devPtr = (void *)(uintptr_t)p;
	return error;
}

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuMemAllocHost_v2(ptr, size));
}

cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemHostAlloc(pHost, size, flags));
}

cudaError_t cudaFreeHost(void *ptr)
{
	cudaError_t error = cudart_enter();

	if (error || !ptr)
		return error;
	return cudart_code(DRIVER.cuMemFreeHost(ptr));
}

cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemGetInfo_v2(free_out, total));
}

cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream)
{
	cudaError_t error = cudart_enter();
	CUdeviceptr p = 0;

	if (error)
		return error;
	if (!devPtr)
		return cudart_note(cudaErrorInvalidValue);
	*devPtr = NULL;
	if (!size)
		return cudaSuccess;
	error = cudart_code(DRIVER.cuMemAllocAsync(&p, size, hStream));
	*devPtr = (void *)(uintptr_t)p;
	return error;
}

cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t hStream)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemFreeAsync(PTR(devPtr), hStream));
}

/* ---- copies and sets -------------------------------------------------- */

cudaError_t cudaMemcpy(void *dst, const void *src, size_t count,
		       enum cudaMemcpyKind kind)
{
	cudaError_t error = cudart_enter();

	if (error)
		return error;
	switch (kind) {
	case cudaMemcpyHostToHost:
		memmove(dst, src, count);
		return cudaSuccess;
	case cudaMemcpyHostToDevice:
		return cudart_code(
			DRIVER.cuMemcpyHtoD_v2(PTR(dst), src, count));
	case cudaMemcpyDeviceToHost:
		return cudart_code(
			DRIVER.cuMemcpyDtoH_v2(dst, PTR(src), count));
	case cudaMemcpyDeviceToDevice:
		return cudart_code(
			DRIVER.cuMemcpyDtoD_v2(PTR(dst), PTR(src), count));
	case cudaMemcpyDefault:
		return cudart_code(DRIVER.cuMemcpy(PTR(dst), PTR(src), count));
	default:
		return cudart_note(cudaErrorInvalidMemcpyDirection);
	}
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
			    enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	if (error)
		return error;
	switch (kind) {
	case cudaMemcpyHostToDevice:
		return cudart_code(DRIVER.cuMemcpyHtoDAsync_v2(PTR(dst), src,
							       count, stream));
	case cudaMemcpyDeviceToHost:
		return cudart_code(DRIVER.cuMemcpyDtoHAsync_v2(dst, PTR(src),
							       count, stream));
	case cudaMemcpyDeviceToDevice:
		return cudart_code(DRIVER.cuMemcpyDtoDAsync_v2(
			PTR(dst), PTR(src), count, stream));
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault:
		return cudart_code(DRIVER.cuMemcpyAsync(PTR(dst), PTR(src),
							count, stream));
	default:
		return cudart_note(cudaErrorInvalidMemcpyDirection);
	}
}

cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src,
			   int srcDevice, size_t count)
{
	cudaError_t error = cudart_enter();
	CUcontext dst_ctx, src_ctx;

	if (!error)
		error = cudart_primary(dstDevice, &dst_ctx);
	if (!error)
		error = cudart_primary(srcDevice, &src_ctx);
	return error ? error
		     : cudart_code(DRIVER.cuMemcpyPeer(
			       PTR(dst), dst_ctx, PTR(src), src_ctx, count));
}

cudaError_t cudaMemset(void *devPtr, int value, size_t count)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemsetD8_v2(
			       PTR(devPtr), (unsigned char)value, count));
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
			    cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuMemsetD8Async(PTR(devPtr),
							  (unsigned char)value,
							  count, stream));
}

/* ---- pointers and processes ------------------------------------------- */

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
				     const void *ptr)
{
	CUpointer_attribute asked[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
		CU_POINTER_ATTRIBUTE_HOST_POINTER,
	};
	unsigned int type = 0, managed = 0;
	CUdeviceptr device_pointer = 0;
	void *host_pointer = NULL;
	int device = -1;
	void *data[] = {&type, &device, &managed, &device_pointer,
			&host_pointer};
	cudaError_t error = cudart_enter();

	if (error)
		return error;
	if (!attributes)
		return cudart_note(cudaErrorInvalidValue);
	error = cudart_code(
		DRIVER.cuPointerGetAttributes(5, asked, data, PTR(ptr)));
	if (error)
		return error;
	memset(attributes, 0, sizeof(*attributes));
	attributes->type =
		managed & 1 ? cudaMemoryTypeManaged : (enum cudaMemoryType)type;
	attributes->device = device;
	attributes->devicePointer = (void *)(uintptr_t)device_pointer;
	attributes->hostPointer = type ? host_pointer : (void *)(uintptr_t)ptr;
	return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuIpcGetMemHandle(
			       (CUipcMemHandle *)handle, PTR(devPtr)));
}

cudaError_t cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle,
				 unsigned int flags)
{
	cudaError_t error = cudart_enter();
	CUipcMemHandle h;
	CUdeviceptr p = 0;

	if (error)
		return error;
	if (!devPtr)
		return cudart_note(cudaErrorInvalidValue);
	memcpy(&h, &handle, sizeof(h));
	error = cudart_code(DRIVER.cuIpcOpenMemHandle_v2(&p, h, flags));
	*devPtr = (void *)(uintptr_t)p;
	return error;
}

cudaError_t cudaIpcCloseMemHandle(void *devPtr)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuIpcCloseMemHandle(PTR(devPtr)));
}

/* ---- driver entry points ---------------------------------------------- */

cudaError_t cudaGetDriverEntryPointByVersion(
	const char *symbol, void **funcPtr, unsigned int cudaVersion,
	unsigned long long flags,
	enum cudaDriverEntryPointQueryResult *driverStatus)
{
	cudaError_t error = cudart_load();
	CUdriverProcAddressQueryResult status;

	if (error)
		return error;
	error = cudart_code(DRIVER.get_proc(symbol, funcPtr, (int)cudaVersion,
					    flags, &status));
	if (driverStatus)
		*driverStatus = (enum cudaDriverEntryPointQueryResult)status;
	return error;
}

cudaError_t
cudaGetDriverEntryPoint(const char *symbol, void **funcPtr,
			unsigned long long flags,
			enum cudaDriverEntryPointQueryResult *driverStatus)
{
	int version = CUDART_VERSION, driver = 0;

	/* An older driver refuses to be asked for newer functions. */
	if (cudaDriverGetVersion(&driver) == cudaSuccess && driver < version)
		version = driver;
	return cudaGetDriverEntryPointByVersion(
		symbol, funcPtr, (unsigned int)version, flags, driverStatus);
}
