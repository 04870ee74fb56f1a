/* SPDX-License-Identifier: MIT */
#include "hook/copy.h"

#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "driver/vmm.h"
#include "hook/green.h"
#include "hook/ipc.h"
#include "hook/peer.h"

/* A row may not be longer than 2^31 - 1 bytes (CU_DEVICE_ATTRIBUTE_MAX_PITCH)
 */
#define MAX_ROW ((size_t)1 << 30)

/* Some of it without peer access. */
static _Atomic bool has_opened;

/*
 * By device: the devices whose memory it was found not to reach, and of these
 * those that it never will. Others were so for want of memory.
 */
static _Atomic uint64_t unreachable[VS_MAX_DEVICES];
static _Atomic uint64_t never_reached[VS_MAX_DEVICES];

/* NULL: of the current context. */
static uint64_t device_of(CUcontext ctx)
{
	return vs_copier_bit(vs_pool_ctx_device(ctx ? ctx : vs_vmm_current()));
}

void vs_copy_note_opened(void)
{
	atomic_store(&has_opened, true);
	atomic_store(&vs_copier_has_peers, true);
}

static bool can_be_peers(CUdevice device, CUdevice owner)
{
	int can = 0;

	return vs_real.cuDeviceCanAccessPeer &&
	       vs_real.cuDeviceCanAccessPeer(&can, device, owner) ==
		       CUDA_SUCCESS &&
	       can;
}

/* Opens the memory of the pool that holds `p` to `device`. */
static bool open_to(CUdeviceptr p, CUdevice owner, CUdevice device)
{
	CUresult result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	struct vs_thread *t = vs_thread_self();

	if ((atomic_load(&never_reached[device]) & vs_copier_bit(owner)) ||
	    !vs_thread_go_within(t))
		return false;
	vs_copy_note_opened();
	if (can_be_peers(device, owner))
		result = vs_pool_reach(p, device, true);
	if (result == CUDA_SUCCESS)
		result = vs_ipc_reach(p, device);
	vs_thread_come_out(t);
	if (result == CUDA_SUCCESS) {
		atomic_fetch_and(&unreachable[device], ~vs_copier_bit(owner));
		return true;
	}
	if (result != CUDA_ERROR_OUT_OF_MEMORY)
		atomic_fetch_or(&never_reached[device], vs_copier_bit(owner));
	vs_debug("device %d cannot be given access to device %d: copies "
		 "between them become peer copies",
		 device, owner);
	atomic_fetch_or(&unreachable[device], vs_copier_bit(owner));
	return false;
}

/* Opens an allocation to `devices`; returns whether to any. */
static bool open_span(const struct vs_span *span, uint64_t devices)
{
	bool is_opened = false;

	for (CUdevice d = 0; d < VS_MAX_DEVICES && devices >> d; d++) {
		if (!(devices & vs_copier_bit(d)) || d == span->device)
			continue;
		if (open_to(span->base, span->device, d))
			is_opened = true;
		else
			vs_pool_reach(span->base, d, false);
	}
	return is_opened;
}

/* One end of a copy. */
struct end {
	CUmemorytype type;
	CUdeviceptr at; /* 0: an array */
	size_t size;
	struct vs_span span; /* if is_ours */
	bool is_ours;
};

static struct end end_at(CUmemorytype type, CUdeviceptr at, size_t size)
{
	struct end end = {.type = type, .at = at, .size = size};

	end.is_ours =
		type != CU_MEMORYTYPE_HOST && vs_ipc_find_either(at, &end.span);
	return end;
}

static CUcontext owner_of(const struct end *dst, const struct end *src)
{
	if (dst->is_ours)
		return dst->span.ctx;
	return src->is_ours ? src->span.ctx : NULL;
}

static bool is_past_end(const struct end *end)
{
	return end->is_ours &&
	       end->size > end->span.base + end->span.size - end->at;
}

static size_t extent(const CUDA_MEMCPY3D *c, size_t pitch, size_t rows)
{
	pitch = pitch ? pitch : c->WidthInBytes;
	rows = rows ? rows : c->Height;
	if (!c->WidthInBytes || !c->Height || !c->Depth)
		return 0;
	return ((c->Depth - 1) * rows + c->Height - 1) * pitch +
	       c->WidthInBytes;
}

static size_t offset(const CUDA_MEMCPY3D *c, size_t x, size_t y, size_t z,
		     size_t pitch, size_t rows)
{
	pitch = pitch ? pitch : c->WidthInBytes;
	return (z * (rows ? rows : c->Height) + y) * pitch + x;
}

static struct end destination(const CUDA_MEMCPY3D *c)
{
	CUdeviceptr at = c->dstDevice;

	if (c->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		return (struct end){.type = CU_MEMORYTYPE_ARRAY};
	if (c->dstMemoryType == CU_MEMORYTYPE_HOST)
		at = (uintptr_t)c->dstHost;
	return end_at(c->dstMemoryType,
		      at + offset(c, c->dstXInBytes, c->dstY, c->dstZ,
				  c->dstPitch, c->dstHeight),
		      extent(c, c->dstPitch, c->dstHeight));
}

static struct end source(const CUDA_MEMCPY3D *c)
{
	CUdeviceptr at = c->srcDevice;

	if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY)
		return (struct end){.type = CU_MEMORYTYPE_ARRAY};
	if (c->srcMemoryType == CU_MEMORYTYPE_HOST)
		at = (uintptr_t)c->srcHost;
	return end_at(c->srcMemoryType,
		      at + offset(c, c->srcXInBytes, c->srcY, c->srcZ,
				  c->srcPitch, c->srcHeight),
		      extent(c, c->srcPitch, c->srcHeight));
}

bool vs_copy_leaves(CUdeviceptr p, size_t size)
{
	struct vs_span span;

	return vs_ipc_find_either(p, &span) &&
	       vs_unlikely(size > span.base + span.size - p) &&
	       vs_vmm_is_current_sound();
}

/*
 * One end, that reaches from `base` on over so many bytes, if it is memory. The
 * driver looks `base` up, not the first byte (an H100): a copy that begins in
 * an allocation, and has its base elsewhere, is refused.
 */
static bool leaves(CUmemorytype type, CUdeviceptr base, size_t skipped,
		   size_t size)
{
	struct vs_span span;

	if (type == CU_MEMORYTYPE_ARRAY || type == CU_MEMORYTYPE_HOST ||
	    size == 0)
		return false;
	return vs_copy_leaves(base, skipped + size) ||
	       (skipped > 0 && !vs_ipc_find_either(base, &span) &&
		vs_copy_leaves(base + skipped, SIZE_MAX));
}

bool vs_copy_is_beyond(const CUDA_MEMCPY3D *c)
{
	return leaves(c->dstMemoryType, c->dstDevice,
		      offset(c, c->dstXInBytes, c->dstY, c->dstZ, c->dstPitch,
			     c->dstHeight),
		      extent(c, c->dstPitch, c->dstHeight)) ||
	       leaves(c->srcMemoryType, c->srcDevice,
		      offset(c, c->srcXInBytes, c->srcY, c->srcZ, c->srcPitch,
			     c->srcHeight),
		      extent(c, c->srcPitch, c->srcHeight));
}

bool vs_copy_open(const CUDA_MEMCPY3D *copy, struct vs_way way)
{
	struct end dst = destination(copy), src = source(copy);
	bool is_opened = false;
	uint64_t devices;

	if ((!dst.is_ours && !src.is_ours) || is_past_end(&dst) ||
	    is_past_end(&src))
		return false;
	devices = vs_copier_runners(way.stream, owner_of(&dst, &src));
	if (dst.is_ours)
		is_opened |= open_span(&dst.span, devices);
	if (src.is_ours)
		is_opened |= open_span(&src.span, devices);
	return is_opened;
}

bool vs_copy_open_at(CUdeviceptr p, size_t size, struct vs_way way)
{
	struct end end = end_at(CU_MEMORYTYPE_DEVICE, p, size);

	return end.is_ours && !is_past_end(&end) &&
	       open_span(&end.span,
			 vs_copier_runners(way.stream, end.span.ctx));
}

/* For a node, which may run at any time. */
static void open_for_good(const struct vs_span *span, uint64_t devices)
{
	open_span(span, devices);
	vs_pool_copies(span->base, devices);
}

static void open_node(const CUDA_MEMCPY3D *copy, uint64_t devices)
{
	struct end dst = destination(copy), src = source(copy);

	if (dst.is_ours)
		open_for_good(&dst.span, devices);
	if (src.is_ours)
		open_for_good(&src.span, devices);
}

/* The devices that nodes were made for. */
static _Atomic uint64_t node_devices;

void vs_copy_open_node(const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	uint64_t devices = device_of(ctx);

	atomic_fetch_or(&node_devices, devices);
	open_node(copy, devices);
}

static void open_set(CUdeviceptr p, uint64_t devices)
{
	struct vs_span span;

	if (vs_pool_find(p, &span))
		open_for_good(&span, devices);
}

void vs_copy_open_set(CUdeviceptr p, CUcontext ctx)
{
	uint64_t devices = device_of(ctx);

	atomic_fetch_or(&node_devices, devices);
	open_set(p, devices);
}

void vs_copy_open_moved(const CUDA_MEMCPY3D *copy)
{
	open_node(copy, atomic_load(&node_devices) | device_of(NULL));
}

void vs_copy_open_set_moved(CUdeviceptr p)
{
	open_set(p, atomic_load(&node_devices) | device_of(NULL));
}

static CUcontext name_for(CUdeviceptr p, CUcontext named)
{
	struct vs_span span;

	if (vs_pool_ctx_count() < 2 || !vs_ipc_find_either(p, &span) ||
	    !span.ctx || span.ctx == named)
		return named;
	/* of one that has ended the driver says so */
	return named && vs_pool_ctx_device(named) == CU_DEVICE_INVALID
		       ? named
		       : span.ctx;
}

void vs_copy_begin_peer(struct vs_copier *copier, CUdeviceptr dst,
			CUcontext *dst_ctx, CUdeviceptr src, CUcontext *src_ctx,
			CUstream stream)
{
	vs_copier_begin_peer(copier, dst, src, stream);
	*dst_ctx = name_for(dst, *dst_ctx);
	*src_ctx = name_for(src, *src_ctx);
}

/* The end lies where one of the devices cannot reach it. */
static bool is_apart(const struct end *end, uint64_t devices)
{
	for (CUdevice d = 0; d < VS_MAX_DEVICES && devices >> d; d++)
		if (devices & vs_copier_bit(d) && end->is_ours &&
		    !is_past_end(end) &&
		    atomic_load(&unreachable[d]) &
			    vs_copier_bit(end->span.device))
			return true;
	return false;
}

/* Finds out what an end is that the program has not told. */
static void resolve(struct end *end)
{
	unsigned int type;

	if (end->is_ours) {
		end->type = CU_MEMORYTYPE_DEVICE;
	} else if (end->type == CU_MEMORYTYPE_UNIFIED) {
		end->type = CU_MEMORYTYPE_HOST;
		if (vs_real.cuPointerGetAttribute(
			    &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, end->at) ==
		    CUDA_SUCCESS)
			end->type = (CUmemorytype)type;
	}
}

/* It may have outlived the context that it was made in, a green one say. */
static bool is_managed(CUdeviceptr p)
{
	unsigned int is = 0; /* the driver writes a byte or more */

	return vs_real.cuPointerGetAttribute(&is,
					     CU_POINTER_ATTRIBUTE_IS_MANAGED,
					     p) == CUDA_SUCCESS &&
	       is;
}

/* The context that a peer copy names for an end. */
static CUcontext context_of(const struct end *end)
{
	CUcontext ctx = NULL;

	if (end->is_ours)
		return end->span.ctx;
	if (end->type == CU_MEMORYTYPE_DEVICE && !is_managed(end->at))
		vs_real.cuPointerGetAttribute(
			&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, end->at);
	return ctx ? ctx : vs_vmm_current();
}

static CUresult peer_linear(const struct end *dst, const struct end *src,
			    size_t size, struct vs_way way)
{
	CUcontext to = context_of(dst), from = context_of(src);

	if (way.is_async && way.is_per_thread)
		return vs_real.cuMemcpyPeerAsync_ptsz(dst->at, to, src->at,
						      from, size, way.stream);
	if (way.is_async)
		return vs_real.cuMemcpyPeerAsync(dst->at, to, src->at, from,
						 size, way.stream);
	if (way.is_per_thread)
		return vs_real.cuMemcpyPeer_ptds(dst->at, to, src->at, from,
						 size);
	return vs_real.cuMemcpyPeer(dst->at, to, src->at, from, size);
}

static CUresult peer_3d(const CUDA_MEMCPY3D_PEER *c, struct vs_way way)
{
	if (way.is_async && way.is_per_thread)
		return vs_real.cuMemcpy3DPeerAsync_ptsz(c, way.stream);
	if (way.is_async)
		return vs_real.cuMemcpy3DPeerAsync(c, way.stream);
	if (way.is_per_thread)
		return vs_real.cuMemcpy3DPeer_ptds(c);
	return vs_real.cuMemcpy3DPeer(c);
}

/* They differ in what a copy's reserved fields are. */
_Static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER) &&
		       offsetof(CUDA_MEMCPY3D, reserved0) ==
			       offsetof(CUDA_MEMCPY3D_PEER, srcContext) &&
		       offsetof(CUDA_MEMCPY3D, reserved1) ==
			       offsetof(CUDA_MEMCPY3D_PEER, dstContext) &&
		       offsetof(CUDA_MEMCPY3D, Depth) ==
			       offsetof(CUDA_MEMCPY3D_PEER, Depth),
	       "CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER differ");

static void set_ends(CUDA_MEMCPY3D_PEER *c, const struct end *dst,
		     const struct end *src)
{
	if (dst->type == CU_MEMORYTYPE_HOST && c->dstMemoryType != dst->type)
		c->dstHost = (void *)(uintptr_t)c->dstDevice;
	if (src->type == CU_MEMORYTYPE_HOST && c->srcMemoryType != src->type)
		c->srcHost = (void *)(uintptr_t)c->srcDevice;
	c->dstMemoryType = dst->type;
	c->srcMemoryType = src->type;
	c->dstContext = context_of(dst);
	c->srcContext = context_of(src);
}

/* One row, between a device and the host, of any length. */
static CUresult peer_row(const struct end *dst, const struct end *src,
			 size_t size, struct vs_way way)
{
	CUresult result = CUDA_SUCCESS;

	for (size_t at = 0; at < size && result == CUDA_SUCCESS;
	     at += MAX_ROW) {
		size_t n = size - at < MAX_ROW ? size - at : MAX_ROW;
		CUDA_MEMCPY3D_PEER c = {.dstDevice = dst->at + at,
					.srcDevice = src->at + at,
					.dstPitch = n,
					.srcPitch = n,
					.dstHeight = 1,
					.srcHeight = 1,
					.WidthInBytes = n,
					.Height = 1,
					.Depth = 1};

		set_ends(&c, dst, src);
		result = peer_3d(&c, way);
	}
	return result;
}

static CUresult make_between(const CUDA_MEMCPY3D *copy, const struct end *dst,
			     const struct end *src, struct vs_way way)
{
	CUDA_MEMCPY3D_PEER c;

	if (copy->Height == 1 && copy->Depth == 1 && dst->at && src->at)
		return dst->type == CU_MEMORYTYPE_DEVICE &&
				       src->type == CU_MEMORYTYPE_DEVICE
			       ? peer_linear(dst, src, copy->WidthInBytes, way)
			       : peer_row(dst, src, copy->WidthInBytes, way);
	memcpy(&c, copy, sizeof(c));
	set_ends(&c, dst, src);
	return peer_3d(&c, way);
}

CUresult vs_copy_between(const CUDA_MEMCPY3D *copy, struct vs_way way)
{
	struct end dst = destination(copy), src = source(copy);
	uint64_t devices = vs_copier_runners(way.stream, owner_of(&dst, &src));
	struct vs_copier copier = {0};
	CUresult result;

	if (!is_apart(&dst, devices) && !is_apart(&src, devices))
		return CUDA_ERROR_INVALID_VALUE;
	resolve(&dst);
	resolve(&src);
	vs_copier_begin_peer(&copier, dst.at, src.at, way.stream);
	result = make_between(copy, &dst, &src, way);
	vs_copier_end(&copier);
	return result;
}

static bool is_closed(CUdeviceptr p, CUstream stream)
{
	CUcontext ctx = NULL;
	struct vs_span span;
	uint64_t runner;

	if (vs_vmm_is_created(stream) && vs_real.cuStreamGetCtx &&
	    vs_real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS)
		return false;
	if (!vs_pool_find(p, &span))
		return false;
	runner = device_of(ctx);
	return runner && runner != vs_copier_bit(span.device) &&
	       !vs_peer_devices_are(__builtin_ctzll(runner), span.device);
}

bool vs_copy_refuses_set(struct vs_copier *copier, CUdeviceptr dst,
			 CUstream stream)
{
	if (atomic_load(&has_opened) && is_closed(dst, stream))
		return true;
	vs_copier_begin(copier, dst, 0, stream);
	return false;
}

static void add_owner(struct vs_order *order, const struct end *end)
{
	CUcontext owner = end->is_ours ? end->span.ctx : NULL;

	if (owner && owner != order->current &&
	    (order->n == 0 || owner != order->owners[0]))
		order->owners[order->n++] = owner;
}

/* In the order of contexts, or waited for: what it reaches must be known. */
static bool is_ordered(struct vs_way way)
{
	return !way.is_async || vs_order_is_due(way);
}

static void begin(struct vs_order *order, const struct end *dst,
		  const struct end *src, struct vs_way way)
{
	order->must_wait =
		!way.is_async && vs_memops_is_any() &&
		(vs_memops_is_set(dst->at) || vs_memops_is_set(src->at));
	order->is_per_thread = way.is_per_thread;
	if (!vs_order_is_due(way) || vs_pool_ctx_count() < 2)
		return;
	order->current = vs_vmm_current();
	if (!order->current ||
	    (vs_green_is_any() && vs_green_is(order->current)))
		return;
	add_owner(order, dst);
	add_owner(order, src);
	for (unsigned i = 0; i < order->n; i++)
		vs_pool_follow(order->current, order->owners[i]);
}

void vs_copy_begin(struct vs_order *order, const CUDA_MEMCPY3D *copy,
		   struct vs_way way)
{
	struct end dst = destination(copy), src = source(copy);

	if (vs_copier_may_be_of_peer())
		vs_copier_begin(&order->copier, dst.at, src.at, way.stream);
	if (is_ordered(way))
		begin(order, &dst, &src, way);
}

void vs_copy_begin_row(struct vs_order *order, CUdeviceptr dst, CUdeviceptr src,
		       size_t size, struct vs_way way)
{
	struct end to, from;

	if (vs_copier_may_be_of_peer())
		vs_copier_begin(&order->copier, dst, src, way.stream);
	if (!is_ordered(way))
		return;
	to = end_at(CU_MEMORYTYPE_UNIFIED, dst, size);
	from = end_at(CU_MEMORYTYPE_UNIFIED, src, size);
	begin(order, &to, &from, way);
}

CUresult vs_order_close(const struct vs_order *order, CUresult result)
{
	CUstreamCaptureMode saved;

	vs_copier_end(&order->copier);
	for (unsigned i = 0; i < order->n; i++)
		vs_pool_follow(order->owners[i], order->current);
	if (!order->must_wait || result != CUDA_SUCCESS)
		return result;
	/* the wait of the driver's own call harms no capture (an H100) */
	vs_vmm_relax(&saved);
	result = vs_real.cuStreamSynchronize(
		order->is_per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY);
	vs_vmm_unrelax(saved);
	return result;
}
