/* SPDX-License-Identifier: MIT
 *
 * What is not looked at, on the counting driver, with much of everything:
 * chunks, caches and batches that could tell nothing. The linker counts looks.
 */
#include "fake_test.h"
#include "pool/mark.h"
#include "pool/slab.h"
#include "pool/state.h"

/* To look at all of these takes longer than the call of the driver. */
enum { LARGE = 3000, MOST = 256 };
/* Objects of 64 KiB. */
enum { OBJECTS = 65536 };

static CUdeviceptr blocks[OBJECTS];
static unsigned n_ends, n_slacks;

/* The linker calls them in place of the others (Makefile.am). */
struct vs_chunk *__real_vs_chunk_end_prev(struct vs_chunk *c,
					  enum vs_chunk_end end);
uint64_t __real_vs_range_slack(struct vs_pool *pool);
struct vs_chunk *__wrap_vs_chunk_end_prev(struct vs_chunk *c,
					  enum vs_chunk_end end);
uint64_t __wrap_vs_range_slack(struct vs_pool *pool);

/* A look at another chunk that may lend what it has at an end. */
struct vs_chunk *__wrap_vs_chunk_end_prev(struct vs_chunk *c,
					  enum vs_chunk_end end)
{
	n_ends++;
	return __real_vs_chunk_end_prev(c, end);
}

/* The caches of all threads are looked at. */
uint64_t __wrap_vs_range_slack(struct vs_pool *pool)
{
	n_slacks++;
	return __real_vs_range_slack(pool);
}

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* What was freed behind long work, which is done by now. */
static void free_many(int n_blocks, size_t size)
{
	for (int i = 0; i < n_blocks; i++)
		blocks[i] = take(size);
	fake.gpu_free = fake.now + 1000 * MS;
	for (int i = 0; i < n_blocks; i++)
		give(blocks[i]);
	fake.now += 2000 * MS;
}

/* Misses, until what is needed is held, beside large chunks used in part. */
static void test_no_chunk_that_has_too_much(void **state)
{
	unsigned most = 0;

	(void)state;
	free_many(LARGE, 32 * MiB);
	for (int i = 0; i < LARGE; i++) {
		take(24 * MiB);
		blocks[i] = take(8 * MiB);
	}
	for (int i = 0; i < LARGE; i++)
		give(blocks[i]);
	fake.now += 10 * MS;
	take(4 * MiB);
	for (int i = 0; i < LARGE / 2; i++) {
		n_ends = 0;
		take(4 * MiB);
		most = n_ends > most ? n_ends : most;
	}
	assert_in_range(most, 0, MOST);
}

/* A program that does not churn has no extra by what its threads keep. */
static void test_no_cache_for_an_extra(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		take(128 * MiB);
		fake.now += 100 * MS;
	}
	n_slacks = 0;
	take(128 * MiB);
	assert_int_equal(n_slacks, 0);
}

/* How old the newest is nobody looks for: who did would come to what is not. */
static void test_no_batch_for_the_newest(void **state)
{
	unsigned class = vs_class_of(64 * KiB);
	struct vs_batch *first;
	struct vs_pool *pool;

	(void)state;
	free_many(OBJECTS, 64 * KiB);
	pool = vs_pool_of(0);
	first = pool->slabs->class[class].pending;
	assert_non_null(first->next);
	first->next = (struct vs_batch *)1;
	assert_int_equal(vs_mark_newest(pool), first->tag);
	assert_true(vs_pool_is_waiting(0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_no_chunk_that_has_too_much, fresh),
		cmocka_unit_test_setup(test_no_cache_for_an_extra, fresh),
		cmocka_unit_test_setup(test_no_batch_for_the_newest, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
