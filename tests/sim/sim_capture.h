/* SPDX-License-Identifier: MIT */
/*
 * Capture: streams that record a graph instead of running, and which calls
 * kill a capture (an H200).  Guarded by the lock.
 */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "sim_call.h"
#include "sim_work.h"

struct sim_graph;
struct sim_event;

#define SIM_MAX_JOINS 32

/*
 * A point in a capture: of each stream in it, by index, how many operations
 * come before.
 */
struct sim_joins {
	uint64_t n[SIM_MAX_JOINS];
};

struct sim_capture {
	uint64_t id;
	struct sim_stream *origin;
	struct sim_stream *streams; /* that take part, by capture_next */
	unsigned n_streams;
	CUstreamCaptureMode mode;
	uint64_t thread; /* that began it */
	bool killed;
	struct sim_graph *graph;
	struct sim_capture *next; /* all open ones */
};

/* A potentially unsafe call in this thread: kills what prohibits it. */
CUresult sim_capture_check_unsafe(void);
/* Submission: the legacy stream may be barred, the capture dead. */
CUresult sim_capture_check_submit(struct sim_stream *stream);
/* Query or wait on a stream: never on a capturing one. */
CUresult sim_capture_check_sync(struct sim_stream *stream);
/* A marker or synchronize of a whole context kills all captures in it. */
CUresult sim_capture_check_context(struct sim_context *ctx);

CUresult sim_capture_append(struct sim_stream *stream, const struct sim_op *ops,
			    unsigned n);
/* The stream is destroyed: its capture, if it has one, is dead. */
void sim_capture_leave(struct sim_stream *stream);
/* The calling thread ends, and a capture of its per-thread stream (an H100). */
void sim_capture_thread_ended(void);
void sim_capture_kill(struct sim_capture *capture);

/* Event record and wait on a capturing stream. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event);
void sim_capture_reset(void);

#endif
