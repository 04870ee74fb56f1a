/* SPDX-License-Identifier: MIT
 *
 * Note [Before work] of pool/mark.h, on the counting driver: what was freed has
 * its marker before the program gives the GPU work, at little cost.
 */
#include <pthread.h>

#include "fake_test.h"
#include "pool/capture.h"
#include "pool/state.h"

#define NEVER ((uint64_t)1 << 60)

static CUdeviceptr small, large; /* live */

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	large = take(200 * MiB);
	small = take(4 * KiB);
	return 0;
}

static int fresh_ordered(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_ORDERED;
	large = take(200 * MiB);
	return 0;
}

/* Markers that this work brings. */
static unsigned long work(void)
{
	unsigned long before = fake.records;

	vs_pool_before_work();
	return fake.records - before;
}

static void test_one_for_what_was_freed_and_no_more(void **state)
{
	(void)state;
	assert_int_equal(work(), 0);
	give(large);
	assert_int_equal(work(), 1);
	assert_int_equal(work(), 0);
	give(small); /* it lies in the thread's cache */
	assert_int_equal(work(), 1);
	assert_int_equal(work(), 0);
	take(4 * KiB);
	assert_int_equal(work(), 0);
}

/* The work that comes next may take for ever. */
static void test_memory_is_had_beside_the_work(void **state)
{
	uint64_t before = fake.now;

	(void)state;
	give(large);
	vs_pool_before_work();
	fake.lag_ns = NEVER;
	assert_int_equal(take(200 * MiB), large);
	assert_int_equal(fake.now, before);
	assert_in_range(fake.held, 1, 250 * MiB);
}

static void *give_it(void *unused)
{
	give(large);
	return unused;
}

static void test_what_another_thread_freed(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, give_it, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(work(), 1);
}

/* A framework frees something before each launch. */
static void test_little_is_rationed(void **state)
{
	enum { LAUNCHES = 1000 };
	unsigned long n = 0;

	(void)state;
	for (int i = 0; i < LAUNCHES; i++) {
		give(take(4 * KiB));
		n += work();
		fake.now += 5000;
	}
	assert_in_range(n, 8, 12);
	/* whoever made none for a while has some to spare */
	fake.now += 100 * MS;
	n = 0;
	for (int i = 0; i < 8; i++) {
		give(take(4 * KiB));
		n += work();
	}
	assert_int_equal(n, 8);
	give(take(4 * KiB));
	assert_int_equal(work(), 0);
	/* much has one all the same, and takes none from what is little */
	give(large);
	assert_int_equal(work(), 1);
	assert_int_equal(work(), 0);
}

static void test_none_in_a_capture(void **state)
{
	CUstream stream = (CUstream)0x77;

	(void)state;
	begin_capture(stream);
	fake.captures = 1;
	give(large);
	assert_int_equal(work(), 0);
	fake.captures = 0;
	vs_capture_ended(stream, false);
	assert_int_equal(work(), 1);
}

static unsigned n_refused;

static CUresult CUDAAPI out_of_memory(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	n_refused++;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* What could not be marked is as bare as before, but is not tried for ever. */
static void test_one_that_fails_comes_again(void **state)
{
	CUresult(CUDAAPI * record)(CUcontext, CUevent) =
		vs_real.cuCtxRecordEvent;

	(void)state;
	n_refused = 0;
	give(large);
	vs_real.cuCtxRecordEvent = out_of_memory;
	for (int i = 0; i < 1000; i++)
		work();
	assert_in_range(n_refused, 1, 10);
	vs_real.cuCtxRecordEvent = record;
	fake.now += 100 * MS;
	assert_int_equal(work(), 1);
}

/* In a host function, where every call is refused: the pool is none the worse.
 */
static void test_none_in_a_host_function(void **state)
{
	CUresult(CUDAAPI * version)(CUcontext, unsigned *) =
		vs_real.cuCtxGetApiVersion;

	(void)state;
	give(large);
	vs_real.cuCtxGetApiVersion = not_permitted;
	assert_int_equal(work(), 0);
	vs_pool_synchronizing();
	assert_int_equal(fake.records, 0);
	vs_real.cuCtxGetApiVersion = version;
	assert_int_equal(work(), 1);
}

static CUresult(CUDAAPI *record_it)(CUcontext, CUevent);

static CUresult CUDAAPI look_and_record(CUcontext ctx, CUevent event)
{
	assert_true(vs_fence_is_bare(&vs_pool_of(0)->fence));
	return record_it(ctx, event);
}

/* Or another thread's work would slip in before the marker. */
static void test_bare_until_the_marker_is_there(void **state)
{
	(void)state;
	record_it = vs_real.cuCtxRecordEvent;
	give(large);
	vs_real.cuCtxRecordEvent = look_and_record;
	assert_int_equal(work(), 1);
	assert_false(vs_fence_is_bare(&vs_pool_of(0)->fence));
}

/* Frees of so little before work, each time; how many have a marker. */
static unsigned long marked_of(int n)
{
	unsigned long before = fake.records;

	for (int i = 0; i < n; i++) {
		give(take(4 * KiB));
		vs_pool_before_work();
	}
	return fake.records - before;
}

static void test_no_ration_where_memory_is_scarce(void **state)
{
	(void)state;
	assert_in_range(marked_of(100), 8, 14);
	take(15 * GiB);
	assert_int_equal(marked_of(100), 100);
}

static void test_no_ration_in_policy_ordered(void **state)
{
	(void)state;
	assert_int_equal(marked_of(100), 100);
	assert_in_range(fake.orders, 0, 10);
}

/* In policy ordered the marker alone is no barrier; memory is behind it. */
static void test_ordered_waits_when_memory_is_handed_out(void **state)
{
	(void)state;
	give(large);
	assert_int_equal(work(), 1);
	assert_int_equal(fake.orders, 0);
	fake.lag_ns = NEVER;
	assert_int_equal(take(200 * MiB), large);
	assert_int_equal(fake.orders, 1);
	/* behind the marker before the work, not one behind it */
	assert_int_equal(fake.records, 1);
}

#define NEWCOMER ((CUcontext)0x2000)

/* It waits for what was handed out, not for a marker that nobody waits for. */
static void test_ordered_and_a_context_is_born(void **state)
{
	(void)state;
	fake.lag_ns = NEVER;
	give(large);
	vs_pool_before_work();
	vs_pool_ctx_born(NEWCOMER, 0);
	assert_int_equal(fake.orders, 0);
	end_ctx(NEWCOMER); /* which waits for it all */
	take(200 * MiB);
	give(large);
	vs_pool_before_work();
	fake.orders = 0;
	assert_int_equal(take(200 * MiB), large);
	assert_int_equal(fake.orders, 1);
	vs_pool_ctx_born(NEWCOMER, 0);
	assert_in_range(fake.orders, 2, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_one_for_what_was_freed_and_no_more,
				       fresh),
		cmocka_unit_test_setup(test_memory_is_had_beside_the_work,
				       fresh),
		cmocka_unit_test_setup(test_what_another_thread_freed, fresh),
		cmocka_unit_test_setup(test_little_is_rationed, fresh),
		cmocka_unit_test_setup(test_none_in_a_capture, fresh),
		cmocka_unit_test_setup(test_one_that_fails_comes_again, fresh),
		cmocka_unit_test_setup(test_none_in_a_host_function, fresh),
		cmocka_unit_test_setup(test_bare_until_the_marker_is_there,
				       fresh),
		cmocka_unit_test_setup(test_no_ration_where_memory_is_scarce,
				       fresh),
		cmocka_unit_test_setup(test_no_ration_in_policy_ordered,
				       fresh_ordered),
		cmocka_unit_test_setup(
			test_ordered_waits_when_memory_is_handed_out,
			fresh_ordered),
		cmocka_unit_test_setup(test_ordered_and_a_context_is_born,
				       fresh_ordered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
