/* SPDX-License-Identifier: MIT
 *
 * What is idle goes back: by a trim, after a while, to others, at a
 * synchronize.
 */
#include "fake_test.h"

/* A new driver and a pool that was never used. */
static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	return 0;
}

static void test_trim_gives_all_idle_back(void **state)
{
	CUdeviceptr p[50], big = take(300 * MiB), kept = take(2 * KiB);

	(void)state;
	for (int i = 0; i < 50; i++)
		p[i] = take(i * 100 * KiB + 1);
	for (int i = 0; i < 50; i++)
		give(p[i]);
	give(big);
	assert_true(vs_pool_trim() > 300 * MiB);
	assert_int_equal(stats()->idle, 0);
	assert_int_equal(stats()->reserved, fake.held);
	give(kept);
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(fake.mappings, 0);
	assert_int_equal(stats()->live, 0);
	assert_int_equal(stats()->pending, 0);
}

static void test_trim_keeps_pending(void **state)
{
	CUdeviceptr p = take(30 * MiB);

	(void)state;
	fake.lag_ns = 50 * MS;
	give(p);
	assert_int_equal(vs_pool_trim(), 0);
	assert_true(fake.held >= 30 * MiB);
	fake.now += 60 * MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

static void test_decay(void **state)
{
	CUdeviceptr p = take(500 * MiB);

	(void)state;
	vs_pool_tick();
	give(p);
	give(take(500 * MiB)); /* makes it idle, not pending */
	vs_pool_trim();
	p = take(500 * MiB);
	give(p);
	vs_pool_tick();
	fake.now += 2000 * MS;
	vs_pool_tick();
	assert_true(fake.held >= 500 * MiB);
	fake.now += 4000 * MS;
	vs_pool_tick();
	fake.now += 4000 * MS;
	vs_pool_tick();
	assert_true(fake.held <= 564 * MiB - 500 * MiB);
}

/* Another process fills the device: what is idle here does not wait. */
static void test_pressure_from_others(void **state)
{
	CUdeviceptr p = take(600 * MiB);

	(void)state;
	give(p);
	vs_pool_tick(); /* marks, and sees it complete */
	vs_pool_tick();
	assert_int_equal(fake.held, 600 * MiB);
	fake.others = 300 * MiB; /* there is room left */
	vs_pool_tick();
	assert_int_equal(fake.held, 600 * MiB);
	fake.others = 400 * MiB;
	vs_pool_tick();
	assert_int_equal(fake.held, 0);
	/* alone with the device, it keeps what is idle */
	fake.others = 0;
	p = take(1000 * MiB);
	give(p);
	vs_pool_tick();
	vs_pool_tick();
	assert_int_equal(fake.held, 1000 * MiB);
}

/* The age of idle memory counts from its free. */
static void test_decay_needs_no_other_call(void **state)
{
	(void)state;
	fake.lag_ns = 100 * MS;
	give(take(600 * MiB));
	for (int i = 0; i < 6; i++) {
		vs_pool_tick();
		fake.now += 750 * MS;
	}
	vs_pool_tick();
	assert_in_range(fake.held, 0, 64 * MiB);
}

enum { N_SMALL = 600, TICK_MS = 750 };

static void free_many_small(void)
{
	static CUdeviceptr p[N_SMALL];

	for (int i = 0; i < N_SMALL; i++)
		p[i] = take(MiB);
	for (int i = 0; i < N_SMALL; i++)
		give(p[i]);
}

/* A call now and then keeps what the threads have, not all they once had. */
static void test_decay_of_small_ones_beside_a_few(void **state)
{
	(void)state;
	free_many_small();
	for (int ms = 0; ms < 15000; ms += TICK_MS) {
		give(take(4096));
		vs_pool_tick();
		fake.now += TICK_MS * MS;
	}
	assert_in_range(fake.held, 0, 128 * MiB);
}

/* What was freed long before its work ends is not forgotten meanwhile. */
static void test_decay_of_small_ones_behind_long_work(void **state)
{
	(void)state;
	fake.lag_ns = 20000 * MS;
	free_many_small();
	for (int ms = 0; ms < 20000; ms += TICK_MS) {
		vs_pool_tick();
		assert_true(vs_pool_is_waiting(0));
		fake.now += TICK_MS * MS;
	}
	for (int ms = 0; ms < 10000; ms += TICK_MS) {
		fake.now += TICK_MS * MS;
		vs_pool_tick();
	}
	assert_false(vs_pool_is_waiting(0));
	assert_in_range(fake.held, 0, 64 * MiB);
}

static void test_decay_zero_acts_at_synchronize(void **state)
{
	(void)state;
	vs_knobs.decay_ms = 0;
	vs_knobs.release_threshold.value = 0;
	give(take(100 * MiB));
	vs_pool_synchronized();
	assert_int_equal(fake.held, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(trim_gives_all_idle_back),
		T(trim_keeps_pending),
		T(decay),
		T(pressure_from_others),
		T(decay_needs_no_other_call),
		T(decay_of_small_ones_beside_a_few),
		T(decay_of_small_ones_behind_long_work),
		T(decay_zero_acts_at_synchronize),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
