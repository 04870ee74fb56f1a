/* SPDX-License-Identifier: MIT */
#include "pool/copies.h"

#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/fence.h"

/* Not followed any more; close_up() is to come. */
static void let_go(struct vs_fence *f, struct vs_copy *c)
{
	vs_event_keep(&f->spare, c->event);
	c->event = NULL;
}

/* Those whose event is gone go. */
static void close_up(struct vs_copies *copies)
{
	uint64_t devices = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < copies->n; i++) {
		if (!copies->list[i].event)
			continue;
		devices |= (uint64_t)1 << copies->list[i].device;
		copies->list[n++] = copies->list[i];
	}
	copies->n = n;
	atomic_store(&copies->devices, devices);
}

/* Its event goes if it is. */
static bool is_done(struct vs_fence *f, struct vs_copy *c)
{
	CUresult r = CUDA_SUCCESS;

	if (!vs_ctx_is_beyond(c->event->ctx))
		r = vs_event_query(c->event);
	if (r == CUDA_ERROR_NOT_READY)
		return false;
	if (r == CUDA_ERROR_CAPTURED_EVENT) {
		/* of a capture that nobody saw: the copy may run at any time */
		atomic_fetch_or(f->counting, (uint64_t)1 << c->device);
	} else if (r != CUDA_SUCCESS && !vs_ctx_failed(c->event->ctx, r)) {
		vs_fence_failed(f, "cuEventQuery", r);
		return false;
	}
	let_go(f, c);
	return true;
}

/* Up to the first that is not done, or all; true: all are done. */
static bool sweep(struct vs_fence *f, uint64_t epoch, bool is_whole)
{
	struct vs_copies *copies = &f->copies;
	bool is_left = false, is_changed = false;

	for (unsigned i = 0; i < copies->n; i++) {
		if (copies->list[i].tag > epoch || (is_left && !is_whole))
			break;
		if (is_done(f, &copies->list[i]))
			is_changed = true;
		else
			is_left = true;
	}
	if (is_changed)
		close_up(copies);
	return !is_left;
}

bool vs_copies_are_done(struct vs_fence *f, uint64_t epoch)
{
	return sweep(f, epoch, false);
}

/* f->lock held, captures shut out. */
static bool add(struct vs_fence *f, struct vs_ctx *ctx, CUstream stream)
{
	struct vs_copies *copies = &f->copies;
	struct vs_event *e;
	CUresult r;

	if (!ctx || vs_ctx_is_beyond(ctx))
		return false;
	sweep(f, UINT64_MAX, false);
	if (copies->n == VS_COPIES && copies->swept != vs_fence_tag(f)) {
		copies->swept = vs_fence_tag(f);
		sweep(f, UINT64_MAX, true);
	}
	if (copies->n == VS_COPIES)
		return false;
	e = vs_event_take(&f->spare, ctx, &r);
	if (!e)
		return false;
	if (vs_real.cuEventRecord(e->event, stream) != CUDA_SUCCESS) {
		vs_event_keep(&f->spare, e);
		return false;
	}
	copies->list[copies->n++] = (struct vs_copy){
		.tag = vs_fence_tag(f), .event = e, .device = ctx->device};
	atomic_fetch_or(&copies->devices, (uint64_t)1 << ctx->device);
	return true;
}

bool vs_copies_add(struct vs_fence *f, CUstream stream)
{
	CUcontext handle;
	bool is_added;

	if (!atomic_load(&f->is_curt) || f->is_ordered ||
	    !vs_fence_has_events(f) || !vs_vmm_is_created(stream) ||
	    !vs_real.cuStreamGetCtx || !vs_real.cuEventRecord ||
	    vs_real.cuStreamGetCtx(stream, &handle) != CUDA_SUCCESS ||
	    !vs_capture_shut_out())
		return false;
	pthread_mutex_lock(&f->lock);
	/* no marker ends the epoch meanwhile */
	is_added = add(f, vs_ctx_peek(handle), stream);
	pthread_mutex_unlock(&f->lock);
	vs_capture_let_in();
	return is_added;
}

void vs_copies_forget(struct vs_fence *f, const struct vs_ctx *ctx)
{
	for (unsigned i = 0; i < f->copies.n; i++) {
		if (f->copies.list[i].event->ctx == ctx)
			let_go(f, &f->copies.list[i]);
	}
	close_up(&f->copies);
}
