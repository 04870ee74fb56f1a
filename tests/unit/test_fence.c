/* SPDX-License-Identifier: MIT
 *
 * The markers (pool/fence) on the counting driver: how many are asked to see
 * many complete, and which may not be passed over.
 */
#include "fake_test.h"
#include "pool/state.h"

enum { MANY = 64 };
#define NEVER ((uint64_t)1 << 60)

static struct vs_fence *fence;

static int fresh(void **state)
{
	CUdeviceptr p;

	(void)state;
	fresh_driver((uint64_t)16 << 30);
	assert_int_equal(vs_pool_alloc(512, &p), CUDA_SUCCESS);
	fence = &vs_pool_of(0)->fence;
	return 0;
}

/* Records one that is complete after `lag_ns`; returns its epoch. */
static uint64_t record(uint64_t lag_ns)
{
	uint64_t tag = vs_fence_tag(fence);

	fake.lag_ns = lag_ns;
	assert_true(vs_fence_record(fence));
	return tag;
}

static uint64_t polls(void)
{
	CUdevice device;

	return vs_pool_stats(0, &device)->polls;
}

static void test_few_are_asked(void **state)
{
	uint64_t last = 0, before = polls();

	(void)state;
	for (int i = 0; i < MANY; i++)
		last = record(0);
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, last));
	assert_in_range(polls() - before, 1, 10);
}

/* For every number of complete ones among many. */
static void test_all_complete_ones_are_found(void **state)
{
	for (int n = 0; n <= MANY; n++) {
		uint64_t last = 0, next = 0, before;

		fresh(state);
		for (int i = 0; i < MANY; i++) {
			uint64_t epoch = record(i < n ? 0 : NEVER);

			last = i < n ? epoch : last;
			next = i == n ? epoch : next;
		}
		before = polls();
		assert_int_equal(vs_fence_poll(fence), n > 0);
		assert_true(vs_fence_is_complete(fence, last));
		assert_true(n == MANY || !vs_fence_is_complete(fence, next));
		assert_in_range(polls() - before, 1, 40);
	}
}

static void test_a_kept_one_is_not_passed_over(void **state)
{
	uint64_t first, kept;

	(void)state;
	first = record(0);
	kept = record(1000);
	vs_fence_keep(fence);
	for (int i = 0; i < MANY; i++)
		record(0);
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, first));
	assert_false(vs_fence_is_complete(fence, kept));
	fake.now += 1000;
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, kept + MANY));
}

static void test_settled_by_one(void **state)
{
	unsigned long records = fake.records;
	uint64_t tag = vs_fence_tag(fence);

	(void)state;
	fake.lag_ns = NEVER;
	assert_false(vs_fence_settle(fence, tag));
	assert_false(vs_fence_settle(fence, tag));
	assert_int_equal(fake.records, records + 1);
	fake.now += NEVER;
	assert_true(vs_fence_settle(fence, tag));
	assert_int_equal(fake.records, records + 1);
}

/* Looks that nothing depends on are a part of the lag apart, within bounds. */
static void test_looks_follow_the_lag(void **state)
{
	static const struct {
		uint64_t lag, pace;
	} seen[] = {{0, 200000}, {8000000, 500000}, {NEVER, 1000000}};
	uint64_t epoch, pace;

	(void)state;
	for (unsigned i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) {
		record(seen[i].lag);
		fake.now += seen[i].lag;
		assert_true(vs_fence_poll(fence));
		pace = vs_fence_pace(fence);
		assert_int_equal(pace, seen[i].pace);
		epoch = record(0);
		vs_fence_glance(fence);
		assert_true(vs_fence_is_complete(fence, epoch));
		/* that was a lag of nothing */
		assert_int_equal(vs_fence_pace(fence), 200000);
		epoch = record(0);
		fake.now += 199999;
		vs_fence_glance(fence);
		assert_false(vs_fence_is_complete(fence, epoch));
		fake.now++;
		vs_fence_glance(fence);
		assert_true(vs_fence_is_complete(fence, epoch));
		fake.now += pace;
	}
}

/* A marker stands for the work of every context, however many there are. */
static void test_many_contexts(void **state)
{
	unsigned long records = fake.records;

	(void)state;
	for (uintptr_t i = 1; i <= 300; i++)
		assert_non_null(
			vs_ctx_born((CUcontext)((uintptr_t)FAKE_CTX + i), 0));
	record(0);
	assert_int_equal(fake.records, records + 301);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_few_are_asked, fresh),
		cmocka_unit_test_setup(test_all_complete_ones_are_found, fresh),
		cmocka_unit_test_setup(test_a_kept_one_is_not_passed_over,
				       fresh),
		cmocka_unit_test_setup(test_settled_by_one, fresh),
		cmocka_unit_test_setup(test_looks_follow_the_lag, fresh),
		cmocka_unit_test_setup(test_many_contexts, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
