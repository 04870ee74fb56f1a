/* SPDX-License-Identifier: MIT */
/*
 * Context: primary, created and green contexts; owns their streams.  Guarded
 * by the lock.  A context's structure lives until sim_reset(), so that events
 * and messages may refer to a dead one.
 */
#ifndef SIM_CONTEXT_H
#define SIM_CONTEXT_H

#include "sim_call.h"
#include "sim_stream.h"

struct sim_context {
	uint64_t handle;
	uint64_t id; /* new each time it comes to life */
	int device;
	struct sim_context *parent; /* of a green one: the primary */
	uint64_t green_handle;	    /* of a green one, else 0 */
	struct sim_context *next;   /* all that ever were */
	bool primary;
	bool alive;
	unsigned flags;
	unsigned attached;
	/* cuCtxSetLimit: the heap's, 0 as created; device memory of both */
	uint64_t heap_limit, heap_bytes, stack_bytes;
	CUresult sticky;	    /* broken for good */
	struct sim_stream *streams; /* all, destroyed ones with work too */
	struct sim_stream *legacy;
	/* cuCtxWaitEvent: later work of any stream waits for it */
	struct sim_vclock waits;
	uint64_t n_waits;
	struct sim_context *peers[64]; /* whose memory it may reach */
	unsigned n_peers;
};

/* The calling thread's context: alive and not broken. */
CUresult sim_context_current(struct sim_context **ctx_out);
/*
 * The same, alive, broken or not: NULL if there is none. An H200's driver asks
 * nothing more where it only reads the struct; that of a context that was made,
 * or is green, may be gone by then (there the process crashed): reported.
 */
struct sim_context *sim_context_bound(void);
/* By handle; destroyed ones are CONTEXT_IS_DESTROYED. */
CUresult sim_context_get(CUcontext handle, struct sim_context **ctx_out);
/* By handle, or the current one for NULL. */
CUresult sim_context_get_or_current(CUcontext handle,
				    struct sim_context **ctx_out);
/* All work of ctx (and its green contexts, if it is no green one). */
void sim_context_clock(struct sim_context *ctx, struct sim_vclock *clock);
/* All work of all contexts of a device. */
void sim_context_device_clock(int device, struct sim_vclock *clock);
/* Whose memory and peers it has: its own, a green one its parent's. */
struct sim_context *sim_context_owner(struct sim_context *ctx);
bool sim_context_reaches(const struct sim_context *ctx,
			 const struct sim_context *owner);
struct sim_context *sim_context_new_green(struct sim_context *parent);
/* Before a kernel: the heap for its threads, of the size that was asked for. */
bool sim_context_take_heap(struct sim_context *ctx);
/* Gives back what the limits took. */
void sim_context_drop_limits(struct sim_context *ctx);
/* Wait for its work, then free what it owns. */
void sim_context_end(struct sim_context *ctx);
struct sim_context *sim_context_first(void);
unsigned sim_context_count(int device);
void sim_context_reset(void);

#endif
