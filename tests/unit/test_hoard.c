/* SPDX-License-Identifier: MIT
 *
 * What thread caches hold beyond use, on the counting driver: their shares
 * where slabs or memory are short, and what is left of threads that rest or
 * have ended.
 */
#include <pthread.h>
#include <semaphore.h>

#include "driver/real.h"
#include "pool/state.h"
#include "pool/tcache.h"
#include "tcache_test.h"

enum { N_LOOPING = 12, LOOPS_BEFORE = 20, LOOPS = 20 };

static sem_t turn_of[N_LOOPING], turn_over;

static void *loop_in_turn(void *sem)
{
	for (int i = 0; i < LOOPS_BEFORE + LOOPS; i++) {
		sem_wait(sem);
		loop(1000, 0);
		sem_post(&turn_over);
	}
	return NULL;
}

static void loop_each(int n_rounds)
{
	for (int i = 0; i < n_rounds * N_LOOPING; i++) {
		sem_post(&turn_of[i % N_LOOPING]);
		sem_wait(&turn_over);
	}
}

/*
 * Batches of so many threads are more than the pool holds for them: it would
 * empty the caches of all, and each would be filled again, for ever.
 */
static void test_what_loops_hold_is_enough(void **state)
{
	pthread_t threads[N_LOOPING];
	uint64_t misses;

	(void)state;
	sem_init(&turn_over, 0, 0);
	for (int i = 0; i < N_LOOPING; i++) {
		sem_init(&turn_of[i], 0, 0);
		pthread_create(&threads[i], NULL, loop_in_turn, &turn_of[i]);
	}
	loop_each(LOOPS_BEFORE);
	misses = vs_stat_get(stats(), small_miss);
	assert_in_range(atomic_load(&vs_pool_of(0)->quota.halved), 1, 2);
	loop_each(LOOPS);
	for (int i = 0; i < N_LOOPING; i++)
		pthread_join(threads[i], NULL);
	assert_in_range(vs_stat_get(stats(), small_miss) - misses, 0,
			N_LOOPING);
	assert_in_range(fake.held, 0, 512 * MiB);
}

/* Batches are halved for what is fetched in vain, and not for ever. */
static void test_shares_while_slabs_are_wanted(void **state)
{
	struct vs_pool *pool;

	(void)state;
	warm_up();
	pool = vs_pool_of(0);
	vs_quota_emptied(pool, 0, fake.now);
	for (int i = 0; i < 3; i++) {
		fake.now += 4 * MS;
		vs_quota_emptied(pool, 64 * MiB, fake.now);
	}
	assert_int_equal(atomic_load(&pool->quota.halved), 0);
	for (int i = 0; i < 100; i++)
		vs_quota_emptied(pool, 64 * MiB, fake.now);
	vs_tcache_flush(pool);
	vs_pool_tick();
	assert_int_equal(atomic_load(&pool->quota.halved), 4);
	loop(1000, 0);
	/* a few at a time */
	assert_in_range(loop(PAIRS, 0), PAIRS / 12, PAIRS / 3);
	for (int ms = 0; ms < 3000; ms += 500) {
		fake.now += 500 * MS;
		vs_pool_tick();
		/* for a slab now and then */
		vs_quota_emptied(pool, 64 * MiB, fake.now);
	}
	loop(1000, 0);
	assert_in_range(loop(PAIRS, 0), 1, PAIRS / 55);
}

/* Each of them empties the caches, but they were full but once. */
static void test_threads_that_are_short_at_once_count_once(void **state)
{
	struct vs_pool *pool;
	uint64_t began;

	(void)state;
	warm_up();
	pool = vs_pool_of(0);
	began = fake.now;
	fake.now += MS;
	vs_quota_emptied(pool, 64 * MiB, began);
	for (int i = 0; i < 5; i++) {
		fake.now += MS / 100;
		vs_quota_emptied(pool, 64 * MiB, began);
	}
	assert_int_equal(atomic_load(&pool->quota.halved), 0);
	/* and then once more */
	vs_quota_emptied(pool, 64 * MiB, fake.now);
	assert_int_equal(atomic_load(&pool->quota.halved), 1);
}

/* Not for slabs of which a part is live: smaller batches would not help. */
static void test_no_shares_of_live_slabs(void **state)
{
	CUdeviceptr p[512];

	(void)state;
	for (int i = 0; i < 512; i++)
		p[i] = take(MiB);
	for (int i = 0; i < 512; i += 2)
		give(p[i]);
	vs_tcache_flush(vs_pool_of(0));
	for (int i = 0; i < 640; i++)
		take(512 * KiB);
	assert_int_equal(atomic_load(&vs_pool_of(0)->quota.halved), 0);
}

/*
 * Nor for large blocks, which smaller batches leave as little room: what is in
 * batches goes home for each of them.
 */
static void test_no_shares_for_large_blocks(void **state)
{
	CUdeviceptr p[512];

	(void)state;
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 512; i++)
			p[i] = take(MiB);
		for (int i = 0; i < 512; i++)
			give(p[i]);
		give(take(480 * MiB));
	}
	assert_in_range(fake.held, 512 * MiB, 600 * MiB);
	assert_int_equal(atomic_load(&vs_pool_of(0)->quota.halved), 0);
}

static __typeof__(cuMemCreate) *create;
static unsigned n_created_short;

/* Another thread frees and allocates while this one is out of memory. */
static CUresult CUDAAPI turn_over_and_create(CUmemGenericAllocationHandle *out,
					     size_t size,
					     const CUmemAllocationProp *prop,
					     unsigned long long flags)
{
	struct vs_tcache *tc = vs_thread_self()->cache;
	struct vs_bin *bin = &tc->bin[vs_class_of(MiB)];

	if (atomic_load(&tc->pool->n_short) > 0) {
		n_created_short++;
		vs_tcache_flush(tc->pool);
		for (int i = 0; i < N; i++)
			give(take(MiB));
		assert_int_equal(bin->freed->n, 0);
		assert_int_equal(bin->idle->n, 0);
	}
	return create(out, size, prop, flags);
}

static void test_no_hoards_while_memory_is_short(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr p;

	(void)state;
	warm_up();
	/* so that its slab does not go home, and the other object is there */
	take(MiB);
	pool = vs_pool_of(0);
	create = vs_real.cuMemCreate;
	vs_real.cuMemCreate = turn_over_and_create;
	p = take((size_t)15 << 30);
	assert_int_equal(n_created_short, 0);
	/* hardly more than is left: Note [Too much] in pool/greed.h */
	assert_int_equal(vs_pool_alloc((size_t)1 << 30, &p),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_in_range(n_created_short, 1, 100);
	assert_int_equal(atomic_load(&pool->n_short), 0);
	assert_false(atomic_load(&pool->is_wary));
	vs_real.cuMemCreate = create;
	/* whoever was short of it may soon be again */
	assert_int_equal(atomic_load(&pool->quota.halved), 4);
}

static int count_open(const struct vs_tcache *tc)
{
	int n = 0;

	for (int c = 0; c < VS_N_CLASSES; c++)
		n += tc->bin[c].idle || tc->bin[c].freed;
	return n;
}

static void *use_all_classes(void *tc_out)
{
	for (int c = 0; c < VS_N_CLASSES; c++)
		give(take(vs_class_size(c)));
	*(struct vs_tcache **)tc_out = vs_thread_self()->cache;
	return NULL;
}

/* It had 8 KiB of the host's for each class. */
static void test_no_batches_of_who_has_ended(void **state)
{
	struct vs_tcache *tc;
	pthread_t thread;

	(void)state;
	use_all_classes(&tc);
	assert_int_equal(count_open(tc), VS_N_CLASSES);
	for (int i = 0; i < 2; i++) {
		pthread_create(&thread, NULL, use_all_classes, &tc);
		pthread_join(thread, NULL);
		assert_int_equal(count_open(tc), 0);
	}
}

enum { N_CLASSES = 8, N_OF_EACH = 30, N_RESTING = 8, TICK_MS = 750 };

static sem_t is_done, may_free, may_end;

/* As much of each class as the caches take of what is freed, and more. */
static void *free_and_rest(void *unused)
{
	CUdeviceptr p[N_CLASSES][N_OF_EACH];

	for (size_t i = 0; i < N_CLASSES * N_OF_EACH; i++)
		p[i % N_CLASSES][i / N_CLASSES] =
			take(MiB - i % N_CLASSES * (MiB / 16));
	sem_post(&is_done);
	sem_wait(&may_free);
	for (size_t i = 0; i < N_CLASSES * N_OF_EACH; i++)
		give(p[i % N_CLASSES][i / N_CLASSES]);
	sem_post(&is_done);
	sem_wait(&may_end);
	return unused;
}

static void each_in_turn(void)
{
	for (int i = 0; i < N_RESTING; i++) {
		sem_post(&may_free);
		sem_wait(&is_done);
	}
}

/* A call now and then keeps nothing of what other threads rest on. */
static void test_decay_of_what_threads_rest_on(void **state)
{
	pthread_t threads[N_RESTING];

	(void)state;
	vs_knobs.release_threshold.value = 64 * MiB;
	vs_knobs.decay_ms = 3000;
	sem_init(&is_done, 0, 0);
	sem_init(&may_free, 0, 0);
	sem_init(&may_end, 0, 0);
	for (int i = 0; i < N_RESTING; i++) {
		pthread_create(&threads[i], NULL, free_and_rest, NULL);
		sem_wait(&is_done);
	}
	each_in_turn();
	assert_true(fake.held > 1024 * MiB);
	for (int ms = 0; ms < 20000; ms += TICK_MS) {
		give(take(4096));
		vs_pool_tick();
		fake.now += TICK_MS * MS;
	}
	for (int i = 0; i < N_RESTING; i++)
		sem_post(&may_end);
	for (int i = 0; i < N_RESTING; i++)
		pthread_join(threads[i], NULL);
	assert_in_range(fake.held, 0, 128 * MiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(what_loops_hold_is_enough),
		T(shares_while_slabs_are_wanted),
		T(threads_that_are_short_at_once_count_once),
		T(no_shares_of_live_slabs),
		T(no_shares_for_large_blocks),
		T(no_hoards_while_memory_is_short),
		T(no_batches_of_who_has_ended),
		T(decay_of_what_threads_rest_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
