/* SPDX-License-Identifier: MIT */
#include "pool/share.h"

#include <pthread.h>

#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/owner.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"

struct piece {
	CUmemGenericAllocationHandle handle;
	uint64_t size;	 /* of the chunk */
	uint64_t offset; /* of the address asked for in it */
};

/* The piece at an address; false if nothing is mapped there. Lock. */
static bool piece_at(struct vs_pool *pool, CUdeviceptr p, struct piece *out)
{
	struct vs_view *v = vs_view_at(pool, p);

	if (!v)
		return false;
	out->handle = v->chunk->handle;
	out->size = v->chunk->size;
	out->offset = p - v->at;
	return true;
}

/* The pool and the bytes of a live allocation. */
static struct vs_pool *find(CUdeviceptr base, uint64_t id, CUdeviceptr *end_out)
{
	struct vs_pool *pool = vs_pool_at(base);
	struct vs_span span;

	if (!pool || !pool->dev.has_posix_fd || !vs_pool_find(base, &span) ||
	    span.base != base || span.id != id)
		return NULL;
	*end_out = base + span.size;
	return pool;
}

bool vs_share_describe(CUdeviceptr base, uint64_t id, struct vs_share *out)
{
	struct vs_share share = {0};
	CUdeviceptr p = base, end;
	struct vs_pool *pool = find(base, id, &end);
	struct piece piece;

	if (!pool)
		return false;
	pthread_mutex_lock(&pool->lock);
	while (p < end && piece_at(pool, p, &piece)) {
		if (share.n++ == 0)
			share.offset = piece.offset;
		share.bytes += piece.size;
		p += piece.size - piece.offset;
	}
	pthread_mutex_unlock(&pool->lock);
	if (p < end)
		return false;
	*out = share;
	return true;
}

/* Pieces [first, first + max); returns how many there are. Lock. */
static unsigned pick(struct vs_pool *pool, CUdeviceptr p, CUdeviceptr end,
		     unsigned first, unsigned max, struct piece *pieces)
{
	unsigned n = 0;

	for (unsigned i = 0; p < end && n < max; i++) {
		if (!piece_at(pool, p, &pieces[n]))
			break;
		p += pieces[n].size - pieces[n].offset;
		if (i >= first)
			n++;
	}
	return n;
}

unsigned vs_share_export(CUdeviceptr base, uint64_t id, unsigned first,
			 unsigned max, int *fds, uint64_t *sizes,
			 CUresult *result_out)
{
	struct piece pieces[16];
	CUdeviceptr end;
	struct vs_pool *pool = find(base, id, &end);
	unsigned n = 0, n_pieces;

	*result_out = CUDA_ERROR_INVALID_VALUE;
	if (!pool)
		return 0;
	if (max > sizeof(pieces) / sizeof(pieces[0]))
		max = sizeof(pieces) / sizeof(pieces[0]);
	pthread_mutex_lock(&pool->grow);
	pthread_mutex_lock(&pool->lock);
	/* freed meanwhile? then the chunks may be another's */
	n_pieces = find(base, id, &end)
			   ? pick(pool, base, end, first, max, pieces)
			   : 0;
	pthread_mutex_unlock(&pool->lock);
	while (n < n_pieces) {
		*result_out = vs_real.cuMemExportToShareableHandle(
			&fds[n], pieces[n].handle,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		if (*result_out != CUDA_SUCCESS)
			break;
		sizes[n] = pieces[n].size;
		n++;
	}
	pthread_mutex_unlock(&pool->grow);
	return n;
}

void vs_pool_pin(CUdeviceptr p)
{
	struct vs_pool *pool = vs_pool_at(p);
	struct vs_span span;
	struct vs_range *r;

	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	if (!vs_pool_find(p, &span))
		;
	else if (p < pool->slabs_end)
		vs_slab_pin(pool, p);
	else if ((r = vs_owner_range(pool, p)))
		r->is_pinned = true;
	pthread_mutex_unlock(&pool->lock);
	vs_pool_lend(p);
}

bool vs_pool_pin_between(CUdeviceptr p, CUdeviceptr end)
{
	struct vs_span span;
	bool is_any = false;

	while (p < end) {
		if (vs_pool_find(p, &span)) {
			vs_pool_pin(span.base);
			is_any = true;
			p = span.base + span.size - 1;
		}
		p = (p | (VS_ALIGN - 1)) + 1;
	}
	return is_any;
}

bool vs_share_is_capable(CUdevice device)
{
	struct vs_pool *pool = vs_pool_of(device);

	return pool && pool->dev.has_posix_fd;
}

uint64_t vs_share_serial(void)
{
	return vs_serial_next();
}

/*
 * An event behind the work of a context; NULL: where there is none of that
 * kind, or no room for it, it was waited for, or the context is gone.
 */
static CUevent record(struct vs_ctx *ctx, bool has_room)
{
	CUevent e, recorded = NULL;

	if (!vs_ctx_use(ctx))
		return NULL;
	if (has_room && vs_real.cuCtxRecordEvent &&
	    vs_vmm_event_create(ctx->handle, &e) == CUDA_SUCCESS) {
		if (vs_real.cuCtxRecordEvent(ctx->handle, e) == CUDA_SUCCESS)
			recorded = e;
		else
			vs_vmm_event_destroy(e);
	}
	/* an error means that the context is beyond work */
	if (!recorded)
		vs_vmm_ctx_wait(ctx->handle);
	vs_ctx_unuse(ctx);
	return recorded;
}

/* Whether the event is complete at the deadline (clock, ns). */
static bool wait_until(CUevent event, uint64_t deadline)
{
	CUstreamCaptureMode saved;
	CUresult r;

	vs_vmm_relax(&saved);
	for (unsigned round = 0;
	     (r = vs_vmm_event_query(event)) == CUDA_ERROR_NOT_READY &&
	     vs_vmm_clock() < deadline;
	     round++)
		vs_vmm_pause(round);
	vs_vmm_unrelax(saved);
	return r != CUDA_ERROR_NOT_READY;
}

/*
 * The events go with a context that another thread destroys meanwhile. Deadline
 * 0: as long as it takes.
 */
static bool settle(struct vs_ctx *ctx, CUevent event, uint64_t deadline)
{
	bool is_done = true;

	if (!event || !vs_ctx_use(ctx))
		return true;
	if (deadline)
		is_done = wait_until(event, deadline);
	else
		vs_vmm_event_wait(event);
	vs_vmm_event_destroy(event);
	vs_ctx_unuse(ctx);
	return is_done;
}

/* Waits for the work of the set, and of `own` if that is not part of it. */
static bool settle_all(struct vs_ctx_set *set, struct vs_ctx *own,
		       uint64_t patience_ns)
{
	CUevent some[VS_CTX_FEW], *events = some, own_event = NULL;
	size_t bytes = (size_t)set->n * sizeof(*events);
	bool is_listed = !own, is_done = true;
	uint64_t deadline = vs_vmm_clock() + patience_ns;

	if (!vs_capture_shut_out())
		return false;
	if (set->n > VS_CTX_FEW)
		events = vs_meta_alloc(bytes);
	for (int i = 0; i < set->n; i++) {
		CUevent e = record(set->list[i], events != NULL);

		is_listed |= set->list[i] == own;
		if (events)
			events[i] = e;
	}
	if (!is_listed)
		own_event = record(own, true);
	vs_capture_let_in();
	for (int i = 0; events && i < set->n; i++)
		is_done &= settle(set->list[i], events[i],
				  set->list[i] == own ? 0 : deadline);
	settle(own, own_event, 0);
	if (events != some)
		vs_meta_free(events, bytes);
	return is_done;
}

bool vs_share_settle(uint64_t devices, CUcontext ctx, uint64_t patience_ns)
{
	struct vs_ctx_set set;
	bool is_good;

	if (!vs_ctx_gather(&set, devices))
		return false;
	is_good = settle_all(&set, ctx ? vs_ctx_get(ctx) : NULL, patience_ns);
	vs_ctx_scatter(&set);
	return is_good;
}
