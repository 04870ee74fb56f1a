/* SPDX-License-Identifier: MIT */
/*
 * Batches of copies: one piece of work.  All copies are looked at before any is
 * made; one that may not be is the end of the whole batch.
 */
#include <stdlib.h>

#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_copy.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_vmm.h"

#if CUDA_VERSION >= 12080

struct batch {
	struct sim_stream *stream;
	struct sim_op *ops;
	unsigned n;
	bool waits; /* the call returns when all is done */
};

/*
 * cuda.h: "must not be legacy NULL stream". Without a context the driver makes
 * single copies in a created stream (an H100): taken for batches, too.
 */
static CUresult begin(struct batch *b, CUstream hStream, size_t n)
{
	CUresult result = sim_context_current(&sim_thread.current);

	if (result == CUDA_ERROR_INVALID_CONTEXT &&
	    hStream > CU_STREAM_PER_THREAD)
		result = CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = sim_stream_get(hStream, &b->stream);
	if (result == CUDA_SUCCESS && b->stream->legacy)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = sim_capture_check_submit(b->stream);
	if (result == CUDA_SUCCESS)
		b->ops = sim_zalloc(n * sizeof(*b->ops));
	return result;
}

/* Where the driver crashes (an H100, 580.159.04), it is reported. */
static bool crashes(const struct batch *b, uint64_t addr)
{
	const struct sim_memory *memory = sim_memory_find(addr);

	if (!b->stream->ctx->green_handle ||
	    !(memory ? memory->kind == SIM_ASYNC : sim_vmm_find(addr) != NULL))
		return false;
	sim_violation(SIM_V_ILLEGAL,
		      "a batch in a stream of a green context reaches %#llx, "
		      "which is not of cuMemAlloc: there a driver crashes",
		      (unsigned long long)addr);
	return true;
}

static CUresult add(struct batch *b, const struct sim_transfer *t,
		    CUmemcpySrcAccessOrder order, unsigned flags)
{
	struct sim_op *op = &b->ops[b->n];
	bool at_once = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
	CUresult result;

	if ((order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && !at_once &&
	     order != CU_MEMCPY_SRC_ACCESS_ORDER_ANY) ||
	    (flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE))
		return CUDA_ERROR_INVALID_VALUE;
	if (crashes(b, t->copy.dst) || crashes(b, t->copy.src))
		return CUDA_ERROR_UNKNOWN;
	result = sim_copy_prepare(t, b->stream->ctx, op);
	if (result != CUDA_SUCCESS || !op->n_touch)
		return result;
	b->n++;
	if (op->touch[0].host)
		b->waits = true;
	if (!at_once || b->stream->capture)
		return CUDA_SUCCESS;
	if (op->touch[1].home == SIM_HOST_HOME && sim_config.backing)
		sim_copy_stage(op);
	else
		b->waits = true;
	return CUDA_SUCCESS;
}

static CUresult end(struct batch *b, CUresult result)
{
	struct sim_vclock clock = {0};
	unsigned i;

	if (result == CUDA_SUCCESS && b->n)
		result = sim_submit(b->stream, b->ops, b->n);
	if (result != CUDA_SUCCESS)
		for (i = 0; i < b->n; i++)
			free(b->ops[i].staged);
	free(b->ops);
	if (result != CUDA_SUCCESS || !b->waits || b->stream->capture)
		return result;
	sim_stream_clock(b->stream, &clock);
	sim_wait_clock(&clock);
	return b->stream->ctx->sticky;
}

/* Each copy has attributes: from 0 on, in order. */
static bool are_attributes(const CUmemcpyAttributes *attrs, const size_t *from,
			   size_t n, size_t n_copies)
{
	size_t i;

	if (!attrs || !from || !n || n > n_copies || from[0])
		return false;
	for (i = 1; i < n; i++)
		if (from[i] <= from[i - 1] || from[i] >= n_copies)
			return false;
	return true;
}

static void tell(size_t *failed, size_t index)
{
	if (failed)
		*failed = index;
}

CUresult sim_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs,
				size_t *sizes, size_t count,
				CUmemcpyAttributes *attrs, size_t *attrsIdxs,
				size_t numAttrs, size_t *failIdx,
				CUstream hStream)
{
	struct batch b = {0};
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	size_t i, k = 0;

	tell(failIdx, SIZE_MAX);
	if (dsts && srcs && sizes &&
	    are_attributes(attrs, attrsIdxs, numAttrs, count))
		result = begin(&b, hStream, count);
	if (result != CUDA_SUCCESS)
		return result;
	for (i = 0; i < count && result == CUDA_SUCCESS; i++) {
		struct sim_transfer t = {.copy = {.dst = dsts[i],
						  .src = srcs[i],
						  .width = sizes[i],
						  .height = 1,
						  .depth = 1}};

		if (k + 1 < numAttrs && attrsIdxs[k + 1] == i)
			k++;
		result = add(&b, &t, attrs[k].srcAccessOrder, attrs[k].flags);
		if (result != CUDA_SUCCESS)
			tell(failIdx, i);
	}
	return end(&b, result);
}

/* One end of a copy in three dimensions; false if it is none. */
static bool operand(const CUmemcpy3DOperand *o, const CUextent3D *extent,
		    uint64_t *addr, size_t *pitch, size_t *slice)
{
	size_t row = o->op.ptr.rowLength, rows = o->op.ptr.layerHeight;

	if ((row && row < extent->width) || (rows && rows < extent->height))
		return false;
	*addr = o->op.ptr.ptr;
	*pitch = row ? row : extent->width;
	*slice = *pitch * (rows ? rows : extent->height);
	return true;
}

static CUresult describe(const CUDA_MEMCPY3D_BATCH_OP *op,
			 struct sim_transfer *t)
{
	const CUextent3D *extent = &op->extent;
	struct sim_copy *c = &t->copy;

	if (!extent->width || !extent->height || !extent->depth)
		return CUDA_ERROR_INVALID_VALUE;
	if (op->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
	    op->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (op->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
	    op->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
		return CUDA_ERROR_INVALID_VALUE;
	*t = (struct sim_transfer){.copy = {.width = extent->width,
					    .height = extent->height,
					    .depth = extent->depth}};
	if (!operand(&op->dst, extent, &c->dst, &c->dst_pitch, &c->dst_slice) ||
	    !operand(&op->src, extent, &c->src, &c->src_pitch, &c->src_slice))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
				  size_t *failIdx, unsigned long long flags,
				  CUstream hStream)
{
	struct batch b = {0};
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	size_t i;

	tell(failIdx, SIZE_MAX);
	if (numOps && opList && !flags)
		result = begin(&b, hStream, numOps);
	if (result != CUDA_SUCCESS)
		return result;
	for (i = 0; i < numOps && result == CUDA_SUCCESS; i++) {
		struct sim_transfer t;

		result = describe(&opList[i], &t);
		if (result != CUDA_SUCCESS)
			tell(failIdx, i);
		else /* which one it is stays unsaid (on an H200, driver 580) */
			result = add(&b, &t, opList[i].srcAccessOrder,
				     opList[i].flags);
	}
	return end(&b, result);
}

/* One copy alone: as a batch of it. */
CUresult sim_cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src,
					 size_t size, CUmemcpyAttributes *attr,
					 CUstream hStream)
{
	size_t first = 0;

	return sim_cuMemcpyBatchAsync(&dst, &src, &size, 1, attr, &first, 1,
				      NULL, hStream);
}

CUresult sim_cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op,
					   unsigned long long flags,
					   CUstream hStream)
{
	return sim_cuMemcpy3DBatchAsync(1, op, NULL, flags, hStream);
}

#endif

#if CUDA_VERSION >= 13000
CUresult sim_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs,
				   size_t *sizes, size_t count,
				   CUmemcpyAttributes *attrs, size_t *attrsIdxs,
				   size_t numAttrs, CUstream hStream)
{
	return sim_cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs,
				      attrsIdxs, numAttrs, NULL, hStream);
}

CUresult sim_cuMemcpy3DBatchAsync_v2(size_t numOps,
				     CUDA_MEMCPY3D_BATCH_OP *opList,
				     unsigned long long flags, CUstream hStream)
{
	return sim_cuMemcpy3DBatchAsync(numOps, opList, NULL, flags, hStream);
}
#endif
