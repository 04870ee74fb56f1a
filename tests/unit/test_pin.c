/* SPDX-License-Identifier: MIT
 *
 * Memory that was exported or registered (vs_pool_pin), on the counting driver:
 * after its free its chunks go back to the driver, not before the work that may
 * touch them is done, and it is not handed out again while there is other
 * memory. When there is none: test_dead.
 */
#include "fake_test.h"
#include "pool/dead.h"
#include "pool/fence.h"
#include "pool/slab.h"

enum { MANY = 64 };

/* The linker calls the first in place of the other (Makefile.am). */
CUresult __wrap_vs_tcache_put(struct vs_tcache *tc, struct vs_slab *slab,
			      CUdeviceptr p);
CUresult __real_vs_tcache_put(struct vs_tcache *tc, struct vs_slab *slab,
			      CUdeviceptr p);

static CUdeviceptr pinned_meanwhile;

/* Another thread pins something when the way of a free has been chosen. */
CUresult __wrap_vs_tcache_put(struct vs_tcache *tc, struct vs_slab *slab,
			      CUdeviceptr p)
{
	if (pinned_meanwhile)
		vs_pool_pin(pinned_meanwhile);
	pinned_meanwhile = 0;
	return __real_vs_tcache_put(tc, slab, p);
}

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	vs_knobs.release_threshold.value = (uint64_t)1 << 30;
	vs_knobs.decay_ms = 3000;
	return 0;
}

static uint64_t handle_at(CUdeviceptr p)
{
	struct fake_piece piece;

	return fake_piece(p, &piece) ? piece.handle : 0;
}

static void test_is_not_handed_out_again(void **state)
{
	CUdeviceptr dead, other, p[MANY];
	uint64_t handle;

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	dead = take(10 * MiB);
	other = take(10 * MiB);
	handle = handle_at(dead);
	assert_int_equal(handle_at(other), handle);
	vs_pool_pin(dead + 5 * MiB);
	give(dead);
	assert_int_equal(vs_pool_free(dead), VS_PASS);
	assert_int_equal(stats()->dead, 10 * MiB);
	for (int i = 0; i < MANY; i++) {
		p[i] = take(10 * MiB);
		assert_true(p[i] != dead);
		fake.now += MS;
	}
	/* a neighbour of its chunk keeps it where it is */
	assert_int_equal(handle_at(dead), handle);
	for (int i = 0; i < MANY; i++)
		give(p[i]);
	give(other);
	vs_pool_trim();
	assert_int_equal(stats()->dead, 0);
	assert_int_equal(fake.held, 0);
	assert_int_equal(fake.mappings, 0);
}

static void test_goes_when_its_work_is_done(void **state)
{
	CUdeviceptr p = take(10 * MiB);

	(void)state;
	fake.lag_ns = 50 * MS;
	vs_pool_pin(p);
	give(p);
	vs_pool_trim();
	assert_int_not_equal(handle_at(p), 0);
	fake.now += 20 * MS;
	vs_pool_tick();
	assert_int_not_equal(handle_at(p), 0);
	assert_int_equal(stats()->dead, 10 * MiB);
	/* much is allowed to be idle, and it was not so for long: still */
	fake.now += 50 * MS;
	vs_pool_tick();
	assert_int_equal(handle_at(p), 0);
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->reserved, 0);
}

static void test_goes_at_the_next_miss(void **state)
{
	CUdeviceptr p = take(10 * MiB);
	uint64_t handle = handle_at(p);

	(void)state;
	vs_pool_pin(p);
	give(p);
	fake.now += MS;
	vs_pool_tick(); /* a marker */
	fake.now += MS;
	p = take(200 * MiB);
	assert_int_not_equal(handle_at(p), handle);
	assert_true(fake.held < 210 * MiB);
}

static void test_whole_chunks_go_one_by_one(void **state)
{
	CUdeviceptr p, q;

	(void)state;
	vs_knobs.chunk_size.value = 2 * MiB;
	p = take(9 * MiB);
	q = take(1 * MiB + 512 * KiB);
	vs_pool_pin(p);
	give(p);
	fake.now += MS;
	vs_pool_trim();
	/* the first chunks hold nothing else, whatever the last one does */
	assert_int_equal(handle_at(p), 0);
	assert_int_equal(handle_at(p + 7 * MiB), 0);
	assert_int_not_equal(handle_at(q), 0);
	give(q);
	fake.now += MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->dead, 0);
}

static void test_small_is_not_handed_out_again(void **state)
{
	const size_t sizes[] = {1, 4096, 100 * KiB, 700 * KiB, MiB};

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		CUdeviceptr dead = take(sizes[s]), p[MANY];
		uint64_t handle = handle_at(dead);

		vs_pool_pin(dead);
		give(dead);
		assert_int_equal(vs_pool_free(dead), VS_PASS);
		for (int round = 0; round < 10; round++) {
			for (int i = 0; i < MANY; i++) {
				p[i] = take(sizes[s]);
				assert_true(p[i] != dead);
			}
			assert_int_equal(handle_at(dead), handle);
			for (int i = 0; i < MANY; i++)
				give(p[i]);
			fake.now += MS;
		}
		vs_pool_trim();
		fake.now += MS;
		vs_pool_trim();
		assert_int_equal(fake.held, 0);
		assert_int_equal(stats()->live, 0);
		assert_int_equal(stats()->blocks, 0);
	}
}

static void test_slab_of_dead_objects_goes(void **state)
{
	CUdeviceptr p[MANY];

	(void)state;
	for (int i = 0; i < MANY; i++) {
		p[i] = take(MiB);
		vs_pool_pin(p[i]);
		vs_pool_pin(p[i] + 5);
	}
	for (int i = 0; i < MANY; i++)
		give(p[i]);
	assert_true(stats()->dead >= MANY * MiB);
	fake.now += MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->dead, 0);
}

/* A range that was rounded to pages reaches into neighbours. */
static void test_pin_of_all_in_a_range(void **state)
{
	const CUdeviceptr page = 64 * KiB;
	CUdeviceptr p[4], at, low, high;

	(void)state;
	for (int i = 0; i < 4; i++)
		p[i] = take(70000);
	low = p[1] < p[2] ? p[1] : p[2];
	high = low == p[1] ? p[2] : p[1];
	at = low / page * page;
	assert_true(vs_pool_pin_between(at, (high + 1 + page) / page * page));
	give(p[1]);
	give(p[2]);
	for (int i = 0; i < MANY; i++) {
		at = take(70000);
		assert_true(at != p[1] && at != p[2]);
	}
	assert_false(vs_pool_pin_between(high + 64 * MiB, high + 65 * MiB));
	assert_false(vs_pool_pin_between(0, page));
}

static void test_pin_of_what_is_not_live(void **state)
{
	CUdeviceptr p = take(10 * MiB), q = take(4096);

	(void)state;
	give(p);
	give(q);
	vs_pool_pin(p);
	vs_pool_pin(q);
	vs_pool_pin(q + 64 * KiB);
	vs_pool_pin(12345);
	vs_pool_pin(0);
	fake.now += MS;
	assert_int_equal(take(10 * MiB), p);
	give(p);
	assert_int_equal(stats()->dead, 0);
}

static void *give_it(void *p)
{
	give(*(CUdeviceptr *)p);
	return NULL;
}

/* Whether the thread that frees has a cache or not. */
static void test_neighbour_is_pinned_during_a_free(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		CUdeviceptr p = take(4096), q = take(4096);

		pinned_meanwhile = q;
		if (i == 0)
			give(p);
		else
			in_a_thread(give_it, &p);
		assert_int_equal(pinned_meanwhile, 0);
		assert_int_equal(stats()->live, 4096);
		give(q);
		assert_int_equal(stats()->blocks, 0);
	}
}

/*
 * Policy ordered: what shared its chunk was handed out, as far as later work
 * goes, but the host has not seen its work done.
 */
static void test_stays_under_the_work_of_a_neighbour(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr dead, other;

	(void)state;
	vs_knobs.reuse = VS_REUSE_ORDERED;
	vs_knobs.chunk_size.value = 64 * MiB;
	dead = take(10 * MiB);
	other = take(10 * MiB);
	assert_int_equal(handle_at(dead), handle_at(other));
	pool = vs_pool_of(0);
	vs_pool_pin(dead);
	give(dead);
	vs_fence_record(&pool->fence);
	fake.now += MS;
	assert_true(vs_fence_poll(&pool->fence));
	fake.lag_ns = 50 * MS;
	give(other);
	vs_fence_record(&pool->fence);
	assert_true(vs_fence_order(&pool->fence));
	vs_pool_trim();
	assert_int_not_equal(handle_at(dead), 0);
	assert_int_equal(stats()->pending, 0);
	fake.now += 50 * MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

/* What is used again leaves the others of its slab pinned. */
static void test_a_neighbour_stays_pinned(void **state)
{
	CUdeviceptr p = take(4096), q = take(4096);
	struct vs_pool *pool = vs_pool_of(0);

	(void)state;
	assert_ptr_equal(vs_slab_at(pool, p), vs_slab_at(pool, q));
	vs_pool_pin(p);
	vs_pool_pin(q);
	give(p);
	vs_fence_record(&pool->fence);
	fake.now += MS;
	assert_true(vs_fence_poll(&pool->fence));
	pthread_mutex_lock(&pool->lock);
	assert_int_not_equal(vs_dead_revive(pool, UINT64_MAX, 0), 0);
	pthread_mutex_unlock(&pool->lock);
	assert_int_equal(stats()->dead, 0);
	give(q);
	assert_int_not_equal(stats()->dead, 0);
}

/* What it leaves is dead, too, where others have a part of its chunk. */
static void test_is_dead_behind_its_context(void **state)
{
	CUcontext other = (CUcontext)0x2000;
	CUdeviceptr p, q;

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	p = take(10 * MiB);
	vs_pool_pin(p);
	fake.current = other;
	q = take(10 * MiB);
	assert_int_equal(handle_at(p), handle_at(q));
	fake.current = FAKE_CTX;
	end_ctx(FAKE_CTX);
	fake.current = other;
	assert_int_equal(stats()->dead, 10 * MiB);
	for (int i = 0; i < MANY; i++)
		assert_int_not_equal(take(10 * MiB), p);
}

static void test_dies_with_its_context(void **state)
{
	CUdeviceptr p[20];

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 20; i++) {
			p[i] = take(i * 200 * KiB + 1);
			if (i % 3 == round)
				vs_pool_pin(p[i]);
		}
		for (int i = 0; i < 20; i += 2)
			give(p[i]);
		end_ctx(FAKE_CTX);
		assert_int_equal(fake.held, 0);
		assert_int_equal(fake.mappings, 0);
		assert_int_equal(stats()->dead, 0);
		assert_int_equal(stats()->live, 0);
	}
}

static void test_unmap_refused_is_tried_again(void **state)
{
	CUdeviceptr p = take(10 * MiB), q;
	uint64_t handle = handle_at(p);

	(void)state;
	vs_pool_pin(p);
	give(p);
	fake.now += MS;
	fake.fail_unmap = 1;
	vs_pool_trim();
	assert_int_not_equal(fake.held, 0);
	fake.fail_release = 1;
	vs_pool_trim();
	assert_int_equal(handle_at(p), 0);
	q = take(10 * MiB);
	assert_int_not_equal(handle_at(q), handle);
	give(q);
	fake.now += MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->reserved, 0);
}

/* One that the driver keeps for good does not keep the others. */
static void test_unmap_refused_for_good_keeps_one(void **state)
{
	CUdeviceptr p[MANY];

	(void)state;
	vs_knobs.contiguous = true;
	vs_knobs.chunk_size.value = 2 * MiB;
	for (int i = 0; i < MANY; i++) {
		p[i] = take(2 * MiB);
		vs_pool_pin(p[i]);
	}
	fake.never_unmapped = p[0];
	for (int i = 0; i < MANY; i++)
		give(p[i]);
	fake.now += MS;
	/* each that comes to it ends there */
	for (int i = 0; i < 4; i++)
		vs_pool_trim();
	assert_int_equal(fake.held, 2 * MiB);
	fake.never_unmapped = 0;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

static unsigned batches(void)
{
	unsigned n = 0;

	for (unsigned c = 0; c < VS_N_CLASSES; c++) {
		const struct vs_batch *b =
			vs_pool_by_index(0)->slabs->class[c].pending;

		for (; b; b = b->next)
			n++;
	}
	return n;
}

/* The others of a pinned one's slab are freed one by one, and take no page. */
static void test_frees_beside_a_pinned_object_take_little(void **state)
{
	static CUdeviceptr p[100 * MANY];

	(void)state;
	fake.lag_ns = 10 * MS;
	for (int i = 0; i < 100 * MANY; i++)
		p[i] = take(512);
	for (int i = 0; i < 100 * MANY; i += MANY)
		vs_pool_pin(p[i]);
	for (int i = 0; i < 100 * MANY; i++)
		give(p[i]);
	assert_in_range(batches(), 1, 100 * MANY / 200);
	/* of the objects, of the slabs that are dead then */
	for (int i = 0; i < 3; i++) {
		vs_pool_trim();
		fake.now += 100 * MS;
	}
	assert_int_equal(stats()->live, 0);
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(is_not_handed_out_again),
		T(goes_when_its_work_is_done),
		T(goes_at_the_next_miss),
		T(whole_chunks_go_one_by_one),
		T(small_is_not_handed_out_again),
		T(slab_of_dead_objects_goes),
		T(frees_beside_a_pinned_object_take_little),
		T(pin_of_what_is_not_live),
		T(neighbour_is_pinned_during_a_free),
		T(stays_under_the_work_of_a_neighbour),
		T(a_neighbour_stays_pinned),
		T(is_dead_behind_its_context),
		T(dies_with_its_context),
		T(pin_of_all_in_a_range),
		T(unmap_refused_is_tried_again),
		T(unmap_refused_for_good_keeps_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
