/* SPDX-License-Identifier: MIT
 *
 * race_test: while markers are recorded all the time something comes that they
 * are to cover, and then something is freed.
 */
#ifndef VS_TESTS_RACE_TEST_H
#define VS_TESTS_RACE_TEST_H

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "fake_test.h"

enum { RACES = 20000, RACE_SECONDS = 20 }; /* of a busy machine, fewer */

static CUcontext raced; /* whose markers are counted */
static CUresult (*record_alone)(CUcontext, CUevent);
static _Atomic unsigned long n_raced;
static _Atomic bool is_race_over;

static CUresult CUDAAPI count_record(CUcontext ctx, CUevent event)
{
	if (ctx == raced)
		n_raced++;
	return record_alone(ctx, event);
}

static void *record_all_the_time(void *f)
{
	while (!is_race_over) {
		vs_fence_record(f);
		vs_fence_poll(f);
	}
	return NULL;
}

/*
 * How many times the marker that covers such a free was not recorded in `ctx`.
 * `begin` sees to it that markers are recorded without it, most of the time,
 * until `come` was called. `record`: the driver's function that records one.
 */
static inline unsigned long count_missed(struct vs_fence *f, CUcontext ctx,
					 CUresult (*record)(CUcontext, CUevent),
					 void (*begin)(struct vs_fence *),
					 void (*come)(struct vs_fence *))
{
	time_t until = time(NULL) + RACE_SECONDS;
	unsigned long n_missed = 0;
	pthread_t thread;

	raced = ctx;
	record_alone = record;
	vs_real.cuCtxRecordEvent = count_record;
	is_race_over = false;
	assert_int_equal(pthread_create(&thread, NULL, record_all_the_time, f),
			 0);
	for (int i = 0; i < RACES && time(NULL) < until; i++) {
		unsigned long before;
		uint64_t tag;

		begin(f);
		before = n_raced;
		come(f);
		tag = vs_fence_tag(f);
		while (!vs_fence_is_covered(f, tag))
			sched_yield();
		n_missed += n_raced == before;
	}
	is_race_over = true;
	pthread_join(thread, NULL);
	vs_real.cuCtxRecordEvent = record;
	return n_missed;
}

#endif
