/* SPDX-License-Identifier: MIT
 *
 * Blocks of most of a device, in one chunk behind another (Note [Whole] in
 * pool/chunk.h), on the counting driver (fake.h).
 */
#include "driver/real.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/plan.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* Chunks that are made for a block. */
static unsigned long made_for(uint64_t size)
{
	unsigned long before = fake.creates;

	take(size);
	return fake.creates - before;
}

/* A block is of few chunks only where a program can have few such blocks. */
static void test_a_first_huge_block_is_of_two_chunks(void **state)
{
	static const struct {
		uint64_t size;
		unsigned n_chunks;
	} row[] = {
		{8 * GiB, 1},  {10 * GiB, 2},  {50 * GiB, 7},
		{64 * GiB, 2}, {100 * GiB, 2},
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		fresh(state);
		take(4096);
		assert_int_equal(made_for(row[i].size), row[i].n_chunks);
	}
}

/* It could not be released when that is wanted, or all is to be kept. */
static void test_not_with_knobs_that_forbid_it(void **state)
{
	(void)state;
	vs_knobs.reuse = VS_REUSE_ORDERED;
	take(4096);
	assert_int_equal(made_for(100 * GiB), 13);
	fresh(state);
	vs_knobs.release_threshold.value = 50 * GiB;
	take(4096);
	assert_int_equal(made_for(100 * GiB), 13);
}

static void test_a_huge_block_is_used_again(void **state)
{
	unsigned long before;
	CUdeviceptr p;

	(void)state;
	give(take(100 * GiB));
	before = fake.creates;
	for (int i = 0; i < 4; i++)
		give(take(100 * GiB - i * 64 * KiB));
	/* from its end, where the large chunk is */
	p = take(95 * GiB);
	take(5 * GiB);
	assert_int_equal(fake.creates, before);
	give(p);
	/* its begin, when the chunk before it is in use */
	take(92 * GiB);
	assert_int_equal(fake.creates, before);
	/* nothing is left of it that something else could pin */
	assert_int_equal(vs_pool_of(0)->chunks.idle_bytes, 0);
}

/* Its front serves what is smaller; what does not fit in there, new chunks. */
static void test_a_huge_chunk_is_not_broken(void **state)
{
	CUdeviceptr p[8];

	(void)state;
	give(take(100 * GiB));
	for (int i = 0; i < 8; i++)
		p[i] = take(GiB);
	assert_int_equal(stats()->reserved, 100 * GiB);
	take(20 * GiB);
	assert_in_range(stats()->reserved, 28 * GiB, 29 * GiB);
	for (int i = 0; i < 8; i++)
		give(p[i]);
	vs_pool_trim();
	assert_in_range(stats()->reserved, 20 * GiB, 21 * GiB);
}

/* It would cost the driver's time each time. */
static void test_a_huge_chunk_stands_in_the_way_once(void **state)
{
	CUdeviceptr p;

	(void)state;
	give(take(100 * GiB));
	p = take(20 * GiB);
	give(p);
	vs_pool_trim();
	assert_int_equal(made_for(100 * GiB), 13);
}

/* As long as other idle memory serves. */
static void test_a_huge_chunk_stays_where_others_move(void **state)
{
	CUdeviceptr huge, p[16];

	(void)state;
	huge = take(110 * GiB);
	for (int i = 0; i < 16; i++)
		p[i] = take(GiB);
	give(huge);
	for (int i = 0; i < 16; i += 2)
		give(p[i]);
	take(8 * GiB - 32 * MiB);
	for (int i = 0; i < 3; i++)
		take(3 * GiB);
	assert_int_equal(vs_pool_of(0)->chunks.whole_bytes, 102 * GiB);
	assert_true(stats()->chunks_moved > 0);
}

/* The driver has no more, though the program needed as much before. */
static void test_a_huge_chunk_gives_way_on_a_full_device(void **state)
{
	(void)state;
	give(take(100 * GiB));
	fake.others = fake.memory - stats()->reserved;
	for (int i = 0; i < 90; i++)
		take(GiB);
	assert_int_equal(fake.natives, 0);
	assert_int_equal(vs_pool_of(0)->chunks.whole_bytes, 0);
}

/* Not for want of memory, which would take what is idle. */
static CUresult CUDAAPI fails_too(CUdeviceptr *p, size_t size)
{
	(void)p, (void)size;
	return CUDA_ERROR_UNKNOWN;
}

/* What was made of a huge block that could not be made whole is no loss. */
static void test_half_a_huge_block_is_no_loss(void **state)
{
	__typeof__(vs_real.cuMemAlloc_v2) native;
	CUdeviceptr p;

	(void)state;
	fake.others = 60 * GiB;
	assert_int_equal(vs_pool_alloc(100 * GiB, &p),
			 CUDA_ERROR_OUT_OF_MEMORY);
	native = vs_real.cuMemAlloc_v2;
	vs_real.cuMemAlloc_v2 = fails_too;
	fake.fail_map = 2;
	assert_int_not_equal(vs_pool_alloc(70 * GiB, &p), CUDA_SUCCESS);
	vs_real.cuMemAlloc_v2 = native;
	assert_int_equal(vs_pool_of(0)->chunks.whole_bytes, 62 * GiB);
	fake.fail_create = 1;
	take(70 * GiB);
	assert_int_equal(vs_pool_of(0)->chunks.whole_bytes, 0);
	take(5 * GiB);
	assert_in_range(stats()->reserved, 75 * GiB, 79 * GiB);
}

/* What is live in a part of a block that was huge keeps little of the rest. */
static void test_little_of_a_huge_block_stays(void **state)
{
	CUdeviceptr old, new;

	(void)state;
	give(take(120 * GiB));
	take(70 * GiB);
	old = take(14 * GiB);
	new = take(42 * GiB);
	give(old);
	give(new);
	vs_pool_trim();
	assert_in_range(stats()->reserved, 70 * GiB, 79 * GiB);
}

/*
 * A huge block begins in what another has left, and its chunks have a little
 * more than the rest of it. That is not left over in the huge one: the next
 * block would come to lie there, and keep all of it.
 */
static void test_blocks_beside_a_huge_one_keep_none_of_it(void **state)
{
	CUdeviceptr huge, next;

	(void)state;
	if (!has_trunks())
		skip();
	take(9 * MiB + 512 * KiB);
	huge = take(100 * GiB);
	/* in chunks behind it, once they are there */
	give(take(100 * MiB));
	next = take(100 * MiB);
	assert_int_equal(next, huge + 100 * GiB);
	heap_check(vs_pool_of(0));
	give(huge);
	vs_pool_trim();
	assert_in_range(stats()->reserved, 0, 256 * MiB);
}

/* Nor where it ends in that, and begins in the huge one. */
static void test_a_huge_block_before_what_is_left(void **state)
{
	CUdeviceptr left, after, huge;

	(void)state;
	without_trunks();
	/* in a region of its own, with much room before it */
	huge = take(100 * GiB);
	give(take(20 * MiB));
	left = take(9 * MiB + 512 * KiB);
	after = take(10 * MiB + 512 * KiB);
	assert_int_equal(after, left + 9 * MiB + 512 * KiB);
	give(huge);
	vs_pool_trim();
	give(left);
	huge = take(100 * GiB);
	assert_int_equal(fake_mapping(huge), huge);
	assert_in_range(huge + 100 * GiB, left + 1, after - 1);
	heap_check(vs_pool_of(0));
}

/* Chunks as large as would be made for the block again are not too large. */
static void test_a_huge_block_keeps_its_chunks_on_a_full_device(void **state)
{
	struct vs_pool *pool;
	uint64_t above;

	(void)state;
	give(take(64 * GiB));
	pool = vs_pool_of(0);
	assert_true(vs_plan_excess(pool, VS_HEAP_LARGE, 65 * GiB, &above) > 0);
	assert_int_equal(above, UINT64_MAX);
	pool->tight = 384;
	assert_true(vs_plan_excess(pool, VS_HEAP_LARGE, 65 * GiB, &above) > 0);
	assert_int_equal(above, 8 * GiB);
	assert_true(vs_plan_excess(pool, VS_HEAP_LARGE, 24 * GiB, &above) > 0);
	assert_int_equal(above, 2 * GiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(a_first_huge_block_is_of_two_chunks),
		T(not_with_knobs_that_forbid_it),
		T(a_huge_block_is_used_again),
		T(a_huge_chunk_is_not_broken),
		T(a_huge_chunk_stands_in_the_way_once),
		T(a_huge_chunk_stays_where_others_move),
		T(a_huge_chunk_gives_way_on_a_full_device),
		T(half_a_huge_block_is_no_loss),
		T(little_of_a_huge_block_stays),
		T(blocks_beside_a_huge_one_keep_none_of_it),
		T(a_huge_block_before_what_is_left),
		T(a_huge_block_keeps_its_chunks_on_a_full_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
