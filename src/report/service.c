/* SPDX-License-Identifier: MIT */
#include "report/service.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/board.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/meta.h"
#include "base/stat.h"
#include "base/thread.h"
#include "driver/loader.h"
#include "driver/vmm.h"
#include "pool/pool.h"
#include "report/trace.h"

#define TRACE_MS 100
#define PERIOD_MIN_MS 50
#define PERIOD_MAX_MS 1000
/* Longest that the end of the process waits for a chunk being released. */
#define EXIT_WAIT_MS 20
/* Longest that its start waits for the thread. */
#define START_WAIT_NS (20 * VS_MS)
#define START_TICK_NS 50000

/* Bits of `requests`: why its bell (base/board) was rung by this process. */
enum { TRIM = 1, WAKE = 2, STOP = 4 };

enum life { NOT_STARTED, RUNNING, FAILED };

static _Atomic uint32_t requests;
static _Atomic int life; /* leaves NOT_STARTED under `starting` */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_busy; /* inside the pool */
static _Atomic bool is_up;   /* the thread has what it asks the system for */

/* Async-signal-safe: two atomics and one futex call. */
static void post(uint32_t request)
{
	atomic_fetch_or(&requests, request);
	vs_board_ring();
}

static uint64_t period_ms(void)
{
	uint64_t ms = vs_knobs.decay_ms / 4;

	if (ms < PERIOD_MIN_MS)
		return PERIOD_MIN_MS;
	return ms > PERIOD_MAX_MS ? PERIOD_MAX_MS : ms;
}

/*
 * What the pools hold and served, as one number: while it stays the same
 * nobody used them.
 */
static uint64_t fingerprint(void)
{
	uint64_t sum = 0;
	int n = vs_pool_count();

	for (int i = 0; i < n; i++) {
		CUdevice device;
		const struct vs_stats *stats = vs_pool_stats(i, &device);
		struct vs_stat_row row;

		/* polls and time go on by themselves; levels and hits do not */
		for (size_t r = 0; vs_stat_row(stats, r, &row); r++)
			if (row.is_gauge)
				sum = sum * 31 + row.value;
		sum = sum * 31 + vs_stat_get(stats, small_hit);
		sum = sum * 31 + vs_stat_get(stats, large_hit);
	}
	return sum;
}

/* Something was freed whose work goes on: it will be idle, unseen. */
static bool is_waiting(void)
{
	int n = vs_pool_count();

	for (int i = 0; i < n; i++) {
		if (vs_pool_is_waiting(i))
			return true;
	}
	return false;
}

/* Other processes ask for what is idle here; whether one did. */
static bool answer(void)
{
	bool is_any = false;
	int n = vs_pool_count();

	for (int i = 0; i < n; i++) {
		uint32_t number;

		vs_board_show((unsigned)i, vs_pool_device_id(i));
		if (!vs_board_is_asked((unsigned)i, &number))
			continue;
		vs_board_answer((unsigned)i, number, vs_pool_give_way(i));
		is_any = true;
	}
	return is_any;
}

/* As in serve(): the process may end before its thread is there. */
static void relax(void)
{
	CUstreamCaptureMode saved;

	atomic_store(&is_busy, true);
	if (!(atomic_load(&requests) & STOP))
		vs_vmm_relax(&saved);
	atomic_store(&is_busy, false);
}

/* The levels that are sums. */
static void refresh(void)
{
	int n = vs_pool_count();

	for (int i = 0; i < n; i++)
		vs_pool_refresh(i);
}

/* One round of work; whether there was a reason for it. */
static bool serve(uint32_t request)
{
	bool is_asked = false;

	atomic_store(&is_busy, true);
	/* the end of the process sets STOP first, then looks at is_busy */
	if (!(atomic_load(&requests) & STOP)) {
		if (request & TRIM)
			vs_pool_trim();
		is_asked = answer();
		vs_pool_tick();
		/* or what the process dumps at its end would be older */
		refresh();
		vs_meta_prepare();
		vs_trace_flush();
	}
	atomic_store(&is_busy, false);
	return request || is_asked;
}

/*
 * How long to sleep after a round. When the pools did not change for longer
 * than DECAY_MS there is nothing left to decay, and the thread sleeps until it
 * is woken. It first dozes for one period more: vs_hot.is_dozing is long
 * seen by every thread then, and what they did before they saw it is seen here.
 * That keeps vs_service_wake to one plain load.
 */
static uint64_t sleep_ms(uint64_t *quiet_ms)
{
	static uint64_t last;
	uint64_t period = vs_trace_is_on ? TRACE_MS : period_ms();
	uint64_t now = fingerprint();

	if (now != last || is_waiting()) {
		last = now;
		*quiet_ms = 0;
		atomic_store(&vs_hot.is_dozing, false);
		return period;
	}
	*quiet_ms += period;
	if (vs_trace_is_on || *quiet_ms < vs_knobs.decay_ms + 2 * period)
		return period;
	if (!atomic_exchange(&vs_hot.is_dozing, true))
		return period;
	return 0;
}

static void *run(void *unused)
{
	uint64_t quiet_ms = 0;

	/* for good: a callback that the driver makes here is not served */
	vs_thread_go_within(vs_thread_self());
	pthread_setname_np(pthread_self(), "vmmshim");
	atomic_store(&is_up, true);
	relax();
	for (;;) {
		uint32_t rung, request;

		if (vs_board_is_missed()) /* by now a slot may be free */
			vs_board_join();
		rung = vs_board_rung();
		request = atomic_exchange(&requests, 0);
		if (request & STOP) {
			/* if the end has not waited for it: as there */
			vs_pool_ending(false);
			return unused;
		}
		if (serve(request))
			quiet_ms = 0;
		vs_board_sleep(rung, sleep_ms(&quiet_ms));
	}
}

/*
 * Runs before the exit handlers of CUDA, which were registered earlier: no
 * driver call of this thread may meet a driver that is shutting down.
 */
static void at_exit(void)
{
	vs_board_leave();
	post(STOP);
	vs_pool_ending(true);
	for (int i = 0; i < EXIT_WAIT_MS && atomic_load(&is_busy); i++)
		vs_cancel_free_sleep(VS_MS);
	/* other exit handlers may yet need what is idle; else see run() */
	if (!atomic_load(&is_busy))
		vs_pool_ending(false);
}

/* Whether the thread is the caller's to start. */
static bool is_first(void)
{
	bool is;

	pthread_mutex_lock(&starting);
	is = atomic_load(&life) == NOT_STARTED;
	if (is && vs_knobs.neighbours)
		vs_board_join();
	/* who sees this does not wait, and may ask others */
	if (is)
		atomic_store(&life, RUNNING);
	pthread_mutex_unlock(&starting);
	return is;
}

/* Without a thread the next vs_service_wake trims. Async-signal-safe. */
static void leave_trim(void)
{
	atomic_fetch_or(&requests, TRIM);
	atomic_store(&vs_hot.is_dozing, true);
}

/*
 * After life may have turned FAILED, or by who took it for RUNNING a moment
 * ago: a trim that was posted for a thread which does not come is left.
 */
static void leave_posted_trim(void)
{
	if (atomic_load(&life) == FAILED && (atomic_load(&requests) & TRIM))
		leave_trim();
}

/*
 * A program may shut itself in once it has a context, all its threads with it
 * (seccomp), and what the C library and run() ask the system for in a new one
 * be what ends the process by then. Not for ever: the thread may need a lock of
 * the loader's that is held here.
 */
static void wait_until_up(void)
{
	uint64_t began = vs_clock_ns(CLOCK_MONOTONIC);

	while (!atomic_load(&is_up) &&
	       vs_clock_ns(CLOCK_MONOTONIC) - began < START_WAIT_NS)
		vs_cancel_free_sleep(START_TICK_NS);
}

/* Without the lock: the loader's may be needed, and be held by who waits. */
static void start(void)
{
	int error;

	/* first: another thread may end the process before there is one */
	atexit(at_exit);
	error = vs_thread_start(run, NULL, vs_loader_tls());
	if (error) {
		vs_board_leave();
		atomic_store(&life, FAILED);
		leave_posted_trim();
		vs_warn("cannot start the service thread (%s): idle memory "
			"goes back only when it is needed elsewhere",
			error == EAGAIN ? "no more threads" : "no memory");
		return;
	}
	wait_until_up();
}

void vs_service_start(void)
{
	if (atomic_load_explicit(&life, memory_order_acquire) == NOT_STARTED &&
	    is_first())
		start();
}

void vs_service_post_trim(void)
{
	switch (atomic_load(&life)) {
	case RUNNING:
		post(TRIM);
		leave_posted_trim();
		break;
	case FAILED:
		leave_trim();
		break;
	default:
		break;
	}
}

void vs_service_wake_up(void)
{
	struct vs_thread *t = vs_thread_self();
	bool is_running = atomic_load(&life) == RUNNING;

	/* a callback of the driver's may be under locks of the pool */
	if (!is_running && !vs_thread_go_within(t))
		return;
	if (atomic_exchange(&vs_hot.is_dozing, false)) {
		if (is_running) {
			post(WAKE);
			leave_posted_trim();
		} else if (atomic_exchange(&requests, 0) & TRIM) {
			vs_pool_trim();
		}
	}
	if (!is_running)
		vs_thread_come_out(t);
}

void vs_service_forked(void)
{
	/* a child from before the first cuInit may yet start its own */
	pthread_mutex_init(&starting, NULL);
	atomic_store(&life, NOT_STARTED);
	atomic_store(&requests, 0);
	vs_board_forked();
	atomic_store(&vs_hot.is_dozing, false);
	atomic_store(&is_busy, false);
	atomic_store(&is_up, false);
}
