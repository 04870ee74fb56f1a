/* SPDX-License-Identifier: MIT
 *
 * Knob GUARD on the counting driver: where a block lies, what is unmapped when,
 * what it costs, and that the program gets its memory when guarding fails.
 */
#include "fake_test.h"

#include <string.h>

#include "child.h"
#include "pool/capture.h"
#include "pool/fence.h"
#include "pool/share.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(8 * GiB);
	vs_knobs.release_threshold.value = GiB;
	vs_knobs.decay_ms = 3000;
	vs_knobs.guard = true;
	return 0;
}

static const size_t sizes[] = {1,	512,	 513,		4000,	 MiB,
			       MiB + 1, 2 * MiB, 2 * MiB + 100, 33 * MiB};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void test_lies_against_unmapped_memory(void **state)
{
	CUdeviceptr p[N_SIZES];

	(void)state;
	for (int i = 0; i < N_SIZES; i++)
		p[i] = take(sizes[i]);
	for (int i = 0; i < N_SIZES; i++) {
		CUdeviceptr end = (p[i] + sizes[i] + 511) & ~(uint64_t)511;
		struct fake_piece piece;

		assert_true(fake_piece(p[i], &piece));
		assert_true(fake_piece(end - 1, &piece));
		assert_true(piece.handle_size < sizes[i] + 2 * MiB);
		for (uint64_t d = 0; d < 2 * MiB; d += 64 * KiB)
			assert_false(fake_piece(end + d, &piece));
		/* nor does anything end right before its mapping */
		assert_false(fake_piece(fake_mapping(p[i]) - 1, &piece));
	}
	for (int i = 0; i < N_SIZES; i++)
		give(p[i]);
	assert_int_equal(fake.held, 0);
	assert_int_equal(fake.mappings, 0);
}

static void test_answers_are_those_of_any_allocation(void **state)
{
	struct vs_span span;
	struct vs_share share;
	uint64_t last = 0;

	(void)state;
	for (int i = 0; i < N_SIZES; i++) {
		CUdeviceptr p = take(sizes[i]);

		assert_true(vs_pool_find(p + sizes[i] - 1, &span));
		assert_int_equal(span.base, p);
		assert_int_equal(span.size, sizes[i]);
		assert_ptr_equal(span.ctx, FAKE_CTX);
		assert_true(span.id > last);
		last = span.id;
		assert_false(vs_pool_find(p + sizes[i], &span));
		assert_false(vs_pool_find(p - 1, &span));
		if (vs_share_is_capable(0)) {
			assert_true(vs_share_describe(p, last, &share));
			assert_int_equal(share.n, 1);
			assert_int_equal(share.offset, p - fake_mapping(p));
		}
		assert_int_equal(vs_pool_free(p + 1), VS_PASS);
		assert_int_equal(vs_pool_free(p - 512), VS_PASS);
		assert_int_equal(stats()->live, sizes[i]);
		assert_int_equal(stats()->blocks, 1);
		give(p);
		assert_false(vs_pool_find(p, &span));
		assert_int_equal(vs_pool_free(p), VS_PASS);
		assert_int_equal(stats()->live, 0);
	}
}

static void test_free_waits_and_unmaps(void **state)
{
	CUdeviceptr p = take(5000);
	uint64_t began = fake.now;

	(void)state;
	fake.lag_ns = 30 * MS;
	give(p);
	assert_true(fake.now - began >= 30 * MS);
	assert_int_equal(fake_mapping(p), 0);
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->pending, 0);
}

static void check_work_is_done(CUdeviceptr at, uint64_t size)
{
	(void)at;
	(void)size;
	assert_int_equal(fake.captures, 0);
}

static void test_nothing_is_unmapped_in_a_capture(void **state)
{
	CUdeviceptr p = take(5000), q = take(5000);

	(void)state;
	fake.on_unmap = check_work_is_done;
	begin_capture((CUstream)0x10);
	fake.captures = 1;
	give(p);
	fake.now += 1000 * MS;
	vs_pool_tick();
	assert_int_not_equal(fake_mapping(p), 0);
	fake.captures = 0;
	vs_capture_ended((CUstream)0x10, false);
	give(q);
	assert_int_equal(fake_mapping(p), 0);
	assert_int_equal(fake.held, 0);
}

static void test_long_work_does_not_hold_a_free_up_for_ever(void **state)
{
	CUdeviceptr p = take(5000);

	(void)state;
	fake.lag_ns = 3600000 * MS;
	give(p);
	assert_int_not_equal(fake_mapping(p), 0);
	assert_int_equal(stats()->pending, 2 * MiB);
	fake.now += 3600000 * MS;
	vs_pool_tick();
	assert_int_equal(fake_mapping(p), 0);
	assert_int_equal(stats()->pending, 0);
}

/* What a free did not wait for to its end is there when it is needed. */
static void test_memory_under_long_work_is_waited_for(void **state)
{
	CUdeviceptr p[7];

	(void)state;
	for (int i = 0; i < 7; i++)
		p[i] = take(GiB);
	fake.lag_ns = 15000 * MS;
	for (int i = 0; i < 7; i++)
		give(p[i]);
	assert_int_not_equal(stats()->pending, 0);
	p[0] = take(4 * GiB);
	assert_int_equal(fake.natives, 0);
	give(p[0]);
}

static CUdeviceptr freed_meanwhile;

/* Another's free, behind endless work, while one waits. */
static void free_while_waiting(unsigned round)
{
	CUdeviceptr p = freed_meanwhile;

	(void)round;
	fake.now += MS;
	freed_meanwhile = 0;
	if (!p)
		return;
	fake.lag_ns = 3600000 * MS;
	give(p);
}

/* Nor is what it did wait for kept by what came before it to the list. */
static void test_frees_that_wait_longer_keep_no_others(void **state)
{
	CUdeviceptr p = take(MiB);

	(void)state;
	freed_meanwhile = take(MiB);
	vs_vmm_pause = free_while_waiting;
	fake.lag_ns = 5000 * MS;
	give(p);
	assert_int_equal(freed_meanwhile, 0);
	assert_int_equal(fake_mapping(p), 0);
	assert_int_equal(fake.held, 2 * MiB);
}

static void test_memory_freed_in_a_capture_comes_round(void **state)
{
	(void)state;
	fake_allow_barriers();
	give(take(GiB));
	begin_capture((CUstream)0x10);
	fake.captures = 1;
	for (int i = 0; i < 32; i++)
		give(take(GiB));
	assert_int_equal(stats()->native, 0);
	assert_true(fake.held_high <= 3 * GiB);
	fake.captures = 0;
	vs_capture_ended((CUstream)0x10, false);
}

static void test_addresses_come_round_late(void **state)
{
	CUdeviceptr first = take(MiB), last = 0, p;
	unsigned long n = 0;

	(void)state;
	fake.space = 0;
	give(first);
	for (; n < 1000; n++) {
		p = take(MiB);
		assert_true(p > first && p > last);
		last = p;
		give(p);
	}
}

static void test_little_address_space_comes_round(void **state)
{
	CUdeviceptr kept[8], p, first = 0;
	bool came_round = false;

	(void)state;
	fake_install(64 * MiB);
	fake.space = GiB;
	for (int i = 0; i < 4; i++)
		kept[i] = take(MiB);
	for (int i = 0; i < 1000; i++) {
		p = take(3 * MiB);
		for (int k = 0; k < 4; k++)
			assert_true(p >= kept[k] + 3 * MiB ||
				    p + 5 * MiB <= kept[k]);
		came_round |= p < first;
		first = p;
		give(p);
	}
	assert_true(came_round);
	for (int i = 0; i < 4; i++)
		give(kept[i]);
	assert_int_equal(fake.held, 0);
}

/* What a heap unmaps for want of addresses is its own, no guarded block. */
static void test_a_heap_without_addresses_leaves_them_alone(void **state)
{
	uint64_t live = 0;
	CUdeviceptr p;

	(void)state;
	fake_install(4 * GiB);
	fake.space = 8 * GiB;
	while (live < 3 * GiB && vs_pool_alloc(2 * MiB + 1, &p) == CUDA_SUCCESS)
		live += 2 * MiB + 1;
	/* 512 of them are guarded, the others fill the addresses for them */
	assert_true(stats()->reserved > 3 * GiB);
	assert_int_equal(fake.natives, 1);
}

static void test_many_small_ones_find_their_memory(void **state)
{
	static CUdeviceptr p[170000];
	size_t n = sizeof(p) / sizeof(p[0]);

	(void)state;
	/* 5.2 GiB of 8 GiB, in small pieces */
	for (size_t i = 0; i < n; i++)
		p[i] = take(32 * KiB);
	assert_true(stats()->large_miss >= 1000);
	for (size_t i = 0; i < n; i++)
		give(p[i]);
	vs_pool_trim();
	fake.now += MS;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

static void test_what_fails_is_undone(void **state)
{
	unsigned *fails[] = {&fake.fail_create, &fake.fail_map,
			     &fake.fail_access};

	(void)state;
	for (int i = 0; i < 3; i++) {
		CUdeviceptr p;

		*fails[i] = 1;
		p = take(3 * MiB);
		give(p);
		vs_pool_trim();
		fake.now += MS;
		vs_pool_trim();
		assert_int_equal(fake.held, 0);
		assert_int_equal(fake.mappings, 0);
		assert_int_equal(stats()->reserved, 0);
	}
}

static void take_refused(void *is_for_want)
{
	vs_log_level = VS_LOG_WARN;
	if (is_for_want)
		vs_knobs.memory_limit.value = 64 * MiB;
	else
		fake.fail_map = 1;
	for (int i = 0; i < 40; i++) {
		CUdeviceptr p;
		CUresult result = vs_pool_alloc(2 * MiB + i, &p);

		/* no assertion: it would go on with the other tests, here */
		if (result != CUDA_SUCCESS && !is_for_want)
			_exit(1);
	}
}

static void take_too_much(void *unused)
{
	CUdeviceptr p;

	(void)unused;
	vs_log_level = VS_LOG_WARN;
	vs_knobs.memory_limit.value = 64 * MiB;
	if (vs_pool_alloc(40 * MiB, &p) != CUDA_SUCCESS ||
	    vs_pool_alloc(40 * MiB, &p) != CUDA_ERROR_OUT_OF_MEMORY)
		_exit(1);
}

/*
 * Any other failure is not for want of memory: the process may be ending. And
 * what nobody serves is no allocation without a guard.
 */
static void test_only_want_of_memory_is_told(void **state)
{
	static struct child c;

	(void)state;
	child_run(&c, NULL, take_refused, NULL);
	assert_child_ok(&c);
	assert_null(strstr(c.err, "GUARD"));
	child_run(&c, NULL, take_too_much, NULL);
	assert_child_ok(&c);
	assert_null(strstr(c.err, "GUARD"));
	child_run(&c, NULL, take_refused, &c);
	assert_non_null(strstr(c.err, "GUARD"));
}

static void test_unmap_refused_is_tried_again(void **state)
{
	CUdeviceptr p = take(3 * MiB);

	(void)state;
	fake.fail_unmap = 1;
	give(p);
	assert_int_not_equal(fake.held, 0);
	fake.fail_release = 1;
	give(take(1));
	vs_pool_tick();
	vs_pool_tick();
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->pending, 0);
}

/* Unmapped, but not released yet: a new peer is to reach the others. */
static void test_peers_are_not_given_what_is_unmapped(void **state)
{
	CUcontext peer = (CUcontext)0x4000;
	CUdeviceptr p = take(MiB), q = take(MiB);
	struct fake_piece piece;

	(void)state;
	vs_pool_ctx_born(peer, 1);
	fake.fail_release = 1;
	give(p);
	assert_int_not_equal(fake.held, 2 * MiB);
	assert_int_equal(vs_pool_peer(peer, FAKE_CTX, true), CUDA_SUCCESS);
	assert_true(fake_piece(q, &piece));
	assert_int_equal(piece.devices, 3);
	vs_pool_tick();
	assert_int_equal(fake.held, 2 * MiB);
}

/* One that the driver keeps for good does not keep the others. */
static void test_unmap_refused_for_good_keeps_one(void **state)
{
	enum { N = 40 };
	CUdeviceptr p[N];

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(2 * MiB);
	fake.never_unmapped = p[0];
	for (int i = 0; i < N; i++)
		give(p[i]);
	/* each that comes to it ends there */
	vs_pool_trim();
	assert_int_equal(fake.held, 2 * MiB);
	assert_int_equal(stats()->pending, 2 * MiB);
	fake.never_unmapped = 0;
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

static void test_memory_limit(void **state)
{
	CUdeviceptr p[40];
	int n = 0;

	(void)state;
	vs_knobs.memory_limit.value = 64 * MiB;
	while (n < 40 && vs_pool_alloc(4 * MiB, &p[n]) == CUDA_SUCCESS)
		n++;
	assert_int_equal(n, 16);
	assert_true(fake.held_high <= 64 * MiB);
	while (n > 0)
		give(p[--n]);
	assert_int_equal(fake.held, 0);
}

static void test_dies_with_its_context(void **state)
{
	CUdeviceptr p[N_SIZES];

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N_SIZES; i++)
			p[i] = take(sizes[i]);
		give(p[3]);
		end_ctx(FAKE_CTX);
		assert_int_equal(fake.held, 0);
		assert_int_equal(fake.mappings, 0);
		assert_int_equal(stats()->live, 0);
		assert_int_equal(stats()->blocks, 0);
		assert_int_equal(vs_pool_free(p[0]), VS_PASS);
	}
}

/* Blocks that nobody may unmap: work goes on, then it is done. */
static void leave_blocks(CUdeviceptr *p, int n)
{
	for (int i = 0; i < n; i++)
		p[i] = take(5000);
	fake.lag_ns = 3600000 * MS;
	for (int i = 0; i < n; i++)
		give(p[i]);
	fake.lag_ns = 0;
	fake.now += 3600000 * MS;
}

static void trim(void)
{
	vs_pool_trim();
}

/* No driver call may meet a driver that is shutting down. */
static void test_unmapping_ends_with_the_process(void **state)
{
	void (*const serve[])(void) = {trim, vs_pool_tick};
	enum { N = 20 };
	CUdeviceptr p[N];

	for (int i = 0; i < 2; i++) {
		unsigned long records, unmaps, releases;

		fresh(state);
		leave_blocks(p, N);
		unmaps = fake.unmaps;
		releases = fake.releases;
		records = fake.records;
		fake.on_unmap = end_process;
		serve[i]();
		assert_int_equal(fake.unmaps, unmaps + 1);
		assert_int_equal(fake.releases, releases + 1);
		assert_in_range(fake.records, records, records + 2);
		fake.on_unmap = NULL;
		/* but what the program calls in its exit handlers */
		give(take(100));
		assert_true(fake.unmaps >= unmaps + N);
		assert_int_equal(fake.held, 0);
		vs_pool_ending(false);
	}
}

static __typeof__(vs_real.cuEventQuery) query;

static int looks_before_the_end;

static CUresult CUDAAPI query_at_the_end(CUevent event)
{
	if (looks_before_the_end-- == 0)
		vs_pool_ending(true);
	return query(event);
}

/* Nor is there another look at work that goes on. */
static void test_a_look_at_the_end_is_the_last(void **state)
{
	void (*const serve[])(void) = {trim, vs_pool_tick};

	for (int i = 0; i < 2; i++) {
		unsigned long queries;

		fresh(state);
		fake.gpu_free = fake.now + 3600000 * MS;
		give(take(5000));
		vs_pool_tick();
		fake.now += vs_knobs.decay_ms * MS; /* quiet for an age */
		query = vs_real.cuEventQuery;
		vs_real.cuEventQuery = query_at_the_end;
		/* a tick looks once before what a trim does */
		looks_before_the_end = i;
		queries = fake.queries;
		serve[i]();
		assert_int_equal(fake.queries, queries + 1 + (unsigned)i);
		vs_pool_ending(false);
	}
}

static void test_modes(void **state)
{
	(void)state;
	vs_knobs.mode = VS_MODE_SYNC;
	give(take(100));
	assert_int_equal(stats()->sync_free, 1);
	assert_int_equal(fake.held, 0);
	fresh(state);
	vs_knobs.reuse = VS_REUSE_ORDERED;
	fake.lag_ns = 10 * MS;
	give(take(100));
	assert_int_equal(fake.held, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		/* the first: it is told once in a process */
		T(only_want_of_memory_is_told),
		T(lies_against_unmapped_memory),
		T(answers_are_those_of_any_allocation),
		T(free_waits_and_unmaps),
		T(nothing_is_unmapped_in_a_capture),
		T(long_work_does_not_hold_a_free_up_for_ever),
		T(memory_under_long_work_is_waited_for),
		T(frees_that_wait_longer_keep_no_others),
		T(memory_freed_in_a_capture_comes_round),
		T(addresses_come_round_late),
		T(little_address_space_comes_round),
		T(a_heap_without_addresses_leaves_them_alone),
		T(many_small_ones_find_their_memory),
		T(what_fails_is_undone),
		T(unmap_refused_is_tried_again),
		T(unmap_refused_for_good_keeps_one),
		T(peers_are_not_given_what_is_unmapped),
		T(memory_limit),
		T(dies_with_its_context),
		T(unmapping_ends_with_the_process),
		T(a_look_at_the_end_is_the_last),
		T(modes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
