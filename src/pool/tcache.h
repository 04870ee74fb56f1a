/* SPDX-License-Identifier: MIT
 *
 * tcache: what a thread keeps of small objects, one for each context it
 * allocates under. The hot path of small requests lives here.
 *
 * A cache is used by its thread; a spinlock of its own, hardly ever contended,
 * lets a trim or a dying context empty it from another thread. It is never
 * freed: an ended thread's cache is emptied and goes to the next thread, under
 * whatever context of the device (see pool/census for what it counted).
 */
#ifndef VS_POOL_TCACHE_H
#define VS_POOL_TCACHE_H

#include <bsd/sys/queue.h>
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"
#include "driver/vmm.h"
#include "pool/slab.h"

/* Bytes that a bin's batch may hold at most: that of a thread in a loop. */
#define VS_WIDE_BIN_BYTES ((size_t)64 << 20)
/* Objects that it may hold at first. */
enum { VS_FIRST_CAP = 2 };

struct vs_bin {
	struct vs_batch *idle;	/* ready to be handed out; NULL: never used */
	struct vs_batch *freed; /* freed by this thread, tag = the newest */
	/* objects a batch may hold now; grows with use; 0: see pool/flush */
	unsigned cap;
	unsigned wide; /* turns to go with larger batches */
	/* when a marker was last asked for, ticks; the thread's frees then */
	uint64_t settled, settled_frees;
	/*
	 * The first of `freed`, which have this tag or an older one: a marker
	 * that another thread recorded may cover them already.
	 */
	unsigned n_old;
	uint64_t tag_old;
	/* objects of near classes to be taken before a look; at the next */
	unsigned near_left, near_most;
};

struct vs_tcache {
	struct vs_tcache *next;	      /* of the same thread; constant */
	LIST_ENTRY(vs_tcache) listed; /* pool/census */
	CUcontext handle;   /* the key; spin; NULL: its thread has ended */
	struct vs_ctx *ctx; /* spin */
	struct vs_pool *pool;
	struct vs_slabs *slabs;
	_Atomic int spin;
	size_t small_max; /* largest size for the hot path; 0 if fussy */
	uint64_t serial, serial_end; /* numbers taken from the common stock */
	/* written by the thread, read by anyone (vs_range_live) */
	_Atomic uint64_t allocs, frees; /* objects handed out, taken back */
	_Atomic uint64_t alloc_spans;	/* bytes of the first, by object size */
	/*
	 * Bytes of the first less those of the second, which may be another
	 * thread's; as asked for, and by object size.
	 */
	_Atomic uint64_t live_bytes, live_spans;
	/* clock, ns; frees then: see vs_tcache_take_instead() */
	uint64_t larger_until, larger_frees;
	struct vs_bin bin[VS_N_CLASSES];
	uint64_t seen_calls; /* by vs_tcache_flush_unused(); pool.lock */
	bool is_rested;	     /* it was emptied then, and not used since */
	bool is_to_rest;     /* it is yet to be emptied for that; pool.lock */
	uint64_t flushed;    /* the last flush that it had; pool.lock */
	struct vs_tcache *next_made; /* of the same pool; constant */
};

/* Spin: a cache's own. */
static inline void vs_tcache_lock(struct vs_tcache *tc)
{
	/*
	 * The other side is a trim: rare, and it may have been preempted, by
	 * this very thread where that has a real-time priority. So it sleeps
	 * in the end: to yield would not let the other run.
	 */
	for (unsigned round = 0;
	     atomic_exchange_explicit(&tc->spin, 1, memory_order_acquire);
	     round++)
		vs_vmm_pause(round);
}

static inline void vs_tcache_unlock(struct vs_tcache *tc)
{
	atomic_store_explicit(&tc->spin, 0, memory_order_release);
}

/* Each of a pool's caches that a thread has; all others are empty. Lock. */
#define VS_EACH_TCACHE(tc, pool)                                               \
	for (struct vs_tcache *tc = LIST_FIRST(&(pool)->census.listed); tc;    \
	     tc = LIST_NEXT(tc, listed))
/* Each that was ever made; the list only grows. No lock. */
#define VS_EVERY_TCACHE(tc, pool)                                              \
	for (struct vs_tcache *tc = vs_tcache_first(pool); tc;                 \
	     tc = tc->next_made)

/* The first of these. */
static inline struct vs_tcache *vs_tcache_first(struct vs_pool *pool)
{
	return atomic_load_explicit(&pool->tcaches, memory_order_acquire);
}

/* The thread's cache for a context, or NULL. */
struct vs_tcache *vs_tcache_find(struct vs_thread *t, CUcontext handle);
/* Makes it. NULL: no host memory, or `ctx` is dead. Takes pool.lock. */
struct vs_tcache *vs_tcache_make(struct vs_thread *t, struct vs_pool *pool,
				 struct vs_ctx *ctx);

/*
 * Hot: `size` bytes (1 .. VS_SMALL_MAX) from the cache of this thread; 0 if
 * the bin is empty. The caller has checked that the context is current.
 */
CUdeviceptr vs_tcache_take(struct vs_tcache *tc, size_t size);
/*
 * Hot: the object at `p` of `slab` goes into the cache. CUDA_SUCCESS; VS_PASS
 * if `p` is not the base of a live object, or the slab takes none by the caches
 * of this context (vs_slab_caches). May hand a full batch to the pool.
 */
CUresult vs_tcache_put(struct vs_tcache *tc, struct vs_slab *slab,
		       CUdeviceptr p);
/*
 * Refills the bin of a class without growing; false if there is nothing, or the
 * context is dead.
 */
bool vs_tcache_refill(struct vs_tcache *tc, unsigned class);
/*
 * No slab can be had for `size` bytes: an object of the next larger class that
 * has any. 0 if none has, or the context is dead.
 */
CUdeviceptr vs_tcache_take_larger(struct vs_tcache *tc, size_t size);
/*
 * Before a slab is looked for: the same, if none could be had a moment ago. To
 * a program that churns (pool/turnover), rather than a new slab, an idle object
 * of this thread's that is up to half as large again.
 */
CUdeviceptr vs_tcache_take_instead(struct vs_tcache *tc, size_t size);
/*
 * Of a near class, if that served in vain looks for the class's own: before
 * the next one, which takes locks and asks the driver.
 */
CUdeviceptr vs_tcache_take_near_again(struct vs_tcache *tc, size_t size);
/*
 * The free, under a context, of an object that has no cache in this thread.
 * VS_PASS: it is none, or the current one has ended. Takes pool.lock.
 */
CUresult vs_tcache_put_elsewhere(struct vs_pool *pool, struct vs_ctx *current,
				 struct vs_slab *slab, CUdeviceptr p);

/*
 * Moves every object in the caches of the pool back to the slabs' batches.
 * Returns their bytes. Takes pool.lock, the spinlocks inside, and gives it up
 * in between.
 */
uint64_t vs_tcache_flush(struct vs_pool *pool);
/*
 * The same, and what was freed before has a marker, or later work waits for it
 * where that may be. No lock held.
 */
uint64_t vs_tcache_flush_marked(struct vs_pool *pool);
/* A flush of those that were not used since this was called the last time. */
void vs_tcache_flush_unused(struct vs_pool *pool);
/* Empties those of a context that dies: the objects go with their slabs. */
void vs_tcache_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx);
/*
 * Empties every bin of one. `is_dying`: the objects go with their slabs. Lock
 * and spin.
 */
void vs_tcache_empty(struct vs_pool *pool, struct vs_tcache *tc, bool is_dying);
/* The thread ends. */
void vs_tcache_exit(struct vs_thread *t);
/* A number no other allocation of the process has. */
uint64_t vs_serial_next(void);

#endif
