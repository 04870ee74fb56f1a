/* SPDX-License-Identifier: MIT
 *
 * By what the pool grows, on the counting driver (fake.h): chunks of which
 * sizes, and idle ones before new ones.
 */
#include "driver/real.h"
#include "fake_test.h"
#include "pool/plan.h"
#include "pool/slab.h"
#include "pool/state.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define GiB ((uint64_t)1 << 30)
#define MS ((uint64_t)1000000)

static unsigned next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005 + 1442695040888963407;
	return (unsigned)(*seed >> 33);
}

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

static void test_contiguous_blocks_lie_in_one_chunk(void **state)
{
	CUdeviceptr p[12];

	(void)state;
	vs_knobs.contiguous = true;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 12; i++) {
			p[i] = take((i * 3 + 2) * MiB);
			assert_int_equal(
				fake_mapping(p[i]),
				fake_mapping(p[i] + (i * 3 + 2) * MiB - 1));
		}
		for (int i = 0; i < 12; i++)
			give(p[(i * 5) % 12]);
	}
}

/* So a smaller one in its place leaves a whole chunk free. */
static void test_a_large_block_ends_in_a_small_chunk(void **state)
{
	CUdeviceptr block;

	(void)state;
	for (int i = 0; i < 4; i++)
		take(1024 * MiB);
	vs_pool_trim();
	block = take(128 * MiB);
	give(block);
	take(112 * MiB);
	assert_int_equal(vs_pool_trim(), 16 * MiB);
	assert_int_equal(stats()->reserved, (4096 + 112) * MiB);
}

/*
 * A range that could be extended lies in one region with the idle chunks that
 * are to extend it, and they cannot be mapped there twice.
 */
static void test_idle_chunks_of_one_region_are_used(void **state)
{
	CUdeviceptr p[4];

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	give(take(256 * MiB));
	for (int i = 0; i < 4; i++)
		p[i] = take(64 * MiB);
	for (int i = 0; i < 4; i++) {
		if (i != 2)
			give(p[i]);
	}
	take(192 * MiB);
	assert_int_equal(fake.held, 256 * MiB);
	assert_int_equal(stats()->chunks_moved, 3);
}

/*
 * Behind a block of one chunk at the heap's begin: four chunks side by side, of
 * which the left two are idle. Returns where they begin.
 */
static CUdeviceptr idle_left_of_live(CUdeviceptr *first_out)
{
	CUdeviceptr p[2];

	vs_knobs.chunk_size.value = 64 * MiB;
	*first_out = take(64 * MiB);
	give(take(256 * MiB));
	p[0] = take(64 * MiB);
	p[1] = take(64 * MiB);
	take(128 * MiB);
	give(p[0]);
	give(p[1]);
	assert_int_equal(p[1] - p[0], 64 * MiB);
	return p[0];
}

static void test_an_idle_range_is_extended_to_the_left(void **state)
{
	CUdeviceptr first, idle = idle_left_of_live(&first);

	(void)state;
	assert_int_equal(take(180 * MiB), idle - 52 * MiB);
	assert_int_equal(fake.held, 384 * MiB);
	assert_int_equal(stats()->chunks_moved, 0);
	/* what is left of the new chunk lies before the block */
	assert_int_equal(take(12 * MiB), idle - 64 * MiB);
}

/* There the block begins in the idle tail of a chunk. */
static void test_a_tail_is_mapped_left_of_an_idle_range(void **state)
{
	CUdeviceptr first, idle;

	(void)state;
	vs_knobs.memory_limit.value = 320 * MiB;
	idle = idle_left_of_live(&first);
	give(first);
	assert_int_equal(take(24 * MiB), first);
	assert_int_equal(take(160 * MiB), idle - 32 * MiB);
	assert_int_equal(fake.held, 320 * MiB);
	assert_int_equal(stats()->chunks_moved, 1);
	assert_int_equal(fake_mapping(idle - 1), idle - 64 * MiB);
	/* the rest of the tail can be had once */
	assert_int_equal(take(8 * MiB), first + 24 * MiB);
	assert_int_equal(vs_pool_alloc(8 * MiB, &first),
			 CUDA_ERROR_OUT_OF_MEMORY);
}

/* A chunk cannot be used at both: the larger end is what counts. */
static void test_the_larger_end_of_a_chunk_is_used(void **state)
{
	CUdeviceptr head, tail;

	(void)state;
	fresh_driver(4 * GiB);
	give(take(3000 * MiB));
	head = take(2400 * MiB);
	take(300 * MiB);
	tail = take(300 * MiB);
	assert_int_equal(stats()->chunks_created, 1);
	give(head);
	give(tail);
	take(3200 * MiB);
	assert_int_equal(fake.natives, 0);
}

/*
 * Beside much that is held, too. Mapped anew each time, chunk by chunk, it took
 * a hundred times as long.
 */
static void test_a_buffer_that_grows_is_extended(void **state)
{
	uint64_t size = 4 * GiB;
	CUdeviceptr p;
	double before;

	(void)state;
	fresh_driver(80 * GiB);
	for (int i = 0; i < 240; i++)
		take(100 * MiB);
	p = take(size);
	before = fake.cost_us;
	for (int i = 0; i < 100; i++) {
		give(p);
		size += 40 * MiB;
		p = take(size);
	}
	assert_true(fake.cost_us - before < 100 * 100);
}

/* Such as a network's layers over images of changing size. */
static void test_few_large_blocks_of_changing_sizes(void **state)
{
	CUdeviceptr p[5] = {0};
	uint64_t seed = 7, high;

	(void)state;
	for (int step = 0; step < 400; step++) {
		uint64_t unit = (8 + next(&seed) % 192) * MiB;

		for (int i = 0; i < 5; i++) {
			if (p[i])
				give(p[i]);
			p[i] = take(unit * (size_t)(1 + i * 3 % 5));
		}
	}
	high = vs_stat_get(stats(), live_high);
	assert_in_range(fake.held_high, high, high + high / 20);
}

/* Blocks in turn behind a late GPU, up to a time; the most that was live. */
static uint64_t go_on_until(uint64_t end)
{
	CUdeviceptr p[8] = {0};
	uint64_t seed = 7, sizes[8] = {0}, live = 0, most = 0, tick = fake.now;

	for (unsigned i = 0; fake.now < end; i = (i + 1) % 8) {
		if (p[i])
			give(p[i]);
		live -= sizes[i];
		sizes[i] = (50 + next(&seed) % 100) * MiB;
		live += sizes[i];
		most = live > most ? live : most;
		p[i] = take(sizes[i]);
		fake.now += 4 * MS;
		if (fake.now - tick < 500 * MS)
			continue;
		vs_pool_tick();
		tick = fake.now;
	}
	for (unsigned i = 0; i < 8; i++)
		give(p[i]);
	return most;
}

/* Note [Late] in pool/ladder.c: longer than the pool has patience at first. */
static void go_on_behind(uint64_t lag_ns)
{
	CUdeviceptr p[64] = {0};
	uint64_t seed = 7, high;

	fake.lag_ns = lag_ns;
	for (int i = 0; i < 4000; i++) {
		if (p[i % 64])
			give(p[i % 64]);
		p[i % 64] = take((20 + next(&seed) % 40) * MiB);
		fake.now += MS / 10;
	}
	high = vs_stat_get(stats(), live_high);
	assert_in_range(fake.held_high, high, high + high / 8);
}

static void test_a_gpu_far_behind(void **state)
{
	static const uint64_t lag_ms[] = {110, 150, 250, 700};

	for (int i = 0; i < 4; i++) {
		fresh(state);
		go_on_behind(lag_ms[i] * MS);
	}
}

/*
 * A block is freed behind work that takes so long, and one as large is wanted,
 * beyond need; how long that took. Then all of it is given back.
 */
static uint64_t wait_behind(size_t size, uint64_t lag_ns)
{
	CUdeviceptr p = take(size);
	uint64_t took;

	fake.lag_ns = lag_ns;
	give(p);
	took = fake.now;
	p = take(size);
	took = fake.now - took;
	fake.now += 2 * lag_ns;
	fake.lag_ns = 0;
	give(p);
	vs_pool_trim();
	return took;
}

/* There a wait is no good, however long, and is soon a short one. */
static void test_work_that_waits_for_the_host(void **state)
{
	uint64_t took = 0;

	(void)state;
	for (int i = 0; i < 8; i++) {
		took = wait_behind(1000 * MiB, 5000 * MS);
		if (i == 0)
			assert_in_range(took, 1000 * MS, 2000 * MS);
		assert_int_equal(fake.held, 0);
	}
	assert_in_range(took, 50 * MS, 150 * MS);
}

/* Short ones that were vain say no more of long ones than those that ended. */
static void test_short_waits_in_vain_do_not_shorten_long_ones(void **state)
{
	CUdeviceptr most = take(910 * MiB);

	(void)state;
	for (int i = 0; i < 8; i++)
		wait_behind(90 * MiB, 150 * MS);
	fake.lag_ns = 150 * MS;
	give(most);
	take(910 * MiB);
	assert_true(fake.held <= 1100 * MiB);
}

/*
 * Nor do waits that end in time, of which each program has some, make those for
 * work that waits for the host long again.
 */
static void test_short_waits_prove_nothing_of_long_ones(void **state)
{
	uint64_t took = 0;

	(void)state;
	for (int i = 0; i < 20; i++) {
		fake.lag_ns = 20 * MS;
		give(take(1000 * MiB));
		took += wait_behind(1000 * MiB, 20000 * MS);
		if (i == 9)
			took = 0;
	}
	assert_in_range(took / 10, 50 * MS, 250 * MS);
}

/* 250 ms late, as it was before, after work that waited for the host. */
static void test_as_late_as_before(void **state)
{
	struct vs_fence *fence;
	CUdeviceptr p, most;

	(void)state;
	for (int i = 0; i < 8; i++)
		wait_behind(1000 * MiB, 20000 * MS);
	fence = &vs_pool_by_index(0)->fence;
	most = take(900 * MiB);
	p = take(100 * MiB);
	fake.lag_ns = 250 * MS;
	give(p);
	vs_fence_record(fence);
	fake.now += 240 * MS;
	assert_false(vs_fence_poll(fence));
	fake.now += 9000 * MS; /* it had other things to do */
	assert_true(vs_fence_poll(fence));
	assert_int_equal(vs_fence_calm_lag(fence), 240 * MS);
	give(take(100 * MiB));
	/* as far past need as is worth twice the shortest wait */
	give(most);
	most = take(900 * MiB);
	assert_true(fake.held <= 1100 * MiB);
}

/* It was behind for once, but then it is the host that is waited for. */
static void test_a_long_kernel_is_not_remembered_for_ever(void **state)
{
	static const uint64_t lag_ms[] = {900, 3000};
	uint64_t took = 0;

	for (int i = 0; i < 2; i++) {
		CUdeviceptr p;

		fresh(state);
		p = take(100 * MiB);
		fake.lag_ns = lag_ms[i] * MS;
		give(p);
		for (int k = 0; k < 32; k++) {
			vs_pool_tick();
			fake.now += 125 * MS;
		}
		for (int k = 0; k < 12; k++) {
			took = wait_behind(1000 * MiB, 20000 * MS);
			if (k == 0)
				assert_in_range(took, 1000 * MS, 2000 * MS);
		}
		assert_in_range(took, 50 * MS, 150 * MS);
	}
}

/* One that needs all the rest of the device, of which a chunk has 2 MiB. */
static void take_all_the_rest(void)
{
	CUdeviceptr p = take(fake.memory - fake.held + 2 * MiB);

	assert_non_null(fake_mapping(p));
	assert_int_equal(fake.held, fake.memory);
	assert_int_equal(stats()->live, fake.memory);
}

static void test_the_last_granule_is_had(void **state)
{
	CUdeviceptr p;

	/* idle is the end of a chunk */
	fresh_driver(GiB / 2);
	give(take(64 * MiB));
	take(62 * MiB);
	take_all_the_rest();
	/* its begin */
	fresh_driver(GiB / 2);
	give(take(64 * MiB));
	p = take(10 * MiB);
	take(54 * MiB);
	give(p);
	take(8 * MiB);
	take_all_the_rest();
	fresh(state);
}

/* What was live at the begin of a long life is not held for ever. */
static void test_an_old_peak_is_no_need(void **state)
{
	CUdeviceptr p[160];
	uint64_t most;

	(void)state;
	for (int i = 0; i < 160; i++)
		p[i] = take(128 * MiB);
	for (int i = 0; i < 160; i++)
		give(p[i]);
	fake.lag_ns = 20 * MS;
	go_on_until(200000 * MS);
	fake.held_high = fake.held;
	most = go_on_until(230000 * MS);
	assert_in_range(fake.held_high, most, most + most / 3);
	assert_in_range(vs_stat_get(stats(), live_high), 20 * GiB, 20 * GiB);
}

/* One that no tick meets, and that is served by what is there, is a need. */
static void test_a_short_peak_is_a_need(void **state)
{
	CUdeviceptr p[40];
	unsigned long releases = 0;

	(void)state;
	for (int step = 0; step < 400; step++) {
		for (int i = 0; i < 40; i++)
			p[i] = take(128 * MiB);
		for (int i = 0; i < 40; i++)
			give(p[i]);
		fake.now += 500 * MS;
		vs_pool_tick();
		if (step == 0)
			releases = fake.releases;
	}
	assert_int_equal(fake.releases, releases);
}

/* Two threads look at the clock, and the later one comes first. */
static void test_a_late_look_ends_no_window(void **state)
{
	CUdeviceptr p[8];
	unsigned long releases;

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = take(128 * MiB);
	for (int i = 0; i < 8; i++)
		give(p[i]);
	fake.now += 30000 * MS;
	for (int i = 0; i < 8; i++)
		p[i] = take(128 * MiB);
	for (int i = 0; i < 8; i++)
		give(p[i]);
	vs_pool_tick();
	releases = fake.releases;
	fake.now -= 1;
	vs_pool_tick();
	assert_int_equal(fake.releases, releases);
	assert_int_equal(vs_pool_of(0)->need, 1024 * MiB);
}

/* Slabs lie side by side, also where they are larger than half a chunk. */
static void test_slabs_fill_their_chunks(void **state)
{
	uint64_t n = 8000, size = 170000;

	(void)state;
	for (uint64_t i = 0; i < n; i++)
		take(size);
	assert_in_range(fake.held_high, n * size, n * size * 11 / 10);
}

/* Rounded up to its class, and its part of what is left of the slab. */
static void test_no_small_size_wastes_much(void **state)
{
	unsigned last = 0;

	(void)state;
	for (size_t size = 1; size <= MiB; size += size < 9000 ? 1 : 509) {
		unsigned class = vs_class_of(size);
		size_t given = vs_class_size(class), span = vs_slab_span(class);

		assert_in_range(class, last, VS_N_CLASSES - 1);
		assert_in_range(given, size, size + size / 8 + 511);
		assert_int_equal(span % VS_SLAB_PAGE, 0);
		assert_in_range(span / given * given, span - span / 16, span);
		assert_true(span >= 2 * given && span <= 2 * MiB + span / 16);
		last = class;
	}
	assert_int_equal(vs_class_of(MiB), VS_N_CLASSES - 1);
	assert_int_equal(vs_class_size(VS_N_CLASSES - 1), MiB);
}

enum { EDGE = 16000, EDGE_BLOCKS = 4096 };

/*
 * A program at the edge of its device: 95 % live, in blocks of 4 to 100 MB,
 * some freed at random for each new one. Returns how many allocations failed.
 */
static unsigned live_at_the_edge(unsigned n, uint64_t seed)
{
	static struct {
		CUdeviceptr p;
		uint64_t span;
	} block[EDGE_BLOCKS];
	uint64_t most = fake.memory / 100 * 95, live = 0;
	unsigned n_live = 0, n_failed = 0;

	for (unsigned i = 0; i < n; i++) {
		size_t size = 4000 * KiB + next(&seed) % (96000 * KiB);
		uint64_t span = (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
		CUdeviceptr p;

		while (live + span > most) {
			unsigned k = next(&seed) % n_live;

			give(block[k].p);
			live -= block[k].span;
			block[k] = block[--n_live];
		}
		fake.now += 20000;
		if (vs_pool_alloc(size, &p) != CUDA_SUCCESS) {
			n_failed++;
			continue;
		}
		live += span;
		block[n_live].p = p;
		block[n_live++].span = span;
	}
	while (n_live > 0)
		give(block[--n_live].p);
	return n_failed;
}

/* The same four times, on 4 GiB with so many bytes of addresses (0: many). */
static unsigned live_on_four_gib(uint64_t space)
{
	unsigned n_failed = 0;

	for (uint64_t seed = 1; seed <= 4; seed++) {
		fresh_driver(4 * GiB);
		if (space)
			fake.space = space;
		n_failed += live_at_the_edge(EDGE, seed);
	}
	return n_failed;
}

/* With chunks of one size one in 11 failed, though there was memory for all. */
static void test_life_at_the_edge_of_the_device(void **state)
{
	(void)state;
	/* 4 to 64 of each, as chance will have it */
	assert_in_range(live_on_four_gib(0), 0, 4 * EDGE / 400);
}

/*
 * The same where the process may not map much. Views that nobody needed kept
 * their addresses: 1,177 to 1,302 of each failed, and 6 to 24 do.
 */
static void test_life_with_little_address_space(void **state)
{
	(void)state;
	assert_in_range(live_on_four_gib(16 * GiB), 0, 4 * EDGE / 200);
}

static CUresult map_after_fault(CUdeviceptr at, size_t size, size_t offset,
				CUmemGenericAllocationHandle handle,
				unsigned long long flags)
{
	(void)at, (void)size, (void)offset, (void)handle, (void)flags;
	return CUDA_ERROR_INVALID_ADDRESS_SPACE;
}

/* A kernel's fault, which any call may tell, is no want of addresses. */
static void test_a_fault_is_the_drivers_to_word(void **state)
{
	struct vs_real real;
	CUdeviceptr p;

	(void)state;
	vs_knobs.memory_limit.value = 4 * GiB;
	take(4 * MiB);
	real = vs_real;
	real.cuMemMap = map_after_fault;
	vs_real_set(&real);
	assert_int_equal(vs_pool_alloc(400 * MiB, &p), VS_PASS);
}

/*
 * Nor does one allocation pay for all: with chunks of 2 MiB one unmapped up to
 * 9,000 views, for a quarter of a second.
 */
static void test_addresses_come_back_little_by_little(void **state)
{
	static CUdeviceptr p[2048];
	static size_t size[2048];
	uint64_t seed = 1, live = 0;
	unsigned n = 0;

	(void)state;
	fresh_driver(16 * GiB);
	fake.space = 64 * GiB;
	vs_knobs.chunk_size.value = 2 * MiB;
	for (unsigned i = 0; i < 8000; i++) {
		size_t bytes = (8 + next(&seed) % 52) * MiB;
		unsigned long before;

		while (live + bytes > 14 * GiB) {
			unsigned k = next(&seed) % n;

			give(p[k]);
			live -= size[k];
			p[k] = p[--n];
			size[k] = size[n];
		}
		before = fake.unmaps;
		p[n] = take(bytes);
		size[n++] = bytes;
		live += bytes;
		assert_in_range(fake.unmaps - before, 0, 2500);
	}
}

/* A request for more than there is tells nothing about chunks. */
static void test_a_vain_request_makes_no_small_chunks(void **state)
{
	CUdeviceptr p;

	(void)state;
	fresh_driver(4 * GiB);
	take(2048 * MiB);
	for (int i = 0; i < 10; i++)
		assert_int_equal(vs_pool_alloc(3 * GiB, &p),
				 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(vs_pool_of(0)->tight, 0);
}

/*
 * At the edge of the device each growth within what was live at most is refused
 * by the driver. Where idle chunks serve it nothing lies scattered, and chunks
 * that were made small once are to grow again.
 */
static void test_idle_chunks_at_the_edge_make_no_small_ones(void **state)
{
	CUdeviceptr p[33], q[8];

	(void)state;
	fresh_driver(4 * GiB);
	for (int i = 0; i < 33; i++)
		p[i] = take(120 * MiB);
	fake.others = 100 * MiB;
	for (int i = 0; i < 33; i += 2)
		give(p[i]);
	vs_pool_of(0)->tight = 64;
	for (int i = 0; i < 8; i++)
		q[i] = take(130 * MiB);
	assert_int_equal(fake.natives, 0);
	assert_in_range(fake.refused, 1, 8);
	assert_int_equal(vs_pool_of(0)->tight, 64 - 8);
	for (int i = 0; i < 8; i++)
		give(q[i]);
}

/* What is freed but in use by a GPU far behind is not scattered either. */
static void test_pending_memory_makes_no_small_chunks(void **state)
{
	CUdeviceptr p[3];

	(void)state;
	fresh_driver(4 * GiB);
	for (int i = 0; i < 3; i++)
		p[i] = take(1200 * MiB);
	fake.lag_ns = GiB; /* a second */
	for (int i = 0; i < 3; i++)
		give(p[i]);
	take(1250 * MiB);
	assert_int_equal(fake.natives, 0);
	assert_int_equal(vs_pool_of(0)->tight, 0);
}

/* Nor is what slabs have free. */
static void test_slabs_in_part_make_no_small_chunks(void **state)
{
	enum { N = 8000 };
	static CUdeviceptr p[N];
	unsigned n = 0;

	(void)state;
	fresh_driver(GiB / 2);
	while (n < N && vs_pool_alloc(64 * KiB, &p[n]) == CUDA_SUCCESS)
		n++;
	vs_pool_of(0)->tight = 0;
	for (unsigned i = 0; i < n; i += 2)
		give(p[i]);
	while (vs_pool_alloc(MiB, &p[0]) == CUDA_SUCCESS)
		;
	assert_int_equal(vs_pool_of(0)->tight, 0);
}

/* A request of more than half of what lies scattered would have fit, too. */
static void test_a_large_request_finds_memory_scattered(void **state)
{
	static CUdeviceptr p[1000];
	CUdeviceptr out;

	(void)state;
	fresh_driver(4 * GiB);
	for (int i = 0; i < 1000; i++)
		p[i] = take(4 * MiB);
	for (int i = 0; i < 1000; i += 2)
		give(p[i]);
	assert_int_equal(vs_pool_alloc(1200 * MiB, &out),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(vs_pool_of(0)->tight, 64);
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

/* What was made of a huge block that could not be made whole is no loss. */
static void test_half_a_huge_block_is_no_loss(void **state)
{
	CUdeviceptr p;

	(void)state;
	fake.others = 60 * GiB;
	assert_int_equal(vs_pool_alloc(100 * GiB, &p),
			 CUDA_ERROR_OUT_OF_MEMORY);
	fake.fail_map = 2;
	assert_int_not_equal(vs_pool_alloc(70 * GiB, &p), CUDA_SUCCESS);
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

static void expect_devices(CUdeviceptr p, uint64_t devices)
{
	struct fake_piece piece;

	assert_true(fake_piece(p, &piece));
	assert_int_equal(piece.devices, devices);
}

/* A peer that has access keeps it, though the driver refuses another one. */
static void test_a_refused_peer_takes_nothing_from_others(void **state)
{
	CUcontext one = (CUcontext)0x2000, other = (CUcontext)0x3000;
	CUcontext third = (CUcontext)0x4000;

	(void)state;
	expect_devices(take(64 * MiB), 1);
	vs_pool_ctx_born(one, 1);
	vs_pool_ctx_born(other, 1);
	vs_pool_ctx_born(third, 2);
	assert_int_equal(vs_pool_peer(one, FAKE_CTX, true), CUDA_SUCCESS);
	expect_devices(take(64 * MiB), 3);
	fake.fail_access = 1;
	assert_int_not_equal(vs_pool_peer(other, FAKE_CTX, true), CUDA_SUCCESS);
	fake.fail_access = 1;
	assert_int_not_equal(vs_pool_peer(third, FAKE_CTX, true), CUDA_SUCCESS);
	assert_int_equal(vs_pool_peers(0), 2);
	expect_devices(take(1024 * MiB), 3);
}

/* Chunks of a fixed size leave no part of the limit that nobody can have. */
static void test_large_chunks_below_a_limit(void **state)
{
	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	vs_knobs.memory_limit.value = 100 * MiB;
	take(10 * MiB); /* of a heap each */
	take(4 * MiB);
	give(take(50 * MiB));
	assert_int_equal(fake.held, 100 * MiB);
	fresh(state);
	vs_knobs.chunk_size.value = GiB;
	vs_knobs.memory_limit.value = 100 * MiB;
	take(10 * MiB);
	take(80 * MiB);
}

static void process_ends(CUdeviceptr at, uint64_t size)
{
	(void)at, (void)size;
	vs_pool_ending(true);
}

/* No driver call may meet a driver that is shutting down. */
static void test_a_trim_ends_with_the_process(void **state)
{
	(void)state;
	vs_knobs.chunk_size.value = 32 * MiB;
	give(take(GiB));
	fake.on_unmap = process_ends;
	assert_int_equal(vs_pool_trim(), 32 * MiB);
	assert_int_equal(vs_pool_trim(), 0);
	vs_pool_ending(false);
	fake.on_unmap = NULL;
	assert_int_equal(vs_pool_trim(), GiB - 32 * MiB);
	assert_int_equal(fake.held, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(contiguous_blocks_lie_in_one_chunk),
		T(a_large_block_ends_in_a_small_chunk),
		T(idle_chunks_of_one_region_are_used),
		T(an_idle_range_is_extended_to_the_left),
		T(a_tail_is_mapped_left_of_an_idle_range),
		T(the_larger_end_of_a_chunk_is_used),
		T(a_buffer_that_grows_is_extended),
		T(few_large_blocks_of_changing_sizes),
		T(a_gpu_far_behind),
		T(work_that_waits_for_the_host),
		T(short_waits_in_vain_do_not_shorten_long_ones),
		T(short_waits_prove_nothing_of_long_ones),
		T(as_late_as_before),
		T(a_long_kernel_is_not_remembered_for_ever),
		T(the_last_granule_is_had),
		T(an_old_peak_is_no_need),
		T(a_short_peak_is_a_need),
		T(a_late_look_ends_no_window),
		T(slabs_fill_their_chunks),
		T(life_at_the_edge_of_the_device),
		T(life_with_little_address_space),
		T(addresses_come_back_little_by_little),
		T(a_fault_is_the_drivers_to_word),
		T(a_first_huge_block_is_of_two_chunks),
		T(not_with_knobs_that_forbid_it),
		T(a_huge_block_is_used_again),
		T(a_huge_chunk_is_not_broken),
		T(a_huge_chunk_stands_in_the_way_once),
		T(a_huge_chunk_stays_where_others_move),
		T(a_huge_chunk_gives_way_on_a_full_device),
		T(half_a_huge_block_is_no_loss),
		T(little_of_a_huge_block_stays),
		T(a_huge_block_keeps_its_chunks_on_a_full_device),
		T(a_vain_request_makes_no_small_chunks),
		T(idle_chunks_at_the_edge_make_no_small_ones),
		T(pending_memory_makes_no_small_chunks),
		T(slabs_in_part_make_no_small_chunks),
		T(a_large_request_finds_memory_scattered),
		T(no_small_size_wastes_much),
		T(a_refused_peer_takes_nothing_from_others),
		T(large_chunks_below_a_limit),
		T(a_trim_ends_with_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
