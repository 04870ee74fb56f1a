/* SPDX-License-Identifier: MIT
 *
 * Note [One stream] of pool/fence.h, on the counting driver: policy stream has
 * later work wait where policy complete would have the host wait. By which
 * markers is in test_order_by, what ends that in test_lend.
 */
#include "driver/real.h"
#include "pool/mark.h"
#include "stream_test.h"

static void test_later_work_waits_not_the_host(void **state)
{
	CUdeviceptr before = large;

	(void)state;
	settle_in(ONE);
	free_before_work();
	assert_false(waits_for_it());
	assert_int_equal(large, before);
	assert_int_equal(fake.orders, 1);
	assert_int_equal(vs_stat_get(stats(), orders), 1);
	assert_in_range(fake.held, 1, 250 * MiB);
}

/* All that was freed is handed out; what it is too scattered for is made. */
static void test_no_wait_where_nothing_is_pending(void **state)
{
	CUdeviceptr p[60];
	uint64_t before;

	(void)state;
	for (int i = 0; i < 60; i++)
		p[i] = take(5 * MiB);
	settle_in(ONE);
	fake.lag_ns = NEVER;
	before = vs_stat_get(stats(), waits);
	for (int i = 1; i < 60; i += 2)
		give(p[i]);
	work_in(ONE);
	take(20 * MiB);
	assert_int_equal(vs_stat_get(stats(), waits), before);
	assert_int_equal(fake.orders, 1);
	assert_int_equal(vs_pool_of(0)->pending_bytes, 0);
	/* but for much more than is needed */
	assert_true(waits_for_it());
}

/* Too many markers in flight are ordered by before some go, but not there. */
static void test_not_where_another_context_is_born(void **state)
{
	enum { MANY = VS_MARKERS + 10 };
	CUdeviceptr p[MANY];

	(void)state;
	for (int i = 0; i < MANY; i++)
		p[i] = take(2 * MiB);
	settle_in(ONE);
	fake.lag_ns = NEVER;
	assert_non_null(vs_ctx_born((CUcontext)0x2000, 0));
	for (int i = 0; i < MANY; i++) {
		give(p[i]);
		assert_true(vs_fence_record(&vs_pool_of(0)->fence));
	}
	assert_int_equal(fake.orders, 0);
}

/*
 * A block of nearly all of the device, in a chunk that nothing smaller is to
 * have (Note [Whole] in pool/chunk.h): later work may have it, the driver not.
 */
static void test_a_huge_one_stays_mapped_under_work(void **state)
{
	CUdeviceptr p;

	(void)state;
	fresh_driver(139 * GiB);
	vs_knobs.reuse = VS_REUSE_STREAM;
	forget_streams();
	work_in(ONE);
	take(4 * KiB);
	p = take(100 * GiB);
	settle_in(ONE);
	fake.lag_ns = NEVER;
	give(p);
	work_in(ONE);
	take(20 * GiB);
	assert_int_equal(fake.orders, 1);
	assert_int_equal(vs_pool_of(0)->pending_bytes, 0);
	assert_int_not_equal(fake_mapping(p + 50 * GiB), 0);
}

/*
 * Blocks of ever other sizes, behind a GPU that is never seen to get on: what
 * they leave is mapped again and again, and cannot be unmapped meanwhile.
 */
static void test_what_is_scattered_is_not_made_anew(void **state)
{
	enum { BLOCKS = 12, ROUNDS = 1000 };
	CUdeviceptr p[BLOCKS] = {0};
	uint64_t size[BLOCKS] = {0}, live = 0, peak = 0;
	uint32_t random = 1;

	(void)state;
	give(large);
	for (int round = 0; round < ROUNDS; round++) {
		int i;

		if (round == 2 * BLOCKS) {
			fake.now += 10000 * MS;
			settle_in(ONE);
			fake.lag_ns = NEVER;
		}
		random = random * 1664525 + 1013904223;
		i = (int)(random >> 8) % BLOCKS;
		if (p[i])
			give(p[i]);
		live -= size[i];
		size[i] = (2 + (random >> 20) % 160) * 2 * MiB;
		work_in(ONE);
		p[i] = take(size[i]);
		live += size[i];
		peak = live > peak ? live : peak;
		fake.now += 20 * MS;
	}
	assert_in_range(fake.held, peak, peak / 100 * 106);
}

/* Nothing waits for what is little, or complete. */
static void test_no_order_without_need(void **state)
{
	(void)state;
	settle_in(ONE);
	give(take(2 * MiB));
	work_in(ONE);
	take(2 * MiB);
	give(large);
	work_in(ONE);
	fake.now += MS;
	vs_fence_poll(&vs_pool_of(0)->fence);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static void test_policy_complete_waits(void **state)
{
	(void)state;
	settle_in(ONE);
	free_before_work();
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static void work_in_one(void)
{
	work_in(ONE);
}

/* What is pending is had without that a marker was seen complete. */
static void test_looks_are_rare(void **state)
{
	CUdeviceptr p[8];
	unsigned looks;

	(void)state;
	give(large); /* so that something fits */
	for (int i = 0; i < 8; i++)
		p[i] = take(8 * MiB);
	settle_in(ONE);
	fake.lag_ns = MS / 10;
	looks = rounds_with_a_look(p, work_in_one);
	assert_in_range(looks, 4, 10);
	assert_in_range(fake.orders, 1, 200);
	assert_int_equal(vs_stat_get(stats(), waits), 0);
}

static CUresult CUDAAPI no_waits(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult CUDAAPI no_memory(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A want of memory passes. */
static void test_the_driver_has_no_memory(void **state)
{
	CUresult(CUDAAPI * wait)(CUcontext, CUevent) = vs_real.cuCtxWaitEvent;

	(void)state;
	settle_in(ONE);
	vs_real.cuCtxWaitEvent = no_memory;
	free_before_work();
	assert_true(waits_for_it());
	vs_real.cuCtxWaitEvent = wait;
	free_before_work();
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* Markers would have no events then. */
static void test_not_without_context_events(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	make_driver_old();
	vs_knobs.reuse = VS_REUSE_STREAM;
	forget_streams();
	large = take(200 * MiB);
	much_work_in(ONE);
	assert_false(vs_fence_may_order(&vs_pool_of(0)->fence));
}

/* What is handed out is set in a stream of its own, which the host waits for.
 */
static void test_not_where_memory_is_filled(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_STREAM;
	vs_knobs.zero = VS_ZERO_ALWAYS;
	assert_false(vs_pool_for(0)->fence.may_order);
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_STREAM;
	vs_knobs.junk = true;
	assert_false(vs_pool_for(0)->fence.may_order);
}

/* The pool goes on as by policy complete. */
static void test_the_driver_refuses(void **state)
{
	CUresult(CUDAAPI * wait)(CUcontext, CUevent) = vs_real.cuCtxWaitEvent;

	(void)state;
	settle_in(ONE);
	vs_real.cuCtxWaitEvent = no_waits;
	free_before_work();
	assert_true(waits_for_it());
	/* nor is it tried again */
	vs_real.cuCtxWaitEvent = wait;
	free_before_work();
	assert_int_not_equal(take(200 * MiB), large);
	assert_int_equal(fake.orders, 0);
	assert_int_equal(vs_stat_get(stats(), native), 0);
}

int main(void)
{
#define T(name, setup) cmocka_unit_test_setup(test_##name, setup)
	const struct CMUnitTest tests[] = {
		T(later_work_waits_not_the_host, fresh),
		T(no_wait_where_nothing_is_pending, fresh),
		T(not_where_another_context_is_born, fresh),
		T(a_huge_one_stays_mapped_under_work, fresh),
		T(what_is_scattered_is_not_made_anew, fresh),
		T(no_order_without_need, fresh),
		T(policy_complete_waits, fresh_complete),
		T(looks_are_rare, fresh),
		T(the_driver_has_no_memory, fresh),
		T(the_driver_refuses, fresh),
		T(not_without_context_events, fresh),
		T(not_where_memory_is_filled, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
