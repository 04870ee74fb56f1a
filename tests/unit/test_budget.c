/* SPDX-License-Identifier: MIT
 *
 * What a pool may hold beyond what its program needs (pool/budget), on the
 * counting driver (fake.h), behind a GPU so late that all of it comes to use.
 */
#include "fake_test.h"
#include "pool/budget.h"

#define DEVICE (139 * GiB)
#define BLOCKS 16

static uint64_t seed;

static int fresh(void **state)
{
	(void)state;
	fresh_driver(DEVICE);
	fake.lag_ns = 20 * MS;
	seed = 1;
	return 0;
}

/* A whole number of MiB, up to `most` of them. */
static size_t some(unsigned most)
{
	return (1 + next_random(&seed) % most) * MiB;
}

/* Blocks of up to `most` MiB come and go, each .25 ms, for so many seconds. */
static void come_and_go(unsigned most, unsigned seconds)
{
	CUdeviceptr p[BLOCKS] = {0};

	for (unsigned i = 0; i < seconds * 4000; i++) {
		if (p[i % BLOCKS])
			give(p[i % BLOCKS]);
		p[i % BLOCKS] = take(some(most));
		fake.now += MS / 4;
		vs_pool_tick();
	}
	for (int i = 0; i < BLOCKS; i++)
		give(p[i]);
}

/* The most that was held beyond the most that was live. */
static uint64_t beyond(void)
{
	return fake.held_high - stats()->live_high;
}

/* Others may want what a full device has left. */
static void test_what_stays_takes_no_slack(void **state)
{
	(void)state;
	for (int i = 0; i < 126; i++)
		take(GiB);
	come_and_go(120, 1);
	/* an eighth of what is left, for 5.5 GiB; the end of a last chunk */
	assert_in_range(beyond(), 0, 12 * GiB / 8 + 256 * MiB);
}

static void test_a_device_that_is_half_full_has_enough(void **state)
{
	(void)state;
	for (int i = 0; i < 70; i++)
		take(GiB);
	come_and_go(120, 1);
	assert_in_range(beyond(), 2 * GiB, 70 * GiB / 20);
}

/* Of a program of large results the same share of the need as ever. */
static void test_what_comes_and_goes_takes_slack(void **state)
{
	(void)state;
	for (int i = 0; i < 60; i++)
		take(GiB);
	come_and_go(4000, 4);
	assert_in_range(beyond(), 9 * GiB / 2, 7 * GiB);
}

/* Or some would go home at its end, and come again. */
static void test_that_lasts_for_a_window_more(void **state)
{
	struct vs_pool *pool;

	(void)state;
	for (int i = 0; i < 60; i++)
		take(GiB);
	come_and_go(4000, 4);
	pool = vs_pool_by_index(0);
	fake.now += 31 * 1000 * MS;
	vs_pool_tick();
	assert_in_range(vs_budget(pool) - pool->need, pool->need / 24,
			pool->need / 22);
}

/* It is what it was lately that counts: Note [Need] in pool/grow.h. */
static void test_what_came_and_went_is_forgotten(void **state)
{
	(void)state;
	come_and_go(4000, 1);
	for (int i = 0; i < 126; i++)
		take(GiB);
	for (int i = 0; i < 90; i++) {
		fake.now += 1000 * MS;
		take(MiB);
		vs_pool_tick();
	}
	fake.held_high = fake.held;
	come_and_go(120, 1);
	assert_in_range(beyond(), 0, 12 * GiB / 8 + 256 * MiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(what_stays_takes_no_slack),
		T(a_device_that_is_half_full_has_enough),
		T(what_comes_and_goes_takes_slack),
		T(that_lasts_for_a_window_more),
		T(what_came_and_went_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
