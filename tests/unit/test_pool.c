/* SPDX-License-Identifier: MIT
 *
 * The pool on the counting driver (fake.h): what is handed out, when it is
 * used again, and what happens when the driver refuses.
 */
#include "base/meta.h"
#include "fake_test.h"
#include "pool/capture.h"
#include "pool/slab.h"

/* A new driver and a pool that was never used. */
static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	return 0;
}

static void test_what_cannot_succeed_is_passed_on(void **state)
{
	CUdeviceptr p = 1;

	(void)state;
	assert_int_equal(vs_pool_alloc(0, &p), VS_PASS);
	assert_int_equal(vs_pool_alloc((size_t)1 << 50, &p), VS_PASS);
	assert_int_equal(vs_pool_alloc(SIZE_MAX, &p), VS_PASS);
	/* the driver's words for the larger two are out of memory */
	assert_int_equal(stats()->failed, 2);
	fake.current = NULL;
	assert_int_equal(vs_pool_alloc(4096, &p), VS_PASS);
	assert_int_equal(p, 1);
	assert_int_equal(vs_pool_free(0), VS_PASS);
	assert_int_equal(vs_pool_free(4096), VS_PASS);
}

static void test_frees_of_wrong_pointers(void **state)
{
	size_t sizes[] = {100, 3 * MiB};

	(void)state;
	for (int i = 0; i < 2; i++) {
		CUdeviceptr p = take(sizes[i]);

		assert_int_equal(vs_pool_free(p + 1), VS_PASS);
		assert_int_equal(vs_pool_free(p + 64 * KiB), VS_PASS);
		assert_int_equal(vs_pool_free(p - 512), VS_PASS);
		give(p);
		assert_int_equal(vs_pool_free(p), VS_PASS);
		assert_true(vs_pool_is_inside(p));
	}
}

/* Another thread that asks for a freed pointer may still read the structs. */
static void test_structs_of_slabs_stay_theirs(void **state)
{
	struct vs_pool *pool;
	struct vs_slab *slab;
	CUdeviceptr p = take(512);
	const void *words;

	(void)state;
	pool = vs_pool_of(0);
	slab = vs_slab_at(pool, p);
	words = (const void *)slab->words;
	give(p);
	vs_pool_trim();
	assert_null(vs_slab_at(pool, p));
	for (size_t size = 64; size <= 64 * KiB; size *= 2) {
		for (int i = 0; i < 100; i++) {
			void *other = vs_meta_alloc(size);

			assert_ptr_not_equal(other, slab);
			assert_ptr_not_equal(other, words);
		}
	}
	p = take(512);
	assert_ptr_equal(vs_slab_at(pool, p), slab);
	give(p);
}

static void test_find(void **state)
{
	size_t sizes[] = {1,   512,	513,	     700 * KiB,
			  MiB, MiB + 1, 5 * MiB + 3, 200 * MiB};
	CUdeviceptr p[8];
	struct vs_span span;
	uint64_t last_id = 0;

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = take(sizes[i]);
	for (int i = 0; i < 8; i++) {
		CUdeviceptr at[] = {p[i], p[i] + sizes[i] / 2,
				    p[i] + sizes[i] - 1};

		for (int k = 0; k < 3; k++) {
			assert_true(vs_pool_find(at[k], &span));
			assert_int_equal(span.base, p[i]);
			assert_int_equal(span.size, sizes[i]);
			assert_ptr_equal(span.ctx, FAKE_CTX);
		}
		assert_int_not_equal(span.id, last_id);
		last_id = span.id;
		assert_false(vs_pool_find(p[i] + sizes[i], &span) &&
			     span.base == p[i]);
	}
	for (int i = 0; i < 8; i++) {
		give(p[i]);
		assert_false(vs_pool_find(p[i], &span));
	}
	assert_false(vs_pool_find(1234, &span));
}

static void test_new_id_for_each_allocation(void **state)
{
	struct vs_span first, second;
	CUdeviceptr p = take(3 * MiB);

	(void)state;
	assert_true(vs_pool_find(p, &first));
	give(p);
	assert_int_equal(take(3 * MiB), p);
	assert_true(vs_pool_find(p, &second));
	assert_int_not_equal(first.id, second.id);
}

static void test_pending_memory_is_not_handed_out(void **state)
{
	CUdeviceptr p, q;

	(void)state;
	fake.lag_ns = 50 * MS;
	p = take(20 * MiB);
	give(p);
	q = take(20 * MiB); /* the floor allows growing: no wait */
	assert_int_not_equal(p, q);
	assert_int_equal(stats()->waits, 0);
	fake.now += 60 * MS;
	assert_int_equal(take(20 * MiB), p);
}

static void test_small_pending_is_not_handed_out(void **state)
{
	CUdeviceptr p[64];

	(void)state;
	fake.lag_ns = 50 * MS;
	for (int i = 0; i < 64; i++)
		p[i] = take(4096);
	for (int i = 0; i < 64; i++)
		give(p[i]);
	for (int i = 0; i < 64; i++) {
		CUdeviceptr q = take(4096);

		for (int k = 0; k < 64; k++)
			assert_int_not_equal(q, p[k]);
	}
	assert_int_equal(stats()->waits, 0);
}

/* The short way back of a block that is all there is. */
static void test_one_size_in_turn(void **state)
{
	struct vs_span span;
	CUdeviceptr p, q;

	(void)state;
	p = take(64 * MiB);
	for (int i = 0; i < 3; i++) {
		give(p);
		assert_int_equal(take(64 * MiB - (size_t)i), p);
		assert_true(vs_pool_find(p + 5 * MiB, &span));
		assert_int_equal(span.size, 64 * MiB - (size_t)i);
		assert_int_equal(stats()->pending, 0);
		assert_int_equal(stats()->idle, 0);
	}
	assert_int_equal(fake.held, 64 * MiB);
	give(p);
	assert_int_equal(vs_pool_free(p), VS_PASS);
	/* a slab of the same span is made where slabs are */
	give(take(2 * MiB));
	q = take(2 * MiB);
	give(q);
	assert_int_not_equal(take(MiB), q);
	assert_int_equal(vs_pool_trim(), 66 * MiB);
	assert_true(stats()->chunks_released > 0);
	assert_true(stats()->vmm_ns > 0);
}

static void test_one_marker_covers_many_frees(void **state)
{
	CUdeviceptr p[200];

	(void)state;
	for (int i = 0; i < 200; i++)
		p[i] = take(4096);
	for (int round = 0; round < 50; round++) {
		for (int i = 0; i < 200; i++)
			give(p[i]);
		for (int i = 0; i < 200; i++)
			p[i] = take(4096);
	}
	assert_in_range(fake.records, 1, 50 * 200 / 20);
}

static void test_waits_rather_than_grow_past_need(void **state)
{
	CUdeviceptr p[8];

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = take(100 * MiB);
	fake.lag_ns = 5 * MS;
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 8; i++) {
			give(p[i]);
			p[i] = take(100 * MiB);
		}
	}
	assert_true(stats()->waits > 0);
	assert_in_range(fake.held_high, 800 * MiB, 880 * MiB);
}

/* Note [Thin out]: nothing ever completes, and many markers are recorded. */
static void test_ordered_needs_no_completion(void **state)
{
	(void)state;
	vs_pool_forked();
	vs_knobs.reuse = VS_REUSE_ORDERED;
	fake.lag_ns = UINT64_MAX / 4;
	for (int i = 0; i < 2000; i++)
		give(take(20 * MiB));
	assert_true(fake.records >= 1000);
	assert_in_range(fake.held_high, 20 * MiB, 120 * MiB);
	/* and nothing waited */
	assert_int_equal(stats()->waits, 0);
}

/* More markers in flight than there is room for: none covers too much. */
static void test_thinned_markers_cover_what_they_did(void **state)
{
	enum { N = 3000, LAG = 300 };
	static struct {
		CUdeviceptr p;
		uint64_t at;
	} given[N];
	unsigned n_again = 0;

	(void)state;
	fake.lag_ns = LAG * MS;
	for (unsigned i = 0; i < N; i++) {
		given[i].p = take(2 * MiB);
		for (unsigned k = i; k-- > 0;) {
			if (given[k].p != given[i].p)
				continue;
			n_again++;
			assert_true(fake.now >= given[k].at + LAG * MS);
			break;
		}
		given[i].at = fake.now;
		give(given[i].p);
		fake.now += MS;
	}
	assert_true(n_again > N / 2);
	/* once all is complete, all of it is free again */
	vs_pool_trim();
	fake.now += LAG * MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

/* Note [Patience]: a kernel that ends only after this very call. */
static void test_thrift_does_not_wait_for_ever(void **state)
{
	CUdeviceptr p[4], q;
	uint64_t began;

	(void)state;
	for (int i = 0; i < 4; i++)
		p[i] = take(100 * MiB);
	fake.lag_ns = UINT64_MAX / 4;
	for (int i = 0; i < 4; i++)
		give(p[i]);
	began = fake.now;
	q = take(100 * MiB);
	assert_true(fake.now - began < 500 * MS);
	began = fake.now;
	q = take(2 * MiB); /* and not again for the same marker */
	assert_true(fake.now - began < 50 * MS);
	(void)q;
}

static void test_nothing_is_recorded_while_capturing(void **state)
{
	CUdeviceptr p, q;

	(void)state;
	begin_capture((CUstream)1);
	assert_int_equal(vs_capture_count(), 1);
	fake.captures = 1; /* a record now ends the program */
	for (int i = 0; i < 200; i++) {
		p = take(4096);
		q = take(3 * MiB);
		give(p);
		give(q);
	}
	assert_int_equal(fake.records, 0);
	assert_true(stats()->deferred > 0);
	fake.captures = 0;
	vs_capture_ended((CUstream)2, false); /* another stream's end */
	assert_int_equal(vs_capture_count(), 1);
	vs_capture_ended((CUstream)1, false);
	assert_int_equal(vs_capture_count(), 0);
	for (int i = 0; i < 200; i++)
		give(take(3 * MiB));
	assert_true(fake.records > 0);
}

static void test_a_begin_that_failed_does_not_count(void **state)
{
	(void)state;
	vs_capture_before_begin((CUstream)1);
	vs_capture_after_begin((CUstream)1, false,
			       CU_STREAM_CAPTURE_MODE_RELAXED, false);
	assert_int_equal(vs_capture_count(), 0);
}

static void test_memory_limit(void **state)
{
	CUdeviceptr p, q;

	(void)state;
	vs_knobs.memory_limit.value = 100 * MiB;
	p = take(60 * MiB);
	assert_int_equal(vs_pool_alloc(60 * MiB, &q), CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(fake.natives, 0);
	give(p);
	give(take(90 * MiB));
	/* nor are small ones the driver's beyond it */
	for (int i = 0; i < 100; i++)
		take(MiB);
	assert_int_equal(vs_pool_alloc(MiB, &q), CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(vs_pool_alloc(512, &q), CUDA_ERROR_OUT_OF_MEMORY);
	assert_true(fake.held_high <= 100 * MiB);
}

/* Of small blocks the last of the large ones is made. */
static void test_idle_chunks_of_another_heap_serve(void **state)
{
	CUdeviceptr p;

	(void)state;
	give(take(512));
	give(take(3 * MiB));
	while (vs_pool_alloc(10 * MiB, &p) == CUDA_SUCCESS)
		;
	assert_int_equal(stats()->oom_release, 1);
	assert_int_equal(stats()->failed, 1);
}

static void test_out_of_memory_ladder(void **state)
{
	CUdeviceptr p[10], q;

	(void)state;
	for (int i = 0; i < 10; i++)
		p[i] = take(100 * MiB);
	assert_int_equal(vs_pool_alloc(100 * MiB, &q),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(fake.natives, 1);
	fake.lag_ns = 5000 * MS; /* longer than thrift waits */
	for (int i = 0; i < 10; i += 2)
		give(p[i]);
	q = take(450 * MiB); /* from the pieces of five blocks */
	give(q);
	for (int i = 1; i < 10; i += 2)
		give(p[i]);
	q = take(1000 * MiB);
	give(q);
	assert_true(stats()->oom_wait > 0);
}

/* Out of memory is said at once where nothing that was freed may come. */
static void test_no_wait_where_nothing_was_freed(void **state)
{
	CUdeviceptr q, p = take(700 * MiB), small = take(KiB);
	uint64_t before;

	(void)state;
	give(take(50 * MiB));
	give(small);
	vs_pool_trim();
	fake.lag_ns = 5000 * MS; /* of what is submitted from now on */
	before = fake.now;
	assert_int_equal(vs_pool_alloc(700 * MiB, &q),
			 CUDA_ERROR_OUT_OF_MEMORY);
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE);
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE);
	assert_in_range(fake.now - before, 0, 1000 * MS);
	give(p);
	give(take(700 * MiB));
	assert_in_range(fake.now - before, 5000 * MS, 6000 * MS);
}

/* It takes nothing from other processes and the driver's own allocator. */
static void test_a_failure_holds_nothing(void **state)
{
	CUdeviceptr p = take(600 * MiB), much;

	(void)state;
	assert_int_equal(vs_pool_alloc(700 * MiB, &much),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(fake.held, 600 * MiB);
	give(p);
}

/* What could not be had does not count as what the program needs. */
static void test_a_failure_is_no_high_water(void **state)
{
	CUdeviceptr p = take(100 * MiB), much;

	(void)state;
	assert_int_equal(vs_pool_alloc((size_t)1 << 30, &much),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(stats()->live_high, 100 * MiB);
	/* it is not kept for work that is behind, either */
	fake.lag_ns = 50 * MS;
	for (int i = 0; i < 20; i++) {
		give(p);
		p = take((size_t)(100 - i) * MiB);
	}
	assert_in_range(fake.held_high, 100 * MiB, 200 * MiB);
}

/* Nor does what threads' caches took back since they were last added up. */
static void test_freed_small_objects_are_no_high_water(void **state)
{
	CUdeviceptr small[60];

	(void)state;
	give(take(100 * MiB));
	for (int i = 0; i < 60; i++)
		small[i] = take(MiB);
	for (int i = 0; i < 60; i++)
		give(small[i]);
	give(take(100 * MiB));
	assert_int_equal(stats()->live_high, 100 * MiB);
}

static void test_context_death_gives_everything_back(void **state)
{
	CUdeviceptr p[20];

	(void)state;
	for (int i = 0; i < 20; i++)
		p[i] = take(i * 200 * KiB + 1);
	end_ctx(FAKE_CTX);
	assert_int_equal(fake.held, 0);
	assert_int_equal(fake.mappings, 0);
	for (int i = 0; i < 20; i++)
		assert_int_equal(vs_pool_free(p[i]), VS_PASS);
	assert_int_equal(stats()->live, 0);
	assert_int_equal(stats()->blocks, 0);
	/* the same handle value may come again */
	for (int i = 0; i < 20; i++)
		p[i] = take(i * 200 * KiB + 1);
	for (int i = 0; i < 20; i++)
		give(p[i]);
}

static void test_sync_mode_waits_in_the_free(void **state)
{
	CUdeviceptr p;
	uint64_t began;

	(void)state;
	vs_knobs.mode = VS_MODE_SYNC;
	p = take(4096);
	fake.lag_ns = 30 * MS;
	began = fake.now;
	give(p);
	assert_true(fake.now - began >= 30 * MS);
	assert_int_equal(stats()->sync_free, 1);
}

static void test_broken_context_goes_to_the_driver(void **state)
{
	CUdeviceptr p = take(10 * MiB);

	(void)state;
	fake.fail_record = 1;
	give(p);
	(void)vs_pool_alloc(50 * MiB, &p);
	fake.natives = 0;
	/* the pool has it still where the driver has none */
	give(take(10 * MiB));
	assert_true(fake.natives > 0);
	/* and recovers with a new context */
	end_ctx(FAKE_CTX);
	give(take(10 * MiB));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(what_cannot_succeed_is_passed_on),
		T(frees_of_wrong_pointers),
		T(structs_of_slabs_stay_theirs),
		T(find),
		T(new_id_for_each_allocation),
		T(pending_memory_is_not_handed_out),
		T(small_pending_is_not_handed_out),
		T(one_size_in_turn),
		T(one_marker_covers_many_frees),
		T(waits_rather_than_grow_past_need),
		T(ordered_needs_no_completion),
		T(thinned_markers_cover_what_they_did),
		T(thrift_does_not_wait_for_ever),
		T(nothing_is_recorded_while_capturing),
		T(a_begin_that_failed_does_not_count),
		T(memory_limit),
		T(idle_chunks_of_another_heap_serve),
		T(out_of_memory_ladder),
		T(no_wait_where_nothing_was_freed),
		T(a_failure_holds_nothing),
		T(a_failure_is_no_high_water),
		T(freed_small_objects_are_no_high_water),
		T(context_death_gives_everything_back),
		T(sync_mode_waits_in_the_free),
		T(broken_context_goes_to_the_driver),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
