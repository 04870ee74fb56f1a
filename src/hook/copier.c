/* SPDX-License-Identifier: MIT */
#include "hook/copier.h"

#include "driver/real.h"
#include "driver/vmm.h"
#include "hook/ipc.h"
#include "pool/capture.h"
#include "pool/pool.h"

_Atomic bool vs_copier_has_peers;

uint64_t vs_copier_runners(CUstream stream, CUcontext owner)
{
	CUcontext current = vs_vmm_current(), ctx;
	uint64_t devices = vs_copier_bit(vs_pool_ctx_device(current));
	bool is_pushed = false;

	if (!vs_vmm_is_created(stream) || !vs_real.cuStreamGetCtx)
		return devices;
	if (!current && owner)
		vs_vmm_push(owner, &is_pushed);
	if (vs_real.cuStreamGetCtx(stream, &ctx) == CUDA_SUCCESS &&
	    ctx != current)
		devices |= vs_copier_bit(vs_pool_ctx_device(ctx));
	vs_vmm_pop(is_pushed);
	return devices;
}

/* The runners that reach memory of another device there. */
static uint64_t strangers(CUdeviceptr p, struct vs_runners *by)
{
	uint64_t devices = p ? vs_pool_uncounted(p) : 0;
	struct vs_span span;

	if (devices && !by->is_known) {
		by->devices = vs_copier_runners(
			by->stream, vs_pool_find(p, &span) ? span.ctx : NULL);
		by->is_known = true;
	}
	return devices & by->devices;
}

void vs_copier_stays(CUdeviceptr p, struct vs_runners *by)
{
	vs_pool_copies(p, strangers(p, by));
}

void vs_copier_came(CUdeviceptr p, CUstream stream)
{
	struct vs_runners by = {.stream = stream};

	vs_pool_copied(p, strangers(p, &by), stream);
}

/* Of a call that is about to be made, and is to be noted after it. */
static void begin(struct vs_copier *copier, uint64_t devices, CUdeviceptr dst,
		  CUdeviceptr src, CUstream stream)
{
	/* what is captured may run again, unseen */
	if (vs_capture_count() > 0) {
		vs_pool_copies(dst, devices);
		vs_pool_copies(src, devices);
	} else {
		*copier = (struct vs_copier){devices, stream, {dst, src}};
	}
}

void vs_copier_begin(struct vs_copier *copier, CUdeviceptr dst, CUdeviceptr src,
		     CUstream stream)
{
	struct vs_runners by = {.stream = stream};
	uint64_t devices = strangers(dst, &by) | strangers(src, &by);

	if (devices)
		begin(copier, devices, dst, src, stream);
}

void vs_copier_close(const struct vs_copier *copier)
{
	vs_pool_copied(copier->ends[0], copier->devices, copier->stream);
	vs_pool_copied(copier->ends[1], copier->devices, copier->stream);
}

/* Work of these devices will reach what lies there. */
static void reach(CUdeviceptr p, uint64_t devices)
{
	for (; devices; devices &= devices - 1)
		vs_pool_reach(p, __builtin_ctzll(devices), false);
}

void vs_copier_begin_peer(struct vs_copier *copier, CUdeviceptr dst,
			  CUdeviceptr src, CUstream stream)
{
	struct vs_span spans[2];
	bool is_dst, is_src;
	uint64_t devices;

	if (vs_pool_count() == 0 && !vs_ipc_has_imports())
		return;
	is_dst = vs_pool_find(dst, &spans[0]);
	is_src = vs_pool_find(src, &spans[1]);
	if (!is_dst && !is_src && !vs_ipc_has_imports())
		return;
	devices = vs_copier_runners(stream, is_dst   ? spans[0].ctx
					    : is_src ? spans[1].ctx
						     : NULL);
	if (!is_dst)
		vs_ipc_note_copy(dst, devices);
	if (!is_src)
		vs_ipc_note_copy(src, devices);
	devices |= is_dst ? vs_copier_bit(spans[0].device) : 0;
	devices |= is_src ? vs_copier_bit(spans[1].device) : 0;
	reach(dst, devices);
	reach(src, devices);
	begin(copier, devices, dst, src, stream);
}

void vs_copier_begin_graph(struct vs_copier *copier, CUstream stream)
{
	copier->devices = vs_copier_runners(stream, NULL);
	copier->stream = stream;
	vs_pool_launches(copier->devices);
}

void vs_copier_end_graph(const struct vs_copier *copier)
{
	vs_pool_launched(copier->devices, copier->stream);
}
