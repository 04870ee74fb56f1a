/* SPDX-License-Identifier: MIT
 *
 * fence: knows when freed memory may be used again, and keeps out of captures.
 *
 * A free is tagged with the current epoch. A marker ends the epoch: it is an
 * event in each context that can reach the pool's memory, recorded after the
 * epoch number was raised, so it covers all work submitted before any free
 * with that tag or an earlier one. When the host has seen the oldest marker
 * complete, all memory with its epoch or an earlier one is free to be used.
 * Policy ordered has all later work of the contexts wait for the marker on the
 * device, and hands memory out then; to unmap it, though, the host must have
 * seen the marker complete.
 *
 * cuCtxRecordEvent kills every capture of its context, in any mode, from any
 * thread (seen on an H200), so captures are counted process-wide, and a marker
 * is recorded only at count 0, with begins shut out meanwhile (a reader-writer
 * lock).
 *
 * Note [Peers]: the driver's cuMemFree waits for the work of the memory's own
 * context and for copies that other contexts do on it, not for their kernels
 * (two H200, 580.159.04, each behind 200 ms). Markers cover the kernels of
 * other devices as well; but one that waits for the host, in the middle of a
 * loop on this device, would stop all reuse. So when waits have lasted longer
 * than COURTESY in vain a marker goes by the contexts that count: those of the
 * device, and of devices that have copied or set any of its memory (Note
 * [Copies of peers] in hook/copier.h), or in a stream of which some was freed
 * (cuMemFreeAsync: the kernels of that stream come before the free, too), since
 * the last marker that was complete: that one covers what they did before, and
 * comes right behind a copy, since a kernel that waits for the host may be next
 * (vs_mark_copied). So it is with who launches a graph, of whatever memory
 * (Note [Graphs of several devices] in hook/copier.h). Where a graph has such a
 * copy, which may run at any time, its device counts for good. A copy is noted
 * when it was given to its stream, as a free is tagged (Note [Tag and record]):
 * either the marker that ends the epoch of the note finds it, or it is noted
 * again with the next epoch. No wait beside a capture tells such a copy from a
 * kernel, be it that of a collective, whose other half comes after this very
 * free: where another device counts, what is freed there stays pending, until
 * it is needed or a marker can be had.
 *
 * Note [One stream]: policy stream goes by what the host has seen. But while
 * the program has one context, and all its work comes in one stream (Note [Two
 * feeders] in base/stream.h), an allocation has later work wait instead of the
 * host, as in policy ordered. In that stream nothing is held up that would not
 * come later anyway; no other may have work left from before, which the wait
 * does not hold: a marker since the last change of the stream was seen
 * complete. A second may come into use, and must not be held up by what waits
 * for it: so it is done by markers alone that were recorded for a free, with no
 * work between the last free before them and themselves. What such a one covers
 * the driver's cuMemFree would have waited for, in that last free. What no wait
 * of the context holds back gets memory that is complete, and from then on that
 * is so for all: another context, another process, what was registered
 * (vs_fence_lend). Of drivers that need no call of CUDA's none may be there
 * (base/modules).
 *
 * Note [Who frees]: the driver's cuMemFree holds up the thread that calls it,
 * and no other: a finalizer's, that gives no work, may be held up by a kernel
 * which the program feeds meanwhile. So a free counts for Note [One stream]
 * only if its thread has given the stream work itself, and nothing else since.
 * (Of two threads in one stream either may free and the other feed: README.md,
 * Limits.)
 *
 * Note [Tag and record]: a free does fence, then load epoch; a record does
 * store epoch + 1, then fence, then look which contexts there are, then
 * cuCtxRecordEvent in each. If the free still reads the old number, its fence
 * comes first in the order of all fences, hence the work submitted before it,
 * and the context it was submitted to, are visible to the record. No lock is
 * shared between the two. Who waits for all work instead does the same by
 * vs_fence_turn().
 */
#ifndef VS_POOL_FENCE_H
#define VS_POOL_FENCE_H

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/knob.h"
#include "base/stat.h"
#include "base/stream.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/copies.h"
#include "pool/ctx.h"
#include "pool/event.h"

/*
 * Markers in flight.
 *
 * Note [Thin out]: a marker covers all work before it, so what an older one
 * covers the next one covers, too. When all are in flight every second one is
 * dropped: the memory it stood for is seen complete a little later. The oldest
 * stays, since waits are counted by it (Note [Patience]), and so do those that
 * are kept.
 */
#define VS_MARKERS 128

struct vs_marker {
	uint64_t epoch;		 /* all frees up to this tag are covered */
	struct vs_event *events; /* not yet seen complete */
	uint64_t recorded;	 /* ticks */
	bool is_kept;		 /* see vs_fence_keep() */
	/* for no free that counts, or work came between; Note [One stream] */
	bool is_loose;
};

/*
 * Every free reads `epoch`, and every thread that is short of objects `done`:
 * they are apart from the lock and what it guards.
 */
struct vs_fence {
	_Alignas(
		64) _Atomic uint64_t epoch; /* tag for frees made now; from 1 */
	_Atomic uint64_t covered; /* a marker stands for these tags, or did */
	_Atomic uint64_t done;	  /* memory with these tags may be handed out */
	_Atomic uint64_t complete; /* and, up to this one, be unmapped */
	_Atomic uint64_t bare; /* the newest tag that anything was freed with */
	/* the same of frees that count for Note [One stream], or about to be */
	_Atomic uint64_t waited;
	_Atomic bool is_broken; /* a marker failed: none for a while */
	_Atomic bool is_loose;	/* unmarked work came since the last free */
	_Atomic bool is_barred; /* policy stream orders nothing any more */
	_Atomic bool is_lent;	/* nor is left what was, see vs_fence_lend() */
	/* constant, of the knob REUSE; at most one of them */
	bool is_ordered, may_order;
	bool has_context_events; /* constant */
	_Atomic uint64_t looked; /* by vs_fence_glance(), last; ticks */
	/* all below; leaf, but for ctx's lock */
	_Alignas(64) pthread_mutex_t lock;
	struct vs_marker ring[VS_MARKERS];
	/* oldest, next free; tail - head in flight; written under lock */
	_Atomic unsigned head, tail;
	struct vs_event *spare; /* events to use again */
	/* vs_stream.changes at the last marker, and the first one with it */
	unsigned stream_turn;
	uint64_t stream_from; /* its epoch */
	uint64_t due;	      /* one so old is likely to be complete; ticks */
	_Atomic uint64_t lag; /* the last: record to seen complete; ticks */
	_Atomic uint64_t calm_lag; /* see vs_fence_calm_lag(); ticks */
	uint64_t calm_age;  /* of the oldest at the last look, if it counts */
	uint64_t calm_from; /* the epoch when a wait last ran out of time */
	_Atomic uint64_t crowded; /* settles that met another at it; grows */
	/* threads in vs_fence_wait(), and the most of late */
	_Atomic unsigned waiting, waiting_high;
	_Atomic uint64_t asked; /* by one of them, last; ns */
	_Atomic uint64_t slow;	/* a wait for this epoch ran out of time */
	_Atomic uint64_t slow_patience; /* this much, ns */
	_Atomic uint64_t in_vain;	/* all waits that ran out of time; ns */
	_Atomic uint64_t *reach; /* devices whose contexts reach the memory */
	/* of them, those that count for good; see Note [Peers] */
	_Atomic uint64_t *counting;
	_Atomic bool is_curt; /* markers go by vs_fence_counting() and copies */
	pthread_mutex_t barrier; /* one at a time; before the pool's locks */
	uint64_t vain_until; /* ns; barrier; see wait_for_all() in pool/wait */
	_Atomic bool has_barrier; /* by a thread, vs_fence_barrier_for()'s */
	struct vs_stats *stats;
	_Atomic uint64_t began_ns,
		began_ticks;	/* by which a tick is measured */
	_Atomic uint64_t broke; /* is_broken: the last time; ns */
	_Atomic bool is_told;	/* that was said */
	/* devices that have copied the memory, and the tag of the last time */
	_Atomic uint64_t copiers;
	_Atomic uint64_t copied[VS_MAX_DEVICES];
	struct vs_copies copies;
};

void vs_fence_init(struct vs_fence *f, struct vs_stats *stats,
		   _Atomic uint64_t *reach, _Atomic uint64_t *counting,
		   bool has_context_events, enum vs_reuse reuse);

/* The tag of all that is submitted up to now. See Note [Tag and record]. */
static inline uint64_t vs_fence_tag(struct vs_fence *f)
{
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load_explicit(&f->epoch, memory_order_relaxed);
}

/* The first with a tag writes it; never lower. */
static inline void vs_fence_note(_Atomic uint64_t *newest, uint64_t tag)
{
	uint64_t was = atomic_load_explicit(newest, memory_order_relaxed);

	while (__builtin_expect(was < tag, 0) &&
	       !atomic_compare_exchange_weak_explicit(newest, &was, tag,
						      memory_order_relaxed,
						      memory_order_relaxed))
		;
}

/* The same, for what is freed now. */
static inline uint64_t vs_fence_tag_freed(struct vs_fence *f)
{
	uint64_t tag = vs_fence_tag(f);

	vs_fence_note(&f->bare, tag);
	return tag;
}

/* It matters what comes before a marker, and who frees; Note [One stream]. */
static inline bool vs_fence_is_watched(const struct vs_fence *f)
{
	return f->may_order && !vs_stream_is_given_up();
}

/*
 * Around a free in which the program would have waited for all work so far. A
 * marker that is recorded meanwhile, by the free itself perhaps, counts by what
 * is noted before, and for no other free: one for which nobody would have
 * waited has a tag as well, and work may have come since the last that has.
 */
static inline void vs_fence_note_waited(struct vs_fence *f)
{
	vs_fence_note(&f->waited,
		      atomic_load_explicit(&f->epoch, memory_order_relaxed));
}

static inline void vs_fence_tighten(struct vs_fence *f)
{
	if (__builtin_expect(
		    atomic_load_explicit(&f->is_loose, memory_order_relaxed),
		    0))
		atomic_store_explicit(&f->is_loose, false,
				      memory_order_relaxed);
}

/*
 * Work comes next, and what is bare has no marker before it; or what was noted
 * as waited was no free. A line that every free reads is not written where
 * nobody will want to know.
 */
static inline void vs_fence_loosen(struct vs_fence *f)
{
	if (vs_fence_is_watched(f) &&
	    !atomic_load_explicit(&f->is_loose, memory_order_relaxed))
		atomic_store_explicit(&f->is_loose, true, memory_order_relaxed);
}

/* Something was freed that no marker covers yet. */
static inline bool vs_fence_is_bare(const struct vs_fence *f)
{
	return atomic_load_explicit(&f->bare, memory_order_relaxed) >
	       atomic_load_explicit(&f->covered, memory_order_relaxed);
}

/* The devices that count now; see Note [Peers]. */
static inline uint64_t vs_fence_counting(const struct vs_fence *f)
{
	uint64_t counting = atomic_load(f->counting);
	uint64_t complete = atomic_load(&f->complete);
	uint64_t left = atomic_load(&f->copiers) & ~counting;

	for (; left; left &= left - 1)
		if (atomic_load(&f->copied[__builtin_ctzll(left)]) > complete)
			counting |= left & -left;
	return counting;
}

/* And those that would but for Note [Copies one by one]. */
static inline uint64_t vs_fence_copying(const struct vs_fence *f)
{
	return vs_fence_counting(f) | atomic_load(&f->copies.devices);
}

/* One of them is another. */
static inline bool vs_fence_counts_others(const struct vs_fence *f)
{
	uint64_t copying = vs_fence_copying(f);

	return (copying & (copying - 1)) != 0;
}

/*
 * Work of another device that copies or sets the memory was given to its stream
 * before the call; the program has not been told so yet. Any thread.
 */
void vs_fence_note_copy(struct vs_fence *f, CUdevice device);

/* Markers are the driver's events, and none has failed. */
static inline bool vs_fence_has_events(const struct vs_fence *f)
{
	return f->has_context_events &&
	       !atomic_load_explicit(&f->is_broken, memory_order_relaxed);
}

/* Neither the driver's age nor a capture stands in the way of a marker now. */
static inline bool vs_fence_may_mark(const struct vs_fence *f)
{
	return f->has_context_events && vs_capture_count() == 0;
}

/* Policy ordered, or as far as is known without a lock Note [One stream]. */
static inline bool vs_fence_may_order(const struct vs_fence *f)
{
	return f->is_ordered ||
	       (f->may_order && vs_stream_is_single() &&
		!atomic_load_explicit(&f->is_barred, memory_order_relaxed));
}

/* The epoch may have ended without a marker, so its number does not tell. */
static inline bool vs_fence_is_covered(struct vs_fence *f, uint64_t tag)
{
	return tag <= atomic_load_explicit(&f->covered, memory_order_acquire);
}

static inline bool vs_fence_is_done(struct vs_fence *f, uint64_t tag)
{
	return tag <= atomic_load_explicit(&f->done, memory_order_acquire);
}

static inline bool vs_fence_is_complete(struct vs_fence *f, uint64_t tag)
{
	return tag <= atomic_load_explicit(&f->complete, memory_order_acquire);
}

/*
 * Ends the current epoch with a marker, if no capture is open and no error
 * stands in the way; returns whether it did. Never waits. May run under the
 * pool's lock.
 */
bool vs_fence_record(struct vs_fence *f);
/*
 * The same, unless a marker covers the tag by the time the lock is had: of many
 * threads that want one at once, one records it. Returns whether one covers it.
 */
bool vs_fence_cover(struct vs_fence *f, uint64_t tag);
/* The same for what is bare. Nothing on the device waits for a marker. */
bool vs_fence_mark(struct vs_fence *f);
/*
 * Has later work wait for what is pending instead of the host: policy ordered,
 * and stream as far as there are markers that serve (Note [One stream]). True
 * if more may be handed out than before. Never waits. May run under the pool's
 * lock.
 */
bool vs_fence_order(struct vs_fence *f);
/*
 * Some of the memory is about to be known to a context, a device or a process
 * that no wait holds back. Policy stream: waits until all that was handed out
 * is complete, no lock held, and orders nothing from now on. For 10 s at most
 * without seeing any marker complete: the work may wait for this very thread,
 * which the driver's functions would not hold up.
 */
void vs_fence_lend(struct vs_fence *f);
/* The newest marker covers work that no later one may cover. */
void vs_fence_keep(struct vs_fence *f);
/*
 * Has a marker cover the tag and looks at those in flight; returns whether
 * memory with the tag may be handed out. Of many threads that want this at once
 * one does it, and the others go by what it saw.
 */
bool vs_fence_settle(struct vs_fence *f, uint64_t tag);
/*
 * Looks at the markers in flight, oldest first, up to the first that is not
 * complete. Returns whether `complete` moved. May run under the pool's lock.
 */
bool vs_fence_poll(struct vs_fence *f);
/*
 * The least time (ticks) between two markers, or two looks at them, on which
 * nothing depends yet: a small part of how far the GPU is behind.
 */
uint64_t vs_fence_pace(struct vs_fence *f);
/* What that is at least. */
#define VS_PACE_LEAST ((uint64_t)200000)
/*
 * The same as vs_fence_poll (`now`: ticks); nothing while another thread does
 * it or records.
 */
void vs_fence_glance_at(struct vs_fence *f, uint64_t now);
/* The same, unless one was less than the fence's own pace ago. */
void vs_fence_glance(struct vs_fence *f);
/* There will be something to see: the next glance looks. */
static inline void vs_fence_look_soon(struct vs_fence *f)
{
	if (atomic_load_explicit(&f->head, memory_order_relaxed) !=
	    atomic_load_explicit(&f->tail, memory_order_relaxed))
		atomic_store_explicit(&f->looked, 0, memory_order_relaxed);
}
/*
 * Waits until the oldest marker in flight is seen complete, at most
 * `patience_ns` (UINT64_MAX: as long as it takes), no lock held. False if there
 * is none, time is up, or a wait for this very marker, no shorter, ran out of
 * time before. Once a marker failed, or where there are none:
 * vs_fence_barrier_for().
 *
 * Note [Patience]: markers are recorded late, so one may cover work that was
 * submitted after the free, even a kernel that runs until the host writes a
 * flag after this very call. The driver's cuMemAlloc would not have waited. So
 * a wait that only saves memory is short, and not repeated for one marker
 * unless it is longer (Note [Late] in pool/ladder.c).
 */
bool vs_fence_wait(struct vs_fence *f, uint64_t patience_ns);
/*
 * How long the GPU was behind lately, ns: the age of the oldest marker when it
 * was seen pending for the last time, if it waited for the GPU alone as far as
 * is known: it was recorded after the last wait that ran out of time. 0: no
 * such marker yet.
 */
uint64_t vs_fence_calm_lag(struct vs_fence *f);
/* The most threads that waited at once since they were forgotten; or 1. */
static inline unsigned vs_fence_waiters(struct vs_fence *f)
{
	unsigned n =
		atomic_load_explicit(&f->waiting_high, memory_order_relaxed);

	return n > 0 ? n : 1;
}

static inline void vs_fence_forget_waiters(struct vs_fence *f)
{
	atomic_store_explicit(&f->waiting_high, 0, memory_order_relaxed);
}

/*
 * After a free, while other threads are in need: `*need` > 0. Waits as the
 * driver's own cuMemFree does, until the work of the memory's own context `ctx`
 * is complete, at most `patience_ns`; that of others, which may wait for this
 * thread, is not waited for. Nothing where there are no markers. No lock held.
 */
void vs_fence_heed(struct vs_fence *f, const struct vs_ctx *ctx,
		   _Atomic unsigned *need, uint64_t patience_ns);

/*
 * Waits for this very marker, as long as it takes: whether it is complete. Not
 * if it is not in flight.
 */
bool vs_fence_wait_out(struct vs_fence *f, uint64_t epoch);

/* Records if `tag` has no marker yet and waits until that is seen complete. */
bool vs_fence_wait_tag(struct vs_fence *f, uint64_t tag, uint64_t patience_ns);

/*
 * Where no marker can be recorded - a capture is open, the driver has no
 * context events or refuses one - waits for all work as the driver's own
 * cuMemFree does. For need only. Not first for all contexts where there is no
 * capture yet: one that is about to begin waits for a thread that does so, and
 * keeps others from it, too. False if a marker can be recorded, which is then,
 * or a context has no means for any of this.
 */
bool vs_fence_barrier(struct vs_fence *f);

/* What is left of a patience since `began`, ns. */
static inline uint64_t vs_fence_rest(uint64_t began, uint64_t patience_ns)
{
	uint64_t took = vs_vmm_clock() - began;

	return took < patience_ns ? patience_ns - took : 0;
}

/*
 * The same, by a thread of the shim's, which may go on behind it: what is not
 * done in `patience_ns` is not waited for any longer (UINT64_MAX: by this
 * thread). True if all is done that was submitted before the call.
 */
bool vs_fence_barrier_for(struct vs_fence *f, uint64_t patience_ns);

/*
 * Policy ordered: a context that may use the memory from now on waits, on the
 * device, for the markers by which memory was handed out before it was there.
 * It is in the list of contexts by now. False if it may be capturing.
 */
bool vs_fence_welcome(struct vs_fence *f, struct vs_ctx *ctx);

/*
 * Drops the events of a context that is idle and about to die, and an error
 * that may have been its own.
 */
void vs_fence_forget(struct vs_fence *f, struct vs_ctx *ctx);

/*
 * After a marker failed: tries one again, some time later, so that what was
 * freed does not stay held for good. In a tick; no lock held.
 */
void vs_fence_mend(struct vs_fence *f);

/*
 * Ends the current epoch without a marker; returns its number. What follows is
 * behind the fence of Note [Tag and record].
 */
uint64_t vs_fence_turn(struct vs_fence *f);

/*
 * For pool/wait and pool/ordered, which have the waits above, the rest.
 * `do_it` with the lock held, captures shut out, and its answer; false, too, if
 * they cannot be, or a marker failed.
 */
bool vs_fence_locked(struct vs_fence *f, uint64_t tag,
		     bool (*do_it)(struct vs_fence *f, uint64_t tag));
/* The first in flight that covers a tag, or NULL; f->lock held. */
static inline struct vs_marker *vs_fence_marker_of(struct vs_fence *f,
						   uint64_t tag)
{
	for (unsigned i = f->head; i != f->tail; i++) {
		if (f->ring[i % VS_MARKERS].epoch >= tag)
			return &f->ring[i % VS_MARKERS];
	}
	return NULL;
}
/* `done`, `complete` or `covered` never fall; f->lock held. */
static inline void vs_fence_raise(_Atomic uint64_t *to, uint64_t epoch)
{
	if (epoch > atomic_load_explicit(to, memory_order_relaxed))
		atomic_store_explicit(to, epoch, memory_order_release);
}
/*
 * A driver call of a marker failed, or of a wait, and not since a kernel of the
 * context did (vs_ctx_failed). A want of memory passes, and so does the call of
 * a host function: the next marker covers what this one would have.
 */
void vs_fence_failed(struct vs_fence *f, const char *call, CUresult r);
/*
 * Everything up to an epoch was waited for, not by its markers, or there was no
 * context left that could have work. (One that is born meanwhile frees with
 * later tags.)
 */
void vs_fence_waited(struct vs_fence *f, uint64_t epoch);
/*
 * The driver has no events of a context, something freed was not seen complete,
 * and all work that may reach it is that of the current context, which the
 * program is about to wait for. Then vs_fence_waited(f, *epoch_out) is true
 * after it. False, too, without host memory.
 */
bool vs_fence_is_waited_for(struct vs_fence *f, uint64_t *epoch_out);

#endif
