/* SPDX-License-Identifier: MIT */
/*
 * Work: operations (kernels, copies, sets, host functions) and their journey
 * from submission to completion.  A graph launch is one piece of work with
 * many operations.
 *
 * Each operation runs in two steps: a delay, in which it touches nothing, and
 * the access, before which its ranges are checked under the lock; unmapping
 * waits for an access in progress, so that the simulator itself never
 * faults.  The operations' data are touched without the lock.
 */
#ifndef SIM_WORK_H
#define SIM_WORK_H

#include "sim_call.h"
#include "sim_vclock.h"

struct sim_extent {
	uint64_t addr, size;
	bool write;
	/* a host range given to a copy: any memory of the process will do */
	bool host;
	/* given to a copy that needs no access of the executing device */
	bool any_device;
	/* of a copy or set: the device whose memory it is, or SIM_HOST_HOME */
	int home;
};

#define SIM_HOST_HOME (-1)

struct sim_copy {
	uint64_t dst, src;
	size_t dst_pitch, src_pitch; /* from row to row */
	size_t dst_slice, src_slice; /* from plane to plane */
	size_t width, height, depth;
};

struct sim_set {
	uint64_t dst;
	size_t pitch, width, height; /* width in elements */
	uint32_t value;
	unsigned element; /* bytes: 1, 2, 4 */
};

#define SIM_MAX_ARGS 8
#define SIM_MAX_TOUCH 2

struct sim_op;

enum sim_delay {
	SIM_DELAY_NONE,
	SIM_DELAY_TIME, /* delay_arg ns */
	SIM_DELAY_FLAG, /* until *(uint32_t *)delay_arg */
};

enum sim_op_kind {
	SIM_OP_OTHER,
	SIM_OP_COPY,
	SIM_OP_SET,
	SIM_OP_KERNEL,
};

struct sim_op {
	enum sim_op_kind kind;
	const char *name; /* kernel or call, for messages */
	const char *call;
	/* Runs without the lock; NULL: nothing to do. */
	void (*run)(const struct sim_op *op);
	/* Runs with the lock when the operation is complete. */
	void (*finish)(const struct sim_op *op, struct sim_context *ctx);
	int device;		 /* that executes it */
	struct sim_context *ctx; /* of a copy or set: that it runs in */
	bool host_function;
	enum sim_delay delay;
	uint64_t delay_arg;
	unsigned n_touch;
	struct sim_extent touch[SIM_MAX_TOUCH];
	void *staged; /* freed when done */
	union {
		uint64_t args[SIM_MAX_ARGS];
		struct sim_copy copy;
		struct sim_set set;
		struct {
			CUhostFn fn;
			void *data;
		} host;
		struct {
			CUstreamCallback fn;
			CUstream stream;
			void *data;
		} callback;
		struct {
			void *object;
			uint64_t value;
		} any;
	} u;
};

enum sim_work_state {
	SIM_WORK_QUEUED,
	SIM_WORK_STARTED, /* manual clock: end is known */
	SIM_WORK_DELAYED, /* in a delay, touches nothing */
	SIM_WORK_ACCESS,  /* an access is in progress */
};

struct sim_work {
	struct sim_work *next;
	struct sim_stream *stream; /* held */
	uint64_t seq;
	enum sim_work_state state;
	struct sim_vclock waits;
	uint64_t end_ns; /* manual clock */
	unsigned at;	 /* operation in progress */
	unsigned n_ops;
	struct sim_op *ops; /* owned, or a graph's (shared) */
	struct sim_op one;
};

/*
 * Submit n operations to a stream as one piece of work; the operations are
 * copied.  On a capturing stream they are added to the capture instead.
 */
CUresult sim_submit(struct sim_stream *stream, const struct sim_op *ops,
		    unsigned n);
/* The same, and wait until they are complete (and seen). */
CUresult sim_submit_sync(struct sim_stream *stream, const struct sim_op *op);

/* Is an access in progress that overlaps the range?  Waits until none is. */
void sim_work_quiesce(uint64_t start, uint64_t size);

/* For workers and the manual clock: one piece of work from its start. */
bool sim_work_ready(const struct sim_work *work);
bool sim_work_delay_over(const struct sim_op *op);
uint64_t sim_work_duration(const struct sim_work *work);
/* Run all operations; drops the lock.  honour_delays: really wait. */
void sim_work_run(struct sim_work *work, bool honour_delays);
void sim_work_complete(struct sim_work *work);

/* Pieces of work submitted and not complete. */
uint64_t sim_work_pending(void);
/* Throw away everything that is queued and stop the workers. */
void sim_work_reset(void);

/* sim_worker.c: a worker takes the stream, if none has it. */
void sim_worker_serve(struct sim_stream *stream);
void sim_worker_reset(void);
/* In a child: the parent's workers are not here. */
void sim_worker_forget(void);
/* sim_clock.c */
uint64_t sim_clock_now(void);
void sim_clock_add(struct sim_stream *stream);
/*
 * Manual clock: run the next thing that becomes due, however late.  False if
 * nothing can run; the caller polls then (a kernel waits for a flag).
 */
bool sim_clock_step(uint64_t until_ns);
void sim_clock_reset(void);

#endif
