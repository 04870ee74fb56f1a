/* SPDX-License-Identifier: MIT */
#include "sim_work.h"

#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_judge.h"
#include "sim_memory.h"

static uint64_t n_pending;
/* A reset is on: what has not run never will. */
static bool discarding;

/* ---- submission ------------------------------------------------------ */

/* Only points that are not complete are worth waiting for. */
static void take_waits(struct sim_stream *stream, struct sim_work *work)
{
	unsigned i;

	for (i = 0; i < stream->waits.n; i++) {
		struct sim_point *point = &stream->waits.points[i];

		if (point->stream->completed < point->n)
			sim_vclock_add(&work->waits, point->stream, point->n);
	}
	sim_vclock_clear(&stream->waits);
}

static struct sim_work *work_new(struct sim_stream *stream,
				 const struct sim_op *ops, unsigned n)
{
	struct sim_work *work = sim_zalloc(sizeof(*work));

	work->stream = sim_stream_hold(stream);
	work->seq = ++stream->submitted;
	work->n_ops = n;
	work->ops = &work->one;
	if (n > 1)
		work->ops = sim_zalloc(n * sizeof(*ops));
	if (n)
		memcpy(work->ops, ops, n * sizeof(*ops));
	take_waits(stream, work);
	return work;
}

static void enqueue(struct sim_stream *stream, struct sim_work *work)
{
	if (stream->tail)
		stream->tail->next = work;
	else
		stream->head = work;
	stream->tail = work;
	n_pending++;
	if (sim_config.manual)
		sim_clock_add(stream);
	else if (!stream->served)
		sim_worker_serve(stream);
}

CUresult sim_submit(struct sim_stream *stream, const struct sim_op *ops,
		    unsigned n)
{
	CUresult result = sim_capture_check_submit(stream);
	struct sim_work *work;
	unsigned i;

	if (result != CUDA_SUCCESS)
		return result;
	if (stream->capture)
		return sim_capture_append(stream, ops, n);
	sim_stream_order(stream);
	work = work_new(stream, ops, n);
	for (i = 0; i < n; i++)
		sim_judge_submit(stream, work->seq, &work->ops[i]);
	enqueue(stream, work);
	return CUDA_SUCCESS;
}

CUresult sim_submit_sync(struct sim_stream *stream, const struct sim_op *op)
{
	struct sim_context *ctx = stream->ctx;
	struct sim_vclock clock = {0};
	CUresult result = sim_submit(stream, op, 1);

	if (result != CUDA_SUCCESS || stream->capture)
		return result;
	sim_stream_clock(stream, &clock);
	sim_wait_clock(&clock);
	return ctx->sticky;
}

/* ---- running --------------------------------------------------------- */

bool sim_work_ready(const struct sim_work *work)
{
	return sim_vclock_complete(&work->waits);
}

bool sim_work_delay_over(const struct sim_op *op)
{
	return op->delay != SIM_DELAY_FLAG || !sim_config.backing ||
	       __atomic_load_n((uint32_t *)op->delay_arg, __ATOMIC_ACQUIRE);
}

/* 1 us is what a launch takes at least. */
uint64_t sim_work_duration(const struct sim_work *work)
{
	uint64_t ns = (uint64_t)sim_config.lag_us * 1000;
	unsigned i;

	for (i = 0; i < work->n_ops; i++)
		if (work->ops[i].delay == SIM_DELAY_TIME)
			ns += work->ops[i].delay_arg;
	return ns > 1000 ? ns : 1000;
}

/* The flag itself must be there whenever somebody looks at it. */
static bool flag_is_mapped(const struct sim_work *work, const struct sim_op *op)
{
	return op->delay != SIM_DELAY_FLAG ||
	       sim_memory_accessible(op->delay_arg, sizeof(uint32_t),
				     work->stream->ctx, op->device, false);
}

/* With the lock held; drops it in short sleeps, so that a reset gets in. */
static void wait_delay(const struct sim_work *work, const struct sim_op *op)
{
	const uint64_t poll_ns = 50000;
	uint64_t end = sim_clock_ns() + op->delay_arg;

	while (!discarding && !work->stream->ctx->sticky &&
	       flag_is_mapped(work, op)) {
		uint64_t now = sim_clock_ns(), ns = poll_ns;

		if (op->delay == SIM_DELAY_TIME && now >= end)
			return;
		if (op->delay == SIM_DELAY_FLAG && sim_work_delay_over(op))
			return;
		if (op->delay == SIM_DELAY_TIME)
			ns = end - now < 20 * poll_ns ? end - now
						      : 20 * poll_ns;
		sim_unlock();
		sim_sleep_ns(ns);
		sim_lock();
	}
}

static void run_op(struct sim_work *work, struct sim_op *op, bool honour_delays)
{
	struct sim_stream *stream = work->stream;

	if (discarding)
		return;
	work->state = SIM_WORK_DELAYED;
	if (honour_delays && op->delay != SIM_DELAY_NONE)
		wait_delay(work, op);
	if (discarding || stream->ctx->sticky ||
	    !sim_memory_check_access(stream, op) || !op->run)
		return;
	work->state = SIM_WORK_ACCESS;
	sim_unlock();
	sim_thread.in_host_function = op->host_function;
	op->run(op);
	sim_thread.in_host_function = false;
	sim_lock();
	work->state = SIM_WORK_DELAYED;
	pthread_cond_broadcast(&stream->done);
}

void sim_work_run(struct sim_work *work, bool honour_delays)
{
	struct sim_op lag = {
		.delay = SIM_DELAY_TIME,
		.delay_arg = (uint64_t)sim_config.lag_us * 1000,
	};

	if (honour_delays && sim_config.lag_us)
		wait_delay(work, &lag);
	for (work->at = 0; work->at < work->n_ops; work->at++)
		run_op(work, &work->ops[work->at], honour_delays);
}

void sim_work_complete(struct sim_work *work)
{
	struct sim_stream *stream = work->stream;
	unsigned i;

	for (i = 0; i < work->n_ops; i++) {
		struct sim_op *op = &work->ops[i];

		if (op->finish)
			op->finish(op, stream->ctx);
		free(op->staged);
	}
	stream->head = work->next;
	if (!stream->head)
		stream->tail = NULL;
	stream->completed = work->seq;
	n_pending--;
	pthread_cond_broadcast(&stream->done);
	sim_vclock_clear(&work->waits);
	if (work->ops != &work->one)
		free(work->ops);
	free(work);
	sim_stream_drop(stream);
}

static bool accesses(const struct sim_work *work, uint64_t start, uint64_t size)
{
	const struct sim_op *op;
	unsigned i;

	if (!work || work->state != SIM_WORK_ACCESS)
		return false;
	op = &work->ops[work->at];
	for (i = 0; i < op->n_touch; i++)
		if (op->touch[i].addr < start + size &&
		    start < op->touch[i].addr + op->touch[i].size)
			return true;
	return false;
}

void sim_work_quiesce(uint64_t start, uint64_t size)
{
	struct sim_context *ctx;
	struct sim_stream *stream;

again:
	for (ctx = sim_context_first(); ctx; ctx = ctx->next) {
		for (stream = ctx->streams; stream; stream = stream->next) {
			if (!accesses(stream->head, start, size))
				continue;
			sim_stream_hold(stream);
			sim_wait(&stream->done);
			sim_stream_drop(stream);
			goto again;
		}
	}
}

uint64_t sim_work_pending(void)
{
	return n_pending;
}

void sim_work_reset(void)
{
	discarding = true;
	sim_worker_reset();
	sim_clock_reset();
	discarding = false;
}
