/* SPDX-License-Identifier: MIT
 *
 * Small blocks beside a large one that was freed (Note [Vast] in pool/chunk.h),
 * on the counting driver (fake.h).
 */
#include "fake_test.h"
#include "pool/crumb.h"
#include "pool/mark.h"
#include "pool/plan.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(80 * GiB);
	return 0;
}

/* Two hours of a program that rests. */
static void rest(void)
{
	for (int i = 0; i < 7200; i++) {
		fake.now += 1000 * MS;
		vs_pool_tick();
	}
}

/* It is seen complete. */
static void give_and_see(CUdeviceptr p)
{
	give(p);
	fake.now += MS;
	vs_pool_tick();
}

/* Whatever it is: one that is left of many, a result, a table. */
static void test_a_small_block_keeps_no_vast_one(void **state)
{
	static const uint64_t vast[] = {600 * MiB, GiB,	     8 * GiB,
					24 * GiB,  34 * GiB, 60 * GiB};
	static const uint64_t small[] = {16 * MiB, 9 * MiB, 30 * MiB};

	for (size_t i = 0; i < sizeof(vast) / sizeof(vast[0]); i++) {
		for (size_t j = 0; j < 3; j++) {
			fresh(state);
			give_and_see(take(vast[i]));
			take(small[j]);
			assert_in_range(stats()->reserved, vast[i],
					vast[i] / 1000 * 1044 + 64 * MiB);
			rest();
			assert_in_range(stats()->reserved, small[j], 320 * MiB);
		}
	}
}

/* The next large one has it as it was, at no cost. */
static void test_a_vast_chunk_is_used_again(void **state)
{
	unsigned long before;

	(void)state;
	for (int i = 0; i < 4; i++) {
		CUdeviceptr p = take(8 * GiB);

		if (i == 1)
			before = fake.creates;
		give_and_see(p);
		take(16 * MiB);
	}
	/* but for what the small ones lie in */
	assert_in_range(fake.creates - before, 0, 3);
	assert_in_range(stats()->reserved, 8 * GiB, 8 * GiB + 384 * MiB);
}

/* When they are more than the program may have beside it, it goes. */
static void test_a_vast_chunk_goes_for_small_ones(void **state)
{
	(void)state;
	give_and_see(take(8 * GiB));
	for (int i = 0; i < 30; i++) {
		take(100 * MiB);
		assert_in_range(stats()->reserved, 0, 8 * GiB / 1000 * 1044);
	}
	assert_in_range(stats()->reserved, 3000 * MiB, 3400 * MiB);
	assert_int_equal(fake.natives, 0);
}

/* Or the driver's time would be felt in each round. */
static void test_rounds_of_large_and_small_settle(void **state)
{
	CUdeviceptr large, p[30];
	unsigned long before = 0;

	(void)state;
	for (int round = 0; round < 12; round++) {
		if (round == 4)
			before = fake.creates;
		large = take(8 * GiB);
		give_and_see(large);
		for (int i = 0; i < 30; i++)
			p[i] = take((40 + i) * MiB);
		for (int i = 0; i < 30; i++)
			give_and_see(p[i]);
	}
	assert_in_range(fake.creates - before, 0, 8);
	assert_in_range(stats()->reserved, 0, 8 * GiB / 1000 * 1050);
}

/* The device has no more, though the program may. */
static void test_a_vast_chunk_goes_on_a_full_device(void **state)
{
	(void)state;
	give_and_see(take(8 * GiB));
	fake.others = fake.memory - stats()->reserved;
	take(200 * MiB);
	assert_int_equal(fake.natives, 0);
	assert_in_range(stats()->reserved, 200 * MiB, 512 * MiB);
}

/* Its work goes on, so that it cannot go: it serves. */
static void test_a_vast_chunk_serves_where_it_must(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_knobs.memory_limit.value = 8 * GiB;
	p = take(8 * GiB);
	give(p);
	assert_true(take(16 * MiB) != 0);
	assert_int_equal(fake.natives, 0);
	assert_in_range(stats()->reserved, 16 * MiB, 8 * GiB);
}

/* Who wants memory kept wants it used. */
static void test_not_where_memory_is_to_be_kept(void **state)
{
	(void)state;
	vs_knobs.release_threshold.value = 20 * GiB;
	give_and_see(take(8 * GiB));
	take(16 * MiB);
	assert_int_equal(stats()->reserved, 8 * GiB);
}

/* Chunks of small ones do not make up large ones for ever: Note [Crumbs]. */
static void test_large_blocks_after_small_ones(void **state)
{
	enum { N_SMALL = 6000, N_LIVE = 14, N_LARGE = 2400 };
	static CUdeviceptr small[N_SMALL], large[N_LIVE];
	uint64_t seed = 5, moved = 0;

	(void)state;
	for (int i = 0; i < N_SMALL; i++)
		small[i] = take(100 + next_random(&seed) % 900000);
	for (int i = 0; i < N_SMALL; i++)
		give(small[i]);
	for (int i = 0; i < N_LARGE; i++) {
		CUdeviceptr *p = &large[i % N_LIVE];

		if (i == N_LARGE / 2)
			moved = stats()->chunks_moved;
		if (*p)
			give(*p);
		fake.now += MS;
		*p = take((20 + next_random(&seed) % 380) * MiB);
	}
	moved = stats()->chunks_moved - moved;
	assert_in_range(moved, 0, N_LARGE / 2 * 3);
}

enum { MIDDLE_MOST = 256 };

/*
 * Blocks of 4 MiB are had, then one of so much, which stays; they do not.
 * Returns the pool.
 */
static struct vs_pool *leave_middle_ones(unsigned n, uint64_t large)
{
	CUdeviceptr p[MIDDLE_MOST];

	for (unsigned i = 0; i < n; i++)
		p[i] = take(4 * MiB);
	take(large);
	for (unsigned i = 0; i < n; i++)
		give_and_see(p[i]);
	return vs_pool_of(0);
}

/* Nor on a device that is nearly full, but where the driver had no more. */
static void test_crumbs_of_a_device_that_is_nearly_full(void **state)
{
	enum { N = 64, LEAST = 16 };
	struct vs_chunk *crumbs[VS_CRUMBS_MOST], *c;
	struct vs_pool *pool;

	(void)state;
	fresh_driver(5 * GiB);
	pool = leave_middle_ones(N, 4300 * MiB);
	TAILQ_FOREACH (c, &pool->chunks.idle, link)
		c->n_moved = 8;
	assert_true(vs_mark_is_scarce(pool));
	assert_in_range(vs_crumbs_for(pool, VS_HEAP_LARGE, 200 * MiB, crumbs),
			LEAST, N);
	vs_mark_refused(pool);
	assert_int_equal(vs_crumbs_for(pool, VS_HEAP_LARGE, 200 * MiB, crumbs),
			 0);
	fake.now += 60000 * MS;
	assert_in_range(vs_crumbs_for(pool, VS_HEAP_LARGE, 200 * MiB, crumbs),
			LEAST, N);
}

/* Nor where others of the small ones stay, so that more than need is held. */
static void test_large_blocks_among_small_ones(void **state)
{
	enum { N = 12000, GONE = N / 3, STAYS = 6, STEPS = 200 };
	static CUdeviceptr p[N];
	uint64_t seed = 7, moved = 0;
	CUdeviceptr large[3];

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(300 * KiB);
	for (int i = 0; i < N; i++) {
		if (i < GONE || i % STAYS != 0)
			give(p[i]);
	}
	for (int step = 0; step < STEPS; step++) {
		if (step == STEPS / 2)
			moved = stats()->chunks_moved;
		for (int i = 0; i < 3; i++)
			large[i] = take((100 + next_random(&seed) % 800) * MiB);
		for (int i = 0; i < 3; i++)
			give(large[i]);
		fake.now += 50 * MS;
	}
	moved = stats()->chunks_moved - moved;
	assert_true(fake.held > vs_pool_of(0)->need + GiB);
	/* 5056 MiB where less than went is made anew */
	assert_in_range(fake.held, 0, 4800 * MiB);
	assert_in_range(moved, 0, 1000);
}

/* Nor do those of each step of what grows: each block is not made of dozens. */
static void test_blocks_that_grow_little_by_little(void **state)
{
	enum { N = 20, STEPS = 120 };
	CUdeviceptr p[N];
	uint64_t size = 50 * MiB, moved = 0;

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(size);
	for (int step = 0; step < STEPS; step++) {
		if (step == STEPS / 2)
			moved = stats()->chunks_moved;
		size += size / 64;
		for (int i = 0; i < N; i++) {
			CUdeviceptr larger = take(size);

			give(p[i]);
			p[i] = larger;
			fake.now += 10 * MS; /* so little is paid (pool/toll) */
		}
	}
	moved = stats()->chunks_moved - moved;
	assert_in_range(moved, 0, STEPS / 2 * N * 5);
	assert_in_range(stats()->reserved, N * size,
			(N + 1) * size / 1000 * 1060);
}

enum { MIDDLE = 800, HUGE_LIVE = 5 };

/* Blocks up to 11 MiB instead of those of the last time; one in forty stays. */
static void have_middle_ones(CUdeviceptr *middle, uint64_t *seed)
{
	enum { STAYS = 40 };

	for (int i = 0; i < MIDDLE; i++) {
		if (middle[i])
			give(middle[i]);
		middle[i] = take(MiB / 2 + next_random(seed) % (10 * MiB));
	}
	for (int i = 0; i < MIDDLE; i++) {
		if (i % STAYS != 0) {
			give(middle[i]);
			middle[i] = 0;
		}
	}
}

/* Huge blocks, of which few are live, by a program that does little else. */
static void have_huge_ones(uint64_t *seed)
{
	enum { STEPS = 3000 };
	CUdeviceptr huge[HUGE_LIVE] = {0};

	for (int i = 0; i < STEPS; i++) {
		CUdeviceptr *p = &huge[i % HUGE_LIVE];

		if (*p)
			give(*p);
		*p = take((100 + next_random(seed) % 900) * MiB);
		fake.now += MS / 50;
	}
	for (int i = 0; i < HUGE_LIVE; i++)
		give(huge[i]);
}

/*
 * Nor where more is allowed as the program pays for moving (Note [Dust] in
 * pool/crumb.h), and what is idle is enough, but in small chunks.
 */
static void test_huge_blocks_in_turn_with_middle_ones(void **state)
{
	enum { SEEDS = 3, ROUNDS = 16, LAST = 8 };
	uint64_t moved = 0;

	for (uint64_t i = 0; i < SEEDS; i++) {
		CUdeviceptr middle[MIDDLE] = {0};
		uint64_t seed = 7 + i, before = 0;

		fresh(state);
		for (int round = 0; round < ROUNDS; round++) {
			have_middle_ones(middle, &seed);
			if (round == ROUNDS - LAST)
				before = stats()->chunks_moved;
			have_huge_ones(&seed);
		}
		assert_true(vs_pool_of(0)->toll.level > 0);
		moved += stats()->chunks_moved - before;
	}
	assert_in_range(moved, 0, 30000);
}

/* What the program has live now is the most for a while. */
static void need_no_more(void)
{
	struct vs_pool *pool = vs_pool_by_index(0);

	pool->need = pool->live_spans;
}

/* Work of that epoch touches all that is idle. */
static void touch_idle(struct vs_pool *pool, uint64_t tag)
{
	struct vs_chunk *c;

	TAILQ_FOREACH (c, &pool->chunks.idle, link)
		c->idle_tag = tag;
}

/* One that later work only waits for does not go, whatever it is in the way of.
 */
static void test_a_vast_chunk_stays_under_work(void **state)
{
	CUdeviceptr vast = take(8 * GiB);
	struct vs_pool *pool = vs_pool_of(0);
	struct fake_piece piece, now;

	(void)state;
	assert_true(fake_piece(vast, &piece));
	give_and_see(vast);
	fake.lag_ns = (uint64_t)1 << 40;
	touch_idle(pool, vs_fence_tag(&pool->fence));
	for (int i = 0; i < 30; i++) {
		take(100 * MiB);
		assert_true(fake_piece(vast, &now));
		assert_int_equal(now.handle, piece.handle);
	}
}

/*
 * Beyond need (Note [Crumbs] in pool/crumb.h) what was made for slabs alone is
 * made anew, not what middle blocks have in turn with large ones.
 */
static void test_middle_blocks_leave_no_crumbs_beyond_need(void **state)
{
	enum { N = 64 };
	struct vs_pool *pool = leave_middle_ones(N, 4 * GiB);
	struct vs_chunk *crumbs[VS_CRUMBS_MOST], *c;

	(void)state;
	TAILQ_FOREACH (c, &pool->chunks.idle, link) {
		if (c->is_small)
			c->n_moved = 8;
	}
	assert_int_equal(vs_plan_beyond(pool, 0), 0);
	assert_in_range(vs_crumbs_for(pool, VS_HEAP_LARGE, 200 * MiB, crumbs),
			16, N);
	/* nor what work may touch yet */
	touch_idle(pool, vs_fence_tag(&pool->fence));
	assert_int_equal(vs_crumbs_for(pool, VS_HEAP_LARGE, 200 * MiB, crumbs),
			 0);
	touch_idle(pool, 0);
	need_no_more();
	assert_true(vs_plan_beyond(pool, 0) > 0);
	assert_int_equal(vs_crumbs_for(pool, VS_HEAP_LARGE, 200 * MiB, crumbs),
			 0);
}

/* But for what would be made of many (Note [Dust]) where moving is paid for. */
static void test_middle_blocks_leave_dust(void **state)
{
	enum { N = MIDDLE_MOST, LEAST = 8 };
	struct vs_pool *pool = leave_middle_ones(N, 4 * GiB);
	struct vs_chunk *crumbs[VS_CRUMBS_MOST], *c;

	(void)state;
	need_no_more();
	assert_true(vs_plan_beyond(pool, 0) > 0);
	TAILQ_FOREACH (c, &pool->chunks.idle, link)
		c->n_moved = 16;
	assert_int_equal(vs_crumbs_for(pool, VS_HEAP_LARGE, 400 * MiB, crumbs),
			 0);
	pool->toll.level = 1;
	/* more than twice as much is idle */
	assert_in_range(vs_crumbs_for(pool, VS_HEAP_LARGE, 400 * MiB, crumbs),
			LEAST, N);
	assert_int_equal(vs_crumbs_for(pool, VS_HEAP_LARGE, 100 * MiB, crumbs),
			 0);
}

/*
 * Two blocks that were in use at once: a result lies in the first, of 300 MiB,
 * which was freed. Returns the second, which is live.
 */
static CUdeviceptr leave_a_result(size_t second)
{
	CUdeviceptr freed, other;

	take(GiB);
	freed = take(300 * MiB);
	take(64 * MiB);
	other = take(second);
	take(64 * MiB);
	give_and_see(freed);
	take(10 * MiB);
	return other;
}

/*
 * Results share the chunk that one of them keeps (Note [Guests] in
 * pool/chunk.h), though another block that was freed would fit better.
 */
static void test_results_share_a_chunk(void **state)
{
	uint64_t idle;

	(void)state;
	give_and_see(leave_a_result(100 * MiB));
	need_no_more();
	idle = stats()->idle;
	assert_in_range(idle, 200 * MiB, 400 * MiB);
	take(20 * MiB);
	take(9 * MiB);
	assert_int_equal(stats()->idle, idle);
}

/*
 * What a block that may go has left of its last chunk is not where they stay:
 * it would not be idle then.
 */
static void test_a_result_keeps_no_other_chunk(void **state)
{
	CUdeviceptr other;
	uint64_t idle;

	(void)state;
	give_and_see(leave_a_result(150 * MiB));
	/* the best fit for the next result lies behind it */
	other = take(130 * MiB);
	need_no_more();
	take(12 * MiB);
	idle = stats()->idle;
	give_and_see(other);
	assert_int_equal(stats()->idle, idle + 150 * MiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(large_blocks_after_small_ones),
		T(large_blocks_among_small_ones),
		T(blocks_that_grow_little_by_little),
		T(a_vast_chunk_stays_under_work),
		T(crumbs_of_a_device_that_is_nearly_full),
		T(huge_blocks_in_turn_with_middle_ones),
		T(middle_blocks_leave_no_crumbs_beyond_need),
		T(middle_blocks_leave_dust),
		T(results_share_a_chunk),
		T(a_result_keeps_no_other_chunk),
		T(a_small_block_keeps_no_vast_one),
		T(a_vast_chunk_is_used_again),
		T(a_vast_chunk_goes_for_small_ones),
		T(rounds_of_large_and_small_settle),
		T(a_vast_chunk_goes_on_a_full_device),
		T(a_vast_chunk_serves_where_it_must),
		T(not_where_memory_is_to_be_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
