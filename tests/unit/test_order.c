/* SPDX-License-Identifier: MIT
 *
 * Note [One stream] of pool/fence.h, on the counting driver: policy stream has
 * later work wait where policy complete would have the host wait, and by which
 * markers. What ends that is in test_lend.
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

/* No driver call may meet a driver that is shutting down. */
static void thin_as_the_process_ends(void)
{
	unsigned long unmaps = fake.unmaps;

	fake.on_unmap = end_process;
	vs_pool_tick();
	assert_int_equal(fake.unmaps, unmaps + 1);
	fake.on_unmap = NULL;
	vs_pool_ending(false);
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
	/* once it got on, what is more than usual goes */
	assert_true(vs_pool_of(0)->chunks.n_crowded > 0);
	fake.now += NEVER;
	vs_fence_poll(&vs_pool_of(0)->fence);
	thin_as_the_process_ends();
	for (int i = 0; i < 20; i++)
		vs_pool_tick();
	assert_int_equal(vs_pool_of(0)->chunks.n_crowded, 0);
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

/* Behind what is bare, with no marker before it. */
static void unmarked_work(void)
{
	CUresult(CUDAAPI * version)(CUcontext, unsigned *) =
		vs_real.cuCtxGetApiVersion;

	vs_real.cuCtxGetApiVersion = not_permitted;
	work_in(ONE);
	vs_real.cuCtxGetApiVersion = version;
}

/*
 * A marker behind work that came after the free: that may wait for what another
 * stream is given next, which must not wait for it.
 */
static void test_not_by_a_marker_behind_later_work(void **state)
{

	(void)state;
	settle_in(ONE);
	fake.lag_ns = NEVER;
	give(large);
	unmarked_work();
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

/* A marker of this stream was seen complete, after but few pieces of work. */
static void begin_in_one(void)
{
	work_in(ONE);
	give(take(4 * MiB));
	work_in(ONE);
	fake.now += 10 * MS;
	assert_true(vs_fence_poll(&vs_pool_of(0)->fence));
}

/* Nor if that work came before it was one stream for long. */
static void test_not_by_one_behind_earlier_work(void **state)
{
	(void)state;
	begin_in_one();
	fake.lag_ns = NEVER;
	give(large);
	unmarked_work();
	vs_pool_synchronizing(); /* a marker, too late */
	much_work_in(ONE);
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

/* The driver's own would have waited for that work in the later free. */
static void test_but_by_one_that_a_free_comes_before(void **state)
{
	CUdeviceptr other = take(100 * MiB);

	(void)state;
	settle_in(ONE);
	fake.lag_ns = NEVER;
	give(large);
	unmarked_work();
	vs_pool_synchronizing(); /* a marker, too late */
	give(other);
	work_in(ONE);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* One that frees nothing waits for nothing. */
static void test_nor_because_of_a_free_that_fails(void **state)
{
	(void)state;
	settle_in(ONE);
	fake.lag_ns = NEVER;
	give(large);
	unmarked_work();
	assert_int_not_equal(vs_pool_free(large), CUDA_SUCCESS);
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static CUdeviceptr small_one;

static void *give_small_one(void *unused)
{
	give(small_one);
	return unused;
}

static void *work_and_give_small_one(void *unused)
{
	vs_stream_given(ONE, false);
	return give_small_one(unused);
}

/* What is freed behind work without a marker, before memory is wanted. */
static void free_a_small_one(void)
{
	settle_in(ONE);
	small_one = take(4 * KiB);
	fake.lag_ns = NEVER;
	give(large);
	unmarked_work();
}

static void test_a_small_free_will_do(void **state)
{
	(void)state;
	free_a_small_one();
	give_small_one(NULL);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* Note [Who frees]: a finalizer alone would have been held up. */
static void test_not_that_of_a_thread_without_work(void **state)
{
	(void)state;
	free_a_small_one();
	in_a_thread(give_small_one, NULL);
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

/* But beside one that does count, with no work between, it does no harm. */
static void test_nor_does_it_spoil_another(void **state)
{
	(void)state;
	settle_in(ONE);
	small_one = take(4 * KiB);
	fake.lag_ns = NEVER;
	work_in(ONE);
	give(large);
	in_a_thread(give_small_one, NULL);
	work_in(ONE);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* Work before which nothing is bare, and which does not end. */
static void work_without_marker(void)
{
	settle_in(ONE);
	small_one = large;
	fake.lag_ns = NEVER;
	work_in(ONE);
}

static void expect_no_order_of_another_thread(void)
{
	in_a_thread(give_small_one, NULL);
	vs_pool_synchronizing(); /* a marker, due or not */
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

/* Nor behind work before which nothing was bare. */
static void test_nor_behind_work_that_needs_no_marker(void **state)
{
	(void)state;
	work_without_marker();
	expect_no_order_of_another_thread();
}

/* Nor if one that fails comes in between. */
static void test_nor_behind_a_free_that_fails(void **state)
{
	(void)state;
	work_without_marker();
	assert_int_not_equal(vs_pool_free(large + 512), CUDA_SUCCESS);
	expect_no_order_of_another_thread();
}

static CUresult(CUDAAPI *current_in)(CUcontext *);

/* While a finalizer frees; work comes behind it that needs no marker. */
static CUresult CUDAAPI a_marker_comes_first(CUcontext *out)
{
	vs_real.cuCtxGetCurrent = current_in;
	vs_pool_synchronizing(); /* a marker, due or not */
	vs_pool_before_work();
	return current_in(out);
}

/* Nor if that was marked meanwhile before which something was bare. */
static void test_nor_behind_a_marker_that_comes_meanwhile(void **state)
{
	CUdeviceptr other = take(100 * MiB);

	(void)state;
	settle_in(ONE);
	small_one = large;
	fake.lag_ns = NEVER;
	give(other);
	vs_mark_refused(vs_pool_of(0)); /* each free has a marker from here */
	current_in = vs_real.cuCtxGetCurrent;
	vs_real.cuCtxGetCurrent = a_marker_comes_first;
	in_a_thread(give_small_one, NULL);
	assert_ptr_equal(vs_real.cuCtxGetCurrent, current_in);
	assert_false(vs_fence_is_bare(&vs_pool_of(0)->fence));
	assert_true(waits_for_it());
	/* but the marker of what was freed before serves */
	assert_int_equal(fake.orders, 1);
}

static void test_that_of_one_with_work_in_it_will_do(void **state)
{
	(void)state;
	free_a_small_one();
	in_a_thread(work_and_give_small_one, NULL);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* What comes behind too late a marker does not spoil the one before. */
static void test_by_the_last_that_serves(void **state)
{
	CUdeviceptr other = take(100 * MiB);

	(void)state;
	settle_in(ONE);
	fake.lag_ns = NEVER;
	give(large);
	work_in(ONE);
	give(other);
	unmarked_work();
	vs_pool_synchronizing(); /* a marker, too late */
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
	/* what that one alone covers was not handed out */
	assert_true(atomic_load(&vs_pool_of(0)->fence.done) <
		    atomic_load(&vs_pool_of(0)->fence.covered));
}

enum { N_SMALL = 3 * VS_MARKERS };

static void take_small(CUdeviceptr *small)
{
	for (int i = 0; i < N_SMALL; i++)
		small[i] = take(4 * KiB);
}

/* More markers than are kept: what is thinned out was ordered by before. */
static void test_when_there_are_too_many_markers(void **state)
{
	CUdeviceptr small[N_SMALL];

	(void)state;
	take_small(small);
	settle_in(ONE);
	fake.lag_ns = NEVER;
	for (int i = 0; i < N_SMALL; i++) {
		give(small[i]);
		vs_pool_synchronizing(); /* a marker, due or not */
	}
	free_before_work();
	assert_false(waits_for_it());
	assert_in_range(fake.orders, 2, 10);
}

/* The same before it was so for long: the next one stands for it. */
static void test_by_one_that_stands_for_another(void **state)
{
	CUdeviceptr small[N_SMALL];

	(void)state;
	take_small(small);
	begin_in_one();
	fake.lag_ns = NEVER;
	for (int i = 0; i < VS_MARKERS + 2; i++) {
		give(i == 1 ? large : small[i]);
		vs_pool_synchronizing(); /* a marker, due or not */
	}
	much_work_in(ONE);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* A marker costs as much as some ten allocations. */
static void test_little_is_rationed(void **state)
{
	CUdeviceptr small[N_SMALL];
	unsigned long before;

	(void)state;
	take_small(small);
	settle_in(ONE);
	before = fake.records;
	for (int i = 0; i < N_SMALL; i++) {
		give(small[i]);
		work_in(ONE);
	}
	assert_in_range(fake.records, before + 1, before + 10);
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

/* Work given before, in another stream: a wait holds later work alone. */
static void test_not_while_another_stream_has_work_left(void **state)
{
	(void)state;
	settle_in(TWO);
	fake.lag_ns = NEVER; /* a kernel that uses the block */
	give(large);
	much_work_in(ONE);
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static void test_nor_without_a_marker_since(void **state)
{
	(void)state;
	settle_in(TWO);
	fake.lag_ns = NEVER;
	give(large);
	vs_pool_synchronizing(); /* a marker, due or not */
	much_work_in(ONE);
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static void by_ticks(void)
{
	for (int i = 0; i < 4; i++) {
		fake.now += 4000 * MS;
		vs_pool_tick();
	}
}

static void by_others(void)
{
	vs_pool_give_way(0);
}

/*
 * What is recorded for nothing covers work that may wait for what another
 * stream is given next, and that no free waited for.
 */
static void order_by_nothing(void (*record)(void))
{
	CUdeviceptr p[60];
	unsigned long before;

	settle_in(ONE);
	for (int i = 0; i < 60; i++)
		p[i] = take(10 * MiB);
	for (int i = 0; i < 60; i += 2)
		give(p[i]);
	work_in(ONE);
	fake.now += 10 * MS;
	vs_fence_poll(&vs_pool_of(0)->fence);
	take(64 * KiB);
	before = fake.records;
	fake.lag_ns = NEVER;
	work_in(ONE);
	assert_int_equal(fake.records, before);
	record();
	assert_true(fake.records > before);
	much_work_in(ONE);
	take(200 * MiB);
	assert_int_equal(fake.orders, 0);
}

static void test_not_by_a_marker_of_the_service(void **state)
{
	(void)state;
	order_by_nothing(by_ticks);
}

static void test_not_by_a_marker_for_others(void **state)
{
	(void)state;
	order_by_nothing(by_others);
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
		T(not_by_a_marker_behind_later_work, fresh),
		T(not_by_one_behind_earlier_work, fresh),
		T(but_by_one_that_a_free_comes_before, fresh),
		T(nor_because_of_a_free_that_fails, fresh),
		T(a_small_free_will_do, fresh),
		T(not_that_of_a_thread_without_work, fresh),
		T(nor_does_it_spoil_another, fresh),
		T(nor_behind_work_that_needs_no_marker, fresh),
		T(nor_behind_a_free_that_fails, fresh),
		T(nor_behind_a_marker_that_comes_meanwhile, fresh),
		T(that_of_one_with_work_in_it_will_do, fresh),
		T(by_the_last_that_serves, fresh),
		T(when_there_are_too_many_markers, fresh),
		T(by_one_that_stands_for_another, fresh),
		T(little_is_rationed, fresh),
		T(looks_are_rare, fresh),
		T(not_while_another_stream_has_work_left, fresh),
		T(nor_without_a_marker_since, fresh),
		T(not_by_a_marker_of_the_service, fresh),
		T(not_by_a_marker_for_others, fresh),
		T(the_driver_has_no_memory, fresh),
		T(the_driver_refuses, fresh),
		T(not_without_context_events, fresh),
		T(not_where_memory_is_filled, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
