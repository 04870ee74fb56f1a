/* SPDX-License-Identifier: MIT */
/*
 * Workers: threads that run the work of streams.  A worker stays with a
 * stream as long as it has work, so there are as many threads as streams were
 * busy at once, and two streams never wait for one another's worker.  Idle
 * ones end soon: a program whose main thread left by pthread_exit ends with
 * its last thread.
 */
#include <signal.h>
#include <stdlib.h>

#include "sim_base.h"
#include "sim_context.h"
#include "sim_life.h"
#include "sim_work.h"

struct worker {
	struct worker *next;	   /* idle ones */
	struct sim_stream *stream; /* held; NULL: idle */
	pthread_cond_t wake;
};

#define IDLE_NS 50000000u

static struct worker *idle;
static unsigned n_busy;
static pthread_cond_t all_idle = PTHREAD_COND_INITIALIZER;

/* Until everything that work is ordered behind is complete. */
static void wait_ready(struct sim_work *work)
{
	unsigned i;

	for (i = 0; i < work->waits.n; i++) {
		struct sim_point *point = &work->waits.points[i];

		while (point->stream->completed < point->n)
			sim_wait(&point->stream->done);
	}
}

static void serve(struct sim_stream *stream)
{
	while (stream->head) {
		struct sim_work *work = stream->head;

		wait_ready(work);
		sim_work_run(work, true);
		sim_work_complete(work);
	}
	stream->served = false;
	sim_stream_drop(stream);
}

static void leave(struct worker *worker)
{
	struct worker **link = &idle;

	while (*link != worker)
		link = &(*link)->next;
	*link = worker->next;
	pthread_cond_destroy(&worker->wake);
	free(worker);
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;

	sim_lock();
	for (;;) {
		if (!worker->stream)
			sim_wait_ns(&worker->wake, IDLE_NS);
		if (!worker->stream)
			break;
		serve(worker->stream);
		worker->stream = NULL;
		worker->next = idle;
		idle = worker;
		if (--n_busy == 0)
			pthread_cond_broadcast(&all_idle);
	}
	leave(worker);
	sim_unlock();
	return NULL;
}

/* The program's signals are not for workers. */
static struct worker *worker_start(void)
{
	struct worker *worker = sim_zalloc(sizeof(*worker));
	sigset_t all, before;
	pthread_t thread;

	pthread_cond_init(&worker->wake, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (pthread_create(&thread, NULL, worker_main, worker)) {
		sim_say("sim: no thread for a stream");
		abort();
	}
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return worker;
}

void sim_worker_serve(struct sim_stream *stream)
{
	struct worker *worker = idle;

	if (worker)
		idle = worker->next;
	else
		worker = worker_start();
	n_busy++;
	stream->served = true;
	worker->stream = sim_stream_hold(stream);
	pthread_cond_signal(&worker->wake);
}

/* Busy ones run out of work soon: delays end when the epoch changes. */
void sim_worker_reset(void)
{
	while (n_busy)
		sim_wait(&all_idle);
}

void sim_worker_forget(void)
{
	idle = NULL;
	n_busy = 0;
}
