/* SPDX-License-Identifier: MIT */
#include "pool/ordered.h"

#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/pool.h"

/* All later work of a context waits for an event, unless it or that is void. */
static CUresult order_one(struct vs_ctx *ctx, struct vs_event *e)
{
	CUresult r;

	if (vs_ctx_is_beyond(ctx) || vs_ctx_is_beyond(e->ctx))
		return CUDA_SUCCESS;
	r = vs_real.cuCtxWaitEvent(ctx->handle, e->event);
	if (r != CUDA_SUCCESS)
		r = vs_vmm_follow_again(ctx->handle, e->event, r);
	if (r == CUDA_SUCCESS || !vs_real_is_for_good(r))
		return r;
	/* it may be that of the event's context */
	if (!vs_ctx_failed(e->ctx, vs_event_query(e)))
		vs_ctx_failed(ctx, r);
	return CUDA_SUCCESS;
}

/* A wait was refused: policy stream can do without, as policy complete does. */
static void refused(struct vs_fence *f, CUresult r)
{
	if (f->is_ordered)
		vs_fence_failed(f, "cuCtxWaitEvent", r);
	else if (r != CUDA_ERROR_OUT_OF_MEMORY && r != CUDA_ERROR_NOT_PERMITTED)
		atomic_store(&f->is_barred, true);
}

/* All later work of each context waits for the events. */
static bool order_behind(struct vs_fence *f, struct vs_ctx **contexts, int n,
			 struct vs_event *events)
{
	for (int i = 0; i < n; i++) {
		for (struct vs_event *e = events; e; e = e->next) {
			CUresult r = order_one(contexts[i], e);

			if (r != CUDA_SUCCESS) {
				refused(f, r);
				return false;
			}
		}
	}
	return true;
}

/*
 * All that is given to the contexts from now on waits for this marker. f->lock
 * held, captures shut out.
 */
static bool order_by(struct vs_fence *f, const struct vs_marker *m)
{
	struct vs_ctx_set set;
	bool is_good = vs_ctx_gather(&set, atomic_load(f->reach)) &&
		       order_behind(f, set.list, set.n, m->events);

	vs_ctx_scatter(&set);
	if (is_good && !f->is_ordered) {
		vs_stream_rely();
		/* or another was given work, which need not wait */
		is_good = vs_stream_is_single();
	}
	if (!is_good)
		return false;
	vs_stat_add(f->stats, orders, 1);
	vs_fence_raise(&f->done, m->epoch);
	return true;
}

bool vs_ordered_by(struct vs_fence *f, uint64_t tag)
{
	const struct vs_marker *m = vs_fence_marker_of(f, tag);

	/* none: it was seen complete */
	return !m || vs_fence_is_done(f, tag) || order_by(f, m);
}

bool vs_ordered_strict(struct vs_fence *f, uint64_t unused)
{
	const struct vs_marker *last = NULL;

	(void)unused;
	/* see Note [One stream] */
	if (atomic_load(&f->is_barred) || vs_pool_ctx_count() != 1 ||
	    !vs_stream_is_single() ||
	    atomic_load(&vs_stream.changes) != f->stream_turn ||
	    !vs_fence_is_complete(f, f->stream_from))
		return false;
	for (unsigned i = f->head; i != f->tail; i++) {
		const struct vs_marker *m = &f->ring[i % VS_MARKERS];

		if (m->epoch > atomic_load(&f->done) && !m->is_loose)
			last = m;
	}
	return last && order_by(f, last);
}

bool vs_fence_order(struct vs_fence *f)
{
	uint64_t before = atomic_load(&f->done);
	uint64_t covered = atomic_load(&f->covered);
	uint64_t tag = atomic_load(&f->bare);

	if (!vs_fence_may_order(f))
		return false;
	/* the last free that has a marker, by the first that covers it */
	vs_fence_locked(f, tag < covered ? tag : covered,
			f->is_ordered ? vs_ordered_by : vs_ordered_strict);
	return atomic_load(&f->done) > before;
}

/* ns for which no marker is seen complete: a piece of work seldom takes that */
#define LEND_PATIENCE ((uint64_t)10000000000)

void vs_fence_lend(struct vs_fence *f)
{
	uint64_t done;

	if (!f->may_order)
		return;
	atomic_store(&f->is_barred, true);
	/* another thread may be about to order, and has not seen that */
	pthread_mutex_lock(&f->lock);
	done = atomic_load(&f->done);
	pthread_mutex_unlock(&f->lock);
	vs_fence_wait_tag(f, done, LEND_PATIENCE);
	atomic_store(&f->is_lent, true);
}

/*
 * Behind the markers by which memory was handed out. Later ones may cover what
 * waits for the host, and for the context; it is ordered behind them like all
 * others, when memory is handed out by them. f->lock held, captures shut out.
 */
static bool order_newcomer(struct vs_fence *f, struct vs_ctx *ctx)
{
	uint64_t done = atomic_load(&f->done);
	bool is_good = true, is_last = done <= atomic_load(&f->complete);

	for (unsigned i = f->head; is_good && !is_last && i != f->tail; i++) {
		struct vs_marker *m = &f->ring[i % VS_MARKERS];

		is_good = order_behind(f, &ctx, 1, m->events);
		is_last = m->epoch >= done;
	}
	return is_good;
}

bool vs_fence_welcome(struct vs_fence *f, struct vs_ctx *ctx)
{
	bool is_good;

	if (!f->is_ordered || !vs_ctx_use(ctx))
		return true;
	is_good = vs_capture_shut_out();
	if (is_good) {
		pthread_mutex_lock(&f->lock);
		is_good = order_newcomer(f, ctx);
		pthread_mutex_unlock(&f->lock);
		vs_capture_let_in();
	}
	vs_ctx_unuse(ctx);
	return is_good;
}
