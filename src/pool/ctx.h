/* SPDX-License-Identifier: MIT
 *
 * ctx: the program's contexts. VMM memory belongs to none, so the shim notes
 * for each block which context it was allocated under, and records markers in
 * each context that can reach a block.
 *
 * The table is keyed by handle and guarded by one mutex (HACKING.md, Locks). A
 * struct vs_ctx is never freed (but one that nobody was given): a dead one
 * stays valid to look at, and a context that gets the same handle value later
 * gets a new struct.
 *
 * Note [An end takes its time]: before the driver's own function the pool waits
 * for the context's work and takes back what it owned. All this time the driver
 * answers as if nothing was, and another thread may allocate under the context.
 * So that it is not taken for a new one, which nobody would end, the dead one
 * stays in the table until the driver's function has returned: such an
 * allocation is the driver's. Then the driver is to be believed again: it has
 * no such context, or has it still (a reset leaves a primary one to whoever
 * retains it, a release may not have been the last).
 *
 * A green context owns nothing: its memory is the primary context's, and a
 * marker of the primary context covers it. So it has no struct of its own,
 * only an entry that names the primary one.
 */
#ifndef VS_POOL_CTX_H
#define VS_POOL_CTX_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/thread.h"
#include "base/uthash_meta.h"

struct vs_pool;

enum {
	/* a fault was answered while it was current: the driver words errors */
	VS_CTX_BLAMED = 1,
	/* it answers with one itself, for good: no work of it goes on */
	VS_CTX_BEYOND = 2,
};

struct vs_ctx {
	UT_hash_handle hh;	/* table, by handle; table lock */
	CUcontext handle;	/* constant */
	CUdevice device;	/* constant; -1: only its end was seen */
	struct vs_ctx *next;	/* all live contexts; table lock */
	struct vs_slabs *slabs; /* pool/slab's; NULL: none; lock of the pool */
	_Atomic bool is_dead;	/* destroyed or reset */
	bool has_ended;		/* before its end was told of; who ends it */
	_Atomic unsigned users; /* see vs_ctx_use() */
	_Atomic unsigned char trouble; /* VS_CTX_*; 0: none */
	_Atomic(CUdeviceptr)
		barrier; /* pool/capture's, of the driver; 0: none */
};

/*
 * The struct of a live context, made if it is new; NULL when it is ending, the
 * driver does not know the context or memory is short.
 */
struct vs_ctx *vs_ctx_get(CUcontext handle);
/* The same for this thread; without a lock if it is the handle asked for last.
 */
struct vs_ctx *vs_ctx_of(struct vs_thread *t, CUcontext handle);
/*
 * The same for a context that the driver has just made, or retained: one of
 * this handle that is ending is another.
 */
struct vs_ctx *vs_ctx_born(CUcontext handle, CUdevice device);
/* Known live context of this handle; NULL if never seen, or ending. */
struct vs_ctx *vs_ctx_peek(CUcontext handle);
/* That of the calling thread's current context; NULL, too, if there is none. */
struct vs_ctx *vs_ctx_current(void);
/*
 * A context that was listed may be destroyed by another thread at any time. It
 * stays until vs_ctx_unuse; false: it is dead, and all its work is done. Not to
 * be held over a wait but for its own work.
 */
bool vs_ctx_use(struct vs_ctx *ctx);
void vs_ctx_unuse(struct vs_ctx *ctx);
/*
 * What a driver call about this very context answered. True if that is an error
 * for good: a kernel faulted, and whatever its work may still do, the context
 * can have no more and read no result. So nothing waits for it, until it is
 * gone.
 */
bool vs_ctx_failed(struct vs_ctx *ctx, CUresult result);
static inline bool vs_ctx_is_beyond(const struct vs_ctx *ctx)
{
	return atomic_load_explicit(&ctx->trouble, memory_order_relaxed) &
	       VS_CTX_BEYOND;
}
/*
 * The context of this handle is about to end. Its struct: a dead one if it was
 * never seen before; NULL if another thread ends it already, or memory is
 * short. vs_pool_ctx_gone() takes that.
 */
struct vs_ctx *vs_ctx_ending(CUcontext handle);
/* Marks the context dead; returns when nobody uses it any more. */
void vs_ctx_bury(struct vs_ctx *ctx);

/*
 * From now on `green`, a green context turned into a CUcontext, stands for
 * its primary context. vs_ctx_get and vs_ctx_peek then answer with that.
 */
void vs_ctx_alias(CUcontext green, CUcontext primary);
void vs_ctx_unalias(CUcontext green);

/*
 * Live contexts on the devices whose bit is set in `devices`: writes at most
 * `max` of them, returns how many there are.
 */
int vs_ctx_list(uint64_t devices, struct vs_ctx **list, int max);
/* Whether there is one on the device. */
static inline bool vs_ctx_any(CUdevice device)
{
	struct vs_ctx *any[1];

	return vs_ctx_list((uint64_t)1 << device, any, 1) > 0;
}

/* All of them, however many; on the stack while they are few. */
#define VS_CTX_FEW 64
struct vs_ctx_set {
	struct vs_ctx **list;
	int n, room; /* room: in a list of its own; 0: in `few` */
	struct vs_ctx *few[VS_CTX_FEW];
};
/* False without host memory; else vs_ctx_scatter gives it back. */
bool vs_ctx_gather(struct vs_ctx_set *set, uint64_t devices);
void vs_ctx_scatter(struct vs_ctx_set *set);

void vs_ctx_forked(void);

#endif
