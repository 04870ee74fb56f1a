/* SPDX-License-Identifier: MIT */
/*
 * Event: the point in the streams' work that it was last recorded at, as a
 * vector clock.  Guarded by the lock.
 */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "sim_call.h"
#include "sim_vclock.h"

struct sim_event {
	uint64_t handle;
	struct sim_context *ctx;
	unsigned flags;
	struct sim_vclock clock;
	uint64_t time_ns; /* of completion; 0: never recorded */
	/* last recorded in a capture: which, and at what point of it */
	uint64_t capture_id;		    /* 0: not in a capture */
	struct sim_stream *captured_stream; /* held */
	struct sim_joins *captured;
};

/* Forget the last record, before a new one. */
void sim_event_begin(struct sim_event *event);
/* Error if it was last recorded in a capture; kills that if it is open. */
CUresult sim_event_check_captured(struct sim_event *event);
void sim_event_free_context(struct sim_context *ctx);

#endif
