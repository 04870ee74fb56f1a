/* SPDX-License-Identifier: MIT */
/*
 * Vector clock: a set of points (stream, n), each meaning "the first n pieces
 * of work of that stream".  An event is one, and so is all that a stream's
 * next work is ordered behind.  Points that the host has seen complete are
 * left out: nothing waits for them any more.  Guarded by the lock.
 */
#ifndef SIM_VCLOCK_H
#define SIM_VCLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct sim_stream;

struct sim_point {
	struct sim_stream *stream; /* held */
	uint64_t n;
};

struct sim_vclock {
	struct sim_point *points; /* by stream id */
	unsigned n, max;
};

void sim_vclock_add(struct sim_vclock *clock, struct sim_stream *stream,
		    uint64_t n);
void sim_vclock_merge(struct sim_vclock *clock, const struct sim_vclock *other);
/* Leave out what has been seen since. */
void sim_vclock_prune(struct sim_vclock *clock);
/* Everything in it is complete. */
bool sim_vclock_complete(const struct sim_vclock *clock);
bool sim_vclock_covers(const struct sim_vclock *clock,
		       const struct sim_stream *stream, uint64_t n);
/* The host has seen all of it complete; empties the clock. */
void sim_vclock_see(struct sim_vclock *clock);
void sim_vclock_clear(struct sim_vclock *clock);

#endif
