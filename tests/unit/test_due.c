/* SPDX-License-Identifier: MIT
 *
 * What is freed and not yet done, on the counting driver: when it is waited
 * for, for how long, and when nothing is (pool/wait, pool/ladder, pool/mark).
 */
#include "fake_test.h"
#include "pool/mark.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	return 0;
}

/*
 * A block of 200 MiB is freed behind a GPU that is so late, and one is wanted:
 * 300 MiB idle elsewhere would do, in pieces. Returns how many were moved.
 */
static uint64_t moves_behind(uint64_t lag_ns)
{
	enum { N = 60 }; /* so that the block is little */
	CUdeviceptr p[N], block, again;
	uint64_t moved;

	fresh_driver((uint64_t)139 << 30);
	vs_knobs.memory_limit.value = 6240 * MiB; /* no more than needed */
	block = take(200 * MiB);
	for (int i = 0; i < N; i++)
		p[i] = take(100 * MiB);
	for (int i = 3; i < 18; i += 6)
		give(p[i]);
	fake.lag_ns = lag_ns;
	for (int i = 0; i < 100; i++) {
		give(take(16 * MiB));
		fake.now += lag_ns / 4;
	}
	fake.now += lag_ns;
	take(16 * MiB);
	moved = vs_stat_get(stats(), chunks_moved);
	give(block);
	again = take(200 * MiB);
	moved = vs_stat_get(stats(), chunks_moved) - moved;
	assert_int_equal(again == block, moved == 0);
	return moved;
}

/* The host has time, and a move would cost it driver calls. */
static void test_what_fits_is_waited_for_behind_a_late_gpu(void **state)
{
	(void)state;
	assert_int_equal(moves_behind(20 * MS), 0);
	assert_in_range(moves_behind(MS / 2), 2, 6);
}

/* What comes back, a piece at a time, is too little for it. */
static void test_waits_in_vain_have_an_end(void **state)
{
	enum { PIECES = 64 };
	CUdeviceptr p[PIECES];
	uint64_t waits;

	(void)state;
	fresh_driver((uint64_t)16 << 30);
	for (int i = 0; i < PIECES; i++)
		p[i] = take(16 * MiB);
	for (int i = 0; i < PIECES; i += 2)
		give(p[i]);
	fake.lag_ns = MS;
	for (int i = 1; i < PIECES; i += 4) {
		give(p[i]);
		vs_mark_pending(vs_pool_of(0));
		fake.now += MS / 100;
	}
	waits = vs_stat_get(stats(), waits);
	take(200 * MiB);
	assert_in_range(vs_stat_get(stats(), waits) - waits, 1, 6);
	assert_true(vs_stat_get(stats(), chunks_moved) > 0);
	assert_true(vs_pool_of(0)->pending_bytes > 0);
}

/* What is idle is had at once; when that did not do, what is pending, too. */
static void test_relieve_brings_all_that_is_due(void **state)
{
	CUdeviceptr p = take(200 * MiB), q = take(100 * MiB);
	uint64_t before;

	(void)state;
	give(q);
	vs_pool_tick();
	fake.lag_ns = 5 * MS;
	before = fake.now;
	give(p);
	assert_in_range(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 100 * MiB,
			120 * MiB);
	assert_in_range(fake.now - before, 0, MS);
	give(take(50 * MiB));
	assert_true(vs_pool_relieve(UINT64_MAX, VS_RELIEF_DUE) >= 200 * MiB);
	assert_int_equal(fake.held, 0);
	/* but not for ever: the call may ask for more than there is */
	p = take(100 * MiB);
	fake.lag_ns = 50000 * MS;
	before = fake.now;
	give(p);
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_DUE);
	assert_in_range(fake.now - before, 9900 * MS, 10100 * MS);
}

static void (*pause_before)(unsigned round);
static CUdeviceptr others_block;
static uint64_t others_time;

/* While this thread waits another frees a block, and takes what comes first. */
static void another_takes_it(unsigned round)
{
	CUdeviceptr p = others_block;

	pause_before(round);
	if (!p || fake.now < others_time)
		return;
	others_block = 0;
	give(p);
	take(380 * MiB);
}

static void test_what_another_thread_takes_is_made_good(void **state)
{
	CUdeviceptr p = take(400 * MiB);

	(void)state;
	others_block = take(400 * MiB);
	take(150 * MiB);
	fake.lag_ns = 5000 * MS;
	others_time = fake.now + 1000 * MS; /* longer than thrift waits */
	give(p);
	pause_before = vs_vmm_pause;
	vs_vmm_pause = another_takes_it;
	succeeds(350 * MiB);
	vs_vmm_pause = pause_before;
}

/* And then nobody reads the clock any more. */
static void test_memory_is_scarce_for_a_minute(void **state)
{
	struct vs_pool *pool;

	(void)state;
	take(600 * MiB);
	pool = vs_pool_of(0);
	assert_false(vs_mark_is_scarce(pool));
	assert_int_equal(vs_pool_alloc(600 * MiB, &(CUdeviceptr){0}),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_true(vs_mark_is_scarce(pool));
	fake.now += 59000 * MS;
	assert_true(vs_mark_is_scarce(pool));
	assert_int_not_equal(atomic_load(&pool->refused), 0);
	fake.now += 2000 * MS;
	assert_false(vs_mark_is_scarce(pool));
	assert_int_equal(atomic_load(&pool->refused), 0);
}

/* All that is not live would be too little: the driver's own waits for none. */
static void test_no_wait_for_too_little(void **state)
{
	CUdeviceptr p, small = take(KiB);
	uint64_t before = fake.now;

	(void)state;
	take(600 * MiB);
	p = take(50 * MiB);
	fake.lag_ns = 5000 * MS;
	give(p);
	give(small);
	assert_int_equal(vs_pool_alloc(500 * MiB, &p),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_in_range(fake.now - before, 0, 1000 * MS);
	/* just enough, within what all slabs together take */
	succeeds(416 * MiB);
	assert_in_range(fake.now - before, 5000 * MS, 6000 * MS);
}

/* The same below a limit, however much of the device is unused. */
static void test_no_wait_for_too_little_below_a_limit(void **state)
{
	CUdeviceptr p;
	uint64_t before;

	(void)state;
	vs_knobs.memory_limit.value = 300 * MiB;
	take(200 * MiB);
	p = take(50 * MiB);
	before = fake.now;
	fake.lag_ns = 5000 * MS;
	give(p);
	assert_int_equal(vs_pool_alloc(150 * MiB, &p),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_in_range(fake.now - before, 0, 1000 * MS);
	succeeds(96 * MiB);
	assert_in_range(fake.now - before, 5000 * MS, 6000 * MS);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(test_##name, fresh)
	const struct CMUnitTest tests[] = {
		T(what_fits_is_waited_for_behind_a_late_gpu),
		T(waits_in_vain_have_an_end),
		T(relieve_brings_all_that_is_due),
		T(what_another_thread_takes_is_made_good),
		T(memory_is_scarce_for_a_minute),
		T(no_wait_for_too_little),
		T(no_wait_for_too_little_below_a_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
