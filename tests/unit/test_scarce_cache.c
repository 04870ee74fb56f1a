/* SPDX-License-Identifier: MIT
 *
 * Host memory runs out for the caches of threads, on the counting driver:
 * nothing that is freed is lost, nor used again too early.
 */
#include <time.h>

#include "pool/slab.h"
#include "pool/tcache.h"
#include "scarce_test.h"

/* Of another thread, whose cache is yet to hold any of this size. */
static void *free_there(void *argument)
{
	CUdeviceptr *p = argument;

	give(take(512));
	/* it takes two batches; without the second this one waits in its slab
	 */
	refuse(2, false);
	give(p[0]);
	refuse(0, false);
	/* but no other */
	give(p[1]);
	return NULL;
}

/* What a slab takes is there, what a thread keeps its objects in is not. */
static void test_a_slab_for_nobody(void **state)
{
	CUdeviceptr p;

	(void)state;
	begin();
	least = sizeof(struct vs_batch);
	refuse(1, true);
	assert_int_equal(vs_pool_alloc(700 * KiB, &p), VS_PASS);
	refuse(0, false);
	assert_true(n_failed > 0);
	assert_true(fake.held_high < GiB);
	go_on(700 * KiB);
}

/* A slab is dead with the last of its objects, and goes with the next trim. */
static void trim_dead(void)
{
	vs_pool_trim();
	vs_pool_trim();
}

static void test_a_cache_of_one_batch(void **state)
{
	CUdeviceptr p[2] = {take(5000), take(5000)};

	(void)state;
	in_a_thread(free_there, p);
	assert_int_equal(n_failed, 1);
	trim_dead();
	assert_int_equal(fake.held, 0);
	check_pool();
}

/* Two, fewer than a cache hands over. */
static void *free_few(void *argument)
{
	CUdeviceptr *p = argument;

	give(p[0]);
	give(p[1]);
	/* what they would leave it in is not there, nor when the thread ends */
	refuse(1, true);
	vs_pool_trim();
	return NULL;
}

static void test_a_cache_that_is_emptied(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		CUdeviceptr p[2] = {take(5000), take(5000)};

		if (i == 0)
			free_few(p);
		else
			in_a_thread(free_few, p);
		refuse(0, false);
		assert_true(n_failed > 0);
		vs_pool_trim();
		assert_int_equal(fake.held, 0);
		check_pool();
	}
}

/* More than a batch that cannot be handed over, but for room in its page. */
static void test_frees_beyond_a_batch(void **state)
{
	enum { N = 200 };
	CUdeviceptr p[N];

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(5000);
	refuse(1, true);
	for (int i = 0; i < N; i++)
		give(p[i]);
	refuse(0, false);
	assert_true(n_failed > 0);
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	check_pool();
}

/* More than that has room for: they wait in their slabs. */
static void test_frees_beyond_a_page(void **state)
{
	enum { N = VS_BATCH + 50 };
	static CUdeviceptr p[N];
	const struct vs_bin *bin;
	const struct vs_tcache *tc;

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(5000);
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(5000)];
	refuse(1, true);
	for (int i = 0; i < N; i++)
		give(p[i]);
	refuse(0, false);
	assert_int_equal(bin->freed->n, VS_BATCH);
	assert_int_equal(vs_pool_free(p[N - 1]), VS_PASS);
	trim_dead();
	assert_int_equal(bin->freed->n, 0);
	assert_int_equal(fake.held, 0);
	check_pool();
}

static void *free_alone(void *block)
{
	give(*(CUdeviceptr *)block);
	return NULL;
}

/* By a thread that has no cache of that class, and by one without any. */
static void test_frees_without_a_cache(void **state)
{
	enum { N = 600 };
	static CUdeviceptr p[N];

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(5000);
	vs_pool_trim();
	give(take(100));
	refuse(1, true);
	for (int i = 0; i < N; i++) {
		if (i % 100 > 0)
			give(p[i]);
		else
			in_a_thread(free_alone, &p[i]);
	}
	refuse(0, false);
	assert_true(n_failed > 0);
	trim_dead();
	assert_int_equal(fake.held, 0);
	check_pool();
}

enum { SOME = 60, MOST = 3000 };

static struct {
	CUdeviceptr p[MOST];
	unsigned n;
	uint64_t seed;
} some;

static void *free_some(void *unused)
{
	(void)unused;
	for (int i = 0; i < SOME && some.n > 0; i++) {
		unsigned which = next_random(&some.seed) % some.n;

		give(some.p[which]);
		some.p[which] = some.p[--some.n];
	}
	return NULL;
}

/* Of all sizes, by threads that stay and that end: none keeps memory. */
static void test_frees_at_random(void **state)
{
	enum { ROUNDS = 100, MORE = 200 };

	(void)state;
	some.seed = (uint64_t)time(NULL);
	print_message("seed %llu\n", (unsigned long long)some.seed);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < MORE && some.n < MOST; i++)
			some.p[some.n++] =
				take(1 + next_random(&some.seed) % (300 * KiB));
		refuse(1 + next_random(&some.seed) % 5,
		       next_random(&some.seed) % 2);
		if (round % 2 == 0)
			free_some(NULL);
		else
			in_a_thread(free_some, NULL);
		if (round % 4 == 0)
			vs_pool_trim();
		refuse(0, false);
	}
	while (some.n > 0)
		give(some.p[--some.n]);
	trim_dead();
	assert_int_equal(fake.held, 0);
	check_pool();
}

enum { HALF = 8 };

/*
 * Of what the thread's cache holds a half is complete, and the other is not for
 * long. Returns the bin.
 */
static struct vs_bin *free_two_halves(CUdeviceptr p[2 * HALF])
{
	struct vs_tcache *tc;
	struct vs_pool *pool;
	struct vs_bin *bin;

	for (int i = 0; i < 2 * HALF; i++)
		p[i] = take(5000);
	pool = vs_pool_of(0);
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(5000)];
	/* it has room for all */
	give(take(5000));
	vs_tcache_flush(pool);
	bin->cap = 2 * HALF;
	for (int i = 0; i < HALF; i++)
		give(p[i]);
	assert_true(vs_fence_record(&pool->fence));
	assert_true(vs_fence_poll(&pool->fence));
	fake.lag_ns = (uint64_t)1 << 40;
	for (int i = HALF; i < 2 * HALF; i++)
		give(p[i]);
	assert_int_equal(bin->freed->n, 2 * HALF);
	return bin;
}

/* Nothing of that half is handed out. */
static void check_late(const CUdeviceptr p[2 * HALF])
{
	for (int i = 0; i < 4 * HALF; i++) {
		CUdeviceptr again = take(5000);

		for (int k = HALF; k < 2 * HALF; k++)
			assert_int_not_equal(again, p[k]);
	}
}

/* What a cache could not be emptied of is as old as it was. */
static void test_what_stays_is_as_old_as_it_was(void **state)
{
	CUdeviceptr p[2 * HALF];
	struct vs_bin *bin = free_two_halves(p);

	(void)state;
	refuse(1, true);
	vs_tcache_flush(vs_pool_of(0));
	refuse(0, false);
	assert_true(n_failed > 0);
	assert_int_equal(bin->freed->n, 2 * HALF);
	check_late(p);
}

/* And what is freed into one that was is as new as it is. */
static void test_what_comes_next_is_not_old(void **state)
{
	CUdeviceptr p[2 * HALF], more[HALF];
	struct vs_bin *bin;

	(void)state;
	for (int i = 0; i < HALF; i++)
		more[i] = take(5000);
	bin = free_two_halves(p);
	vs_tcache_flush(vs_pool_of(0));
	assert_int_equal(bin->freed->n, 0);
	/* of the same epoch */
	bin->cap = 2 * HALF;
	for (int i = 0; i < HALF; i++)
		give(more[i]);
	memcpy(p + HALF, more, sizeof(more));
	check_late(p);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(test_##name, fresh)
	const struct CMUnitTest tests[] = {
		T(a_cache_of_one_batch),
		T(a_cache_that_is_emptied),
		T(frees_beyond_a_batch),
		T(frees_beyond_a_page),
		T(frees_without_a_cache),
		T(frees_at_random),
		T(a_slab_for_nobody),
		T(what_stays_is_as_old_as_it_was),
		T(what_comes_next_is_not_old),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
