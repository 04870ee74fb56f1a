/* SPDX-License-Identifier: MIT */
/* The family of set calls; none of them waits. */
#include <string.h>

#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_copy.h"
#include "sim_memory.h"

static void fill_row(char *row, uint32_t value, unsigned element, size_t n)
{
	size_t i;

	if (element == 1) {
		memset(row, (int)value, n);
		return;
	}
	for (i = 0; i < n; i++)
		memcpy(row + i * element, &value, element);
}

static void run_set(const struct sim_op *op)
{
	const struct sim_set *s = &op->u.set;
	size_t y;

	for (y = 0; y < s->height; y++)
		fill_row((char *)s->dst + y * s->pitch, s->value, s->element,
			 s->width);
}

/* Legacy memory of a device that is no peer is not set: seen on two H200. */
static bool reaches(const struct sim_op *op)
{
	struct sim_memory *m = sim_memory_find(op->u.set.dst);

	return !m || m->kind != SIM_LEGACY || m->device == op->device ||
	       sim_context_reaches(op->ctx, m->ctx);
}

CUresult sim_set_prepare(const struct sim_set *s, struct sim_context *ctx,
			 struct sim_op *op)
{
	uint64_t row = (uint64_t)s->width * s->element;

	*op = (struct sim_op){.kind = SIM_OP_SET,
			      .name = "set",
			      .call = sim_thread.call,
			      .device = ctx->device,
			      .ctx = ctx,
			      .u.set = *s};
	if (!s->width || !s->height)
		return CUDA_SUCCESS;
	if (s->dst % s->element || (s->height > 1 && s->pitch < row))
		return CUDA_ERROR_INVALID_VALUE;
	op->n_touch = 1;
	if (!reaches(op) ||
	    !sim_copy_check_device(s->dst, (s->height - 1) * s->pitch + row,
				   op->device, true, false, &op->touch[0]))
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_config.backing)
		op->run = run_set;
	return CUDA_SUCCESS;
}

bool sim_set_may_run(const struct sim_op *op)
{
	return reaches(op) && sim_copy_may_run(op);
}

/* `async`: by a call that names a stream. */
static CUresult set(const struct sim_set *s, CUstream hStream, bool async)
{
	struct sim_stream *stream;
	struct sim_op op = {0};
	CUresult result = sim_stream_get(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_set_prepare(s, stream->ctx, &op);
	if (result != CUDA_SUCCESS || !op.n_touch)
		return result;
	return async ? sim_submit(stream, &op, 1)
		     : sim_copy_submit_plain(stream, &op);
}

static CUresult set_linear(CUdeviceptr dst, uint32_t value, unsigned element,
			   size_t n, CUstream stream, bool async)
{
	struct sim_set s = {.dst = dst,
			    .value = value,
			    .element = element,
			    .width = n,
			    .height = 1};

	return set(&s, stream, async);
}

static CUresult set_2d(CUdeviceptr dst, size_t pitch, uint32_t value,
		       unsigned element, size_t width, size_t height,
		       CUstream stream, bool async)
{
	struct sim_set s = {.dst = dst,
			    .value = value,
			    .element = element,
			    .pitch = pitch,
			    .width = width,
			    .height = height};

	return set(&s, stream, async);
}

CUresult sim_cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
	return set_linear(dstDevice, uc, 1, N, NULL, false);
}

CUresult sim_cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
	return set_linear(dstDevice, us, 2, N, NULL, false);
}

CUresult sim_cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
	return set_linear(dstDevice, ui, 4, N, NULL, false);
}

CUresult sim_cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
			     CUstream hStream)
{
	return set_linear(dstDevice, uc, 1, N, hStream, true);
}

CUresult sim_cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us,
			      size_t N, CUstream hStream)
{
	return set_linear(dstDevice, us, 2, N, hStream, true);
}

CUresult sim_cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
			      CUstream hStream)
{
	return set_linear(dstDevice, ui, 4, N, hStream, true);
}

CUresult sim_cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch,
			     unsigned char uc, size_t Width, size_t Height)
{
	return set_2d(dstDevice, dstPitch, uc, 1, Width, Height, NULL, false);
}

CUresult sim_cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch,
			      unsigned int ui, size_t Width, size_t Height)
{
	return set_2d(dstDevice, dstPitch, ui, 4, Width, Height, NULL, false);
}

CUresult sim_cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch,
			       unsigned char uc, size_t Width, size_t Height,
			       CUstream hStream)
{
	return set_2d(dstDevice, dstPitch, uc, 1, Width, Height, hStream, true);
}

CUresult sim_cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch,
				unsigned int ui, size_t Width, size_t Height,
				CUstream hStream)
{
	return set_2d(dstDevice, dstPitch, ui, 4, Width, Height, hStream, true);
}
