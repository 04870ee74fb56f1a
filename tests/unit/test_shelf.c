/* SPDX-License-Identifier: MIT
 *
 * What a program that churns freed, on its shelf (pool/shelf), on the counting
 * driver: handed out as it was, and never missed by whoever needs the memory.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "base/knob.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/state.h"

static struct vs_pool *pool;

/* A pool of a program that churns; its GPU is idle. */
static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)8 << 30);
	fake.lag_ns = 0;
	give(take(2 * MiB));
	pool = vs_pool_by_index(0);
	pool->turnover.is_fast = true;
	return 0;
}

/*
 * Frees blocks whose neighbours are live, and has them seen complete. Two more
 * pend meanwhile, or the oldest would be taken back at once.
 */
static void shelve(CUdeviceptr *p, unsigned n)
{
	CUdeviceptr other[2] = {take(3 * MiB), take(3 * MiB)};

	give(other[0]);
	give(other[1]);
	for (unsigned i = 0; i < n; i++)
		give(p[i]);
	vs_fence_record(&pool->fence);
	vs_fence_poll(&pool->fence);
	give(take(1200 * 1024));
	assert_false(vs_shelf_is_empty(&pool->shelf));
	heap_check(pool);
}

static void test_one_that_is_hardly_larger_stays_whole(void **state)
{
	CUdeviceptr p[] = {take(64 * MiB), take(64 * MiB)};
	uint64_t held;

	(void)state;
	take(2 * MiB); /* behind them */
	held = fake.held;
	shelve(p, 1);
	assert_int_equal(take(52 * MiB), p[0]);
	/* all of it: none of what is left is cut off for another */
	assert_int_equal(vs_stat_get(&pool->stats, live), 118 * MiB);
	take(12 * MiB);
	assert_true(fake.held > held);
	heap_check(pool);
}

/* Half of a block is left for others, as without a shelf. */
static void test_one_that_is_much_larger_is_cut(void **state)
{
	CUdeviceptr p[] = {take(64 * MiB), take(64 * MiB)};
	uint64_t held;

	(void)state;
	held = fake.held;
	shelve(p, 1);
	take(32 * MiB);
	take(32 * MiB);
	assert_int_equal(fake.held, held);
	heap_check(pool);
}

static void test_neighbours_merge_for_a_larger_one(void **state)
{
	CUdeviceptr p[8];
	uint64_t held;

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = take(24 * MiB);
	held = fake.held;
	shelve(p, 8);
	take(192 * MiB);
	assert_int_equal(fake.held, held);
	heap_check(pool);
}

/* What is middle lies in other chunks than what is large. */
static void test_middle_ones_come_from_their_own(void **state)
{
	CUdeviceptr p[] = {take(9 * MiB)}, q;

	(void)state;
	shelve(p, 1);
	q = take(5 * MiB);
	assert_true(q >= pool->heap[VS_HEAP_MIDDLE].base &&
		    q < pool->heap[VS_HEAP_MIDDLE].end);
	heap_check(pool);
}

/* Another heap's need is met, too. */
static void test_small_ones_find_it_on_a_full_device(void **state)
{
	CUdeviceptr p[4];

	(void)state;
	fake.memory = fake.held + (4 * 256 + 64) * MiB;
	for (int i = 0; i < 4; i++)
		p[i] = take(256 * MiB);
	shelve(p, 4);
	for (int i = 0; i < 1000; i++)
		take(1024 * 1024);
	assert_int_equal(fake.natives, 0);
	heap_check(pool);
}

static void test_a_trim_releases_it(void **state)
{
	CUdeviceptr p[] = {take(64 * MiB), take(64 * MiB)};

	(void)state;
	shelve(p, 2);
	for (int i = 0; i < 3; i++, fake.now += 200000000)
		vs_pool_trim();
	assert_true(vs_shelf_is_empty(&pool->shelf));
	assert_int_equal(fake.held, 0);
}

/* As memory that is idle: it goes when nothing is asked for. */
static void test_it_goes_after_a_while(void **state)
{
	CUdeviceptr p[] = {take(512 * MiB), take(512 * MiB)};

	(void)state;
	vs_knobs.decay_ms = 100;
	shelve(p, 2);
	for (int i = 0; i < 20; i++, fake.now += 50000000)
		vs_pool_tick();
	assert_true(vs_shelf_is_empty(&pool->shelf));
	assert_in_range(fake.held, 0, 128 * MiB);
}

/* A program at work is packed by the heap's rule. */
static void test_one_that_does_not_churn_has_none(void **state)
{
	CUdeviceptr p[] = {take(64 * MiB), take(64 * MiB)};

	(void)state;
	shelve(p, 1);
	give(p[1]);
	pool->turnover.is_fast = false;
	vs_fence_record(&pool->fence);
	vs_fence_poll(&pool->fence);
	take(3 * MiB);
	assert_true(vs_shelf_is_empty(&pool->shelf));
	heap_check(pool);
}

#define OTHER ((CUcontext)0x2000)

/* The other context dies when this lock is given back with nothing pending. */
static pthread_mutex_t *deadly;

/* In the place of the C library's. */
int pthread_mutex_unlock(pthread_mutex_t *lock)
{
	static int (*next)(pthread_mutex_t *);
	int result;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	result = next(lock);
	if (lock == deadly && pool->pending_bytes == 0) {
		deadly = NULL;
		end_ctx(OTHER, 0);
	}
	return result;
}

/*
 * A middle one got a large one, and goes back to where that is from: its
 * context died before it could be handed out.
 */
static void test_it_goes_back_to_its_own_heap(void **state)
{
	CUdeviceptr p, q;

	(void)state;
	fresh_driver((uint64_t)8 << 30);
	vs_knobs.memory_limit.value = 74 * MiB;
	take(62 * MiB);
	pool = vs_pool_by_index(0);
	vs_pool_ctx_born(OTHER, 0);
	fake.current = OTHER;
	p = take(9 * MiB);
	fake.lag_ns = 1000000;
	give(p);
	pool->turnover.is_fast = true;
	deadly = &pool->grow;
	assert_int_equal(vs_pool_alloc(7900 * KiB, &q), VS_PASS);
	assert_null(deadly);
	heap_check(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			test_one_that_is_hardly_larger_stays_whole, fresh),
		cmocka_unit_test_setup(test_one_that_is_much_larger_is_cut,
				       fresh),
		cmocka_unit_test_setup(test_neighbours_merge_for_a_larger_one,
				       fresh),
		cmocka_unit_test_setup(test_middle_ones_come_from_their_own,
				       fresh),
		cmocka_unit_test_setup(test_small_ones_find_it_on_a_full_device,
				       fresh),
		cmocka_unit_test_setup(test_a_trim_releases_it, fresh),
		cmocka_unit_test_setup(test_it_goes_after_a_while, fresh),
		cmocka_unit_test_setup(test_one_that_does_not_churn_has_none,
				       fresh),
		cmocka_unit_test_setup(test_it_goes_back_to_its_own_heap,
				       fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
