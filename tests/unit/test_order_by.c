/* SPDX-License-Identifier: MIT
 *
 * Note [One stream] of pool/fence.h, on the counting driver: the markers by
 * which later work may be ordered, and those by which it may not. When it is
 * ordered at all is in test_order.
 */
#include "driver/real.h"
#include "pool/mark.h"
#include "stream_test.h"

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

int main(void)
{
#define T(name) cmocka_unit_test_setup(test_##name, fresh)
	const struct CMUnitTest tests[] = {
		T(not_by_a_marker_behind_later_work),
		T(not_by_one_behind_earlier_work),
		T(but_by_one_that_a_free_comes_before),
		T(nor_because_of_a_free_that_fails),
		T(a_small_free_will_do),
		T(not_that_of_a_thread_without_work),
		T(nor_does_it_spoil_another),
		T(nor_behind_work_that_needs_no_marker),
		T(nor_behind_a_free_that_fails),
		T(nor_behind_a_marker_that_comes_meanwhile),
		T(that_of_one_with_work_in_it_will_do),
		T(by_the_last_that_serves),
		T(when_there_are_too_many_markers),
		T(by_one_that_stands_for_another),
		T(little_is_rationed),
		T(not_while_another_stream_has_work_left),
		T(nor_without_a_marker_since),
		T(not_by_a_marker_of_the_service),
		T(not_by_a_marker_for_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
