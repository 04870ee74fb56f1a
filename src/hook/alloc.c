/* SPDX-License-Identifier: MIT
 *
 * alloc: the calls that the pool serves. The first two functions are hot: a
 * thread pointer, the gate and a count around vs_pool_alloc and vs_pool_free.
 */
#include "hook/alloc.h"

#include <limits.h>

#include "base/hot.h"
#include "driver/vmm.h"
#include "hook/capture.h"
#include "hook/copier.h"
#include "hook/hook.h"
#include "hook/symbols.h"
#include "pool/capture.h"
#include "pool/pool.h"
#include "report/service.h"
#include "report/trace.h"

/*
 * An allocation or a free has more to do: nothing was served before, or they
 * are traced, or a strict capture is open.
 */
static bool is_plain(void)
{
	return atomic_load_explicit(&vs_hot.is_plain, memory_order_relaxed);
}

static CUresult alloc_shut(CUdeviceptr *out, size_t size)
	__attribute__((cold, noinline));
static CUresult alloc_after(CUresult result, CUdeviceptr *out, size_t size)
	__attribute__((cold, noinline));
static CUresult free_shut(CUdeviceptr p) __attribute__((cold, noinline));
/* A free that the pool did not take. */
static CUresult free_passed(CUdeviceptr p) __attribute__((noinline));

/* vs_pool_free, seen to be within the pool; be it from within. */
static inline CUresult take_back(struct vs_thread *t, CUdeviceptr p)
{
	CUresult result;

	vs_thread_go_deeper(t);
	result = vs_pool_free(p);
	vs_thread_come_back(t);
	if (vs_likely(result != VS_PASS))
		vs_service_wake();
	return result;
}

VS_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	struct vs_thread *t = vs_thread_self();
	CUresult result;

	if (vs_unlikely(!t || !vs_gate_is_open() || !is_plain() || !out ||
			!vs_thread_go_within(t)))
		return alloc_shut(out, size);
	vs_thread_count(t, VS_API_cuMemAlloc_v2);
	result = vs_pool_alloc(size, out);
	vs_thread_come_out(t);
	if (vs_likely(result == CUDA_SUCCESS))
		return result;
	return alloc_after(result, out, size);
}

VS_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr p)
{
	struct vs_thread *t = vs_thread_self();
	CUresult result;

	if (vs_unlikely(!t || !vs_gate_is_open() || !is_plain()))
		return free_shut(p);
	vs_thread_count(t, VS_API_cuMemFree_v2);
	result = take_back(t, p);
	if (vs_likely(result != VS_PASS))
		return result;
	return free_passed(p);
}

/* vs_pool_alloc, unless this thread is in it already, or must not. */
static CUresult alloc(CUdeviceptr *out, size_t size)
{
	struct vs_thread *t = vs_thread_self();
	CUresult result;

	if (!vs_thread_go_within(t))
		return VS_PASS;
	result = vs_capture_refusal(NULL);
	if (result == VS_PASS)
		result = vs_pool_alloc(size, out);
	else
		vs_seen(result);
	vs_thread_come_out(t);
	return result;
}

/*
 * The gate is shut, or allocations are watched, or the call cannot be the
 * pool's: a NULL pointer, or a callback that the driver made into the program
 * from under the pool.
 */
static CUresult alloc_shut(CUdeviceptr *out, size_t size)
{
	CUresult result = VS_PASS;

	if (vs_enter(VS_API_cuMemAlloc_v2) && out)
		result = alloc(out, size);
	return alloc_after(result, out, size);
}

static void trace_alloc(CUdeviceptr p)
{
	struct vs_span span;

	if (vs_pool_find(p, &span))
		vs_trace_alloc(span.id, span.size);
}

void vs_alloc_watch(void)
{
	atomic_store(&vs_hot.is_plain, false);
}

static void unwatch(void)
{
	if (vs_trace_is_on || vs_capture_strict() > 0)
		return;
	atomic_store(&vs_hot.is_plain, true);
	if (vs_capture_strict() > 0) /* it has just begun */
		vs_alloc_watch();
}

/* The pool served `p`. */
static void served(CUdeviceptr p)
{
	bool is_known;

	if (vs_likely(is_plain()))
		return;
	/* where another road led to cuInit: it was not seen */
	is_known = vs_enter_initialized();
	vs_service_start();
	if (is_known)
		unwatch();
	if (vs_trace_is_on)
		trace_alloc(p);
}

/* A pool that passed it on has asked all it can, and harmed no capture. */
static CUresult alloc_passed(CUdeviceptr *out, size_t size)
{
	CUresult result = vs_gate_is_open() ? vs_capture_alloc_beside(out, size)
					    : vs_real.cuMemAlloc_v2(out, size);

	if (result == CUDA_ERROR_OUT_OF_MEMORY && vs_gate_is_open() &&
	    !vs_pool_current())
		VS_AGAIN(vs_device_here(), result,
			 vs_capture_alloc_beside(out, size));
	return vs_seen(result);
}

static CUresult alloc_after(CUresult result, CUdeviceptr *out, size_t size)
{
	if (result == VS_PASS)
		return alloc_passed(out, size);
	if (result == CUDA_SUCCESS)
		served(*out);
	else
		*out = 0; /* as the driver does, whatever is wrong (an H100) */
	return result;
}

/* What a driver makes of a free while the current context has ended. */
enum end_answer { END_UNKNOWN, END_IGNORED, END_MINDED };

/* Tries it, with a block of the driver's own, made under another context. */
static enum end_answer try_free(CUcontext ctx)
{
	CUdeviceptr block;
	bool is_pushed;
	CUresult result;

	if (vs_vmm_push(ctx, &is_pushed) != CUDA_SUCCESS)
		return END_UNKNOWN;
	result = vs_real.cuMemAlloc_v2(&block, 1);
	vs_vmm_pop(is_pushed);
	if (result != CUDA_SUCCESS)
		return END_UNKNOWN;
	if (vs_real.cuMemFree_v2(block) == CUDA_SUCCESS)
		return END_IGNORED;
	if (vs_vmm_push(ctx, &is_pushed) == CUDA_SUCCESS) {
		vs_real.cuMemFree_v2(block);
		vs_vmm_pop(is_pushed);
	}
	return END_MINDED;
}

/*
 * Whether the driver frees memory of `ctx` though the current context has
 * ended. CUDA's documentation promises an error for what accesses an ended one,
 * but a free needs none that is current (an H200). So it is asked, once.
 */
static bool is_end_ignored(CUcontext ctx)
{
	static _Atomic enum end_answer answer = END_UNKNOWN;
	CUstreamCaptureMode saved;

	if (vs_vmm_is_current_alive())
		return false;
	if (atomic_load(&answer) == END_UNKNOWN) {
		vs_vmm_relax(&saved);
		atomic_store(&answer, try_free(ctx));
		vs_vmm_unrelax(saved);
	}
	return atomic_load(&answer) == END_IGNORED;
}

/* Whether it frees memory of `ctx` where no live context is current. */
static bool may_lack_context(CUcontext ctx)
{
	return !vs_vmm_current() || is_end_ignored(ctx);
}

/* The driver frees also where no context is current; the pool wants one. */
static CUresult free_without_context(const struct vs_span *span)
{
	CUresult result;
	bool is_pushed;

	if (!may_lack_context(span->ctx) ||
	    vs_vmm_push(span->ctx, &is_pushed) != CUDA_SUCCESS)
		return VS_PASS;
	result = take_back(vs_thread_self(), span->base);
	vs_vmm_pop(is_pushed);
	return result;
}

/*
 * Traces a free that is about to be made. One that is refused for want of a
 * context may come again. `is_own`: another context than the current will not
 * do.
 */
static void trace_free(const struct vs_span *span, bool is_own)
{
	if (vs_vmm_is_current_alive() ||
	    (!is_own && may_lack_context(span->ctx)))
		vs_trace_free(span->id);
}

/* A free that the pool did not take. */
static CUresult free_passed(CUdeviceptr p)
{
	CUresult result = VS_PASS;
	struct vs_span span;

	if (vs_pool_is_inside(p) && vs_pool_find(p, &span) && span.base == p)
		result = free_without_context(&span);
	return result != VS_PASS ? result : vs_seen(vs_capture_free_beside(p));
}

/* The gate is shut, or frees are watched. A free needs no current context. */
static CUresult free_shut(CUdeviceptr p)
{
	CUresult result = VS_PASS;
	struct vs_span span;

	if (vs_enter(VS_API_cuMemFree_v2)) {
		bool is_ours = vs_pool_find(p, &span);

		if (is_ours)
			result = vs_capture_refusal(span.ctx);
		if (result != VS_PASS)
			return vs_seen(result);
		if (is_ours && span.base == p && vs_trace_is_on)
			trace_free(&span, false);
		result = take_back(vs_thread_self(), p);
	}
	if (result != VS_PASS)
		return result;
	return vs_gate_is_open() ? free_passed(p)
				 : vs_seen(vs_real.cuMemFree_v2(p));
}

VS_EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuInit);
	CUresult result;

	/* no libcuda, and nobody else's: what a program without a GPU expects
	 */
	if (!is_open && !vs_symbols_ensure() && !vs_symbols_next("cuInit"))
		return CUDA_ERROR_NO_DEVICE;
	result = vs_seen(vs_real.cuInit(flags));
	if (result == CUDA_SUCCESS && is_open)
		vs_enter_initialized();
	return result;
}

#define PITCH_ALIGN ((size_t)512)   /* bytes, as on an H200 */
#define PITCH_MAX ((size_t)INT_MAX) /* MAX_PITCH of every device */

/*
 * Bytes of a pitched allocation as the driver makes it; 0: the driver's. What
 * is wider than MAX_PITCH an H200 makes all the same.
 */
static size_t pitched(size_t width, size_t height, unsigned element,
		      size_t *pitch_out)
{
	size_t pitch = (width + PITCH_ALIGN - 1) & ~(PITCH_ALIGN - 1);
	size_t size;

	if ((element != 4 && element != 8 && element != 16) || width == 0 ||
	    width > PITCH_MAX || __builtin_mul_overflow(pitch, height, &size))
		return 0;
	*pitch_out = pitch;
	return size;
}

/* As alloc_passed. */
static CUresult pitch_passed(bool is_open, CUdeviceptr *out, size_t *pitch_out,
			     size_t width, size_t height, unsigned element)
{
	CUstreamCaptureMode saved;
	bool is_relaxed = is_open && vs_capture_relax_beside(&saved);
	CUresult result = vs_real.cuMemAllocPitch_v2(out, pitch_out, width,
						     height, element);

	VS_AGAIN(vs_device_here(), result,
		 vs_real.cuMemAllocPitch_v2(out, pitch_out, width, height,
					    element));
	if (is_relaxed)
		vs_vmm_unrelax(saved);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *out,
					      size_t *pitch_out, size_t width,
					      size_t height,
					      unsigned int element)
{
	bool is_open = vs_enter(VS_API_cuMemAllocPitch_v2);
	CUresult result = VS_PASS;
	size_t pitch, size;

	if (is_open && out && pitch_out) {
		size = pitched(width, height, element, &pitch);
		if (size)
			result = alloc(out, size);
	}
	if (result == VS_PASS)
		return pitch_passed(is_open, out, pitch_out, width, height,
				    element);
	/* written whatever is wrong, as the driver does (an H100) */
	*pitch_out = pitch;
	return alloc_after(result, out, size);
}

/*
 * A stream that is captured, or not there: the legacy one always is, the
 * thread's own is not in a green context (an H100). The driver frees without a
 * context, too, but answers this with one only.
 */
static bool is_captured(CUstream stream, CUcontext ctx, bool is_per_thread)
{
	__typeof__(cuStreamIsCapturing) *is_capturing =
		is_per_thread ? vs_real.cuStreamIsCapturing_ptsz
			      : vs_real.cuStreamIsCapturing;
	bool is_legacy =
		stream == CU_STREAM_LEGACY || (!stream && !is_per_thread);
	CUstreamCaptureStatus status;
	bool is_pushed = false;
	CUresult result;

	if (!is_capturing || (is_legacy && vs_capture_count() == 0))
		return false;
	if (vs_vmm_is_created(stream) && !vs_vmm_current())
		vs_vmm_push(ctx, &is_pushed);
	result = is_capturing(stream, &status);
	vs_vmm_pop(is_pushed);
	return result != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/*
 * Frees an allocation of the pool in stream order: the marker covers all
 * streams of the context, this one too. In one of another device kernels come
 * before the free as copies do (Note [Peers] in pool/fence.h). A capturing
 * stream takes frees of graph allocations only, and the driver says so.
 */
static CUresult free_async(CUdeviceptr p, CUstream stream, bool is_per_thread)
{
	struct vs_span span;
	CUresult result;

	if (!vs_pool_find(p, &span) || span.base != p)
		return VS_PASS;
	if (is_captured(stream, span.ctx, is_per_thread))
		return VS_PASS;
	result = vs_capture_refusal(span.ctx);
	if (result != VS_PASS)
		return vs_seen(result);
	if (vs_copier_may_be_of_peer())
		vs_copier_came(p, stream);
	/* only the default streams are those of the current context */
	if (vs_trace_is_on)
		trace_free(&span, !vs_vmm_is_created(stream));
	result = take_back(vs_thread_self(), p);
	if (result == VS_PASS && vs_vmm_is_created(stream))
		result = free_without_context(&span);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
	CUresult result = VS_PASS;

	if (VS_ENTER_STREAM(cuMemFreeAsync, stream))
		result = free_async(p, stream, false);
	return result != VS_PASS ? result
				 : vs_seen(vs_real.cuMemFreeAsync(p, stream));
}

VS_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream stream)
{
	CUresult result = VS_PASS;

	if (VS_ENTER_STREAM(cuMemFreeAsync_ptsz, stream))
		result = free_async(p, stream, true);
	return result != VS_PASS
		       ? result
		       : vs_seen(vs_real.cuMemFreeAsync_ptsz(p, stream));
}
