/* SPDX-License-Identifier: MIT
 *
 * A heap's trunk, on the counting driver (fake.h): what grows there, what is
 * taken there, and that it stays. Note [Trunk] in pool/heap.h.
 */
#include "fake_test.h"
#include "heap_check.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* What grows lies side by side there, and is one range when it is free. */
static void test_what_grows_in_turn_is_one(void **state)
{
	CUdeviceptr p[6];

	(void)state;
	for (int i = 0; i < 6; i++)
		p[i] = take(50 * MiB);
	for (int i = 1; i < 6; i++)
		assert_int_equal(p[i], p[0] + (size_t)i * 50 * MiB);
	for (int i = 0; i < 6; i++)
		give(p[i]);
	assert_int_equal(take(300 * MiB), p[0]);
	assert_int_equal(stats()->chunks_moved, 0);
}

/*
 * Blocks of 64 MiB in the trunk, of which the second and fourth are free, and a
 * region of their chunks elsewhere. Returns where that is.
 */
static CUdeviceptr two_apart(CUdeviceptr p[5])
{
	CUdeviceptr both;

	vs_knobs.memory_limit.value = 5 * 64 * MiB;
	/* more than the knob would give of so little */
	vs_pool_for(0)->chunk_size = 64 * MiB;
	for (int i = 0; i < 5; i++)
		p[i] = take(64 * MiB);
	give(p[1]);
	give(p[3]);
	both = take(128 * MiB);
	give(both);
	assert_int_equal(stats()->chunks_moved, 2);
	return both;
}

/* Another idle chunk, of Note [Vast] in pool/chunk.h: fits are looked over. */
static void add_vast(void)
{
	struct vs_pool *pool = vs_pool_by_index(0);

	pool->memory_limit = UINT64_MAX;
	pool->most = pool->total;
	pool->chunk_size = 0;
	give(take(4 * GiB));
	vs_pool_tick();
	assert_true(pool->chunks.vast_bytes > 0);
}

static void first_where_moving_is_dear(bool is_vast)
{
	CUdeviceptr p[5], both;

	both = two_apart(p);
	if (is_vast)
		add_vast();
	/* by size, as long as it is not */
	give(p[2]);
	vs_pool_tick();
	assert_int_equal(take(128 * MiB), both);
	vs_pool_by_index(0)->is_trunk_first = true;
	/* of several that were freed none is taken back as it is */
	give(both);
	give(p[4]);
	assert_int_equal(take(128 * MiB), p[1]);
	heap_check(vs_pool_by_index(0));
}

static void test_it_is_first_where_moving_is_dear(void **state)
{
	(void)state;
	first_where_moving_is_dear(false);
}

static void test_it_is_first_beside_a_vast_chunk(void **state)
{
	(void)state;
	first_where_moving_is_dear(true);
}

/* Its best fit may be larger than another, by a 44th of that, and no more. */
static void test_what_fits_hardly_worse_is_taken(void **state)
{
	static const size_t away[] = {44 * MiB, 43 * MiB};

	for (int i = 0; i < 2; i++) {
		CUdeviceptr near, apart;

		fresh(state);
		vs_knobs.chunk_size.value = 2 * MiB;
		lay_heap(vs_pool_for(0), VS_HEAP_LARGE, 58 * MiB, 64 * GiB);
		near = take(45 * MiB);
		assert_int_equal(take(11 * MiB), near + 45 * MiB);
		apart = take(away[i]);
		assert_true(apart >=
			    vs_pool_of(0)->heap[VS_HEAP_LARGE].trunk_end);
		take(9 * MiB);
		give(near);
		give(apart);
		assert_int_equal(take(42 * MiB) < near + 45 * MiB, i == 0);
	}
}

/*
 * However many views of its chunks are given up for others: here of one that is
 * idle, beside each other chunk in turn, and not used in the trunk.
 */
static void test_it_is_not_given_up(void **state)
{
	enum { N = 80, ONE = N - 2 };
	const struct vs_view *v;
	struct vs_pool *pool;
	CUdeviceptr p[N];

	(void)state;
	vs_knobs.chunk_size.value = 8 * MiB;
	vs_knobs.memory_limit.value = N * 8 * MiB;
	for (int i = 0; i < N; i++)
		p[i] = take(8 * MiB);
	pool = vs_pool_of(0);
	give(p[ONE]);
	for (int i = 0; i < 3 * N; i++) {
		int other = 1 + i * 2 % (N - 4);

		give(p[other]);
		give(take(16 * MiB));
		p[other] = take(8 * MiB);
	}
	heap_check(pool);
	assert_true(fake.unmaps > 0);
	v = vs_view_at(pool, p[ONE]);
	assert_true(v && v->at == p[ONE] && v->is_on && vs_view_is_trunk(v));
	assert_int_equal(v->chunk->n_had, VS_VIEWS_MOST);
}

static void test_what_lies_elsewhere_is_not_of_it(void **state)
{
	CUdeviceptr p;

	(void)state;
	without_trunks();
	p = take(64 * MiB);
	assert_false(vs_view_is_trunk(vs_view_at(vs_pool_of(0), p)));
}

/* Nor does it sleep where all that is used of its chunks is elsewhere. */
static void test_it_does_not_sleep(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr p[5], both;

	(void)state;
	both = two_apart(p);
	pool = vs_pool_of(0);
	for (int i = 0; i < 2000; i++) {
		CUdeviceptr block = take((i % 2 ? 96 : 128) * MiB);

		assert_true(block >= both && block < both + 128 * MiB);
		give(block);
		fake.now += MS / 50;
	}
	assert_true(vs_view_at(pool, p[1])->is_on);
	assert_true(vs_view_at(pool, p[3])->is_on);
	heap_check(pool);
}

/* What covers a stretch begins at one; where that has no room, elsewhere. */
static void test_what_is_vast_begins_at_a_stretch(void **state)
{
	static const uint64_t rooms[] = {GiB, 2 * GiB};

	(void)state;
	for (int i = 0; i < 2; i++) {
		const struct vs_heap *h;
		struct vs_pool *pool;
		CUdeviceptr p;

		fresh_driver(139 * GiB);
		pool = vs_pool_for(0);
		lay_heap(pool, VS_HEAP_LARGE, 16 * MiB + rooms[i], 64 * GiB);
		h = &pool->heap[VS_HEAP_LARGE];
		assert_int_equal(take(16 * MiB), h->base);
		p = take(GiB);
		assert_int_equal((p - pool->base) % VS_STRETCH, 0);
		if (rooms[i] > GiB)
			assert_true(p < h->trunk_end);
		else
			assert_true(p >= h->trunk_end);
		heap_check(pool);
	}
}

/* Or wherever it fits, if there is no more room than that. */
static void test_what_is_vast_fits_where_no_stretch_does(void **state)
{
	static const uint64_t rests[] = {2 * MiB, 300 * MiB, 900 * MiB};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct vs_pool *pool;
		CUdeviceptr p;

		fresh_driver(139 * GiB);
		pool = vs_pool_for(0);
		lay_heap(pool, VS_HEAP_LARGE, 0, 2 * GiB + 16 * MiB + rests[i]);
		take(16 * MiB);
		p = take(2 * GiB);
		assert_true(p + 2 * GiB <= pool->heap[VS_HEAP_LARGE].end);
		assert_int_equal(fake.natives, 0);
		heap_check(pool);
	}
}

/* Where large blocks share no chunks they do not there, either. */
static void test_blocks_that_are_alone_share_nothing_there(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr p;

	(void)state;
	fresh_driver(4 * GiB);
	take(650 * MiB);
	take(9 * MiB);
	take(32 * MiB);
	pool = vs_pool_of(0);
	p = take(40 * MiB);
	assert_true(vs_views_begin(pool, p));
	assert_true(vs_view_is_trunk(vs_view_at(pool, p)));
}

/* Chunks that went leave room there, for chunks to come. */
static void test_what_went_from_the_trunk_is_filled(void **state)
{
	CUdeviceptr p[5];

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	for (int i = 0; i < 5; i++)
		p[i] = take(64 * MiB);
	give(p[1]);
	give(p[3]);
	assert_int_equal(vs_pool_trim(), 128 * MiB);
	assert_int_equal(take(64 * MiB), p[1]);
	assert_int_equal(take(64 * MiB), p[3]);
}

/*
 * Five chunks of 64 MiB, two of which become one block, where the trunk has
 * addresses for so many, and the rest of the heap for so many.
 */
static CUdeviceptr cramped(unsigned trunk, unsigned rest, CUdeviceptr p[5])
{
	CUdeviceptr both;

	vs_knobs.memory_limit.value = 5 * 64 * MiB;
	vs_pool_for(0)->chunk_size = 64 * MiB;
	lay_heap(vs_pool_for(0), VS_HEAP_LARGE, trunk * 64 * MiB,
		 (trunk + rest) * 64 * MiB);
	for (int i = 0; i < 5; i++)
		p[i] = take(64 * MiB);
	give(p[0]);
	give(p[2]);
	both = take(128 * MiB);
	assert_int_equal(stats()->chunks_moved, 2);
	give(both);
	heap_check(vs_pool_of(0));
	return both;
}

static void test_what_has_no_room_there_lies_elsewhere(void **state)
{
	CUdeviceptr p[5], end;

	(void)state;
	cramped(4, 5, p);
	end = vs_pool_of(0)->heap[VS_HEAP_LARGE].trunk_end;
	assert_true(p[3] < end && p[4] >= end);
}

static void test_what_has_none_elsewhere_lies_there(void **state)
{
	CUdeviceptr p[5], both = cramped(8, 1, p);

	(void)state;
	assert_true(both < vs_pool_of(0)->heap[VS_HEAP_LARGE].trunk_end);
	assert_false(vs_view_is_trunk(vs_view_at(vs_pool_of(0), both)));
}

/* A hole over both would be neither's, or be cut for the wrong one. */
static void test_what_went_at_its_end_is_two_holes(void **state)
{
	const struct vs_heap *h;
	CUdeviceptr p[5];

	(void)state;
	cramped(4, 5, p);
	give(p[1]);
	give(p[3]);
	give(p[4]);
	assert_int_equal(vs_pool_trim(), 5 * 64 * MiB);
	h = &vs_pool_of(0)->heap[VS_HEAP_LARGE];
	assert_true(vs_heap_is_bare(h));
	assert_int_equal(h->last->base, h->trunk_end);
	assert_ptr_equal(h->first->next, h->last);
}

/* What stays mapped would keep them from what is moved. */
static void test_there_is_none_where_addresses_are_few(void **state)
{
	const struct vs_heap *h;

	(void)state;
	fresh_driver(10 * GiB);
	fake.space = 32 * GiB;
	h = &vs_pool_for(0)->heap[VS_HEAP_LARGE];
	assert_int_equal(h->trunk_end, h->base);
	fresh_driver(10 * GiB);
	fake.space = 128 * GiB;
	h = &vs_pool_for(0)->heap[VS_HEAP_LARGE];
	assert_true(h->trunk_end >= h->base + 10 * GiB);
	/* for the device twice, where they are many */
	fresh(state);
	h = &vs_pool_for(0)->heap[VS_HEAP_LARGE];
	assert_int_equal(h->trunk_end - h->base, 2 * 139 * GiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(what_grows_in_turn_is_one),
		T(it_is_first_where_moving_is_dear),
		T(it_is_first_beside_a_vast_chunk),
		T(what_fits_hardly_worse_is_taken),
		T(it_is_not_given_up),
		T(what_lies_elsewhere_is_not_of_it),
		T(it_does_not_sleep),
		T(what_is_vast_begins_at_a_stretch),
		T(what_is_vast_fits_where_no_stretch_does),
		T(blocks_that_are_alone_share_nothing_there),
		T(what_went_from_the_trunk_is_filled),
		T(what_has_no_room_there_lies_elsewhere),
		T(what_has_none_elsewhere_lies_there),
		T(what_went_at_its_end_is_two_holes),
		T(there_is_none_where_addresses_are_few),
	};

	fresh(NULL);
	if (!has_trunks())
		return 77; /* skipped */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
