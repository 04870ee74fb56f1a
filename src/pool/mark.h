/* SPDX-License-Identifier: MIT
 *
 * mark: when what a pool freed gets a marker (pool/fence), and when the markers
 * are looked at. The policy; fence has the means. All is under the pool's lock
 * that does not say otherwise.
 *
 * A wait is for the oldest marker, so several in flight make it a wait for
 * little work. A free makes no driver call, unless it is one of many over some
 * time, or of much memory: it leaves the marker to the next allocation.
 *
 * Note [Before work]: a program may free, start a kernel that runs for long, or
 * until the host lets it end, and then allocate: the driver has the memory back
 * by then. A marker recorded that late would end with the kernel. So what is
 * bare gets one before the program gives the GPU work (vs_pool_before_work). A
 * marker takes some .3 us, a launch a few, and a framework that caches nothing
 * frees before each of them: what is little is rationed, with some to spare for
 * a program that has made few of late; but not where memory is scarce, nor
 * where later work is made to wait for any marker (policy ordered): one behind
 * such a kernel stops all streams with it.
 *
 * Note [Kernels that wait for the host]: work may be given unseen, or by
 * another thread in the same moment. So only a small part of the device's
 * memory, small objects included, may be without a marker between two
 * allocations.
 *
 * Without context events there is only cuCtxSynchronize to wait with, which has
 * no patience, so that no allocation waits by it but to be spared an out of
 * memory. Frees do, now and then: those of the driver always wait. So they do
 * while a capture is open, which forbids markers.
 */
#ifndef VS_POOL_MARK_H
#define VS_POOL_MARK_H

#include "pool/state.h"

/* Other threads' small objects may be counted as live while they are freed. */
#define VS_MISCOUNT ((uint64_t)16 << 20)

/*
 * Whether a request of so many bytes that nothing idle fits is to wait for what
 * is pending before chunks are moved for it. If knob PENDING_LIMIT is set: if
 * more is pending. Else if much of the memory is: more than a twentieth of what
 * the program needs (Note [Need] in pool/grow.h; the traces of HACKING.md). And
 * if a large block that would serve is pending behind a GPU that is late: the
 * host has the time. Lock.
 */
bool vs_mark_is_worth_a_wait(struct vs_pool *pool, uint64_t span);

/*
 * What would have to come from the driver for so many bytes, were all work
 * complete; 0 if they could be had then: of all that is not live, of the pool
 * and of the device; how much of the driver's pools is live is not known. If
 * not, out of memory is said at once, as the driver does: the work may go on
 * until the host hears of it. A context of the device is current; takes grow
 * and the lock.
 */
uint64_t vs_mark_lacking(struct vs_pool *pool, uint64_t span);
/*
 * In need: waits, without end, for what this very thread freed last, if that
 * had a marker at once. The driver's cuMemFree would not have come back before.
 * Not where there are several contexts, for whose work it would not have
 * waited. Whether it waited. No lock held.
 */
bool vs_mark_wait_out(struct vs_pool *pool);

/*
 * Memory is scarce: most of the device's is held, or the driver had no more a
 * short while ago. Any thread.
 */
bool vs_mark_is_scarce(struct vs_pool *pool);
/* Of these the latter: there may be more than it seems. Any thread. */
bool vs_mark_was_refused(struct vs_pool *pool);
/* It had no more just now, or could not have had. Any thread. */
void vs_mark_refused(struct vs_pool *pool);

/*
 * What is pending is handed out by order, and waits neither for the host nor
 * for a look at the markers: it may be, and could be of late. Lock.
 */
bool vs_mark_spares_looks(const struct vs_pool *pool);

/*
 * So many bytes were freed (are pending or dead) that no marker covers. Records
 * one if that is too much; see the note above.
 */
void vs_mark_freed(struct vs_pool *pool, uint64_t bytes);
/* The same of small objects, which get their markers elsewhere. */
void vs_mark_freed_small(struct vs_pool *pool, uint64_t bytes);
/*
 * Something is bare, and the program is about to give the GPU work: a marker,
 * if that is due. Takes no lock but the fence's; any thread.
 */
void vs_mark_before_work(struct vs_pool *pool);
/*
 * The same, due or not, if the program's context takes calls: it has not ended,
 * and this is no host function.
 */
void vs_mark_bare(struct vs_pool *pool);
/*
 * Another device copied the memory, and counts for markers (Note [Peers] in
 * pool/fence.h) until one tells that it has: one that comes before its next
 * work, which may wait for the host. Rationed, until markers are curt. As
 * above; any thread.
 */
void vs_mark_copied(struct vs_pool *pool);
/* After a free: a marker, if much has long been without. */
void vs_mark_at_free(struct vs_pool *pool);
/* The same without the lock: waits, where there can be no marker now. */
void vs_mark_wait_at_free(struct vs_pool *pool);
/* Before an allocation, while memory is pending: marker and look, if due. */
void vs_mark_at_alloc(struct vs_pool *pool);
/* Sees to it that a marker covers all that is pending or dead. */
void vs_mark_all(struct vs_pool *pool);
/* The same; takes the lock. */
void vs_mark_pending(struct vs_pool *pool);
/* As vs_mark_all, and looks at the markers: something is needed now. */
void vs_mark_settle(struct vs_pool *pool);

/*
 * When work up to this tag is complete all that was freed is, as far as it has
 * left the caches of the threads: there is nothing else to wait for. Takes the
 * lock.
 */
uint64_t vs_mark_newest(struct vs_pool *pool);

#endif
