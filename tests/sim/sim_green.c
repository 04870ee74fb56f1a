/* SPDX-License-Identifier: MIT */
/* Green contexts: a context whose parent is the device's primary one. */
#include <string.h>

#include "sim_base.h"
#include "sim_context.h"
#include "sim_device.h"
#include "sim_handle.h"

static void fill_resource(CUdevResource *resource)
{
	memset(resource, 0, sizeof(*resource));
	resource->type = CU_DEV_RESOURCE_TYPE_SM;
	resource->sm.smCount = 132;
}

CUresult sim_cuDeviceGetDevResource(CUdevice device, CUdevResource *resource,
				    CUdevResourceType type)
{
	if (!resource || type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	fill_resource(resource);
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource,
				 CUdevResourceType type)
{
	struct sim_context *ctx;
	CUresult result = sim_context_get_or_current(hCtx, &ctx);

	if (result != CUDA_SUCCESS)
		return result;
	return sim_cuDeviceGetDevResource(ctx->device, resource, type);
}

/* One description for all: how many units a context has means nothing here. */
CUresult sim_cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc,
				       CUdevResource *resources,
				       unsigned int nbResources)
{
	static int description;

	if (!phDesc || !resources || !nbResources)
		return CUDA_ERROR_INVALID_VALUE;
	*phDesc = (CUdevResourceDesc)(void *)&description;
	return CUDA_SUCCESS;
}

CUresult sim_cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc,
			      CUdevice dev, unsigned int flags)
{
	struct sim_context *green;
	CUcontext primary;
	CUresult result;

	if (!phCtx || !desc || !(flags & CU_GREEN_CTX_DEFAULT_STREAM))
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_cuDevicePrimaryCtxRetain(&primary, dev);
	if (result != CUDA_SUCCESS)
		return result;
	green = sim_context_new_green(sim_devices[dev].primary);
	*phCtx = SIM_AS(CUgreenCtx, sim_handle_new(SIM_GREEN, green));
	green->green_handle = SIM_OF(*phCtx);
	return CUDA_SUCCESS;
}

/* Its streams live on, but nobody can use them here. */
CUresult sim_cuGreenCtxDestroy(CUgreenCtx hCtx)
{
	struct sim_context *green = sim_handle_get(SIM_GREEN, SIM_OF(hCtx));
	int device;

	if (!green)
		return CUDA_ERROR_INVALID_CONTEXT;
	device = green->device;
	sim_context_end(green);
	return sim_cuDevicePrimaryCtxRelease_v2(device);
}

CUresult sim_cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
	struct sim_context *green = sim_handle_get(SIM_GREEN, SIM_OF(hCtx));

	if (!pContext)
		return CUDA_ERROR_INVALID_VALUE;
	if (!green)
		return CUDA_ERROR_INVALID_CONTEXT;
	*pContext = SIM_AS(CUcontext, green->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx,
				    unsigned int flags, int priority)
{
	struct sim_context *green = sim_handle_get(SIM_GREEN, SIM_OF(greenCtx));
	struct sim_stream *stream;

	if (!phStream || !(flags & CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	if (!green)
		return CUDA_ERROR_INVALID_CONTEXT;
	stream = sim_stream_new(green, flags, priority);
	stream->handle = sim_handle_new(SIM_STREAM, stream);
	*phStream = SIM_AS(CUstream, stream->handle);
	return CUDA_SUCCESS;
}
