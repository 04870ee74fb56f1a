/* SPDX-License-Identifier: MIT */
#include "pool/fence.h"

#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/ordered.h"

/* Before a marker is tried again after one that failed; ns. */
#define MEND_NS ((uint64_t)10000000000)
/* What vs_fence_pace() is: ticks; of the lag. */
#define PACE_MOST ((uint64_t)1000000)
#define PACE_SHARE 16
/* No machine has so many ticks in a ns, or the other way round. */
#define RATE_MOST 3

/*
 * A marker and a look at it take the holder of the lock less than 1 us on an
 * H200; to sleep and be woken takes longer than these many turns.
 */
enum { TURNS = 64, PAUSES_A_TURN = 4 };

/* From here on it is measured how long a tick is. */
static void begin_rate(struct vs_fence *f, uint64_t ns, uint64_t ticks)
{
	atomic_store_explicit(&f->began_ns, ns, memory_order_relaxed);
	atomic_store_explicit(&f->began_ticks, ticks, memory_order_relaxed);
}

void vs_fence_init(struct vs_fence *f, struct vs_stats *stats,
		   _Atomic uint64_t *reach, _Atomic uint64_t *counting,
		   bool has_context_events, enum vs_reuse reuse)
{
	memset(f, 0, sizeof(*f));
	f->lock = (pthread_mutex_t)VS_SPINNING_MUTEX;
	pthread_mutex_init(&f->barrier, NULL);
	atomic_store(&f->epoch, 1);
	f->stats = stats;
	f->reach = reach;
	f->counting = counting;
	f->has_context_events = has_context_events;
	f->is_ordered = reuse == VS_REUSE_ORDERED && has_context_events;
	f->may_order = reuse == VS_REUSE_STREAM && has_context_events;
	if (!f->may_order)
		vs_stream_give_up();
	begin_rate(f, vs_vmm_clock(), vs_vmm_ticks());
}

void vs_fence_note_copy(struct vs_fence *f, CUdevice device)
{
	uint64_t bit = (uint64_t)1 << device, tag;

	/* a line that all read is not written for what it has */
	if (!(atomic_load(&f->copiers) & bit))
		atomic_fetch_or(&f->copiers, bit);
	do {
		tag = vs_fence_tag(f);
		vs_fence_note(&f->copied[device], tag);
		/* a marker that ended this epoch may have missed the note */
	} while (vs_fence_tag(f) != tag);
}

void vs_fence_failed(struct vs_fence *f, const char *call, CUresult r)
{
	if (r == CUDA_ERROR_OUT_OF_MEMORY || r == CUDA_ERROR_NOT_PERMITTED)
		return;
	atomic_store(&f->broke, vs_vmm_clock());
	/* the end of the driver is no news, but nothing comes after it */
	if (atomic_exchange(&f->is_broken, true) ||
	    r == CUDA_ERROR_DEINITIALIZED || atomic_exchange(&f->is_told, true))
		return;
	vs_error("%s failed: %s; allocations go to the driver until markers "
		 "work again",
		 call, vs_real_error(r));
}

void vs_fence_mend(struct vs_fence *f)
{
	if (!atomic_load(&f->is_broken) || vs_capture_count() > 0 ||
	    vs_vmm_clock() < atomic_load(&f->broke) + MEND_NS)
		return;
	/* one that fails, now or later, breaks it again */
	atomic_store(&f->is_broken, false);
	if (!vs_fence_record(f)) {
		/* a capture has begun, perhaps */
		atomic_store(&f->is_broken, true);
		return;
	}
	/* nor do they serve policy ordered if nothing waits for them */
	if (f->is_ordered)
		vs_fence_order(f);
	if (atomic_load(&f->is_broken))
		return;
	atomic_store(&f->is_told, false);
	vs_info("markers work again: allocations are served");
}

/* One event in one context; f->lock held, captures shut out. */
static bool record_in(struct vs_fence *f, struct vs_ctx *ctx,
		      struct vs_event **list)
{
	struct vs_event *e;
	CUresult r;

	if (vs_ctx_is_beyond(ctx))
		return true;
	e = vs_event_take(&f->spare, ctx, &r);
	if (!e)
		return vs_ctx_failed(ctx, r);
	r = vs_real.cuCtxRecordEvent(ctx->handle, e->event);
	if (r != CUDA_SUCCESS)
		r = vs_vmm_record_again(ctx->handle, e->event, r);
	if (r == CUDA_SUCCESS) {
		e->next = *list;
		*list = e;
		return true;
	}
	vs_event_keep(&f->spare, e);
	if (vs_ctx_failed(ctx, r))
		return true;
	if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
	    r == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
		vs_capture_unseen();
	else
		vs_fence_failed(f, "cuCtxRecordEvent", r);
	return false;
}

/* An event in each context that reaches the memory, or counts; f->lock held. */
static bool record_in_all(struct vs_fence *f, struct vs_event **events)
{
	bool is_curt = atomic_load(&f->is_curt) && !f->is_ordered;
	struct vs_ctx_set set;
	bool is_good = vs_ctx_gather(&set, is_curt ? vs_fence_counting(f)
						   : atomic_load(f->reach));

	for (int i = 0; is_good && i < set.n; i++)
		is_good = record_in(f, set.list[i], events);
	vs_ctx_scatter(&set);
	return is_good;
}

/* f->lock held, captures shut out. */
static bool record_marker(struct vs_fence *f)
{
	struct vs_event *events = NULL;
	uint64_t epoch = atomic_load_explicit(&f->epoch, memory_order_relaxed);
	unsigned turn = atomic_load(&vs_stream.changes);
	uint64_t covered;

	atomic_store_explicit(&f->epoch, epoch + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	/* now: a context whose work came before a free of this tag is in it */
	if (f->has_context_events && !record_in_all(f, &events)) {
		vs_events_keep(&f->spare, events);
		return false;
	}
	vs_stat_add(f->stats, markers, 1);
	if (turn != f->stream_turn) {
		f->stream_turn = turn;
		f->stream_from = epoch;
	}
	covered = atomic_load_explicit(&f->covered, memory_order_relaxed);
	f->ring[f->tail % VS_MARKERS] = (struct vs_marker){
		.epoch = epoch,
		.events = events,
		.recorded = vs_vmm_ticks(),
		.is_loose = atomic_load(&f->is_loose) ||
			    atomic_load(&f->waited) <= covered};
	f->tail++;
	atomic_store_explicit(&f->covered, epoch, memory_order_release);
	return true;
}

/*
 * See Note [Thin out]; f->lock held. So does the one that a newcomer is ordered
 * behind.
 */
static void thin_out(struct vs_fence *f)
{
	unsigned from = f->head, to = from, end = f->tail;
	uint64_t done = atomic_load_explicit(&f->done, memory_order_relaxed);

	for (unsigned i = from; i != end; i++) {
		struct vs_marker *m = &f->ring[i % VS_MARKERS];

		if ((i - from) % 2 == 0 || i == end - 1 || m->is_kept ||
		    m->epoch == done)
			f->ring[to++ % VS_MARKERS] = *m;
		else
			vs_events_keep(&f->spare, m->events);
	}
	f->tail = to;
}

/* f->lock held, captures shut out. Returns whether a marker covers the tag. */
static bool mark(struct vs_fence *f, uint64_t tag)
{
	if (vs_fence_is_covered(f, tag))
		return true;
	if (f->tail - f->head == VS_MARKERS) {
		/* what is thinned out serves no more */
		if (f->may_order && vs_fence_may_order(f))
			vs_ordered_strict(f, tag);
		thin_out(f);
	}
	return f->tail - f->head < VS_MARKERS && record_marker(f);
}

/* The same, and in policy ordered memory with the tag may be handed out. */
static inline bool cover(struct vs_fence *f, uint64_t tag)
{
	return mark(f, tag) && (!f->is_ordered || vs_ordered_by(f, tag));
}

bool vs_fence_locked(struct vs_fence *f, uint64_t tag,
		     bool (*do_it)(struct vs_fence *f, uint64_t tag))
{
	bool is_covered;

	if (atomic_load_explicit(&f->is_broken, memory_order_relaxed) ||
	    !vs_capture_shut_out())
		return false;
	pthread_mutex_lock(&f->lock);
	is_covered = do_it(f, tag);
	pthread_mutex_unlock(&f->lock);
	vs_capture_let_in();
	return is_covered;
}

bool vs_fence_cover(struct vs_fence *f, uint64_t tag)
{
	return vs_fence_is_covered(f, tag) || vs_fence_locked(f, tag, mark);
}

bool vs_fence_mark(struct vs_fence *f)
{
	return vs_fence_cover(
		f, atomic_load_explicit(&f->bare, memory_order_relaxed));
}

bool vs_fence_record(struct vs_fence *f)
{
	return vs_fence_cover(f, UINT64_MAX);
}

void vs_fence_keep(struct vs_fence *f)
{
	pthread_mutex_lock(&f->lock);
	if (f->head != f->tail)
		f->ring[(f->tail - 1) % VS_MARKERS].is_kept = true;
	pthread_mutex_unlock(&f->lock);
}

/* Everything up to an epoch was seen complete; f->lock held. */
static void completed(struct vs_fence *f, uint64_t epoch)
{
	vs_fence_raise(&f->covered, epoch);
	/* first: who sees it complete, without the lock, looks for what is done
	 */
	vs_fence_raise(&f->done, epoch);
	vs_fence_raise(&f->complete, epoch);
}

/* See Note [Peers]; nor is what will never go on. */
static bool is_waited_for(struct vs_fence *f, const struct vs_event *e)
{
	return !vs_ctx_is_beyond(e->ctx) &&
	       (!atomic_load_explicit(&f->is_curt, memory_order_relaxed) ||
		vs_fence_counting(f) >> e->ctx->device & 1);
}

/*
 * Queries the events of one marker; true when none is left that is waited for.
 * f->lock held.
 */
static bool marker_is_done(struct vs_fence *f, struct vs_marker *m)
{
	while (m->events) {
		struct vs_event *e = m->events;
		CUresult r = CUDA_SUCCESS;

		if (is_waited_for(f, e))
			r = vs_event_query(e);
		if (r == CUDA_ERROR_NOT_READY)
			return false;
		if (r != CUDA_SUCCESS && !vs_ctx_failed(e->ctx, r)) {
			vs_fence_failed(f, "cuEventQuery", r);
			return false;
		}
		m->events = e->next;
		vs_event_keep(&f->spare, e);
	}
	return f->copies.n == 0 || vs_copies_are_done(f, m->epoch);
}

/* There is something to look at. */
static inline bool may_poll(struct vs_fence *f)
{
	return vs_fence_has_events(f) &&
	       atomic_load_explicit(&f->head, memory_order_relaxed) !=
		       atomic_load_explicit(&f->tail, memory_order_relaxed);
}

/* How many of `n` markers are old enough to be complete; f->lock held. */
static unsigned count_old(const struct vs_fence *f, unsigned n)
{
	uint64_t now = vs_vmm_ticks();
	unsigned n_old = 0;

	while (n_old < n &&
	       now - f->ring[(f->head + n_old) % VS_MARKERS].recorded >= f->due)
		n_old++;
	return n_old;
}

/*
 * How many of the oldest markers are complete. What is complete covers what is
 * older, so the first one looked at is the newest that is due (the next that is
 * kept at most: it is not covered). If it is complete the steps grow from
 * there, else from the oldest, and shrink again before what is not. `is_brief`:
 * one that is complete will do. f->lock held.
 */
static inline __attribute__((always_inline)) unsigned
count_done(struct vs_fence *f, bool is_brief)
{
	unsigned n = f->tail - f->head, n_done = 0, next_step = 1;
	unsigned step = n > 1 ? count_old(f, n) : 1;

	while (n_done < n) {
		struct vs_marker *m;
		unsigned i = n_done;
		uint64_t age;

		while (i + 1 < n && i + 1 < n_done + step &&
		       !f->ring[(f->head + i) % VS_MARKERS].is_kept)
			i++;
		m = &f->ring[(f->head + i) % VS_MARKERS];
		vs_stat_add(f->stats, polls, 1);
		if (marker_is_done(f, m)) {
			n_done = i + 1;
			if (is_brief)
				break;
			step = next_step;
			next_step *= 2;
			continue;
		}
		age = vs_vmm_ticks() - m->recorded;
		if (age >= f->due)
			f->due = age / 8 * 9;
		if (i == n_done) {
			f->calm_age = m->epoch >= f->calm_from ? age : 0;
			break;
		}
		n = i;
		step = 1;
		next_step = 2;
	}
	return n_done;
}

/* f->lock held, capture mode relaxed. Returns whether `complete` moved. */
static inline __attribute__((always_inline)) bool
look_at_markers(struct vs_fence *f, bool is_brief)
{
	uint64_t calm_age = f->calm_age;
	unsigned n;

	f->calm_age = 0;
	n = count_done(f, is_brief);
	for (unsigned i = 0; i < n; i++) {
		struct vs_marker *m = &f->ring[f->head % VS_MARKERS];

		vs_events_keep(&f->spare, m->events);
		if (i == n - 1) {
			completed(f, m->epoch);
			f->due = vs_vmm_ticks() - m->recorded;
			atomic_store_explicit(&f->lag, f->due,
					      memory_order_relaxed);
			/* newer ones may be as well */
			if (is_brief)
				f->due /= 2;
		}
		f->head++;
	}
	if (n > 0 && calm_age > 0)
		atomic_store_explicit(&f->calm_lag, calm_age,
				      memory_order_relaxed);
	return n > 0;
}

/* One of each, or a look would cost a fifth more instructions. */
static __attribute__((noinline)) bool poll_markers(struct vs_fence *f)
{
	return look_at_markers(f, false);
}

static __attribute__((noinline)) bool poll_briefly(struct vs_fence *f)
{
	return look_at_markers(f, true);
}

uint64_t vs_fence_calm_lag(struct vs_fence *f)
{
	uint64_t lag = atomic_load_explicit(&f->calm_lag, memory_order_relaxed);
	uint64_t now = vs_vmm_clock(), now_ticks = vs_vmm_ticks();
	uint64_t ns =
		now - atomic_load_explicit(&f->began_ns, memory_order_relaxed);
	uint64_t ticks = now_ticks - atomic_load_explicit(&f->began_ticks,
							  memory_order_relaxed);

	/* the machine was suspended, or the process is on another (CRIU) */
	if (ticks / RATE_MOST > ns || ns / RATE_MOST > ticks) {
		begin_rate(f, now, now_ticks);
		return lag;
	}
	/* not by floating point, whose flags are the program's */
	return ticks ? (uint64_t)((unsigned __int128)lag * ns / ticks) : 0;
}

uint64_t vs_fence_pace(struct vs_fence *f)
{
	uint64_t pace = atomic_load_explicit(&f->lag, memory_order_relaxed) /
			PACE_SHARE;

	if (pace < VS_PACE_LEAST)
		return VS_PACE_LEAST;
	return pace < PACE_MOST ? pace : PACE_MOST;
}

bool vs_fence_poll(struct vs_fence *f)
{
	CUstreamCaptureMode saved;
	bool is_moved;

	if (!may_poll(f))
		return false;
	vs_vmm_relax(&saved);
	pthread_mutex_lock(&f->lock);
	is_moved = poll_markers(f);
	pthread_mutex_unlock(&f->lock);
	vs_vmm_unrelax(saved);
	return is_moved;
}

void vs_fence_glance_at(struct vs_fence *f, uint64_t now)
{
	CUstreamCaptureMode saved;

	/* in policy ordered nothing that is reused waits for the host */
	if (f->is_ordered || !may_poll(f) ||
	    pthread_mutex_trylock(&f->lock) != 0)
		return;
	atomic_store_explicit(&f->looked, now, memory_order_relaxed);
	vs_vmm_relax(&saved);
	/* where later work waits instead of the host, nothing hangs on it */
	if (vs_fence_may_order(f))
		poll_briefly(f);
	else
		poll_markers(f);
	vs_vmm_unrelax(saved);
	pthread_mutex_unlock(&f->lock);
}

void vs_fence_glance(struct vs_fence *f)
{
	uint64_t now = vs_vmm_ticks();

	if (now - atomic_load_explicit(&f->looked, memory_order_relaxed) >=
	    vs_fence_pace(f))
		vs_fence_glance_at(f, now);
}

/* Takes the lock; false if another thread made that needless. */
static bool lock_unless_done(struct vs_fence *f, uint64_t tag)
{
	for (unsigned i = 0; i < TURNS; i++) {
		if (pthread_mutex_trylock(&f->lock) == 0)
			return true;
		if (i == 0)
			atomic_fetch_add_explicit(&f->crowded, 1,
						  memory_order_relaxed);
		for (unsigned j = 0; j < PAUSES_A_TURN; j++)
			vs_relax_cpu();
		if (vs_fence_is_done(f, tag))
			return false;
	}
	pthread_mutex_lock(&f->lock);
	return true;
}

bool vs_fence_settle(struct vs_fence *f, uint64_t tag)
{
	bool may_record;
	CUstreamCaptureMode saved;

	if (vs_fence_is_done(f, tag))
		return true;
	if (atomic_load_explicit(&f->is_broken, memory_order_relaxed))
		return false;
	may_record = vs_capture_shut_out();
	/* captures that are shut out need no care: two driver calls less */
	if (!may_record)
		vs_vmm_relax(&saved);
	if (lock_unless_done(f, tag)) {
		if (may_record)
			cover(f, tag);
		/* in policy ordered it is done by now, but not complete */
		if (f->has_context_events &&
		    (f->is_ordered || !vs_fence_is_done(f, tag)))
			poll_markers(f);
		pthread_mutex_unlock(&f->lock);
	}
	if (may_record)
		vs_capture_let_in();
	else
		vs_vmm_unrelax(saved);
	return vs_fence_is_done(f, tag);
}

/* Takes the markers up to an epoch out of the ring; f->lock held. */
static void drop_markers(struct vs_fence *f, uint64_t epoch)
{
	while (f->head != f->tail) {
		struct vs_marker *m = &f->ring[f->head % VS_MARKERS];

		if (m->epoch > epoch)
			break;
		vs_events_keep(&f->spare, m->events);
		m->events = NULL;
		f->head++;
	}
}

void vs_fence_waited(struct vs_fence *f, uint64_t epoch)
{
	pthread_mutex_lock(&f->lock);
	/* waits go by the oldest that is left */
	drop_markers(f, epoch);
	completed(f, epoch);
	pthread_mutex_unlock(&f->lock);
}

void vs_fence_forget(struct vs_fence *f, struct vs_ctx *ctx)
{
	pthread_mutex_lock(&f->lock);
	vs_copies_forget(f, ctx);
	vs_events_drop(&f->spare, ctx);
	for (unsigned i = f->head; i != f->tail; i++)
		vs_events_drop(&f->ring[i % VS_MARKERS].events, ctx);
	atomic_store(&f->is_broken, false); /* another's error comes again */
	pthread_mutex_unlock(&f->lock);
}

uint64_t vs_fence_turn(struct vs_fence *f)
{
	uint64_t epoch;

	pthread_mutex_lock(&f->lock);
	epoch = atomic_fetch_add(&f->epoch, 1);
	pthread_mutex_unlock(&f->lock);
	atomic_thread_fence(memory_order_seq_cst);
	return epoch;
}
