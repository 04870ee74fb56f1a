/* SPDX-License-Identifier: MIT */
/*
 * Stream: an ordered queue of work in a context.  Each piece of work has a
 * number; three counters tell how far the program has submitted, the device
 * has completed, and the host has seen.  A destroyed stream lives on until its
 * work is complete and nothing refers to it.  Guarded by the lock.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "sim_call.h"
#include "sim_vclock.h"

struct sim_work;
struct sim_capture;
struct sim_joins;

struct sim_stream {
	uint64_t handle; /* 0 for legacy and per-thread ones */
	uint64_t id;	 /* never reused */
	struct sim_context *ctx;
	struct sim_stream *next, *prev; /* in ctx->streams */
	unsigned refs;			/* vector clocks, queue, context */
	unsigned flags;			/* CU_STREAM_NON_BLOCKING */
	int priority;
	uint64_t thread; /* of a per-thread stream, else 0 */
	bool legacy;
	bool blocking; /* has an order with the legacy one */
	bool destroyed;

	uint64_t submitted, completed, seen;
	/* what later work is ordered behind (own work not included) */
	struct sim_vclock behind;
	/* of that, what the next work still has to wait for */
	struct sim_vclock waits;
	uint64_t ctx_waits; /* ctx->n_waits already merged */

	struct sim_work *head, *tail; /* not complete, oldest first */
	bool served;		      /* a worker has it */
	pthread_cond_t done;	      /* completed has grown */

	/* capture (sim_capture.c) */
	struct sim_capture *capture; /* NULL: not capturing */
	struct sim_stream *capture_next;
	unsigned capture_index;
	struct sim_joins *joins; /* what its next operation follows */
};

struct sim_stream *sim_stream_new(struct sim_context *ctx, unsigned flags,
				  int priority);
struct sim_stream *sim_stream_hold(struct sim_stream *stream);
void sim_stream_drop(struct sim_stream *stream);
/* The program is done with it: no handle, freed when its work is complete. */
void sim_stream_destroy(struct sim_stream *stream);

/*
 * The stream that a CUstream argument means in the current context, with
 * NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD resolved.
 */
CUresult sim_stream_get(CUstream handle, struct sim_stream **stream_out);

/*
 * Bring the order up to date before a submission or a record: contexts'
 * waits, and the two-way barrier between the legacy stream and the blocking
 * ones.
 */
void sim_stream_order(struct sim_stream *stream);
/* Later work of stream waits for clock. */
void sim_stream_wait_for(struct sim_stream *stream,
			 const struct sim_vclock *clock);
/* All that stream has submitted, with what that was ordered behind. */
void sim_stream_clock(struct sim_stream *stream, struct sim_vclock *clock);

/*
 * Host wait until clock is complete, then mark it seen and empty it.  Drops
 * the lock while it waits.
 */
void sim_wait_clock(struct sim_vclock *clock);

#endif
