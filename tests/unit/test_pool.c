/* SPDX-License-Identifier: MIT
 *
 * The pool on the counting driver (fake.h): what is handed out, when it is
 * used again, when it goes back, and what happens when the driver refuses.
 */
#include <limits.h>

#include "base/meta.h"
#include "fake_test.h"
#include "hook/hook.h"
#include "pool/capture.h"
#include "pool/slab.h"

/* A new driver and a pool that was never used. */
static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	vs_knobs.release_threshold.value = 64 * MiB;
	vs_knobs.decay_ms = 3000;
	return 0;
}

static void test_what_cannot_succeed_is_passed_on(void **state)
{
	CUdeviceptr p = 1;

	(void)state;
	assert_int_equal(vs_pool_alloc(0, &p), VS_PASS);
	assert_int_equal(vs_pool_alloc((size_t)1 << 50, &p), VS_PASS);
	assert_int_equal(vs_pool_alloc(SIZE_MAX, &p), VS_PASS);
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

static void test_trim_gives_all_idle_back(void **state)
{
	CUdeviceptr p[50], big = take(300 * MiB), kept = take(2 * KiB);

	(void)state;
	for (int i = 0; i < 50; i++)
		p[i] = take(i * 100 * KiB + 1);
	for (int i = 0; i < 50; i++)
		give(p[i]);
	give(big);
	assert_true(vs_pool_trim() > 300 * MiB);
	assert_int_equal(stats()->idle, 0);
	assert_int_equal(stats()->reserved, fake.held);
	give(kept);
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(fake.mappings, 0);
	assert_int_equal(stats()->live, 0);
	assert_int_equal(stats()->pending, 0);
}

static void test_trim_keeps_pending(void **state)
{
	CUdeviceptr p = take(30 * MiB);

	(void)state;
	fake.lag_ns = 50 * MS;
	give(p);
	assert_int_equal(vs_pool_trim(), 0);
	assert_true(fake.held >= 30 * MiB);
	fake.now += 60 * MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

static void test_decay(void **state)
{
	CUdeviceptr p = take(500 * MiB);

	(void)state;
	vs_pool_tick();
	give(p);
	give(take(500 * MiB)); /* makes it idle, not pending */
	vs_pool_trim();
	p = take(500 * MiB);
	give(p);
	vs_pool_tick();
	fake.now += 2000 * MS;
	vs_pool_tick();
	assert_true(fake.held >= 500 * MiB);
	fake.now += 4000 * MS;
	vs_pool_tick();
	fake.now += 4000 * MS;
	vs_pool_tick();
	assert_true(fake.held <= 564 * MiB - 500 * MiB);
}

/* Another process fills the device: what is idle here does not wait. */
static void test_pressure_from_others(void **state)
{
	CUdeviceptr p = take(600 * MiB);

	(void)state;
	give(p);
	vs_pool_tick(); /* marks, and sees it complete */
	vs_pool_tick();
	assert_int_equal(fake.held, 600 * MiB);
	fake.others = 300 * MiB; /* there is room left */
	vs_pool_tick();
	assert_int_equal(fake.held, 600 * MiB);
	fake.others = 400 * MiB;
	vs_pool_tick();
	assert_int_equal(fake.held, 0);
	/* alone with the device, it keeps what is idle */
	fake.others = 0;
	p = take(1000 * MiB);
	give(p);
	vs_pool_tick();
	vs_pool_tick();
	assert_int_equal(fake.held, 1000 * MiB);
}

/* The age of idle memory counts from its free. */
static void test_decay_needs_no_other_call(void **state)
{
	(void)state;
	fake.lag_ns = 100 * MS;
	give(take(600 * MiB));
	for (int i = 0; i < 6; i++) {
		vs_pool_tick();
		fake.now += 750 * MS;
	}
	vs_pool_tick();
	assert_in_range(fake.held, 0, 64 * MiB);
}

enum { N_SMALL = 600, TICK_MS = 750 };

static void free_many_small(void)
{
	static CUdeviceptr p[N_SMALL];

	for (int i = 0; i < N_SMALL; i++)
		p[i] = take(MiB);
	for (int i = 0; i < N_SMALL; i++)
		give(p[i]);
}

/* A call now and then keeps what the threads have, not all they once had. */
static void test_decay_of_small_ones_beside_a_few(void **state)
{
	(void)state;
	free_many_small();
	for (int ms = 0; ms < 15000; ms += TICK_MS) {
		give(take(4096));
		vs_pool_tick();
		fake.now += TICK_MS * MS;
	}
	assert_in_range(fake.held, 0, 128 * MiB);
}

/* What was freed long before its work ends is not forgotten meanwhile. */
static void test_decay_of_small_ones_behind_long_work(void **state)
{
	(void)state;
	fake.lag_ns = 20000 * MS;
	free_many_small();
	for (int ms = 0; ms < 20000; ms += TICK_MS) {
		vs_pool_tick();
		assert_true(vs_pool_is_waiting(0));
		fake.now += TICK_MS * MS;
	}
	for (int ms = 0; ms < 10000; ms += TICK_MS) {
		fake.now += TICK_MS * MS;
		vs_pool_tick();
	}
	assert_false(vs_pool_is_waiting(0));
	assert_in_range(fake.held, 0, 64 * MiB);
}

static void test_decay_zero_acts_at_synchronize(void **state)
{
	(void)state;
	vs_knobs.decay_ms = 0;
	vs_knobs.release_threshold.value = 0;
	give(take(100 * MiB));
	vs_pool_synchronized();
	assert_int_equal(fake.held, 0);
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

static void test_relieve_waits_for_pending(void **state)
{
	CUdeviceptr p = take(200 * MiB);

	(void)state;
	fake.lag_ns = 5 * MS;
	give(p);
	assert_true(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE) >= 200 * MiB);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 0);
}

/* The work ends between the call that is out of memory and the look at it. */
static void test_relieve_tells_of_what_just_ended(void **state)
{
	CUdeviceptr small = take(KiB), kept = take(KiB);

	(void)state;
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	fake.lag_ns = 5 * MS;
	give(small);
	vs_pool_synchronizing();
	fake.now += 5 * MS;
	assert_true(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE) > 0);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_DUE), 0);
	give(kept);
}

static void *trim(void *unused)
{
	(void)unused;
	assert_true(vs_pool_trim() >= 200 * MiB);
	return NULL;
}

/* Another thread gives it back between that call and the look. */
static void test_relieve_tells_of_what_another_gave_back(void **state)
{
	(void)state;
	give(take(200 * MiB));
	in_a_thread(trim, NULL);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 1);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 0);
}

static void *take_it(void *out)
{
	*(CUdeviceptr *)out = take(200 * MiB);
	return NULL;
}

/* It may have had other memory at that call, which it gave to the driver. */
static void test_relieve_tells_of_what_another_took(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	give(take(200 * MiB));
	in_a_thread(take_it, &p);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 1);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 0);
	give(p);
}

/* What happens on another device is no help. */
static void test_relieve_tells_of_its_devices(void **state)
{
	(void)state;
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	give(take(200 * MiB));
	in_a_thread(trim, NULL);
	assert_int_equal(vs_pool_relieve(2, VS_RELIEF_IDLE), 0);
	assert_int_equal(vs_pool_relieve(1, VS_RELIEF_IDLE), 1);
	/* nor is it news when it is asked for in turn */
	assert_int_equal(vs_pool_relieve(2, VS_RELIEF_IDLE), 0);
	assert_int_equal(vs_pool_relieve(1, VS_RELIEF_IDLE), 0);
}

/* In place of hook/enter's, which goes by what the program has loaded. */
static bool relieved(uint64_t devices, enum vs_relief relief)
{
	return vs_pool_relieve(devices, relief) > 0;
}

/*
 * A call of the driver's that others overtake so often: they take what was
 * given up for it, and leave as much idle.
 */
static CUresult overtaken(unsigned *times)
{
	give(take(200 * MiB));
	if (*times == 0)
		return CUDA_SUCCESS;
	--*times;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define vs_again_relieved relieved
static void test_a_call_is_overtaken_often(void **state)
{
	unsigned times = 8, for_ever = UINT_MAX;
	CUresult result = overtaken(&times);

	(void)state;
	atomic_store(&vs_hot.is_open, true);
	VS_AGAIN(UINT64_MAX, result, overtaken(&times));
	assert_int_equal(result, CUDA_SUCCESS);
	result = overtaken(&for_ever);
	VS_AGAIN(UINT64_MAX, result, overtaken(&for_ever));
	assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store(&vs_hot.is_open, false);
}

/* Out of memory, while another thread takes what is idle. */
static CUresult refused(void)
{
	CUdeviceptr p;

	in_a_thread(take_it, &p);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A barrier of another thread's waits for work that does not end. */
static void test_a_call_waits_in_vain_once(void **state)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr pending;
	uint64_t before;

	(void)state;
	fresh_driver((uint64_t)16 << 30);
	pending = take(10 * MiB);
	before = fake.now;
	begin_capture((CUstream)0x5000);
	give(pending);
	atomic_store(&vs_pool_of(0)->fence.has_barrier, true);
	atomic_store(&vs_hot.is_open, true);
	VS_AGAIN(UINT64_MAX, result, refused());
	assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
	assert_in_range(fake.now - before, 9900 * MS, 11000 * MS);
	atomic_store(&vs_hot.is_open, false);
}

/* Work ends each time, which brings nothing. */
static CUresult refused_behind_work(CUdeviceptr **freed)
{
	give(*(*freed)++);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* They may wait each time, and the call is made again for other reasons. */
static void test_a_call_asks_others_seldom(void **state)
{
	CUdeviceptr p[10], *freed = p;
	CUresult result;
	uint64_t asked;

	(void)state;
	for (int i = 0; i < 10; i++)
		p[i] = take(KiB);
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	fake.lag_ns = 20 * MS; /* or who asks in vain is not asked for */
	asked = vs_stat_get(stats(), asked);
	atomic_store(&vs_hot.is_open, true);
	result = refused_behind_work(&freed);
	VS_AGAIN(UINT64_MAX, result, refused_behind_work(&freed));
	atomic_store(&vs_hot.is_open, false);
	assert_ptr_equal(freed, p + 1 + VS_MOST_AGAIN);
	assert_int_equal(vs_stat_get(stats(), asked) - asked, 4);
}
#undef vs_again_relieved

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
		T(trim_gives_all_idle_back),
		T(trim_keeps_pending),
		T(decay),
		T(pressure_from_others),
		T(decay_needs_no_other_call),
		T(decay_of_small_ones_beside_a_few),
		T(decay_of_small_ones_behind_long_work),
		T(decay_zero_acts_at_synchronize),
		T(memory_limit),
		T(out_of_memory_ladder),
		T(no_wait_where_nothing_was_freed),
		T(a_failure_holds_nothing),
		T(a_failure_is_no_high_water),
		T(relieve_waits_for_pending),
		T(relieve_tells_of_what_just_ended),
		T(relieve_tells_of_what_another_gave_back),
		T(relieve_tells_of_what_another_took),
		T(relieve_tells_of_its_devices),
		T(a_call_is_overtaken_often),
		T(a_call_waits_in_vain_once),
		T(a_call_asks_others_seldom),
		T(context_death_gives_everything_back),
		T(sync_mode_waits_in_the_free),
		T(broken_context_goes_to_the_driver),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
