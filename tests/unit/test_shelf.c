/* SPDX-License-Identifier: MIT
 *
 * What a program that churns freed, on its shelves (pool/shelf), on the
 * counting driver: handed out as it was, and never missed by whoever needs the
 * memory.
 */
#include "base/knob.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/reuse.h"
#include "pool/state.h"

enum { MOST = 32 };

static struct vs_pool *pool;

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)139 << 30);
	fake.lag_ns = 0;
	give(take(2 * MiB));
	pool = vs_pool_by_index(0);
	return 0;
}

/* The program churns, and the pool holds much more than it needs. */
static void churn(void)
{
	pool->turnover.is_fast = true;
	pool->need = 0;
}

/* All that is pending is seen complete, and the next allocation looks. */
static void look(void)
{
	vs_fence_record(&pool->fence);
	vs_fence_poll(&pool->fence);
	give(take(1200 * KiB));
	heap_check(pool);
}

/* Frees n blocks; more follow, or the oldest would be taken back at once. */
static void shelve(const CUdeviceptr *p, unsigned n)
{
	CUdeviceptr other = take(1400 * KiB);

	churn();
	give(other);
	for (unsigned i = 0; i < n; i++)
		give(p[i]);
	look();
}

/* n blocks, and one behind them: they do not end where the chunk does. */
static void take_some(CUdeviceptr *p, unsigned n, size_t size)
{
	for (unsigned i = 0; i < n; i++)
		p[i] = take(size);
	take(size);
}

/* Large ones that were served without growing or moving. */
static uint64_t hits(void)
{
	return vs_stat_get(&pool->stats, large_hit);
}

static void test_a_block_stays_whole(void **state)
{
	CUdeviceptr p[2];
	uint64_t before;

	(void)state;
	take_some(p, 2, 64 * MiB);
	before = vs_stat_get(pool, live_spans);
	shelve(p, 2);
	assert_true(pool->shelved_bytes >= 128 * MiB);
	/* the last one first; both as they were */
	assert_int_equal(take(64 * MiB), p[1]);
	assert_int_equal(take(58 * MiB), p[0]);
	assert_int_equal(vs_stat_get(pool, live_spans), before);
	heap_check(pool);
}

/* It is seen complete by the look that is the last one before others pay. */
static void test_one_that_comes_late_stays_whole(void **state)
{
	CUdeviceptr p[3] = {take(33 * MiB), take(64 * MiB), take(128 * MiB)};
	uint64_t before;

	(void)state;
	churn();
	before = hits();
	for (int i = 0; i < 3; i++)
		give(p[i]);
	assert_int_equal(take(64 * MiB), p[1]);
	assert_int_equal(hits(), before + 1);
	assert_int_equal(pool->shelved_bytes, (33 + 128) * MiB);
	heap_check(pool);
}

/* By an eighth of what was asked for, and not by more. */
static void test_how_much_larger(void **state)
{
	CUdeviceptr p[2];
	uint64_t before;

	(void)state;
	take_some(p, 2, 72 * MiB);
	shelve(p, 2);
	before = vs_stat_get(pool, live_spans);
	assert_int_equal(take(64 * MiB), p[1]);
	assert_int_equal(vs_stat_get(pool, live_spans), before + 72 * MiB);
	take(63 * MiB);
	assert_int_equal(vs_stat_get(pool, live_spans), before + 135 * MiB);
	heap_check(pool);
}

/* What is left of it would be missed. */
static void test_one_that_is_much_larger_does_not(void **state)
{
	CUdeviceptr p[1];
	uint64_t held;

	(void)state;
	take_some(p, 1, 64 * MiB);
	shelve(p, 1);
	held = fake.held;
	take(32 * MiB);
	take(32 * MiB);
	assert_int_equal(fake.held, held);
	assert_in_range(pool->shelved_bytes, 0, 2 * MiB);
	heap_check(pool);
}

/* Of the same bin, but smaller than asked for. */
static void test_nor_one_that_is_too_small(void **state)
{
	CUdeviceptr p[1];
	uint64_t before;

	(void)state;
	take_some(p, 1, 64 * MiB);
	shelve(p, 1);
	before = vs_stat_get(pool, live_spans);
	take(66 * MiB);
	assert_int_equal(vs_stat_get(pool, live_spans), before + 66 * MiB);
	heap_check(pool);
}

/* Two of 24 MiB, side by side. */
static void take_neighbours(CUdeviceptr *p)
{
	give(take(48 * MiB));
	vs_pool_tick();
	p[0] = take(24 * MiB);
	p[1] = take(24 * MiB);
	assert_int_equal(p[0] + 24 * MiB, p[1]);
}

static void test_neighbours_merge_for_a_larger_one(void **state)
{
	CUdeviceptr p[2];
	uint64_t held, before;

	(void)state;
	take_neighbours(p);
	shelve(p, 2);
	held = fake.held;
	before = hits();
	take(48 * MiB);
	assert_int_equal(fake.held, held);
	assert_int_equal(hits(), before + 1);
	heap_check(pool);
}

/* The smaller ones first; what is not needed for that stays whole. */
static void test_no_more_merge_than_must(void **state)
{
	CUdeviceptr p[3];
	uint64_t before;

	(void)state;
	take_neighbours(p);
	p[2] = take(200 * MiB);
	shelve(p, 3);
	before = pool->shelved_bytes;
	assert_true(before >= 248 * MiB);
	assert_int_equal(take(48 * MiB), p[0]);
	assert_int_equal(pool->shelved_bytes, before - 48 * MiB);
	assert_int_equal(vs_stat_get(&pool->stats, pending),
			 pool->pending_bytes + pool->shelved_bytes);
	heap_check(pool);
}

/* What stays should lie where it packs best. */
static void test_none_is_cut_by_itself(void **state)
{
	CUdeviceptr p[3];

	(void)state;
	take_neighbours(p);
	p[2] = take(200 * MiB);
	shelve(p, 3);
	assert_true(pool->shelved_bytes >= 248 * MiB);
	take(16 * MiB);
	assert_in_range(pool->shelved_bytes, 0, 2 * MiB);
	heap_check(pool);
}

/* What was kept before the program churned (pool/kept) lies beside it. */
static void test_what_is_kept_merges_too(void **state)
{
	struct vs_range *r;
	CUdeviceptr p[2];
	uint64_t before;

	(void)state;
	take_neighbours(p);
	shelve(p, 2);
	r = vs_shelf_take(&pool->shelf[VS_HEAP_LARGE], 24 * MiB, 0);
	assert_non_null(r);
	vs_kept_put(&pool->kept, r);
	before = hits();
	assert_int_equal(take(48 * MiB), p[0]);
	assert_int_equal(hits(), before + 1);
	assert_int_equal(pool->kept.n, 0);
	heap_check(pool);
}

/*
 * Blocks of 24 MiB are on the shelf, nothing else that is idle fits 19, and
 * live blocks may have so much too much in all.
 */
static void shelve_larger_ones(uint64_t waste)
{
	CUdeviceptr p[2];

	for (int i = 0; i < 5; i++)
		take(512 * MiB);
	p[0] = take(24 * MiB);
	take(24 * MiB);
	p[1] = take(24 * MiB);
	take(24 * MiB);
	shelve(p, 2);
	while (vs_heap_take(pool, &pool->heap[VS_HEAP_LARGE], 19 * MiB, true))
		;
	pool->need = 16 * waste + 16 * (vs_stat_get(pool, live_spans) -
					vs_stat_get(pool, live_bytes));
	assert_true(vs_turnover_is_roomy(pool));
	assert_true(pool->shelved_bytes >= 48 * MiB);
}

static void test_a_larger_one_before_any_merge(void **state)
{
	uint64_t before, shelved;

	(void)state;
	shelve_larger_ones(6 * MiB);
	before = vs_stat_get(pool, live_spans);
	shelved = pool->shelved_bytes;
	take(20 * MiB);
	assert_int_equal(vs_stat_get(pool, live_spans), before + 24 * MiB);
	/* what look() freed has come there */
	assert_in_range(pool->shelved_bytes, shelved - 24 * MiB,
			shelved - 22 * MiB);
	/* the next would be too much in all */
	before = vs_stat_get(pool, live_spans);
	take(20 * MiB);
	assert_in_range(vs_stat_get(pool, live_spans), before + 20 * MiB,
			before + 24 * MiB - 1);
}

/* By more than a quarter, or while live blocks have too much already. */
static void test_but_none_that_wastes_much(void **state)
{
	uint64_t before;

	(void)state;
	shelve_larger_ones(4 * MiB);
	for (uint64_t size = 20 * MiB; size >= 19 * MiB; size -= MiB) {
		before = vs_stat_get(pool, live_spans);
		take(size);
		assert_in_range(vs_stat_get(pool, live_spans), before + size,
				before + 24 * MiB - 1);
		pool->need *= 2;
	}
}

/*
 * Once the program works, the pool holds what it needs, or the driver has no
 * more, all of it merges.
 */
static void test_nor_for_others(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		shelve_larger_ones(6 * MiB);
		/* what look() freed; nothing is pending then */
		vs_fence_record(&pool->fence);
		vs_fence_poll(&pool->fence);
		take(1200 * KiB);
		assert_int_equal(pool->pending_bytes, 0);
		if (i == 0)
			pool->turnover.is_fast = false;
		else if (i == 1)
			pool->need = fake.held;
		else
			atomic_store(&pool->refused, vs_vmm_clock());
		take(20 * MiB);
		assert_in_range(pool->shelved_bytes, 0, 2 * MiB);
	}
}

/* One that fits nothing of its heap leaves what others have on theirs. */
static void test_heaps_have_their_own(void **state)
{
	CUdeviceptr p[2], q;

	(void)state;
	take_some(p, 2, 9 * MiB);
	shelve(p, 2);
	q = take(7900 * KiB);
	assert_true(q >= pool->heap[VS_HEAP_MIDDLE].base &&
		    q < pool->heap[VS_HEAP_MIDDLE].end);
	while (take(5 * MiB) < q + 64 * MiB)
		;
	assert_int_equal(pool->shelved_bytes, 18 * MiB);
	heap_check(pool);
}

static void test_all_find_it_on_a_full_device(void **state)
{
	CUdeviceptr p[4];

	(void)state;
	take_some(p, 4, 256 * MiB);
	fake.memory = fake.held + 64 * MiB;
	shelve(p, 4);
	assert_true(pool->shelved_bytes >= 1024 * MiB);
	for (int i = 0; i < 1000; i++)
		take(1024 * KiB);
	assert_int_equal(fake.natives, 0);
	heap_check(pool);
}

static void test_a_trim_releases_it(void **state)
{
	CUdeviceptr p[2] = {take(64 * MiB), take(64 * MiB)};

	(void)state;
	shelve(p, 2);
	assert_true(pool->shelved_bytes > 0);
	for (int i = 0; i < 3; i++, fake.now += 200 * MS)
		vs_pool_trim();
	assert_int_equal(pool->shelved_bytes, 0);
	assert_int_equal(fake.held, 0);
}

/* As memory that is idle: it goes when nothing is asked for. */
static void test_it_goes_after_a_while(void **state)
{
	CUdeviceptr p[2] = {take(512 * MiB), take(512 * MiB)};

	(void)state;
	vs_knobs.decay_ms = 100;
	shelve(p, 2);
	assert_true(pool->shelved_bytes > 0);
	for (int i = 0; i < 20; i++, fake.now += 50 * MS)
		vs_pool_tick();
	assert_int_equal(pool->shelved_bytes, 0);
	assert_in_range(fake.held, 0, 128 * MiB);
}

/* Processes that take turns: all that is more than the threshold. */
static void test_it_goes_at_a_synchronize(void **state)
{
	CUdeviceptr p[10];

	(void)state;
	vs_knobs.decay_ms = 0;
	for (int i = 0; i < 10; i++)
		p[i] = take(64 * MiB);
	shelve(p, 10);
	assert_true(pool->shelved_bytes > 0);
	vs_pool_synchronized();
	assert_int_equal(pool->shelved_bytes, 0);
	assert_in_range(fake.held, 0, 128 * MiB);
}

/* All that is held is in one of the figures. */
static void test_it_is_told(void **state)
{
	CUdeviceptr p[2];

	(void)state;
	take_some(p, 2, 64 * MiB);
	shelve(p, 2);
	assert_int_equal(vs_stat_get(&pool->stats, pending),
			 pool->pending_bytes + pool->shelved_bytes);
	assert_true(vs_stat_get(&pool->stats, pending) >= 128 * MiB);
	vs_reuse_harvest(pool);
	assert_int_equal(pool->shelved_bytes, 0);
	assert_int_equal(vs_stat_get(&pool->stats, pending),
			 pool->pending_bytes);
}

/* Programs that work, and those that hold what they need, or much. */
static void test_others_have_none(void **state)
{
	CUdeviceptr p[MOST];

	(void)state;
	take_some(p, MOST, 64 * MiB);
	for (int i = 0; i < 3; i++) {
		/* room for what looks, or all would go home for that */
		give(take(7 * MiB));
		vs_pool_tick();
		churn();
		if (i == 0)
			pool->turnover.is_fast = false;
		else if (i == 1)
			pool->need = fake.held / 2 + 1;
		else
			pool->most = 63, pool->need = 1;
		give(p[2 * i]);
		give(p[2 * i + 1]);
		look();
		assert_int_equal(pool->shelved_bytes, 0);
	}
}

/* The slabs of a context that ended, while the program churns. */
static void leave_slabs(void)
{
	CUcontext other = (CUcontext)0x2000;

	vs_pool_ctx_born(other, 0);
	fake.current = other;
	for (int i = 0; i < 64; i++)
		take(1024 * KiB);
	fake.current = FAKE_CTX;
	churn();
	end_ctx(other);
}

/* Small objects' memory is for small objects: nor is it taken as it is. */
static void test_no_block_is_made_of_a_slab(void **state)
{
	(void)state;
	leave_slabs();
	assert_true(pool->turnover.is_fast);
	vs_fence_record(&pool->fence);
	vs_fence_poll(&pool->fence);
	assert_int_equal(TAILQ_FIRST(&pool->pending)->span, 2 * MiB);
	assert_true(take(2 * MiB) >= pool->slabs_end);
}

static void test_slabs_are_not_shelved(void **state)
{
	(void)state;
	leave_slabs();
	look();
	assert_int_equal(pool->shelved_bytes, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_block_stays_whole, fresh),
		cmocka_unit_test_setup(test_how_much_larger, fresh),
		cmocka_unit_test_setup(test_one_that_is_much_larger_does_not,
				       fresh),
		cmocka_unit_test_setup(test_nor_one_that_is_too_small, fresh),
		cmocka_unit_test_setup(test_neighbours_merge_for_a_larger_one,
				       fresh),
		cmocka_unit_test_setup(test_no_more_merge_than_must, fresh),
		cmocka_unit_test_setup(test_none_is_cut_by_itself, fresh),
		cmocka_unit_test_setup(test_what_is_kept_merges_too, fresh),
		cmocka_unit_test_setup(test_a_larger_one_before_any_merge,
				       fresh),
		cmocka_unit_test_setup(test_but_none_that_wastes_much, fresh),
		cmocka_unit_test_setup(test_nor_for_others, fresh),
		cmocka_unit_test_setup(test_heaps_have_their_own, fresh),
		cmocka_unit_test_setup(test_all_find_it_on_a_full_device,
				       fresh),
		cmocka_unit_test_setup(test_a_trim_releases_it, fresh),
		cmocka_unit_test_setup(test_it_goes_after_a_while, fresh),
		cmocka_unit_test_setup(test_it_goes_at_a_synchronize, fresh),
		cmocka_unit_test_setup(test_it_is_told, fresh),
		cmocka_unit_test_setup(test_others_have_none, fresh),
		cmocka_unit_test_setup(test_no_block_is_made_of_a_slab, fresh),
		cmocka_unit_test_setup(test_slabs_are_not_shelved, fresh),
		cmocka_unit_test_setup(test_one_that_comes_late_stays_whole,
				       fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
