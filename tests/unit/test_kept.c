/* SPDX-License-Identifier: MIT
 *
 * What a program that works just freed, kept for a request of its size or
 * hardly less (pool/kept), on the counting driver: handed out as it was, few of
 * it unless that pays, and never missed by whoever needs the memory.
 */
#include <stdlib.h>
#include <time.h>

#include "heap_check.h"
#include "pool/mark.h"
#include "pool/owner.h"
#include "pool/reuse.h"
#include "stream_test.h"

static struct vs_pool *pool;
static uint64_t seed;

static int begin(void **state)
{
	fresh(state);
	settle_in(ONE);
	pool = vs_pool_of(0);
	/* what is freed was ordered once */
	fake.lag_ns = 5 * MS;
	give(large);
	work_in(ONE);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
	fake.lag_ns = 0;
	fake.now += 10 * MS;
	assert_true(vs_fence_poll(&pool->fence));
	assert_false(pool->turnover.is_fast);
	vs_reuse_harvest(pool);
	return 0;
}

/* All that was freed is seen complete. */
static void see_complete(void)
{
	vs_fence_record(&pool->fence);
	vs_fence_poll(&pool->fence);
}

/* And then comes an allocation of another size, that stays. */
static void look(void)
{
	work_in(ONE);
	see_complete();
	take(3 * MiB);
	heap_check(pool);
}

static uint64_t kept_bytes(void)
{
	return pool->shelved_bytes;
}

/* Though the heap's rule has one of that size, and at a lower address. */
static void test_the_very_size_comes_back(void **state)
{
	CUdeviceptr low, between, high;
	uint64_t hits;

	(void)state;
	low = take(40 * MiB);
	between = take(24 * MiB);
	high = take(40 * MiB);
	take(24 * MiB);
	assert_true(low < high);
	give(low);
	look();
	vs_reuse_unshelve(pool);
	give(high);
	look();
	assert_int_equal(kept_bytes(), 40 * MiB);
	hits = vs_stat_get(&pool->stats, large_hit);
	assert_int_equal(take(40 * MiB), high);
	assert_int_equal(take(40 * MiB), low);
	assert_int_equal(vs_stat_get(&pool->stats, large_hit), hits + 2);
	assert_int_equal(kept_bytes(), 0);
	give(between);
	heap_check(pool);
}

/* One that has the trunk first finds its blocks where they last were. */
static void test_nothing_is_kept_where_the_trunk_is_first(void **state)
{
	CUdeviceptr p = take(40 * MiB);

	(void)state;
	take(24 * MiB);
	give(p);
	look();
	assert_int_equal(kept_bytes(), 40 * MiB);
	pool->is_trunk_first = true;
	p = take(40 * MiB);
	give(p);
	look();
	assert_int_equal(kept_bytes(), 0);
}

/* Rounds of a block of one size each, freed before the next is asked for. */
static void train(unsigned n_sizes, unsigned rounds)
{
	CUdeviceptr p[VS_KEPT_MOST + 1];

	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned i = 0; i < n_sizes; i++)
			p[i] = take((9 + i) * MiB);
		for (unsigned i = 0; i < n_sizes; i++)
			give(p[i]);
		look();
	}
}

/* So that a few MiB that nobody can have are little. */
static void need_much(void)
{
	take((size_t)4096 * MiB);
}

/* A tenth more than is asked for at most, and the least of that. */
static void test_one_hardly_larger_does(void **state)
{
	static const size_t mib[] = {40, 42, 45};
	CUdeviceptr p[3];
	struct vs_span span;

	(void)state;
	train(3, 80);
	need_much();
	vs_reuse_unshelve(pool);
	for (int i = 0; i < 3; i++)
		p[i] = take(mib[i] * MiB);
	for (int i = 0; i < 3; i++)
		give(p[i]);
	look();
	assert_int_equal(kept_bytes(), (40 + 42 + 45) * MiB);
	assert_int_equal(take(41 * MiB), p[1]);
	assert_int_equal(take(41 * MiB), p[2]);
	assert_int_equal(kept_bytes(), 40 * MiB);
	assert_null(vs_kept_take(&pool->kept, 36 * MiB, 4 * MiB - 1));
	assert_int_equal(take(37 * MiB), p[0]);
	/* it is none the larger for the program */
	assert_true(vs_pool_find(p[0], &span));
	assert_int_equal(span.size, 37 * MiB);
	assert_false(vs_pool_find(p[0] + 37 * MiB, &span));
	give(p[0]);
	look();
	assert_int_equal(kept_bytes(), 40 * MiB);
	heap_check(pool);
}

/* A block is kept, and then `size` bytes are asked for: are they its? */
static bool gets_a_kept(size_t kept, size_t size)
{
	CUdeviceptr p = take(kept);

	vs_reuse_unshelve(pool);
	give(p);
	look();
	assert_int_equal(kept_bytes(), kept);
	return vs_owner_live(pool, take(size))->span == kept;
}

static void test_not_one_more_than_a_tenth_larger(void **state)
{
	(void)state;
	need_much();
	assert_false(gets_a_kept(44 * MiB, 39 * MiB + 512 * KiB));
	assert_true(gets_a_kept(44 * MiB, 40 * MiB));
}

/* What live blocks have too much nobody else can have. */
static void test_what_is_wasted_is_little(void **state)
{
	unsigned n = 0;

	(void)state;
	need_much();
	while (gets_a_kept(44 * MiB, 40 * MiB)) {
		assert_in_range(++n, 1, 10);
		assert_true(pool->live_spans - pool->live_bytes <=
			    pool->need / 200);
	}
	assert_int_equal(n, 5);
	/* but the very size is none */
	assert_true(gets_a_kept(50 * MiB, 50 * MiB));
}

/* Of the device's 16 GiB nearly all is asked for; it is not missing there. */
static void test_a_vast_one_is_cut(void **state)
{
	CUdeviceptr p;

	(void)state;
	give(take((size_t)8192 * MiB));
	look();
	take((size_t)7450 * MiB);
	assert_int_equal(vs_pool_alloc((size_t)8500 * MiB, &p), CUDA_SUCCESS);
	heap_check(pool);
}

/* One that counts as small must not keep a chunk of large ones. */
static void test_a_middle_one_is_not_made_of_a_large_one(void **state)
{
	(void)state;
	need_much();
	assert_true(gets_a_kept(8 * MiB, 8 * MiB));
	assert_false(gets_a_kept(8 * MiB, 8 * MiB - 64 * KiB));
	assert_true(gets_a_kept(9 * MiB, 9 * MiB - 64 * KiB));
}

static void test_none_larger_where_memory_is_scarce(void **state)
{
	CUdeviceptr p = take(44 * MiB);

	(void)state;
	need_much();
	vs_reuse_unshelve(pool);
	give(p);
	look();
	assert_int_equal(kept_bytes(), 44 * MiB);
	atomic_store(&pool->refused, fake.now);
	assert_true(vs_mark_is_scarce(pool));
	take(42 * MiB);
	assert_true(pool->live_spans - pool->live_bytes < MiB);
}

static void test_no_other_size_does(void **state)
{
	CUdeviceptr p = take(40 * MiB);
	uint64_t held;

	(void)state;
	take(8 * MiB);
	give(p);
	look();
	held = fake.held;
	for (int i = 0; kept_bytes() > 0; i++) {
		assert_in_range(i, 0, 10);
		assert_int_equal(kept_bytes(), 40 * MiB);
		take(36 * MiB);
		/* before there is more of it, it goes home */
		assert_int_equal(fake.held, held);
	}
	heap_check(pool);
}

/* n blocks, freed; nothing was kept when they were asked for. */
static void free_of_new_sizes(unsigned n)
{
	static size_t more;
	CUdeviceptr p[32];

	more += 64 * KiB;
	vs_reuse_unshelve(pool);
	for (unsigned i = 0; i < n; i++)
		p[i] = take((33 + i) * MiB + more);
	for (unsigned i = 0; i < n; i++)
		give(p[i]);
	look();
}

static void test_few_are_kept(void **state)
{
	(void)state;
	free_of_new_sizes(5);
	/* the last ones */
	assert_int_equal(pool->kept.n, VS_KEPT_FEW);
	assert_in_range(kept_bytes(), (36 + 37) * MiB, (36 + 37 + 1) * MiB);
}

static void test_many_where_they_are_asked_for(void **state)
{
	(void)state;
	train(2, 80);
	assert_true(pool->kept.is_worth_it);
	free_of_new_sizes(VS_KEPT_MOST + 4);
	assert_int_equal(pool->kept.n, VS_KEPT_MOST);
	/* and few again where they are not */
	for (int i = 0; i < 40; i++)
		free_of_new_sizes(20);
	assert_false(pool->kept.is_worth_it);
	assert_in_range(pool->kept.n, 0, VS_KEPT_FEW);
	heap_check(pool);
}

/* In one hold of the lock some hundred are looked at (pool/reuse.h). */
static void test_in_parts(void **state)
{
	enum { MANY = 2000, SOME = 1100 };
	static CUdeviceptr p[MANY];
	uint64_t before;

	(void)state;
	for (int i = 0; i < MANY; i++)
		p[i] = take(2 * MiB);
	for (int i = 0; i < MANY; i++)
		give(p[i]);
	before = pool->pending_bytes;
	look();
	assert_int_not_equal(pool->kept.n, 0);
	assert_in_range(before - pool->pending_bytes, 1, SOME * 2 * MiB);
	heap_check(pool);
}

/* What lies side by side is one piece for who needs that, and no chunk more. */
static void test_it_merges_for_a_larger_one(void **state)
{
	CUdeviceptr p[16];
	uint64_t held;

	(void)state;
	train(2, 80);
	for (int i = 0; i < 16; i++)
		p[i] = take(16 * MiB);
	for (int i = 0; i < 16; i++)
		give(p[i]);
	look();
	assert_int_equal(pool->kept.n, 16);
	held = fake.held;
	take(256 * MiB);
	assert_int_equal(fake.held, held);
	assert_int_equal(kept_bytes(), 0);
	heap_check(pool);
}

/* Slabs come from their own heap, be a block of their size kept or not. */
static void test_no_slab_is_made_of_it(void **state)
{
	struct vs_range *r;

	(void)state;
	give(take(4 * MiB));
	look();
	vs_reuse_unshelve(pool);
	give(take(4 * MiB));
	work_in(ONE);
	see_complete();
	r = vs_reuse_take(pool, VS_HEAP_SLABS, 4 * MiB);
	if (r)
		assert_true(r->base < pool->slabs_end);
}

/* Nor is that of a context that ended, whose place is for small objects. */
static void test_no_slab_is_kept(void **state)
{
	CUcontext other = (CUcontext)0x2000;

	(void)state;
	fresh_with(VS_REUSE_ORDERED);
	pool = vs_pool_of(0);
	vs_pool_ctx_born(other, 0);
	fake.current = other;
	for (int i = 0; i < 64; i++)
		take(1024 * KiB);
	fake.current = FAKE_CTX;
	/* what is freed was ordered once */
	fake.lag_ns = 5 * MS;
	give(large);
	large = take(200 * MiB);
	assert_int_not_equal(pool->orders_left, 0);
	end_ctx(other);
	assert_int_equal(TAILQ_FIRST(&pool->pending)->span, 2 * MiB);
	give(large);
	take(3 * MiB);
	assert_int_not_equal(pool->kept.n, 0);
	for (unsigned i = 0; i < pool->kept.n; i++)
		assert_true(pool->kept.range[i]->base >= pool->slabs_end);
}

/* It is in nobody's use: the service thread brings it home. */
static void test_not_for_ever(void **state)
{
	(void)state;
	free_of_new_sizes(2);
	assert_int_equal(pool->kept.n, 2);
	fake.now += 2000 * MS;
	vs_pool_tick();
	assert_int_equal(pool->kept.n, 0);
	assert_int_equal(kept_bytes(), 0);
	heap_check(pool);
}

/* What was handed out by order since then is not what it waits for. */
static void test_it_is_quiet_when_it_goes_home(void **state)
{
	CUdeviceptr fit = take(24 * MiB), block = take(900 * MiB);
	uint64_t held;

	(void)state;
	give(fit);
	look();
	vs_reuse_unshelve(pool);
	give(block);
	look();
	assert_int_equal(kept_bytes(), 900 * MiB);
	free_before_work();
	take(24 * MiB);
	assert_true(atomic_load(&pool->fence.done) >
		    atomic_load(&pool->fence.complete));
	assert_in_range(kept_bytes(), 900 * MiB, 1100 * MiB);
	held = fake.held;
	vs_pool_trim();
	assert_in_range(fake.held, 0, held - 800 * MiB);
	heap_check(pool);
}

/* Nor is it before the work that was to come first, by order, is complete. */
static void test_it_stays_mapped_under_work(void **state)
{
	const CUdeviceptr p = large;

	(void)state;
	free_before_work();
	/* it is ordered, and then brought in */
	pthread_mutex_lock(&pool->lock);
	vs_mark_settle(pool);
	pthread_mutex_unlock(&pool->lock);
	take(3 * MiB);
	assert_in_range(kept_bytes(), 200 * MiB, 220 * MiB);
	assert_true(atomic_load(&pool->fence.done) >
		    atomic_load(&pool->fence.complete));
	vs_reuse_unshelve(pool);
	assert_int_equal(kept_bytes(), 0);
	vs_pool_trim();
	assert_true(fake_mapping(p) != 0);
	heap_check(pool);
}

/* What it put on its shelves is for requests that are hardly smaller. */
static void test_no_shelf_of_one_that_churned(void **state)
{
	CUdeviceptr p[8], q;
	struct vs_span span;

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = take(40 * MiB);
	for (int i = 0; i < 8; i++)
		give(p[i]);
	pool->turnover.is_fast = true;
	pool->need = 0;
	look();
	assert_true(kept_bytes() > pool->kept.bytes);
	pool->turnover.is_fast = false;
	give(take(50 * MiB));
	look();
	assert_int_equal(kept_bytes(), pool->kept.bytes);
	q = take(36 * MiB);
	assert_true(vs_pool_find(q, &span));
	assert_int_equal(span.size, 36 * MiB);
	heap_check(pool);
}

/* Another thread frees: no marker is one to order by (Note [Who frees]). */
static void *give_large(void *unused)
{
	(void)unused;
	give(large);
	return NULL;
}

static void test_not_where_nothing_can_be_ordered(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		large = take(300 * MiB);
		work_in(ONE);
		fake.lag_ns = NEVER;
		in_a_thread(give_large, NULL);
		work_in(ONE);
		take(2 * MiB);
		fake.lag_ns = 0;
		fake.now += MS / 10;
		see_complete();
	}
	assert_false(vs_mark_spares_looks(pool));
	assert_int_equal(pool->kept.n, 0);
}

/* Most of the device is held: what merges may spare an out of memory. */
static void test_not_where_memory_is_scarce(void **state)
{
	(void)state;
	take((uint64_t)14400 * MiB);
	free_of_new_sizes(2);
	assert_int_equal(pool->kept.n, 0);
	assert_int_equal(kept_bytes(), 0);
}

/* Where the host waits for memory it had better lie in larger pieces. */
static void test_not_with_policy_complete(void **state)
{
	(void)state;
	vs_stream_give_up();
	free_of_new_sizes(2);
	assert_int_equal(pool->kept.n, 0);
	assert_int_equal(kept_bytes(), 0);
}

/* One step of a program that does as chance has it. */
static void step_of_chance(uint64_t *random, CUdeviceptr *block)
{
	static const size_t mib[] = {2, 3, 5, 9, 16, 17, 33, 64, 100};

	if (*block) {
		give(*block);
		*block = 0;
	} else {
		/* often of the same sizes, now and then of another */
		*block = take(mib[next_random(random) % 9] * MiB +
			      (next_random(random) % 4 == 0) *
				      (next_random(random) % 64) * 64 * KiB);
	}
	if (next_random(random) % 2)
		work_in(ONE);
	fake.now += next_random(random) % (MS / 4);
	switch (next_random(random) % 200) {
	case 0:
		vs_pool_tick();
		break;
	case 1:
		vs_pool_trim();
		break;
	case 2:
		fake.lag_ns = next_random(random) % (20 * MS);
		break;
	case 3:
		pool->turnover.is_fast = next_random(random) % 2;
		break;
	case 4:
		vs_reuse_unshelve(pool);
		break;
	}
}

/* All that the pool knows of its memory agrees, whatever comes. */
static void test_by_chance(void **state)
{
	enum { BLOCKS = 40, STEPS = 20000 };
	uint64_t random = seed;
	CUdeviceptr p[BLOCKS] = {0};
	unsigned n_kept = 0;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < STEPS; i++) {
		/* the last part is a program of several streams */
		if (i == STEPS / 4 * 3)
			vs_stream_give_up();
		step_of_chance(&random, &p[next_random(&random) % BLOCKS]);
		n_kept += pool->kept.n > 0;
		if (i % 16 == 0)
			heap_check(pool);
	}
	assert_true(n_kept > STEPS / 100);
	for (int i = 0; i < BLOCKS; i++) {
		if (p[i])
			give(p[i]);
	}
	fake.now += 5000 * MS;
	vs_pool_tick();
	vs_pool_trim();
	heap_check(pool);
	assert_int_equal(kept_bytes(), 0);
	assert_int_equal(pool->kept.bytes, 0);
}

/* [SEED] */
int main(int argc, char **argv)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)now.tv_nsec;
#define T(name) cmocka_unit_test_setup(test_##name, begin)
	const struct CMUnitTest tests[] = {
		T(the_very_size_comes_back),
		T(nothing_is_kept_where_the_trunk_is_first),
		T(one_hardly_larger_does),
		T(not_one_more_than_a_tenth_larger),
		T(what_is_wasted_is_little),
		T(a_vast_one_is_cut),
		T(a_middle_one_is_not_made_of_a_large_one),
		T(none_larger_where_memory_is_scarce),
		T(no_other_size_does),
		T(few_are_kept),
		T(many_where_they_are_asked_for),
		T(in_parts),
		T(in_parts),
		T(it_merges_for_a_larger_one),
		T(no_slab_is_made_of_it),
		T(no_slab_is_kept),
		T(not_for_ever),
		T(it_is_quiet_when_it_goes_home),
		T(it_stays_mapped_under_work),
		T(no_shelf_of_one_that_churned),
		T(not_where_nothing_can_be_ordered),
		T(not_where_memory_is_scarce),
		T(not_with_policy_complete),
		T(by_chance),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
