/* SPDX-License-Identifier: MIT */
/*
 * Which copies wait (CUDA driver API, "synchronization behaviour"): plain
 * copies that touch pageable or page-locked host memory do; device to device
 * does not; an asynchronous one from pageable memory takes the data at once,
 * one to pageable memory returns when it is complete.
 */
#include "sim_copy.h"

#include <stdlib.h>
#include <string.h>

#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_memory.h"
#include "sim_vmm.h"

/* A plain copy of this size may return before it is complete (CUDA docs). */
#define STAGED_MAX ((size_t)64 << 10)

static uint64_t extent_size(const struct sim_copy *c, size_t pitch,
			    size_t slice)
{
	if (!c->width || !c->height || !c->depth)
		return 0;
	return (c->depth - 1) * slice + (c->height - 1) * pitch + c->width;
}

bool sim_copy_check_device(uint64_t addr, uint64_t size, int device, bool write,
			   bool peer, struct sim_extent *extent)
{
	struct sim_memory *m = sim_memory_find(addr);
	struct sim_mapping *mapping = m ? NULL : sim_vmm_find(addr);

	*extent =
		(struct sim_extent){.addr = addr, .size = size, .write = write};
	if (m)
		extent->home = m->device;
	else if (mapping)
		extent->home = mapping->physical->device;
	if (!m) {
		/* Two H200: without access only cuMemcpyPeer works. */
		extent->any_device = peer;
		return peer ? sim_vmm_mapped(addr, size)
			    : sim_vmm_accessible(addr, size, device, write);
	}
	/* Between devices the driver stages legacy memory. */
	extent->any_device = true;
	return !m->going && addr + size <= m->range.start + m->range.size;
}

/* Fill in one end; false if it can be no end of a copy. */
static bool resolve(uint64_t addr, uint64_t size, enum sim_side side,
		    int device, bool write, bool peer,
		    struct sim_extent *extent)
{
	struct sim_memory *m = sim_memory_find(addr);
	bool known = m || sim_vmm_find_reservation(addr);

	if (known && !(m && sim_memory_is_host(m)) && side != SIM_HOST_SIDE)
		return sim_copy_check_device(addr, size, device, write, peer,
					     extent);
	*extent = (struct sim_extent){.addr = addr,
				      .size = size,
				      .write = write,
				      .home = SIM_HOST_HOME};
	if (m && sim_memory_is_host(m))
		return addr + size <= m->range.start + m->range.size;
	extent->host = true;
	return !known && addr && side != SIM_DEVICE_SIDE;
}

static void run_copy(const struct sim_op *op)
{
	const struct sim_copy *c = &op->u.copy;
	const char *src = op->staged ? op->staged : (const char *)c->src;
	char *dst = (char *)c->dst;
	size_t y, z;

	for (z = 0; z < c->depth; z++)
		for (y = 0; y < c->height; y++)
			memmove(dst + z * c->dst_slice + y * c->dst_pitch,
				src + z * c->src_slice + y * c->src_pitch,
				c->width);
}

void sim_copy_stage(struct sim_op *op)
{
	uint64_t size = op->touch[1].size;

	op->staged = sim_zalloc(size);
	memcpy(op->staged, (const void *)op->u.copy.src, size);
	/* The program's buffer is not looked at again. */
	op->n_touch = 1;
}

/* The host has waited for what came before on the stream. */
static void wait_before(struct sim_stream *stream)
{
	struct sim_vclock clock = {0};

	sim_stream_order(stream);
	sim_stream_clock(stream, &clock);
	sim_wait_clock(&clock);
}

/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, or the context's flag. */
static bool must_wait(const struct sim_stream *stream, const struct sim_op *op)
{
	bool wait = stream->ctx->flags & CU_CTX_SYNC_MEMOPS;
	unsigned i;

	for (i = 0; i < op->n_touch && !wait; i++) {
		struct sim_memory *m = sim_memory_find(op->touch[i].addr);

		wait = m && m->memops_wait;
	}
	return wait;
}

CUresult sim_copy_submit_plain(struct sim_stream *stream,
			       const struct sim_op *op)
{
	return must_wait(stream, op) ? sim_submit_sync(stream, op)
				     : sim_submit(stream, op, 1);
}

static CUresult submit(struct sim_stream *stream, struct sim_op *op, bool async)
{
	const struct sim_extent *dst = &op->touch[0], *src = &op->touch[1];
	bool stageable = src->host && sim_config.backing;
	bool devices = dst->home != SIM_HOST_HOME && src->home != SIM_HOST_HOME;
	CUresult result;

	if (devices && !async)
		return sim_copy_submit_plain(stream, op);
	if (stream->capture || devices || (async && !dst->host && !src->host))
		return sim_submit(stream, op, 1);
	if (dst->host || !stageable || (!async && src->size > STAGED_MAX))
		return sim_submit_sync(stream, op);
	if (!async)
		wait_before(stream);
	if (stream->ctx->sticky)
		return stream->ctx->sticky;
	sim_copy_stage(op);
	result = sim_submit(stream, op, 1);
	if (result != CUDA_SUCCESS)
		free(op->staged);
	return result;
}

CUresult sim_copy_prepare(const struct sim_transfer *t, struct sim_context *ctx,
			  struct sim_op *op)
{
	const struct sim_copy *c = &t->copy;
	uint64_t dst_size = extent_size(c, c->dst_pitch, c->dst_slice);
	uint64_t src_size = extent_size(c, c->src_pitch, c->src_slice);

	*op = (struct sim_op){.kind = SIM_OP_COPY,
			      .name = "copy",
			      .call = sim_thread.call,
			      .device = ctx->device,
			      .ctx = ctx,
			      .u.copy = *c};
	if (!dst_size)
		return CUDA_SUCCESS;
	op->n_touch = 2;
	if (!resolve(c->dst, dst_size, t->dst, op->device, true, t->peer,
		     &op->touch[0]) ||
	    !resolve(c->src, src_size, t->src, op->device, false, t->peer,
		     &op->touch[1]))
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_config.backing)
		op->run = run_copy;
	return CUDA_SUCCESS;
}

bool sim_copy_may_run(const struct sim_op *op)
{
	unsigned i;

	for (i = 0; i < op->n_touch; i++)
		if (!sim_memory_may_touch(op->ctx, op->device, &op->touch[i]))
			return false;
	return true;
}

/* What `later` gets from now on waits for what `earlier` has by now. */
static void follow(struct sim_stream *later, struct sim_stream *earlier)
{
	struct sim_vclock clock = {0};

	sim_stream_order(earlier);
	sim_stream_clock(earlier, &clock);
	sim_stream_wait_for(later, &clock);
	sim_vclock_clear(&clock);
}

/* The context whose work a copy of memory there keeps the order of, if any. */
static struct sim_context *owner_at(uint64_t addr, struct sim_context *named)
{
	struct sim_memory *m = sim_memory_find(addr);

	if (m && (m->kind == SIM_LEGACY || m->kind == SIM_MANAGED ||
		  m->kind == SIM_IMPORTED))
		return sim_context_owner(m->ctx);
	return named ? sim_context_owner(named) : NULL;
}

/*
 * A copy in the NULL stream comes between what other contexts, whose memory it
 * reaches, have in theirs before and get afterwards (CUDA C++ Programming
 * Guide, peer-to-peer memory copy; seen on two H200 of copies to and from the
 * host, too), whatever contexts a peer copy names; by those only where memory
 * has no context. Memory of cuMemAlloc and managed memory have one, opened
 * memory that of who opened it (an H200); that of pools, mapped and host memory
 * have none. In a green context's NULL stream it has no order with any other
 * (an H100; of another device two H200).
 */
static struct sim_stream *others_stream(const struct sim_stream *stream,
					uint64_t addr,
					struct sim_context *named)
{
	struct sim_context *owner = owner_at(addr, named);

	if (!stream->legacy || !owner || stream->ctx->parent)
		return NULL;
	return owner == stream->ctx ? NULL : owner->legacy;
}

static CUresult submit_between(struct sim_transfer *t,
			       struct sim_stream *stream, struct sim_op *op)
{
	struct sim_stream *others[2] = {
		others_stream(stream, t->copy.dst, t->named[0]),
		others_stream(stream, t->copy.src, t->named[1])};
	CUresult result;

	for (int i = 0; i < 2; i++)
		if (others[i])
			follow(stream, others[i]);
	result = submit(stream, op, t->async);
	for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++)
		if (others[i])
			follow(others[i], stream);
	return result;
}

CUresult sim_transfer(struct sim_transfer *t, CUstream hStream)
{
	struct sim_stream *stream;
	struct sim_op op = {0};
	CUresult result = sim_stream_get(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_capture_check_submit(stream);
	/* before the next: what runs past an end harms no capture (an H200) */
	if (result == CUDA_SUCCESS)
		result = sim_copy_prepare(t, stream->ctx, &op);
	/* A plain copy waits, so it is as unsafe as any other wait. */
	if (result == CUDA_SUCCESS && !t->async)
		result = sim_capture_check_unsafe();
	if (result != CUDA_SUCCESS || !op.n_touch)
		return result;
	return submit_between(t, stream, &op);
}
