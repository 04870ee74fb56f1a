/* SPDX-License-Identifier: MIT */
#include "sim_array.h"

#include <stdlib.h>

#include "sim_base.h"
#include "sim_context.h"
#include "sim_copy.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_stream.h"
#include "sim_work.h"

struct array {
	uint64_t handle;
	struct sim_context *ctx;
	uint64_t bytes;
	CUDA_ARRAY3D_DESCRIPTOR desc;
	struct array *next, *prev;
};

static struct array *arrays;

static void array_free(struct array *a)
{
	sim_device_give(a->ctx->device, a->bytes);
	sim_handle_free(a->handle);
	if (a->prev)
		a->prev->next = a->next;
	else
		arrays = a->next;
	if (a->next)
		a->next->prev = a->prev;
	free(a);
}

void sim_array_free_context(struct sim_context *ctx)
{
	struct array *a, *next;

	for (a = arrays; a; a = next) {
		next = a->next;
		if (a->ctx == ctx)
			array_free(a);
	}
}

void sim_array_sum(int device, uint64_t *n_out, uint64_t *bytes_out)
{
	const struct array *a;

	for (a = arrays; a; a = a->next) {
		if (a->ctx->device != device)
			continue;
		(*n_out)++;
		*bytes_out += a->bytes;
	}
}

static unsigned format_bytes(CUarray_format format)
{
	switch ((int)format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

static size_t at_least_1(size_t n)
{
	return n ? n : 1;
}

/* A mipmapped array is counted as twice its first level. */
static CUresult create(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned times,
		       uint64_t *handle_out)
{
	struct array *a;
	uint64_t bytes;

	if (!desc || !desc->Width || !format_bytes(desc->Format) ||
	    (desc->NumChannels != 1 && desc->NumChannels != 2 &&
	     desc->NumChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	bytes = desc->Width * at_least_1(desc->Height) *
		at_least_1(desc->Depth) * format_bytes(desc->Format) *
		desc->NumChannels * times;
	bytes = sim_round_up(bytes, SIM_GRANULARITY);
	if (!sim_device_take(sim_thread.current->device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = sim_zalloc(sizeof(*a));
	a->ctx = sim_thread.current;
	a->bytes = bytes;
	a->desc = *desc;
	a->handle = sim_handle_new(SIM_ARRAY, a);
	a->next = arrays;
	if (arrays)
		arrays->prev = a;
	arrays = a;
	*handle_out = a->handle;
	return CUDA_SUCCESS;
}

CUresult sim_cuArray3DCreate_v2(CUarray *pHandle,
				const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	uint64_t handle;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (pHandle)
		result = create(pAllocateArray, 1, &handle);
	if (result == CUDA_SUCCESS)
		*pHandle = SIM_AS(CUarray, handle);
	return result;
}

CUresult sim_cuArrayCreate_v2(CUarray *pHandle,
			      const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	CUDA_ARRAY3D_DESCRIPTOR desc = {0};

	if (!pAllocateArray)
		return CUDA_ERROR_INVALID_VALUE;
	desc.Width = pAllocateArray->Width;
	desc.Height = pAllocateArray->Height;
	desc.Format = pAllocateArray->Format;
	desc.NumChannels = pAllocateArray->NumChannels;
	return sim_cuArray3DCreate_v2(pHandle, &desc);
}

CUresult
sim_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor,
			      CUarray hArray)
{
	struct array *a = sim_handle_get(SIM_ARRAY, SIM_OF(hArray));

	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!pArrayDescriptor)
		return CUDA_ERROR_INVALID_VALUE;
	*pArrayDescriptor = a->desc;
	return CUDA_SUCCESS;
}

CUresult sim_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor,
				     CUarray hArray)
{
	CUDA_ARRAY3D_DESCRIPTOR desc;
	CUresult result = sim_cuArray3DGetDescriptor_v2(&desc, hArray);

	if (result != CUDA_SUCCESS)
		return result;
	if (!pArrayDescriptor)
		return CUDA_ERROR_INVALID_VALUE;
	pArrayDescriptor->Width = desc.Width;
	pArrayDescriptor->Height = desc.Height;
	pArrayDescriptor->Format = desc.Format;
	pArrayDescriptor->NumChannels = desc.NumChannels;
	return CUDA_SUCCESS;
}

CUresult sim_cuArrayDestroy(CUarray hArray)
{
	struct array *a = sim_handle_get(SIM_ARRAY, SIM_OF(hArray));

	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	array_free(a);
	return CUDA_SUCCESS;
}

CUresult
sim_cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
			   const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
			   unsigned int numMipmapLevels)
{
	uint64_t handle;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (pHandle && numMipmapLevels)
		result = create(pMipmappedArrayDesc,
				numMipmapLevels > 1 ? 2 : 1, &handle);
	if (result == CUDA_SUCCESS)
		*pHandle = SIM_AS(CUmipmappedArray, handle);
	return result;
}

CUresult sim_cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	return sim_cuArrayDestroy(SIM_AS(CUarray, SIM_OF(hMipmappedArray)));
}

/* Of the memory alone: there is no data in an array. */
static CUresult copy(CUarray array, size_t offset, CUdeviceptr p, size_t size,
		     bool is_to_memory)
{
	struct array *a = sim_handle_get(SIM_ARRAY, SIM_OF(array));
	struct sim_op op = {.name = "copy of an array",
			    .call = sim_thread.call,
			    .n_touch = 1};
	struct sim_stream *stream;
	CUresult result = sim_stream_get(NULL, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	if (a->desc.Height || a->desc.Depth || offset > a->bytes ||
	    size > a->bytes - offset)
		return CUDA_ERROR_INVALID_VALUE;
	if (size == 0)
		return CUDA_SUCCESS;
	op.device = stream->ctx->device;
	if (!sim_copy_check_device(p, size, op.device, is_to_memory, false,
				   &op.touch[0]))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_copy_submit_plain(stream, &op);
}

CUresult sim_cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset,
			     CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy(dstArray, dstOffset, srcDevice, ByteCount, false);
}

CUresult sim_cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray,
			     size_t srcOffset, size_t ByteCount)
{
	return copy(srcArray, srcOffset, dstDevice, ByteCount, true);
}
