/* SPDX-License-Identifier: MIT
 *
 * By what the pool grows, on the counting driver (fake.h): chunks of which
 * sizes, and idle ones before new ones.
 */
#include <sched.h>
#include <time.h>

#include "driver/real.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/plan.h"
#include "pool/slab.h"
#include "pool/state.h"

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

/* New chunks for `large` bytes beside `n` blocks of `size`. */
static uint64_t chunks_for(size_t large, int n, size_t size)
{
	uint64_t before;

	while (n-- > 0)
		take(size);
	vs_pool_trim();
	before = stats()->chunks_created;
	take(large);
	return stats()->chunks_created - before;
}

/* Of the usual 16 MiB: small blocks come to lie in them once it is freed. */
static void test_a_large_one_beside_many_small_ones(void **state)
{
	(void)state;
	assert_int_equal(chunks_for(160 * MiB, 48, 7 * MiB), 10);
}

static void test_a_large_one_beside_few_small_ones(void **state)
{
	(void)state;
	assert_int_equal(chunks_for(160 * MiB, 47, 7 * MiB), 2);
}

static void test_a_large_one_beside_many_larger_ones(void **state)
{
	(void)state;
	assert_int_equal(chunks_for(160 * MiB, 48, 8 * MiB), 2);
}

/* What is mapped elsewhere is paid for by the piece. */
static void test_a_huge_one_beside_many_small_ones(void **state)
{
	(void)state;
	assert_int_equal(chunks_for(512 * MiB, 48, 7 * MiB), 16);
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
	without_trunks();
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
	idle = idle_left_of_live(&first);
	vs_pool_of(0)->memory_limit = 320 * MiB;
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

static CUresult plan_within_need(uint64_t span, uint64_t *touched_out)
{
	struct vs_pool *pool = vs_pool_of(0);
	uint64_t before = pool->chunks.touches;
	struct vs_plan plan;
	CUresult r;

	pthread_mutex_lock(&pool->lock);
	r = vs_plan_make(pool, &plan, VS_HEAP_LARGE, span, VS_GROW_WITHIN);
	*touched_out = pool->chunks.touches - before;
	if (r == CUDA_SUCCESS)
		vs_plan_drop(pool, &plan);
	pthread_mutex_unlock(&pool->lock);
	return r;
}

/* It is asked for first at each miss, and in vain by who is at its need. */
static void test_what_need_forbids_looks_at_no_idle_range(void **state)
{
	uint64_t touched;

	(void)state;
	give(take(GiB));
	take(512 * MiB);
	assert_int_equal(plan_within_need(900 * MiB, &touched),
			 CUDA_ERROR_NOT_FOUND);
	assert_int_equal(touched, 0);
	/* the idle half and a little */
	assert_int_equal(plan_within_need(540 * MiB, &touched), CUDA_SUCCESS);
	assert_int_equal(touched, 1);
}

/* Such as a network's layers over images of changing size. */
static void test_few_large_blocks_of_changing_sizes(void **state)
{
	CUdeviceptr p[5] = {0};
	uint64_t seed = 7, high;

	(void)state;
	for (int step = 0; step < 400; step++) {
		uint64_t unit = (8 + next_random(&seed) % 192) * MiB;

		for (int i = 0; i < 5; i++) {
			if (p[i])
				give(p[i]);
			p[i] = take(unit * (size_t)(1 + i * 3 % 5));
		}
	}
	high = vs_stat_get(stats(), live_high);
	assert_in_range(fake.held_high, high, high + high / 20);
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

enum { LATE_PEER = 3 };

static CUdeviceptr reached;
static __typeof__(cuMemSetAccess) *next_access;
static pthread_t another;
static _Atomic bool is_coming;

static void *reach_it(void *result_out)
{
	atomic_store(&is_coming, true);
	*(CUresult *)result_out = vs_pool_reach(reached, LATE_PEER, true);
	return NULL;
}

static CUresult result_of_another;

/* Once it has been waited for. */
static CUresult CUDAAPI refuse_access(CUdeviceptr at, size_t size,
				      const CUmemAccessDesc *access, size_t n)
{
	const struct timespec a_while = {.tv_nsec = 20000000};

	(void)at, (void)size, (void)access, (void)n;
	vs_real.cuMemSetAccess = next_access;
	pthread_create(&another, NULL, reach_it, &result_of_another);
	while (!atomic_load(&is_coming))
		sched_yield();
	nanosleep(&a_while, NULL);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The one that waited for what the driver refuses asks for it itself. */
static void test_who_waits_for_a_refused_peer_tries_it(void **state)
{
	(void)state;
	reached = take(64 * MiB);
	next_access = vs_real.cuMemSetAccess;
	vs_real.cuMemSetAccess = refuse_access;
	assert_int_equal(vs_pool_reach(reached, LATE_PEER, true),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(pthread_join(another, NULL), 0);
	assert_int_equal(result_of_another, CUDA_SUCCESS);
	expect_devices(reached, vs_pool_peers(0) | 1 << LATE_PEER | 1);
}

/* No driver call may meet a driver that is shutting down. */
static void test_a_trim_ends_with_the_process(void **state)
{
	(void)state;
	vs_knobs.chunk_size.value = 32 * MiB;
	give(take(GiB));
	fake.on_unmap = end_process;
	assert_int_equal(vs_pool_trim(), 32 * MiB);
	assert_int_equal(vs_pool_trim(), 0);
	vs_pool_ending(false);
	fake.on_unmap = NULL;
	assert_int_equal(vs_pool_trim(), GiB - 32 * MiB);
	assert_int_equal(fake.held, 0);
}

static unsigned n_pauses;

static void another_grows(unsigned round)
{
	struct vs_pool *pool = vs_pool_of(0);

	(void)round;
	n_pauses++;
	assert_int_equal(pthread_mutex_trylock(&pool->grow), 0);
	pthread_mutex_unlock(&pool->grow);
}

/* Many chunks take a second, in which somebody may miss. */
static void test_a_trim_lets_others_grow(void **state)
{
	(void)state;
	vs_knobs.chunk_size.value = 2 * MiB;
	give(take(GiB));
	n_pauses = 0;
	vs_vmm_pause = another_grows;
	assert_int_equal(vs_pool_trim(), GiB);
	assert_int_equal(n_pauses, 4);
}

/* The others of it go all the same, and it goes when it is asked again. */
static void test_a_chunk_that_stays_keeps_no_others(void **state)
{
	(void)state;
	give(take(256 * MiB));
	give(take(GiB));
	fake.fail_unmap = 1;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	give(take(256 * MiB));
	give(take(GiB));
	fake.fail_release = 1;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->reserved, 0);
	assert_int_equal(fake.mappings, 0);
}

/* Chunks of 2 MiB, all of them live, and no others. */
enum { FEW = 80 };

static void fill_with_granules(CUdeviceptr *p)
{
	vs_knobs.reuse = VS_REUSE_ORDERED;
	vs_knobs.chunk_size.value = 2 * MiB;
	vs_knobs.memory_limit.value = FEW * 2 * MiB;
	without_trunks();
	for (int i = 0; i < FEW; i++)
		p[i] = take(2 * MiB);
}

/*
 * One chunk beside each of the others in turn: what was freed of it is ordered,
 * but not complete, so it stays mapped wherever it was.
 */
static void test_a_chunk_has_so_many_addresses(void **state)
{
	const uint64_t began = fake.now;
	const struct vs_chunk *one;
	CUdeviceptr p[FEW], both;
	struct vs_pool *pool;

	(void)state;
	fill_with_granules(p);
	pool = vs_pool_of(0);
	one = vs_view_at(pool, p[0])->chunk;
	fake.lag_ns = 1000 * MS;
	for (int i = 2; i < FEW; i += 2) {
		give(p[0]);
		give(p[i]);
		both = take(4 * MiB);
		/* then the host waits, once, and the oldest goes for another */
		assert_in_range(one->n_had, 1, VS_VIEWS_WAITING);
		assert_int_equal(fake.now - began >= fake.lag_ns,
				 i > 2 * (VS_VIEWS_WAITING - 1));
		give(both);
		p[0] = take(2 * MiB);
		p[i] = take(2 * MiB);
		if (vs_view_at(pool, p[0])->chunk != one) {
			both = p[0];
			p[0] = p[i];
			p[i] = both;
		}
	}
	assert_int_equal(one->n_had, VS_VIEWS_WAITING);
	assert_in_range(fake.now - began, fake.lag_ns, 2 * fake.lag_ns);
	assert_int_equal(fake.natives, 0);
}

/* Of a freed block of so many of these; the rest of it stays idle. */
static void fill_with(CUdeviceptr block, CUdeviceptr *p, int n, size_t size)
{
	give(block);
	for (int i = 0; i < n; i++) {
		p[i] = take(size);
		assert_int_equal(p[i], block + (size_t)i * size);
	}
}

/*
 * What ends a block is looked for among the smallest chunks that would do, the
 * next piece among the largest; where all are of one size, and more than are
 * looked at lie in the region already, the one finds none and the other does.
 */
static void test_the_last_piece_of_many_of_one_size(void **state)
{
	enum { IN_REGION = 140, ELSEWHERE = 8 };
	CUdeviceptr region, other, base, p[IN_REGION], q[ELSEWHERE];

	(void)state;
	vs_knobs.chunk_size.value = 2 * MiB;
	without_trunks();
	region = take((IN_REGION * 8 + 16) * MiB);
	other = take(ELSEWHERE * 9 * MiB);
	fill_with(region, p, IN_REGION, 8 * MiB);
	base = take(16 * MiB);
	assert_int_equal(base, region + IN_REGION * 8 * MiB);
	/* of which some begin or end in the middle of a chunk */
	fill_with(other, q, ELSEWHERE, 9 * MiB);
	vs_pool_by_index(0)->memory_limit = fake.held;
	for (int i = 0; i < IN_REGION; i += 2)
		give(p[i]);
	for (int i = 0; i < ELSEWHERE; i += 2)
		give(q[i]);
	give(base);
	assert_int_equal(take(18 * MiB), base);
	assert_int_equal(stats()->chunks_moved, 1);
}

/*
 * What was mapped, but has no access, and is not unmapped, is in nobody's way,
 * and never handed out: also when the driver does not let its chunk go.
 */
static void test_what_has_no_access_is_not_handed_out(void **state)
{
	__typeof__(vs_real.cuMemUnmap) unmap;
	struct fake_piece piece;
	CUdeviceptr p;

	(void)state;
	give(take(20 * MiB));
	unmap = vs_real.cuMemUnmap;
	vs_real.cuMemUnmap = unmaps_nothing;
	fake.fail_access = 1;
	if (vs_pool_alloc(100 * MiB, &p) == CUDA_SUCCESS)
		give(p);
	assert_int_equal(fake.fail_access, 0);
	vs_pool_trim();
	for (int i = 0; i < 8; i++) {
		p = take((20 + i) * MiB);
		for (size_t at = 0; at < 20 * MiB; at += 2 * MiB)
			assert_true(fake_piece(p + at, &piece));
	}
	vs_real.cuMemUnmap = unmap;
	heap_check(vs_pool_of(0));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(contiguous_blocks_lie_in_one_chunk),
		T(a_large_block_ends_in_a_small_chunk),
		T(a_large_one_beside_many_small_ones),
		T(a_large_one_beside_few_small_ones),
		T(a_huge_one_beside_many_small_ones),
		T(a_large_one_beside_many_larger_ones),
		T(idle_chunks_of_one_region_are_used),
		T(an_idle_range_is_extended_to_the_left),
		T(a_tail_is_mapped_left_of_an_idle_range),
		T(the_larger_end_of_a_chunk_is_used),
		T(a_buffer_that_grows_is_extended),
		T(what_need_forbids_looks_at_no_idle_range),
		T(few_large_blocks_of_changing_sizes),
		T(slabs_fill_their_chunks),
		T(no_small_size_wastes_much),
		T(a_refused_peer_takes_nothing_from_others),
		T(who_waits_for_a_refused_peer_tries_it),
		T(a_trim_ends_with_the_process),
		T(a_trim_lets_others_grow),
		T(a_chunk_that_stays_keeps_no_others),
		T(a_chunk_has_so_many_addresses),
		T(the_last_piece_of_many_of_one_size),
		T(what_has_no_access_is_not_handed_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
