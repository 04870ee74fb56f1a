/* SPDX-License-Identifier: MIT
 *
 * copy_batch: batches of copies; see Note [Copies between devices].
 *
 * Note [Batches in green contexts]
 * In a stream of a green context the driver carries out batches of cuMemAlloc
 * memory, and crashes in those that reach VMM memory or that of cuMemAllocAsync
 * (580.159.04, an H100, whatever context is current; single copies, sets and
 * graphs of such memory are carried out). So a batch there goes the way through
 * a stream of the primary context, between two events.
 */
#include "driver/vmm.h"
#include "hook/copy.h"
#include "hook/green.h"

#if CUDA_VERSION >= 12080
/* A batch's way; see Note [Batches in green contexts]. */
struct detour {
	CUstream from, by; /* the program's; the same, or the shim's */
	CUcontext primary; /* whose that is */
};

static CUresult try_follow(CUcontext ctx, CUstream stream, CUstream next)
{
	CUevent event;
	CUresult r = vs_vmm_event_create(ctx, &event);

	if (r != CUDA_SUCCESS)
		return r;
	r = vs_real.cuEventRecord(event, stream);
	if (r == CUDA_SUCCESS)
		r = vs_real.cuStreamWaitEvent(next, event, 0);
	vs_vmm_event_destroy(event);
	return r;
}

/* `next` waits for what `stream` of `ctx` has been given. */
static CUresult follow(CUcontext ctx, CUstream stream, CUstream next)
{
	CUresult r = try_follow(ctx, stream, next);

	VS_AGAIN(vs_device_here(), r, try_follow(ctx, stream, next));
	return r;
}

/* Of the program's stream in `ctx`; the primary context is current. */
static CUresult go_primary(struct detour *d, CUcontext ctx)
{
	CUstream made;
	CUresult r = vs_real.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);

	VS_AGAIN(vs_device_here(), r,
		 vs_real.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
	if (r != CUDA_SUCCESS)
		return r;
	r = follow(ctx, d->from, made);
	if (r == CUDA_SUCCESS)
		d->by = made;
	else
		vs_real.cuStreamDestroy_v2(made);
	return r;
}

/*
 * NULL: it is captured, and the driver is to answer what it does there (STREAM_
 * CAPTURE_UNSUPPORTED, 580.159.04); or something fails.
 */
static CUcontext context_of(CUstream stream)
{
	CUstreamCaptureStatus status;
	CUcontext ctx;

	if (!vs_real.cuStreamGetCtx || !vs_real.cuStreamIsCapturing ||
	    vs_real.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
	    status != CU_STREAM_CAPTURE_STATUS_NONE ||
	    vs_real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS)
		return NULL;
	return ctx;
}

/* A green context is there; that of the stream may be one. */
static __attribute__((noinline, cold)) CUresult leave_green(struct detour *d)
{
	bool is_pushed = false;
	CUstreamCaptureMode saved;
	CUcontext ctx;
	CUresult r;

	/* without a context the driver copies, but answers no question */
	if (!vs_vmm_current() &&
	    vs_vmm_push(vs_green_any_primary(), &is_pushed) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	ctx = context_of(d->from);
	vs_vmm_pop(is_pushed);
	d->primary = ctx ? vs_green_primary(ctx) : NULL;
	if (!d->primary)
		return CUDA_SUCCESS;
	r = vs_vmm_push(d->primary, &is_pushed);
	if (r != CUDA_SUCCESS)
		return r;
	vs_vmm_relax(&saved);
	r = go_primary(d, ctx);
	vs_vmm_unrelax(saved);
	vs_vmm_pop(is_pushed);
	return r;
}

/*
 * Default streams take no batch, or there is none in a green context.
 * `failed_out`, unless NULL: no copy is to blame (cuda.h: SIZE_MAX).
 */
static inline CUresult detour_begin(struct detour *d, size_t *failed_out)
{
	CUresult r = CUDA_SUCCESS;

	if (vs_unlikely(vs_green_is_any()) && vs_gate_is_open() &&
	    vs_vmm_is_created(d->from))
		r = leave_green(d);
	if (vs_unlikely(r != CUDA_SUCCESS) && failed_out)
		*failed_out = SIZE_MAX;
	return r;
}

/* The program's stream goes on behind the batch, which was answered so. */
static __attribute__((noinline, cold)) CUresult come_back(struct detour *d,
							  CUresult result)
{
	CUstreamCaptureMode saved;
	bool is_pushed = false;

	vs_vmm_push(d->primary, &is_pushed);
	vs_vmm_relax(&saved);
	/* where it was refused, too: some of it may have begun */
	if (follow(d->primary, d->by, d->from) != CUDA_SUCCESS &&
	    result == CUDA_SUCCESS)
		result = vs_seen(vs_real.cuStreamSynchronize(d->by));
	/* what it has been given is done all the same */
	vs_real.cuStreamDestroy_v2(d->by);
	vs_vmm_unrelax(saved);
	vs_vmm_pop(is_pushed);
	return result;
}

static inline CUresult detour_end(struct detour *d, CUresult result)
{
	return vs_likely(d->by == d->from) ? result : come_back(d, result);
}

/* A call that was to be made this way, as it is made. */
static struct vs_way by_detour(struct vs_way way, const struct detour *d)
{
	way.stream = d->by;
	return way;
}

static bool open_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		       size_t count, struct vs_way way) __attribute__((cold));

static bool open_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		       size_t count, struct vs_way way)
{
	bool is_opened = false;

	for (size_t i = 0; i < count && dsts && srcs && sizes; i++) {
		is_opened |= vs_copy_open_at(dsts[i], sizes[i], way);
		is_opened |= vs_copy_open_at(srcs[i], sizes[i], way);
	}
	return is_opened;
}

/* See Note [Bounds]. `failed_out`, unless NULL, gets the number of the copy. */
static bool is_batch_beyond(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
			    size_t count, size_t *failed_out)
{
	for (size_t i = 0; i < count && dsts && srcs && sizes; i++) {
		if (!vs_row_is_beyond(dsts[i], srcs[i], sizes[i]))
			continue;
		if (failed_out)
			*failed_out = i;
		return true;
	}
	return false;
}

/* See Note [Copies of peers] in hook/copier.h. */
static void note_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t count,
		       CUstream stream)
{
	struct vs_runners by = {.stream = stream};

	for (size_t i = 0; vs_copier_may_be_of_peer() && i < count; i++) {
		if (dsts)
			vs_copier_stays(dsts[i], &by);
		if (srcs)
			vs_copier_stays(srcs[i], &by);
	}
}

static bool open_operand(const CUmemcpy3DOperand *o, struct vs_way way)
{
	return o->type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
	       vs_copy_open_at(o->op.ptr.ptr, 1, way);
}

static void note_operand(const CUmemcpy3DOperand *o, struct vs_runners *by)
{
	if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
		vs_copier_stays(o->op.ptr.ptr, by);
}

static void note_batch_3d(CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			  CUstream stream)
{
	struct vs_runners by = {.stream = stream};

	for (size_t i = 0; vs_copier_may_be_of_peer() && copies && i < n; i++) {
		note_operand(&copies[i].dst, &by);
		note_operand(&copies[i].src, &by);
	}
}

static bool open_batch_3d(CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			  struct vs_way way) __attribute__((cold));

static bool open_batch_3d(CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			  struct vs_way way)
{
	bool is_opened = false;

	for (size_t i = 0; i < n && copies; i++) {
		is_opened |= open_operand(&copies[i].dst, way);
		is_opened |= open_operand(&copies[i].src, way);
	}
	return is_opened;
}

/* Between pointers, where an element is a byte. */
static bool operand_leaves(const CUmemcpy3DOperand *o, const CUextent3D *e)
{
	size_t row = o->op.ptr.rowLength, layer = o->op.ptr.layerHeight;

	row = row ? row : e->width;
	layer = layer ? layer : e->height;
	return vs_copy_leaves(o->op.ptr.ptr,
			      ((e->depth - 1) * layer + e->height - 1) * row +
				      e->width);
}

/*
 * The same for boxes; a copy of nothing is the driver's to refuse. It does not
 * say which of them it is (measured on an H200, driver 580).
 */
static bool is_batch_3d_beyond(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			       size_t *failed_out)
{
	for (size_t i = 0; copies && i < n; i++) {
		const CUDA_MEMCPY3D_BATCH_OP *c = &copies[i];

		if (c->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
		    c->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
		    !c->extent.width || !c->extent.height || !c->extent.depth ||
		    (!operand_leaves(&c->dst, &c->extent) &&
		     !operand_leaves(&c->src, &c->extent)))
			continue;
		if (failed_out)
			*failed_out = SIZE_MAX;
		return true;
	}
	return false;
}

/*
 * How, where the number of a copy that fails goes or NULL, and the driver's
 * arguments but the stream; the rest is by the wrapper's names.
 */
#define COPIED_BATCH(api, how, failed_out, ...)                                \
	DETOURED(failed_out,                                                   \
		 VS_COPIED(api, how,                                           \
			   is_batch_beyond(dsts, srcs, sizes, count,           \
					   failed_out),                        \
			   note_batch(dsts, srcs, count, stream),              \
			   open_batch(dsts, srcs, sizes, count, way),          \
			   CUDA_ERROR_INVALID_VALUE, __VA_ARGS__, detour.by))
#define COPIED_BATCH_3D(api, how, failed_out, ...)                             \
	DETOURED(failed_out,                                                   \
		 VS_COPIED(api, how,                                           \
			   is_batch_3d_beyond(copies, n, failed_out),          \
			   note_batch_3d(copies, n, stream),                   \
			   open_batch_3d(copies, n, way),                      \
			   CUDA_ERROR_INVALID_VALUE, __VA_ARGS__, detour.by))
#define DETOURED(failed_out, copied)                                           \
	__extension__({                                                        \
		struct detour detour = {.from = stream, .by = stream};         \
		CUresult answer = detour_begin(&detour, failed_out);           \
                                                                               \
		answer == CUDA_SUCCESS ? detour_end(&detour, copied)           \
				       : vs_seen(answer);                      \
	})

VS_EXPORT CUresult CUDAAPI cuMemcpyBatchAsync(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes,
	size_t *failed, CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync, VS_ASYNC(stream), failed, dsts,
			    srcs, sizes, count, attributes, indices,
			    n_attributes, failed);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyBatchAsync_ptsz(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes,
	size_t *failed, CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync_ptsz, VS_ASYNC_PT(stream),
			    failed, dsts, srcs, sizes, count, attributes,
			    indices, n_attributes, failed);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t n,
						CUDA_MEMCPY3D_BATCH_OP *copies,
						size_t *failed,
						unsigned long long flags,
						CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync, VS_ASYNC(stream), failed,
			       n, copies, failed, flags);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DBatchAsync_ptsz(
	size_t n, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
	unsigned long long flags, CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync_ptsz, VS_ASYNC_PT(stream),
			       failed, n, copies, failed, flags);
}

/*
 * One copy with attributes: taken for a batch. It is complete when the stream
 * is that carries it out: the program's follows that later.
 */
#define COPIED_ONE(api, how, ...)                                              \
	DETOURED(NULL, VS_COPIED(api, how, vs_row_is_beyond(dst, src, size),   \
				 vs_copy_begin_row(&order, dst, src, size,     \
						   by_detour(way, &detour)),   \
				 vs_copy_open_row(dst, src, size, way),        \
				 vs_copy_between_row(dst, src, size, way),     \
				 __VA_ARGS__, detour.by))

VS_EXPORT CUresult CUDAAPI
cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size,
			    CUmemcpyAttributes *attributes, CUstream stream)
{
	return COPIED_ONE(cuMemcpyWithAttributesAsync, VS_ASYNC(stream), dst,
			  src, size, attributes);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(
	CUdeviceptr dst, CUdeviceptr src, size_t size,
	CUmemcpyAttributes *attributes, CUstream stream)
{
	return COPIED_ONE(cuMemcpyWithAttributesAsync_ptsz, VS_ASYNC_PT(stream),
			  dst, src, size, attributes);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *copies,
			      unsigned long long flags, CUstream stream)
{
	const size_t n = 1;

	return COPIED_BATCH_3D(cuMemcpy3DWithAttributesAsync, VS_ASYNC(stream),
			       NULL, copies, flags);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *copies,
				   unsigned long long flags, CUstream stream)
{
	const size_t n = 1;

	return COPIED_BATCH_3D(cuMemcpy3DWithAttributesAsync_ptsz,
			       VS_ASYNC_PT(stream), NULL, copies, flags);
}
#endif

#if CUDA_VERSION >= 13000
VS_EXPORT CUresult CUDAAPI
cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		      size_t count, CUmemcpyAttributes *attributes,
		      size_t *indices, size_t n_attributes, CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync_v2, VS_ASYNC(stream), NULL, dsts,
			    srcs, sizes, count, attributes, indices,
			    n_attributes);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyBatchAsync_v2_ptsz(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes,
	CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync_v2_ptsz, VS_ASYNC_PT(stream),
			    NULL, dsts, srcs, sizes, count, attributes, indices,
			    n_attributes);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP *copies,
			unsigned long long flags, CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync_v2, VS_ASYNC(stream), NULL,
			       n, copies, flags);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DBatchAsync_v2_ptsz(size_t n, CUDA_MEMCPY3D_BATCH_OP *copies,
			     unsigned long long flags, CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync_v2_ptsz,
			       VS_ASYNC_PT(stream), NULL, n, copies, flags);
}
#endif
