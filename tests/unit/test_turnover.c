/* SPDX-License-Identifier: MIT
 *
 * A program that does nothing but churn memory (pool/turnover), on the counting
 * driver, with a GPU some time behind: it gets room for what is pending and
 * need not wait; the same program at the pace of real work gets none, and holds
 * what it needs.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>

#include "fake_test.h"
#include "pool/state.h"

enum { LIVE = 64, WARM = 4000, ROUNDS = 20000 };

/* Of the first half, if it has one of its own. */
static uint64_t first_pace_ns;
/* Threads that wait at once, and what each waits a round, as it were. */
static unsigned n_threads;
static uint64_t wait_ns;

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)139 << 30);
	fake.lag_ns = 150000;
	first_pace_ns = 0;
	n_threads = 0;
	wait_ns = 0;
	return 0;
}

static uint64_t waits(void)
{
	CUdevice device;

	return vs_pool_stats(0, &device)->waits;
}

static uint64_t moves(void)
{
	CUdevice device;

	return vs_pool_stats(0, &device)->chunks_moved;
}

static void pretend_to_wait(void)
{
	struct vs_pool *pool = vs_pool_by_index(0);

	vs_stat_add(&pool->stats, wait_ns, n_threads * wait_ns);
	if (n_threads > 0)
		atomic_store(&pool->fence.waiting_high, n_threads);
}

/* Waits while a block of 4 to 16 MiB is replaced every `pace_ns`. */
static uint64_t churn(uint64_t pace_ns)
{
	static CUdeviceptr p[LIVE];
	uint64_t before = 0, seed = 1;

	for (int i = 0; i < LIVE; i++)
		p[i] = 0;
	for (int i = 0; i < WARM + ROUNDS; i++) {
		CUdeviceptr *at;
		size_t size;

		if (i == WARM)
			before = waits();
		seed = seed * 6364136223846793005 + 1442695040888963407;
		at = &p[(seed >> 33) % LIVE];
		size = (4 + (seed >> 40) % 13) * MiB;
		if (*at)
			assert_int_equal(vs_pool_free(*at), CUDA_SUCCESS);
		assert_int_equal(vs_pool_alloc(size, at), CUDA_SUCCESS);
		fake.now += i < ROUNDS / 2 && first_pace_ns ? first_pace_ns
							    : pace_ns;
		pretend_to_wait();
	}
	return waits() - before;
}

static void test_churn_gets_room(void **state)
{
	(void)state;
	/* 64 blocks in 96 us; 100 are pending */
	assert_in_range(churn(1500), 0, ROUNDS / 20);
	/* nor did it move many in the milliseconds before that was known */
	assert_in_range(moves(), 0, 50);
	/* bounded: live, of 10 MiB each, four times that, and the floor */
	assert_in_range(fake.held_high, 1, 4 * LIVE * 16 * MiB);
}

/* The pool is made with the context; the program may begin much later. */
static void test_churn_begins_late(void **state)
{
	(void)state;
	assert_true(vs_pool_prepare(0));
	fake.now += 1000000000;
	churn(1500);
	assert_in_range(moves(), 0, 50);
}

static void expect_frugal(void)
{
	CUdevice device;
	uint64_t high = vs_pool_stats(0, &device)->live_high;

	/* blocks as small as chunks waste some; the room for churn is twice */
	assert_in_range(fake.held_high, high, high + high / 8 + 64 * MiB);
}

/* As one that loads its data, and makes of them what it works with. */
static void test_a_first_block_is_no_churn(void **state)
{
	(void)state;
	fake.lag_ns = 20000000;
	give(take(2000 * MiB));
	for (int i = 0; i < 10; i++) {
		fake.now += 50000;
		take(60 * MiB);
	}
	take(500 * MiB);
	expect_frugal();
}

static void test_work_gets_none(void **state)
{
	(void)state;
	/* 64 blocks in 6.4 ms: 156 times a second */
	churn(100000);
	expect_frugal();
}

/* All of its memory 1500 times a second, but a kernel for each block. */
static void test_quick_work_gets_none(void **state)
{
	(void)state;
	churn(10000);
	expect_frugal();
}

/* A loop a little slower than it was goes on; work has begun else. */
static void test_churn_may_slow_down(void **state)
{
	(void)state;
	first_pace_ns = 1500;
	churn(10000);
	assert_int_not_equal(vs_turnover_extra(vs_pool_by_index(0)), 0);
	first_pace_ns = 0;
	churn(13000);
	assert_int_equal(vs_turnover_extra(vs_pool_by_index(0)), 0);
}

/*
 * Four threads that wait side by side most of the time: their waits add up to
 * more than the time that goes by, and it is no loop that churns.
 */
static void test_waits_of_threads_add_up(void **state)
{
	(void)state;
	n_threads = 4;
	wait_ns = 24000;
	churn(30000);
	expect_frugal();
}

enum { FIRST_PAIRS = 20000, PAIRS = 20000 };

/* One block freed and allocated again, each `pace_ns`; returns its markers. */
static unsigned long pairs(size_t size, uint64_t pace_ns)
{
	unsigned long before = 0;

	fake.lag_ns = 0;
	for (int i = 0; i < FIRST_PAIRS + PAIRS; i++) {
		CUdeviceptr p;

		if (i == FIRST_PAIRS)
			before = fake.records;
		assert_int_equal(vs_pool_alloc(size, &p), CUDA_SUCCESS);
		assert_int_equal(vs_pool_free(p), CUDA_SUCCESS);
		fake.now += pace_ns;
	}
	return fake.records - before;
}

static void test_one_marker_serves_some(void **state)
{
	(void)state;
	assert_in_range(pairs(16 * MiB, 1500), 1, PAIRS / 8);
	assert_in_range(fake.held_high, 1, 12 * 16 * MiB);
}

/* There are at most four to spare, a 32nd of the device. */
static void test_of_large_blocks_fewer(void **state)
{
	(void)state;
	assert_in_range(pairs(1024 * MiB, 1500), 1, PAIRS * 2 / 9);
	assert_in_range(fake.held_high, 1, (5 * 1024 + 64) * MiB);
}

static void test_pairs_at_work_have_none_to_spare(void **state)
{
	(void)state;
	pairs(1024 * MiB, 10000);
	assert_in_range(fake.held_high, 1, (1024 + 64) * MiB);
}

/* What only spares markers is not asked for again and again. */
static void test_none_to_spare_on_a_full_device(void **state)
{
	CUdeviceptr p;

	(void)state;
	assert_int_equal(vs_pool_alloc(2 * MiB, &p), CUDA_SUCCESS);
	fake.memory = 1400 * MiB; /* of which the pool has not heard */
	pairs(1024 * MiB, 1500);
	assert_in_range(fake.held_high, 1, (1024 + 64) * MiB);
	assert_in_range(fake.refused, 1, 2);
	assert_int_equal(fake.natives, 0);
	/* nor may other blocks take what these could not have */
	assert_int_equal(vs_pool_by_index(0)->turnover.spare, 0);
}

enum { THREADS = 24 };

/* The counting driver is one thread's: one takes after the other. */
static sem_t is_there, may_go;

static void *have_a_cache(void *unused)
{
	give(take(4096));
	sem_post(&is_there);
	sem_wait(&may_go);
	return unused;
}

/* The extra of a program that churns, if that is all that bounds it. */
static uint64_t most_extra(void)
{
	struct vs_pool *pool = vs_pool_by_index(0);
	uint64_t pending = pool->pending_bytes, extra;

	pthread_mutex_lock(&pool->lock);
	pool->turnover.is_fast = true;
	pool->turnover.began = vs_vmm_clock();
	pool->pending_bytes = (uint64_t)64 << 30;
	extra = vs_turnover_extra(pool);
	pool->pending_bytes = pending;
	pthread_mutex_unlock(&pool->lock);
	return extra;
}

/* As long as the threads live; and no more than a 32nd of the device. */
static void test_each_thread_has_its_batch(void **state)
{
	pthread_t thread[THREADS];

	(void)state;
	give(take(4096));
	assert_int_equal(most_extra(), 512 * MiB);
	sem_init(&is_there, 0, 0);
	sem_init(&may_go, 0, 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(
			pthread_create(&thread[i], NULL, have_a_cache, NULL),
			0);
		sem_wait(&is_there);
	}
	assert_int_equal(most_extra(), (THREADS + 1) * 64 * MiB);
	vs_pool_by_index(0)->dev.total = (uint64_t)16 << 30;
	assert_int_equal(most_extra(), 512 * MiB);
	vs_pool_by_index(0)->dev.total = (uint64_t)139 << 30;
	for (int i = 0; i < THREADS; i++)
		sem_post(&may_go);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	assert_int_equal(most_extra(), 512 * MiB);
}

#define OTHER ((CUcontext)0x2000)

/* The other context dies when this lock is given back next. */
static pthread_mutex_t *deadly;

/* In the place of the C library's. */
int pthread_mutex_unlock(pthread_mutex_t *lock)
{
	static int (*next)(pthread_mutex_t *);
	int result;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	result = next(lock);
	if (lock == deadly && vs_pool_by_index(0)->pending_bytes == 0) {
		deadly = NULL;
		end_ctx(OTHER);
	}
	return result;
}

/*
 * What is taken back was of the context that freed it. That one may die before
 * the memory is handed out again.
 */
static void test_taken_back_from_a_dying_context(void **state)
{
	CUdeviceptr p, q;

	(void)state;
	vs_knobs.memory_limit.value = 96 * MiB;
	give(take(2 * MiB));
	vs_pool_ctx_born(OTHER, 0);
	fake.current = OTHER;
	p = take(64 * MiB);
	give(p);
	fake.current = FAKE_CTX;
	vs_pool_by_index(0)->turnover.is_fast = true;
	deadly = &vs_pool_by_index(0)->grow;
	q = take(64 * MiB);
	assert_null(deadly);
	assert_int_equal(q, p);
	assert_int_equal(stats()->live, 64 * MiB);
	assert_true(take(16 * MiB) - p >= 64 * MiB);
	give(q);
}

/* Of 4 to 128 KiB, 41 sizes a doubling, 200 are live. */
static void churn_small(uint64_t seed)
{
	static CUdeviceptr p[200];

	for (int i = 0; i < 200; i++)
		p[i] = 0;
	for (int i = 0; i < 100000; i++) {
		CUdeviceptr *at;
		size_t size;

		seed = seed * 6364136223846793005 + 1442695040888963407;
		at = &p[(seed >> 33) % 200];
		size = 4096 + (seed >> 40) % 41 * 4096 / 40;
		size <<= (seed >> 50) % 5;
		if (*at)
			assert_int_equal(vs_pool_free(*at), CUDA_SUCCESS);
		assert_int_equal(vs_pool_alloc(size, at), CUDA_SUCCESS);
		fake.now += 2000;
	}
	assert_true(vs_pool_by_index(0)->turnover.is_fast);
}

/*
 * 6 MiB are live, and as much pending; each class by itself would need what it
 * ever had of these at most.
 */
static void test_classes_help_each_other_out(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++) {
		fresh(state);
		fake.lag_ns = 400000;
		churn_small(seed);
		/* 328 to 418 MiB */
		assert_in_range(fake.held_high, 1, 296 * MiB);
	}
}

/*
 * Nor is it each time looked whether some of the class's own came back, which
 * takes locks and asks the driver, .4 times an allocation.
 */
static void test_looks_for_own_objects_are_few(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 5; seed++) {
		fresh(state);
		fake.lag_ns = 10 * MS;
		churn_small(seed);
		assert_true(fake.queries < 100000 / 8);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_one_marker_serves_some, fresh),
		cmocka_unit_test_setup(test_of_large_blocks_fewer, fresh),
		cmocka_unit_test_setup(test_pairs_at_work_have_none_to_spare,
				       fresh),
		cmocka_unit_test_setup(test_none_to_spare_on_a_full_device,
				       fresh),
		cmocka_unit_test_setup(test_churn_gets_room, fresh),
		cmocka_unit_test_setup(test_churn_begins_late, fresh),
		cmocka_unit_test_setup(test_taken_back_from_a_dying_context,
				       fresh),
		cmocka_unit_test_setup(test_a_first_block_is_no_churn, fresh),
		cmocka_unit_test_setup(test_work_gets_none, fresh),
		cmocka_unit_test_setup(test_quick_work_gets_none, fresh),
		cmocka_unit_test_setup(test_churn_may_slow_down, fresh),
		cmocka_unit_test_setup(test_waits_of_threads_add_up, fresh),
		cmocka_unit_test_setup(test_each_thread_has_its_batch, fresh),
		cmocka_unit_test_setup(test_classes_help_each_other_out, fresh),
		cmocka_unit_test_setup(test_looks_for_own_objects_are_few,
				       fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
