/* SPDX-License-Identifier: MIT
 *
 * wait: the waits of pool/fence.h: for the oldest marker, for a tag, and for
 * all work (beside a capture, or where no context takes an event).
 */
#include "base/cancel.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/loader.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/fence.h"

/* Without context events: waits for everything, once for many frees. */
static bool wait_for_contexts(struct vs_fence *f)
{
	struct vs_ctx_set set;
	uint64_t epoch;
	bool is_good;

	if (!vs_capture_shut_out())
		return false;
	vs_stat_add(f->stats, waits, 1);
	epoch = vs_fence_turn(f);
	is_good = vs_ctx_gather(&set, vs_fence_copying(f));
	for (int i = 0; is_good && i < set.n; i++) {
		CUresult r;

		if (vs_ctx_is_beyond(set.list[i]) || !vs_ctx_use(set.list[i]))
			continue;
		r = vs_vmm_ctx_wait(set.list[i]->handle);
		vs_ctx_unuse(set.list[i]);
		if (r != CUDA_SUCCESS && !vs_ctx_failed(set.list[i], r)) {
			vs_fence_failed(f, "cuCtxSynchronize", r);
			is_good = false;
		}
	}
	vs_ctx_scatter(&set);
	vs_capture_let_in();
	if (!is_good)
		return false;
	vs_fence_waited(f, epoch);
	return true;
}

/* The longest of several threads' waits is what is not repeated. */
static void note_slow(struct vs_fence *f, uint64_t epoch, uint64_t patience_ns)
{
	pthread_mutex_lock(&f->lock);
	if (epoch > atomic_load(&f->slow) ||
	    patience_ns > atomic_load(&f->slow_patience)) {
		atomic_store(&f->slow_patience, patience_ns);
		atomic_store(&f->slow, epoch);
	}
	f->calm_from = atomic_load(&f->epoch);
	f->calm_age = 0;
	pthread_mutex_unlock(&f->lock);
}

/* How long work is waited for that the driver would not wait for, in all; ns.
 */
#define COURTESY ((uint64_t)1000000000)

/* See Note [Peers] in pool/fence.h. */
static void be_curt(struct vs_fence *f)
{
	if (atomic_load(f->reach) != atomic_load(f->counting) &&
	    !atomic_exchange(&f->is_curt, true))
		vs_debug("a kernel of another device runs for long: markers "
			 "go by its copies alone");
}

/*
 * Who has waited so long, ns, need not ask if another one who waits has just
 * done so: 64 threads behind one kernel made 82,000 calls of the driver in
 * 100 ms, and 13,000 since (simulated, two processors).
 */
#define LONG_WAIT ((uint64_t)1000000)
#define JUST_NOW ((uint64_t)20000)

/* Whether more is complete by now. `took`: what this one has waited so far. */
static bool ask(struct vs_fence *f, uint64_t now, uint64_t took)
{
	uint64_t asked = atomic_load_explicit(&f->asked, memory_order_relaxed);

	/* that one may have read the clock later */
	if (took > LONG_WAIT && now - asked + JUST_NOW < 2 * JUST_NOW &&
	    atomic_load_explicit(&f->waiting, memory_order_relaxed) > 1)
		return false;
	atomic_store_explicit(&f->asked, now, memory_order_relaxed);
	return vs_fence_poll(f);
}

static bool wait_for_oldest(struct vs_fence *f, uint64_t epoch, uint64_t began,
			    uint64_t patience_ns)
{
	uint64_t last = began, took = 0;

	for (unsigned round = 0; !vs_fence_is_complete(f, epoch); round++) {
		took += vs_clock_passed(&last, vs_vmm_clock());
		if (ask(f, last, took))
			return true;
		if (atomic_load_explicit(&f->is_broken, memory_order_relaxed))
			return false;
		if (took + atomic_load(&f->in_vain) > COURTESY)
			be_curt(f);
		if (took > patience_ns) {
			atomic_fetch_add(&f->in_vain, took);
			note_slow(f, epoch, patience_ns);
			return false;
		}
		vs_vmm_pause(round);
	}
	return true;
}

/* This thread waits. */
static void enter(struct vs_fence *f)
{
	unsigned waiting = atomic_fetch_add(&f->waiting, 1) + 1;

	/* two that come at once may note the smaller number: no matter */
	if (waiting >
	    atomic_load_explicit(&f->waiting_high, memory_order_relaxed))
		atomic_store_explicit(&f->waiting_high, waiting,
				      memory_order_relaxed);
}

/* It did, since then. */
static void leave(struct vs_fence *f, uint64_t began)
{
	vs_stat_add(f->stats, wait_ns, vs_vmm_clock() - began);
	atomic_fetch_sub(&f->waiting, 1);
}

bool vs_fence_wait(struct vs_fence *f, uint64_t patience_ns)
{
	uint64_t began = vs_vmm_clock(), epoch = 0;
	bool is_good;

	/* no marker will tell of what was freed: as where there can be none */
	if (atomic_load_explicit(&f->is_broken, memory_order_relaxed))
		return vs_fence_barrier_for(f, patience_ns);
	pthread_mutex_lock(&f->lock);
	if (f->head != f->tail)
		epoch = f->ring[f->head % VS_MARKERS].epoch;
	pthread_mutex_unlock(&f->lock);
	if (epoch == 0 || (epoch <= atomic_load(&f->slow) &&
			   patience_ns <= atomic_load(&f->slow_patience)))
		return vs_fence_poll(f);
	if (f->has_context_events) /* the others count by themselves */
		vs_stat_add(f->stats, waits, 1);
	enter(f);
	if (f->has_context_events)
		is_good = wait_for_oldest(f, epoch, began, patience_ns);
	else
		is_good = vs_fence_barrier_for(f, patience_ns);
	leave(f, began);
	return is_good;
}

/* Whether the context has no work left that the tag stands for. */
static bool is_past(struct vs_fence *f, uint64_t tag, const struct vs_ctx *ctx)
{
	CUresult r = CUDA_SUCCESS;
	CUstreamCaptureMode saved;
	struct vs_marker *m;

	vs_vmm_relax(&saved);
	pthread_mutex_lock(&f->lock);
	m = vs_fence_marker_of(f, tag);
	for (struct vs_event *e = m ? m->events : NULL; e; e = e->next)
		if (e->ctx == ctx)
			r = vs_event_query(e);
	pthread_mutex_unlock(&f->lock);
	vs_vmm_unrelax(saved);
	return r != CUDA_ERROR_NOT_READY;
}

void vs_fence_heed(struct vs_fence *f, const struct vs_ctx *ctx,
		   _Atomic unsigned *need, uint64_t patience_ns)
{
	uint64_t tag = vs_fence_tag(f), began = vs_vmm_clock();

	if (!vs_fence_has_events(f) || !vs_fence_cover(f, tag) ||
	    is_past(f, tag, ctx))
		return;
	vs_stat_add(f->stats, waits, 1);
	enter(f);
	for (unsigned round = 0;
	     atomic_load(need) > 0 && vs_fence_has_events(f) &&
	     !vs_fence_is_complete(f, tag) && !is_past(f, tag, ctx) &&
	     vs_vmm_clock() - began < patience_ns;
	     round++)
		vs_vmm_pause(round);
	leave(f, began);
}

bool vs_fence_is_waited_for(struct vs_fence *f, uint64_t *epoch_out)
{
	struct vs_ctx_set set;
	bool is_alone;

	if (f->has_context_events ||
	    vs_fence_is_complete(f, atomic_load(&f->bare)))
		return false;
	*epoch_out = vs_fence_turn(f);
	/* who comes later has no work on what was freed before */
	is_alone = vs_ctx_gather(&set, vs_fence_copying(f)) && set.n == 1 &&
		   set.list[0]->handle == vs_vmm_current();
	vs_ctx_scatter(&set);
	return is_alone;
}

/* It is in flight itself, not thinned out: a later one covers later work. */
static bool has_marker(struct vs_fence *f, uint64_t epoch)
{
	const struct vs_marker *m;
	bool is_there;

	pthread_mutex_lock(&f->lock);
	m = vs_fence_marker_of(f, epoch);
	is_there = m && m->epoch == epoch;
	pthread_mutex_unlock(&f->lock);
	return is_there;
}

bool vs_fence_wait_out(struct vs_fence *f, uint64_t epoch)
{
	while (!vs_fence_is_complete(f, epoch)) {
		if (!has_marker(f, epoch) || !vs_fence_wait(f, UINT64_MAX))
			return vs_fence_is_complete(f, epoch);
	}
	return true;
}

bool vs_fence_wait_tag(struct vs_fence *f, uint64_t tag, uint64_t patience_ns)
{
	vs_fence_cover(f, tag);
	while (!vs_fence_is_complete(f, tag)) {
		if (!vs_fence_wait(f, patience_ns))
			return vs_fence_is_complete(f, tag);
	}
	return true;
}

/* One barrier in every context; f->barrier held. */
static bool wait_behind_barrier(struct vs_fence *f)
{
	struct vs_ctx_set set;
	uint64_t epoch;
	bool is_good;

	/* a marker may be recorded if the last capture has just ended */
	epoch = vs_fence_turn(f);
	is_good = vs_ctx_gather(&set, vs_fence_copying(f));
	vs_stat_add(f->stats, waits, 1);
	for (int i = 0; is_good && i < set.n; i++) {
		if (vs_ctx_is_beyond(set.list[i]) || !vs_ctx_use(set.list[i]))
			continue;
		is_good = vs_capture_barrier(set.list[i]);
		vs_ctx_unuse(set.list[i]);
	}
	vs_ctx_scatter(&set);
	if (!is_good)
		return false;
	vs_fence_waited(f, epoch);
	return true;
}

/*
 * Where the device is full there may be no block to be had for a barrier. Each
 * try takes the driver milliseconds (an H200), and is an error to a tool that
 * looks. So for a while after one in vain all contexts are waited for, as after
 * that one; beside a capture it is tried. Not for longer: meanwhile a capture
 * that begins waits as well, and there may be room by then. f->barrier held.
 */
#define VAIN_NS ((uint64_t)200000000)

static bool wait_for_all(struct vs_fence *f)
{
	bool is_vain = vs_vmm_clock() < f->vain_until, is_good;

	if (is_vain && wait_for_contexts(f))
		return true;
	is_good = wait_behind_barrier(f);
	f->vain_until = is_good ? 0 : vs_vmm_clock() + VAIN_NS;
	return is_good || (!is_vain && wait_for_contexts(f));
}

bool vs_fence_barrier(struct vs_fence *f)
{
	uint64_t tag = vs_fence_tag(f);
	bool is_good;
	int cancel;

	/* where a marker can be had, it is none of these that is wanting */
	if (vs_fence_may_mark(f) && vs_fence_record(f))
		return false;
	/* the driver's wait may be a point where a thread is cancelled */
	cancel = vs_cancel_hold();
	pthread_mutex_lock(&f->barrier);
	/*
	 * Another thread's may have served for this one. A begin must not wait
	 * for what may wait for its thread: all contexts come last, if there is
	 * room for a barrier.
	 */
	is_good = vs_fence_is_complete(f, tag) || wait_for_all(f);
	pthread_mutex_unlock(&f->barrier);
	vs_cancel_let(cancel);
	return is_good;
}

/* --- by a thread of the shim's -------------------------------------------- */

static void *bar(void *fence)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_fence *f = fence;

	if (vs_thread_go_within(t)) {
		vs_fence_barrier(f);
		vs_thread_come_out(t);
	}
	atomic_store(&f->has_barrier, false);
	return NULL;
}

/* A barrier that fails at once is not tried for ever. */
enum { BARRIERS = 2 };

bool vs_fence_barrier_for(struct vs_fence *f, uint64_t patience_ns)
{
	uint64_t tag = vs_fence_tag(f), last = vs_vmm_clock(), took = 0;
	int n_started = 0;

	if (patience_ns == UINT64_MAX)
		return vs_fence_barrier(f);
	if (vs_fence_may_mark(f) && vs_fence_record(f))
		return false;
	for (unsigned round = 0; !vs_fence_is_complete(f, tag); round++) {
		took += vs_clock_passed(&last, vs_vmm_clock());
		if (took >= patience_ns)
			return false;
		if (!atomic_exchange(&f->has_barrier, true)) {
			bool may_start = n_started++ < BARRIERS;

			if (may_start &&
			    vs_thread_start(bar, f, vs_loader_tls()) == 0)
				continue;
			atomic_store(&f->has_barrier, false);
			/* no more threads: better without an end than none */
			return may_start && vs_fence_barrier(f);
		}
		vs_vmm_pause(round);
	}
	return true;
}
