/* SPDX-License-Identifier: MIT
 *
 * A program that moves chunks all the time (pool/toll), on the counting driver:
 * if that is much of its time it may hold more, by and by, and not for ever.
 */
#include <string.h>

#include "fake_test.h"
#include "pool/state.h"
#include "pool/toll.h"

enum { LIVE = 40, STEPS = 3, MOST_STEPS = 10, SLACK_STEP = 30 };

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* Blocks of other sizes each time, for those of 1 GiB live; a call each `pace`.
 */
static void work(int calls, uint64_t pace)
{
	static CUdeviceptr p[LIVE];
	static uint64_t sizes[LIVE], live, seed;

	if (fake.held == 0) {
		memset(sizes, 0, sizeof(sizes));
		live = 0;
		seed = 20261128;
	}
	while (calls-- > 0) {
		unsigned i = next_random(&seed) % LIVE;

		if (sizes[i] > 0)
			give(p[i]);
		live -= sizes[i];
		sizes[i] = (9 + next_random(&seed) % 60) * MiB;
		if (sizes[i] > GiB - live)
			sizes[i] = 0;
		if (sizes[i] > 0)
			p[i] = take(sizes[i]);
		live += sizes[i];
		fake.now += pace;
	}
}

static uint64_t moves_of(int calls, uint64_t pace)
{
	uint64_t before = stats()->chunks_moved;

	work(calls, pace);
	return stats()->chunks_moved - before;
}

/* Calls of 60 us, where each chunk that is moved takes more. */
static void test_one_that_pays_much_holds_more(void **state)
{
	uint64_t first, last;

	(void)state;
	work(1000, 60000);
	first = moves_of(1000, 60000);
	assert_true(stats()->eased == 0);
	work(20000, 60000);
	last = moves_of(1000, 60000);
	assert_true(stats()->eased >= STEPS);
	assert_true(last < first / 3);
	/* 4.4 % and ten steps; what is beyond is the chunks' own */
	assert_true(fake.held_high <= GiB / 100 * 139);
}

static void test_one_that_works_meanwhile_does_not(void **state)
{
	(void)state;
	work(20000, 5 * MS);
	assert_int_equal(stats()->eased, 0);
	assert_true(fake.held_high <= GiB / 100 * 116);
}

/*
 * A program's only pool, with a block in it; it has had the trunk first, and
 * that did not do.
 */
static struct vs_pool *make_pool(void)
{
	struct vs_pool *pool;

	take(64 * MiB);
	pool = vs_pool_by_index(0);
	pool->is_trunk_first = true;
	return pool;
}

/* Windows of 100 ms of which so much is paid, in calls of 1 ms. */
static void pay(struct vs_pool *pool, int windows, uint64_t paid)
{
	uint64_t end = fake.now + (uint64_t)windows * 100 * MS;

	while (fake.now < end) {
		fake.now += 100 * MS / (paid / MS);
		vs_toll_pay(pool, fake.now - MS, fake.now);
	}
}

static void test_the_trunk_comes_first(void **state)
{
	struct vs_pool *pool = make_pool();

	(void)state;
	pool->is_trunk_first = false;
	for (int i = 0; i < 10; i++) {
		pay(pool, 1, 4 * MS);
		pay(pool, 2, MS);
	}
	pay(pool, 20, 2 * MS);
	assert_false(pool->is_trunk_first);
	pay(pool, 1, 4 * MS);
	assert_false(pool->is_trunk_first);
	pay(pool, 1, 4 * MS);
	assert_true(pool->is_trunk_first);
	/* which is to show first what it brings */
	pay(pool, 3, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), 0);
	pay(pool, 5, 10 * MS);
	assert_true(vs_toll_slack(pool) > 0);
	/* and stays */
	fake.now += 3600000 * (uint64_t)MS;
	vs_pool_tick();
	pay(pool, 3, MS);
	assert_true(pool->is_trunk_first);
}

static void test_few_windows_are_chance(void **state)
{
	struct vs_pool *pool = make_pool();

	(void)state;
	for (int i = 0; i < 10; i++) {
		pay(pool, 3, 10 * MS);
		pay(pool, 3, MS);
	}
	assert_int_equal(vs_toll_slack(pool), 0);
	pay(pool, 6, 10 * MS);
	assert_true(vs_toll_slack(pool) > 0);
}

static void test_what_is_still_too_much_goes_on(void **state)
{
	struct vs_pool *pool = make_pool();
	unsigned slack;

	(void)state;
	pay(pool, 100, 2 * MS);
	assert_int_equal(vs_toll_slack(pool), 0);
	pay(pool, 6, 10 * MS);
	slack = vs_toll_slack(pool);
	pay(pool, 2, 2 * MS);
	assert_int_equal(vs_toll_slack(pool), slack + 2 * SLACK_STEP);
	pay(pool, 100, MS);
	/* one window is chance */
	pay(pool, 1, 4 * MS);
	pay(pool, 4, MS);
	assert_int_equal(vs_toll_slack(pool), slack + 2 * SLACK_STEP);
	/* two are not */
	pay(pool, 2, 4 * MS);
	assert_int_equal(vs_toll_slack(pool), slack + 3 * SLACK_STEP);
	pay(pool, 8, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), MOST_STEPS * SLACK_STEP);
}

static void test_what_does_not_help_is_taken_back(void **state)
{
	struct vs_pool *pool = make_pool();

	(void)state;
	pay(pool, 17, 10 * MS);
	/* half as much is worth it */
	pay(pool, 100, 5 * MS);
	assert_int_equal(vs_toll_slack(pool), MOST_STEPS * SLACK_STEP);
	pay(pool, 15, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), MOST_STEPS * SLACK_STEP);
	pay(pool, 10, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), 0);
	/* not for five minutes */
	pay(pool, 2900, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), 0);
	fake.now += 200000 * MS;
	pay(pool, 27, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), MOST_STEPS * SLACK_STEP);
}

static void test_it_comes_down_when_it_is_cheap(void **state)
{
	struct vs_pool *pool = make_pool();
	unsigned slack;

	(void)state;
	pay(pool, 6, 10 * MS);
	slack = vs_toll_slack(pool);
	assert_true(slack > SLACK_STEP);
	fake.now += 29000 * MS;
	vs_pool_tick();
	assert_int_equal(vs_toll_slack(pool), slack);
	fake.now += 2000 * MS;
	vs_pool_tick();
	vs_pool_tick();
	assert_int_equal(vs_toll_slack(pool), slack - SLACK_STEP);
	for (unsigned i = 0; i < 10; i++) {
		fake.now += 31000 * MS;
		vs_pool_tick();
	}
	assert_int_equal(vs_toll_slack(pool), 0);
}

/* Nor for one that churns, which has its own. */
static void test_nothing_where_memory_is_scarce(void **state)
{
	struct vs_pool *pool = make_pool();
	uint64_t steps;

	(void)state;
	pool->turnover.is_fast = true;
	pay(pool, 10, 10 * MS);
	assert_int_equal(vs_toll_slack(pool), 0);
	pool->turnover.is_fast = false;
	pay(pool, 6, 10 * MS);
	assert_true(vs_toll_slack(pool) > 0);
	steps = stats()->eased;
	take(130 * GiB);
	assert_int_equal(vs_toll_slack(pool), 0);
	pay(pool, 10, 10 * MS);
	assert_int_equal(stats()->eased, steps);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(one_that_pays_much_holds_more),
		T(one_that_works_meanwhile_does_not),
		T(the_trunk_comes_first),
		T(few_windows_are_chance),
		T(what_is_still_too_much_goes_on),
		T(what_does_not_help_is_taken_back),
		T(it_comes_down_when_it_is_cheap),
		T(nothing_where_memory_is_scarce),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
