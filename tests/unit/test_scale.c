/* SPDX-License-Identifier: MIT
 *
 * The pool on the counting driver with much of everything: what a call takes
 * must not grow with what it does not touch. Times of few and of many are
 * compared, of this thread alone and each the best of some tries.
 */
#include <time.h>

#include "fake_test.h"
#include "pool/dead.h"
#include "pool/slab.h"
#include "pool/state.h"

#define OTHER_CTX ((CUcontext)0x2000)

enum { TRIES = 3, MOST_TRIES = 40 };
/* What is as long, and what is TIMES as long, may be SLOWER by caches alone. */
enum { FEW = 2000, TIMES = 16, MANY = FEW * TIMES, SLOWER = 6 };
enum { OBJECTS = 8 }; /* of 64 KiB in a slab */

static CUdeviceptr blocks[OBJECTS * MANY];

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)139 << 30);
	return 0;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* What `run` takes with n of what it is about, if less than before. */
static double best(double before, double (*run)(int n), int n)
{
	double s;

	fresh(NULL);
	s = run(n);
	return s < before ? s : before;
}

/* With TIMES as many it takes less than `times` as long. */
static void check(double (*run)(int n), double times)
{
	double few = 1e9, many = 1e9;

	for (int i = 0; i < TRIES || (i < MOST_TRIES && many >= times * few);
	     i++) {
		few = best(few, run, FEW);
		many = best(many, run, MANY);
	}
	assert_true(many < times * few);
}

/* Sweeps of n slabs, each in use. */
static double sweep(int n)
{
	struct vs_pool *pool;
	double began;

	for (int i = 0; i < OBJECTS * n; i++)
		blocks[i] = take(64 * KiB);
	for (int i = 0; i < OBJECTS * n; i++) {
		if (i % OBJECTS)
			give(blocks[i]);
	}
	vs_pool_trim();
	pool = vs_pool_of(0);
	assert_in_range(pool->slab_bytes, (size_t)n * OBJECTS * 64 * KiB,
			SIZE_MAX);
	began = seconds();
	for (int i = 0; i < 2000; i++)
		assert_int_equal(vs_slab_sweep(pool), 0);
	return seconds() - began;
}

static void test_a_sweep_takes_what_is_empty(void **state)
{
	(void)state;
	check(sweep, SLOWER);
}

/* The end of a context whose slabs lie between those of another. */
static double end_context(int n)
{
	double began;

	for (int i = 0; i < OBJECTS * n; i++) {
		fake.current = i / OBJECTS % 2 ? FAKE_CTX : OTHER_CTX;
		take(64 * KiB);
	}
	fake.current = FAKE_CTX;
	began = seconds();
	end_ctx(OTHER_CTX);
	return seconds() - began;
}

static void test_the_end_of_one_of_two_contexts(void **state)
{
	(void)state;
	check(end_context, SLOWER * TIMES);
}

/* Chunks of 2 MiB; one block of nearly all of them if `is_regrouped`. */
static double use_chunks(int n, bool is_regrouped)
{
	double began;

	vs_knobs.chunk_size.value = 2 * MiB;
	for (int i = 0; i < n; i++)
		blocks[i] = take(2 * MiB);
	for (int i = 0; i < n; i++)
		give(blocks[i]);
	began = seconds();
	if (is_regrouped)
		take((size_t)(n - 1) * 2 * MiB);
	else
		vs_pool_trim();
	return seconds() - began;
}

static double regroup(int n)
{
	return use_chunks(n, true);
}

static double trim(int n)
{
	return use_chunks(n, false);
}

static void test_one_block_of_many_chunks(void **state)
{
	(void)state;
	check(regroup, SLOWER * TIMES);
}

static void test_a_trim_of_many_chunks(void **state)
{
	(void)state;
	check(trim, SLOWER * TIMES);
}

/* Looks for dead chunks, with a dead block beside each of n live ones. */
static double retire(int n)
{
	struct vs_pool *pool;
	double began;

	vs_knobs.chunk_size.value = 64 * MiB;
	for (int i = 0; i < 2 * n; i++)
		blocks[i] = take(2 * MiB);
	for (int i = 0; i < 2 * n; i += 2) {
		vs_pool_pin(blocks[i]);
		give(blocks[i]);
	}
	vs_pool_trim();
	pool = vs_pool_of(0);
	assert_int_equal(pool->stats.dead, (size_t)n * 2 * MiB);
	began = seconds();
	for (int i = 0; i < 200; i++)
		assert_int_equal(vs_dead_retire(pool), 0);
	return seconds() - began;
}

static void test_much_that_is_dead(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	skip(); /* it leaves few addresses */
#endif
	check(retire, SLOWER);
}

/* 2 n steps, each of which keeps little and pins much. */
static double pin_and_keep(int n)
{
	double began = seconds();

	for (int i = 0; i < 2 * n; i++) {
		CUdeviceptr p = take(64 * KiB);

		vs_pool_pin(p);
		take(4096);
		give(p);
		fake.now += 1000000;
	}
	return seconds() - began;
}

static void test_a_step_beside_much_that_is_dead(void **state)
{
	(void)state;
	check(pin_and_keep, 4 * TIMES);
}

/* n chunks in which all is dead. */
static double retire_all(int n)
{
	double began;

	vs_knobs.contiguous = true;
	vs_knobs.chunk_size.value = 2 * MiB;
	for (int i = 0; i < n; i++) {
		blocks[i] = take(2 * MiB);
		vs_pool_pin(blocks[i]);
	}
	for (int i = 0; i < n; i++)
		give(blocks[i]);
	began = seconds();
	assert_int_equal(vs_pool_trim(), (size_t)n * 2 * MiB);
	return seconds() - began;
}

static void test_many_dead_chunks_go_at_once(void **state)
{
	(void)state;
	check(retire_all, 4 * TIMES);
}

/* A peer comes to n chunks that lie apart. */
static double welcome_peer(int n)
{
	CUcontext peer = (CUcontext)0x3000;
	unsigned long accesses;
	double began;

	vs_knobs.contiguous = true;
	vs_knobs.chunk_size.value = 2 * MiB;
	for (int i = 0; i < n; i++)
		take(2 * MiB);
	vs_pool_ctx_born(peer, 1);
	accesses = fake.accesses;
	began = seconds();
	assert_int_equal(vs_pool_peer(peer, FAKE_CTX, true), CUDA_SUCCESS);
	began = seconds() - began;
	assert_int_equal(fake.accesses - accesses, n);
	return began;
}

static void test_a_peer_comes_to_many_chunks(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	skip(); /* it leaves few addresses */
#endif
	check(welcome_peer, 4 * TIMES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_sweep_takes_what_is_empty, fresh),
		cmocka_unit_test_setup(test_the_end_of_one_of_two_contexts,
				       fresh),
		cmocka_unit_test_setup(test_one_block_of_many_chunks, fresh),
		cmocka_unit_test_setup(test_a_trim_of_many_chunks, fresh),
		cmocka_unit_test_setup(test_much_that_is_dead, fresh),
		cmocka_unit_test_setup(test_a_step_beside_much_that_is_dead,
				       fresh),
		cmocka_unit_test_setup(test_many_dead_chunks_go_at_once, fresh),
		cmocka_unit_test_setup(test_a_peer_comes_to_many_chunks, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
