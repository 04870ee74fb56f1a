/* SPDX-License-Identifier: MIT */
#include "pool/fill.h"

#include "base/knob.h"
#include "base/log.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/fence.h"
#include "pool/state.h"

bool vs_fill_is_on(void)
{
	return vs_knobs.zero == VS_ZERO_ALWAYS || vs_knobs.junk;
}

/* What is to be done on the stream: reads into `to` if that is not NULL. */
struct task {
	CUdeviceptr p;
	size_t size;
	void *to;
	unsigned char value;
};

static CUresult submit(const struct task *task, CUstream stream)
{
	if (task->to)
		return vs_real.cuMemcpyDtoHAsync_v2(task->to, task->p,
						    task->size, stream);
	return vs_real.cuMemsetD8Async(task->p, task->value, task->size,
				       stream);
}

/* A new stream each time: no state that could outlive its context. */
static CUresult run(CUcontext ctx, const struct task *task)
{
	CUstreamCaptureMode saved;
	CUstream stream;
	CUresult r;
	bool is_pushed;

	if (!vs_real.cuStreamCreate || !vs_real.cuStreamDestroy_v2 ||
	    !vs_real.cuStreamSynchronize || !vs_real.cuMemsetD8Async ||
	    !vs_real.cuMemcpyDtoHAsync_v2)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = vs_vmm_push(ctx, &is_pushed);
	if (r != CUDA_SUCCESS)
		return r;
	vs_vmm_relax(&saved);
	r = vs_real.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	if (r == CUDA_SUCCESS) {
		r = submit(task, stream);
		if (r == CUDA_SUCCESS)
			r = vs_real.cuStreamSynchronize(stream);
		vs_real.cuStreamDestroy_v2(stream);
	}
	vs_vmm_unrelax(saved);
	vs_vmm_pop(is_pushed);
	return r;
}

/* The context does not end before its work has. */
static CUresult run_alive(struct vs_ctx *ctx, const struct task *task)
{
	CUresult r = CUDA_ERROR_CONTEXT_IS_DESTROYED;

	if (vs_ctx_use(ctx)) {
		r = run(ctx->handle, task);
		vs_ctx_unuse(ctx);
	}
	return r;
}

CUresult vs_fill_set(struct vs_ctx *ctx, CUdeviceptr p, unsigned char value,
		     size_t size)
{
	const struct task task = {.p = p, .size = size, .value = value};

	return run_alive(ctx, &task);
}

CUresult vs_fill_get(struct vs_ctx *ctx, void *to, CUdeviceptr p, size_t size)
{
	const struct task task = {.p = p, .size = size, .to = to};

	return run_alive(ctx, &task);
}

static void warn_once(CUresult r)
{
	static _Atomic bool is_told;

	/* memory goes with its context, and nobody reads it */
	if (r != CUDA_SUCCESS && r != CUDA_ERROR_CONTEXT_IS_DESTROYED &&
	    !atomic_exchange(&is_told, true))
		vs_warn("VMMSHIM_JUNK: some memory is not filled: %s",
			vs_real_error(r));
}

CUresult vs_fill_fresh(struct vs_ctx *ctx, CUdeviceptr p, size_t size)
{
	if (vs_knobs.zero == VS_ZERO_ALWAYS)
		return vs_fill_set(ctx, p, 0, size);
	if (vs_knobs.junk)
		warn_once(vs_fill_set(ctx, p, VS_JUNK_FRESH, size));
	return CUDA_SUCCESS;
}

void vs_fill_freed(struct vs_pool *pool, const struct vs_span *span)
{
	struct vs_fence *f = &pool->fence;
	struct vs_span now;
	struct vs_ctx *ctx;

	if (!vs_knobs.junk)
		return;
	if (!vs_fence_wait_tag(f, vs_fence_tag(f), UINT64_MAX))
		return;
	/* its context may have ended meanwhile, and it be another's */
	if (!vs_pool_find(span->base, &now) || now.id != span->id)
		return;
	ctx = vs_ctx_peek(span->ctx);
	if (ctx)
		warn_once(vs_fill_set(ctx, span->base, VS_JUNK_FREED,
				      span->size));
}
