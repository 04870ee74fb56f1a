/* SPDX-License-Identifier: MIT */
/*
 * Clock: real time, or with SIM_CLOCK=manual a time that stands still until
 * sim_advance() or a synchronizing call.  Then no worker exists: whoever lets
 * time pass runs the work, in the order in which it ends.
 */
#include "sim.h"
#include "sim_base.h"
#include "sim_context.h"
#include "sim_work.h"

static uint64_t manual_now;
static bool stepping; /* somebody runs work without the lock */
static pthread_cond_t stepped = PTHREAD_COND_INITIALIZER;

uint64_t sim_clock_now(void)
{
	return sim_config.manual ? manual_now : sim_clock_ns();
}

/* Work starts when it heads its stream and what it waits for is complete. */
static void start_if_ready(struct sim_work *work)
{
	if (!work || work->state != SIM_WORK_QUEUED || !sim_work_ready(work))
		return;
	work->state = SIM_WORK_STARTED;
	work->end_ns = manual_now + sim_work_duration(work);
}

void sim_clock_add(struct sim_stream *stream)
{
	start_if_ready(stream->head);
}

static bool waits_for_flag(const struct sim_work *work)
{
	unsigned i;

	for (i = 0; i < work->n_ops; i++)
		if (!sim_work_delay_over(&work->ops[i]))
			return true;
	return false;
}

/* Start what can start; the one that ends first, or NULL. */
static struct sim_work *next_work(void)
{
	struct sim_work *best = NULL;
	struct sim_context *ctx;
	struct sim_stream *stream;

	for (ctx = sim_context_first(); ctx; ctx = ctx->next) {
		for (stream = ctx->streams; stream; stream = stream->next) {
			struct sim_work *work = stream->head;

			start_if_ready(work);
			if (!work || work->state != SIM_WORK_STARTED ||
			    waits_for_flag(work))
				continue;
			if (!best || work->end_ns < best->end_ns)
				best = work;
		}
	}
	return best;
}

bool sim_clock_step(uint64_t until_ns)
{
	struct sim_work *work;

	while (stepping)
		sim_wait(&stepped);
	work = next_work();
	if (!work || work->end_ns > until_ns)
		return false;
	if (work->end_ns > manual_now)
		manual_now = work->end_ns;
	stepping = true;
	sim_work_run(work, false);
	stepping = false;
	sim_work_complete(work);
	pthread_cond_broadcast(&stepped);
	return true;
}

uint64_t sim_advance(uint64_t ns)
{
	uint64_t until;

	sim_lock();
	until = manual_now + ns;
	while (sim_clock_step(until))
		;
	manual_now = until;
	sim_unlock();
	return until;
}

uint64_t sim_now(void)
{
	uint64_t now;

	sim_lock();
	now = sim_clock_now();
	sim_unlock();
	return now;
}

void sim_set_lag_us(unsigned us)
{
	sim_lock();
	sim_config.lag_us = us;
	sim_unlock();
}

/* Delays end at once after a reset began, so that all work is over. */
void sim_clock_reset(void)
{
	struct sim_context *ctx;
	struct sim_stream *stream;

	for (ctx = sim_context_first(); ctx; ctx = ctx->next)
		for (stream = ctx->streams; stream; stream = stream->next)
			while (stream->head)
				sim_work_complete(stream->head);
	manual_now = 0;
}
