/* SPDX-License-Identifier: MIT
 *
 * pool: serves allocations of one device. The face of the room: hooks and
 * report include this file and no other of the room, except share.h (exports)
 * and capture.h.
 *
 * One struct vs_pool a device, made when a context of it is born (at the first
 * allocation if that was not seen) and never unmade (except in a forked child,
 * which forgets all). Words used throughout:
 *
 *   granule      2 MiB, what the driver maps in (its granularity)
 *   arena        the addresses of a device, terabytes, reserved once
 *   heap         a part of the arena, for blocks of one kind of size
 *   chunk        one physical handle; mapped whole, at any number of places
 *   view         a place where a chunk is mapped
 *   range        a stretch of a heap's addresses: live, pending, idle, dead,
 *                busy (its chunks are being changed) or a hole
 *   shadow       what a range at one view of a chunk takes at its other views
 *   slab         a range cut into objects of one class, for up to 1 MiB
 *   epoch, tag   a number that each marker raises; what it was at a free
 *   marker       an event over all work of a context, recorded after frees
 *   pending      freed, its marker not yet seen complete
 *   complete     the host has seen the marker of its tag
 *   idle         free to be handed out
 *   cached       of a chunk: idle and mapped nowhere
 *   pinned       somebody else may reach it (IPC, a NIC); dead when freed
 *   need         what the program had live lately, and the slack
 *   wary, fussy  frees take the slow path: for now, by a knob
 *
 * The order of locks is in HACKING.md. No driver call is made under pool.lock
 * except event calls; pool.grow may be held over driver calls that do not wait
 * for the GPU.
 */
#ifndef VS_POOL_POOL_H
#define VS_POOL_POOL_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stat.h"

/*
 * "Not for the pool: call the real driver." No CUresult has this value; -2 and
 * -3 are those of pool/place.h.
 */
#define VS_PASS ((CUresult)-1)

struct vs_ctx;
struct vs_pool;

/* What a live allocation is; filled by vs_pool_find. */
struct vs_span {
	CUdeviceptr base;
	size_t size;   /* bytes the program asked for */
	uint64_t id;   /* new for each allocation of the process, from 1 */
	CUcontext ctx; /* current when it was made */
	CUdevice device;
};

/* --- allocations: pool.c, owner.c, newcomer.c, share.c --- */

/*
 * Serves `size` bytes of the current context's device. CUDA_SUCCESS; VS_PASS
 * for whatever cannot succeed (0 bytes, no context, no VMM, absurd size): the
 * real function then words the error; CUDA_ERROR_OUT_OF_MEMORY after the whole
 * ladder, the real cuMemAlloc included; the driver's error when a kernel has
 * faulted, or VMMSHIM_ZERO could not clear it. Any thread. Waits for the GPU as
 * pool/ladder.h says: to hold no more than the program needs, or to have memory
 * at all.
 */
CUresult vs_pool_alloc(size_t size, CUdeviceptr *out);

/*
 * Frees an allocation by its base. VS_PASS for every other pointer (0,
 * foreign, interior, freed) and where no context is current, or one that
 * another thread has ended: what was its memory may be another's by now. Then
 * the real function words the answer. An error of the driver's where a kernel
 * has faulted or the driver is going down. Never waits for the GPU, except in
 * mode sync, with knobs JUNK and GUARD, and once for many frees where no marker
 * can be recorded (pool/mark.h: a driver before 12.5, a capture that is open).
 */
CUresult vs_pool_free(CUdeviceptr p);

/* The live allocation that `p` points into. Lock-free. */
bool vs_pool_find(CUdeviceptr p, struct vs_span *span_out);
/* `p` lies in an arena, allocated or not. Lock-free. */
bool vs_pool_is_inside(CUdeviceptr p);

/*
 * Somebody whom no wait of a context holds back will know of memory of the pool
 * of `p`: what was handed out before it was complete is waited for (policy
 * stream; how long: vs_fence_lend). No lock held.
 */
void vs_pool_lend(CUdeviceptr p);
/*
 * The same for all pools: there is a context that waits may not hold, a second
 * one or a green one.
 */
void vs_pool_lend_all(void);
/*
 * `p` lies in a live block that somebody else can reach from now on (exported,
 * registered): after its free it goes back to the driver as soon as its work is
 * done and its chunks hold nothing else, and is not used again before there is
 * need, see Note [Dead, not for ever] in pool/dead.h. As vs_pool_lend(), too.
 */
void vs_pool_pin(CUdeviceptr p);
/*
 * The same for every live block that lies in [p, end) or reaches into it;
 * returns whether there is one. Looks at each 512 B: for short stretches.
 */
bool vs_pool_pin_between(CUdeviceptr p, CUdeviceptr end);

/* --- faults: trouble.c, guard.c --- */

/*
 * A driver call answered that a kernel has faulted: the current context gets no
 * memory from the pool any more, as long as the driver has none for it.
 */
void vs_pool_broken(void);
/* A driver call answered so; with knob GUARD a fault is explained, once. */
void vs_pool_faulted(CUresult result);

/* --- what is idle: trim.c, decay.c, others.c --- */

/* The pool of the current context's device; NULL: there is none. */
struct vs_pool *vs_pool_current(void);

/*
 * Idle and pending bytes of a pool, for cuMemGetInfo. *limit_out: knob
 * MEMORY_LIMIT in bytes, 0: none; *held_out: all that the pool holds.
 */
uint64_t vs_pool_reclaimable(struct vs_pool *pool, uint64_t *limit_out,
			     uint64_t *held_out);

/*
 * A number that grows with each chunk that goes between the driver and the
 * pool: what both of them say is of one moment if it is the same before and
 * after. Waits while one is on its way, but not for long (the caller may come
 * from a callback that the driver made from under the pool): then 0.
 */
uint64_t vs_pool_moves(struct vs_pool *pool);

/*
 * How far a relief goes. IDLE: to what is idle; pending memory is waited for
 * first only if that alone can bring bytes. DUE: all that is pending is waited
 * for. LAST, as there is no further try: other processes are asked as well,
 * whatever was released, since a busy thread leaves some each time.
 */
enum vs_relief { VS_RELIEF_IDLE, VS_RELIEF_DUE, VS_RELIEF_LAST };

/*
 * Gives idle memory of `devices` (bits, one at least) back so that another
 * allocating call can be repeated. What brings nothing is asked of other
 * processes, be there a pool here or not (of the current context's device
 * first, if there are several). Returns the bytes released; 1 if there were
 * none, but another try may be worth it: another thread took what it waited
 * for, or another process what was given, and may have left other memory; or
 * another thread has given back, or has taken, what was idle there.
 */
uint64_t vs_pool_relieve(uint64_t devices, enum vs_relief relief);
/*
 * Sees what is complete of what was freed there: vs_pool_relieve() then tells
 * what ends after this from what ended before. No driver call where all of it
 * was seen, or nothing has a marker.
 */
void vs_pool_look(uint64_t devices);

/* Gives all idle memory back; polls, never waits. Returns bytes released. */
uint64_t vs_pool_trim(void);
/* The same for a call of the program's, which its end does not stop. */
uint64_t vs_pool_trim_called(void);
/*
 * For other processes that are out of memory: what names the device of pool `i`
 * for all (0: nothing does, or knob NEIGHBOURS is 0); and gives the idle memory
 * of that pool back. If there is none but some is pending, waits for that, a
 * second at most, and not again for what it waited for in vain. Returns bytes
 * released.
 */
uint64_t vs_pool_device_id(int i);
uint64_t vs_pool_give_way(int i);
/* Decay: idle memory above the threshold unused for DECAY_MS goes back. */
void vs_pool_tick(void);
/*
 * Something that was freed to pool `i` has not been seen complete: a later tick
 * will find it idle, though nobody calls meanwhile.
 */
bool vs_pool_is_waiting(int i);
/*
 * The process is about to end: who trims, gives way or ticks stops after the
 * chunk in hand, until this is called with false. Other calls go on as ever.
 */
void vs_pool_ending(bool is);
/*
 * The program is about to give the GPU work, of any context: what was freed
 * gets a marker first, see Note [Before work] in pool/mark.h. Cheap.
 */
void vs_pool_before_work(void);
/*
 * The program is about to wait for the GPU: what it freed gets a marker, so
 * that the wait is for that, too. It has just done so: the marker is looked at
 * next (and decay 0 acts here). Cheap.
 */
void vs_pool_synchronizing(void);
void vs_pool_synchronized(void);
/*
 * The same around a wait for all of the current context: with a driver that has
 * no events of a context, it may be what tells that freed memory is complete.
 * Nothing else would, before the program allocates again.
 */
struct vs_pool_sync {
	struct vs_pool *pool; /* or NULL */
	uint64_t epoch;
};
void vs_pool_sync_begins(struct vs_pool_sync *sync);
void vs_pool_sync_ended(const struct vs_pool_sync *sync);

/* --- contexts: ctx.c, newcomer.c, prepare.c, end.c, follow.c --- */

/* A context was seen (created or retained). */
void vs_pool_ctx_born(CUcontext ctx, CUdevice device);
/* Then, before the program has it, no lock held: it may be the second one. */
void vs_pool_ctx_come(void);
/*
 * Makes the pool of a device of which a context was born, and what its first
 * allocations need, once: they then cost no more than the driver's. False where
 * there is no pool. Never waits for the GPU.
 */
bool vs_pool_prepare(CUdevice device);
/*
 * The context is about to be destroyed or reset: waits until it is idle, takes
 * back what it owned, forgets its markers. Call before the driver's own
 * function, and vs_pool_ctx_gone() with the answer (may be NULL) after that,
 * whether it succeeded or not: until then what is allocated under the context
 * is the driver's.
 */
struct vs_ctx *vs_pool_ctx_dying(CUcontext ctx);
void vs_pool_ctx_gone(struct vs_ctx *ctx);
/* It is between those two. */
bool vs_pool_ctx_is_ending(CUcontext ctx);
/*
 * Called with the id of each live allocation that the end of its context takes,
 * before its memory can be handed out again. Under the pool's lock: it may call
 * nothing of the pool's or the driver's. NULL: nobody wants to know.
 */
extern void (*_Atomic vs_pool_on_lost)(uint64_t id);

/*
 * `green` is what cuCtxFromGreenCtx made of a green context of `primary`: all
 * that is allocated under it belongs to the primary context. It is about to be
 * destroyed (`green` NULL: it was never turned into one): nothing of it goes,
 * but its work can no longer be named after.
 */
void vs_pool_green_born(CUcontext green, CUcontext primary);
void vs_pool_green_dying(CUdevice device);
/* The driver has destroyed it: before, it is no context of its own. */
void vs_pool_green_gone(CUcontext green);
/* The context that owns what is allocated under `ctx`: this or its primary. */
CUcontext vs_pool_ctx_owning(CUcontext ctx);
/*
 * The device of a live context; CU_DEVICE_INVALID of none, and where the driver
 * has an error to say. It is asked only of a context that was never seen, or
 * has ended.
 */
CUdevice vs_pool_ctx_device(CUcontext ctx);

/*
 * What `later` is given from now on in its NULL stream, and in streams that
 * wait for that one, begins when what `earlier` was given so far in such
 * streams is done. Waits for nothing, but while a capture is open, which an
 * event might kill, and where no event can be had: then for `earlier`. Nothing
 * for a context that is not known.
 */
void vs_pool_follow(CUcontext later, CUcontext earlier);
/* Live contexts that are known, green ones with their primary one. */
int vs_pool_ctx_count(void);
/* Several devices have, or had, such contexts. */
bool vs_pool_ctx_apart(void);

/* --- other devices and processes: pool.c, newcomer.c --- */

/* Peer access of `ctx` to memory of context `peer` was switched. */
CUresult vs_pool_peer(CUcontext ctx, CUcontext peer, bool is_enabled);
/* Devices (bits) with access to memory of `device`, besides itself. */
uint64_t vs_pool_peers(CUdevice device);

/*
 * Work of another `device` may reach the pool that holds `p`: its contexts are
 * waited for, too, before memory is used again. With `is_opened` the device
 * also gets access to every chunk, present and future, or an error.
 */
CUresult vs_pool_reach(CUdeviceptr p, CUdevice device, bool is_opened);
/*
 * Work of `devices` (bits) that copies or sets memory of the pool that holds
 * `p`, be it any, see Note [Peers] in pool/fence.h: such work was given to
 * `stream` before the call; or a graph has it, which may be launched at any
 * time. Those that cannot reach the memory do not matter. Any thread.
 */
void vs_pool_copied(CUdeviceptr p, uint64_t devices, CUstream stream);
void vs_pool_copies(CUdeviceptr p, uint64_t devices);
/*
 * `devices` are about to be given work that may reach memory of any other
 * device; it was given to `stream`.
 */
void vs_pool_launches(uint64_t devices);
void vs_pool_launched(uint64_t devices, CUstream stream);
/*
 * Devices (bits) whose work may reach the memory at `p`, but for those of which
 * vs_pool_copies() has told. None: it is not the pool's.
 */
uint64_t vs_pool_uncounted(CUdeviceptr p);

/* In a forked child: forgets everything, frees nothing. */
void vs_pool_forked(void);

/* Number of pools; stats of pool `i`. Async-signal-safe. */
int vs_pool_count(void);
const struct vs_stats *vs_pool_stats(int i, CUdevice *device_out);
/*
 * 16 bytes that name the device of pool `i` for all processes and tools, whose
 * ordinals may differ; NULL: the driver tells none. Async-signal-safe.
 */
const unsigned char *vs_pool_uuid(int i);
/* Brings gauges that are kept per thread up to date. Async-signal-safe. */
void vs_pool_refresh(int i);

#endif
