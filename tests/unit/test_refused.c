/* SPDX-License-Identifier: MIT
 *
 * Markers, and waits for them, that the driver refuses for a while (pool/fence,
 * on the counting driver): what is freed then, and when they are tried again.
 */
#include "fence_test.h"
#include "pool/capture.h"
#include "pool/state.h"

static CUresult fails_elsewhere(CUcontext ctx, CUevent event)
{
	return ctx == FAKE_CTX ? record_event(ctx, event) : CUDA_ERROR_UNKNOWN;
}

static CUresult refusal;

static CUresult CUDAAPI refuses(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	return refusal;
}

static void tick_for_s(int seconds)
{
	for (int i = 0; i < seconds; i++) {
		fake.now += 1000 * MS;
		vs_pool_tick();
	}
}

/* What broke with one context is whole when that is gone. */
static void test_an_error_goes_with_its_context(void **state)
{
	uint64_t tag;

	(void)state;
	vs_pool_ctx_born(SECOND_CTX, 0);
	tag = record_marker(LAG);
	record_event = vs_real.cuCtxRecordEvent;
	vs_real.cuCtxRecordEvent = fails_elsewhere;
	assert_false(vs_fence_record(fence));
	/* what was freed meanwhile is waited for without a marker */
	assert_true(vs_fence_wait(fence, NEVER));
	assert_true(vs_fence_is_complete(fence, tag));
	assert_true(atomic_load(&fence->is_broken));
	end_ctx(SECOND_CTX);
	assert_false(atomic_load(&fence->is_broken));
	tag = record_marker(LAG);
	assert_true(vs_fence_wait_tag(fence, tag, NEVER));
	give(take(64 << 20));
	vs_real.cuCtxRecordEvent = record_event;
}

/* One marker, and then all, for some time, that nobody knows why. */
static void test_markers_are_tried_again(void **state)
{
	unsigned long natives;

	(void)state;
	give(take(640 << 20));
	record_event = vs_real.cuCtxRecordEvent;
	refusal = CUDA_ERROR_UNKNOWN;
	vs_real.cuCtxRecordEvent = refuses;
	assert_false(vs_fence_record(fence));
	give(take(64 << 20));
	assert_true(fake.natives > 0);
	for (int i = 0; i < 30; i++) {
		tick_for_s(1);
		assert_true(atomic_load(&fence->is_broken));
		/* or nobody would tick */
		assert_true(vs_pool_is_waiting(0));
	}
	vs_real.cuCtxRecordEvent = record_event;
	/* not beside a capture */
	begin_capture((CUstream)0x77);
	fake.now += 11000 * MS;
	vs_pool_tick();
	assert_true(atomic_load(&fence->is_broken));
	vs_capture_ended((CUstream)0x77, false);
	tick_for_s(11);
	assert_false(atomic_load(&fence->is_broken));
	tick_for_s(100);
	assert_in_range(fake.held, 0, 80 << 20);
	natives = fake.natives;
	give(take(64 << 20));
	assert_int_equal(fake.natives, natives);
}

/* Of 64 MiB, which were freed; waits for their work are refused from now on. */
static CUdeviceptr free_where_waits_fail(CUresult with)
{
	CUdeviceptr p = take(64 << 20);

	refusal = with;
	vs_real.cuCtxWaitEvent = refuses;
	fake.lag_ns = NEVER;
	give(p);
	return p;
}

/*
 * Policy ordered: the driver takes markers, but has nothing wait for them.
 * Nothing is handed out by them, nor are they said to work before it does.
 */
static void test_waits_are_tried_again(void **state)
{
	CUresult(CUDAAPI * wait)(CUcontext, CUevent);
	unsigned long natives;
	CUdeviceptr p;

	fresh_ordered(state);
	wait = vs_real.cuCtxWaitEvent;
	p = free_where_waits_fail(CUDA_ERROR_UNKNOWN);
	assert_int_not_equal(take(64 << 20), p);
	give(take(64 << 20));
	assert_true(fake.natives > 0);
	for (int i = 0; i < 30; i++) {
		assert_true(atomic_load(&fence->is_broken));
		tick_for_s(1);
	}
	vs_real.cuCtxWaitEvent = wait;
	tick_for_s(11);
	assert_false(atomic_load(&fence->is_broken));
	assert_true(fake.orders > 0);
	natives = fake.natives;
	take(64 << 20);
	assert_int_equal(fake.natives, natives);
}

/* A want of memory passes. */
static void test_waits_want_memory(void **state)
{
	CUresult(CUDAAPI * wait)(CUcontext, CUevent);
	CUdeviceptr p;

	fresh_ordered(state);
	wait = vs_real.cuCtxWaitEvent;
	p = free_where_waits_fail(CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_not_equal(take(64 << 20), p);
	vs_real.cuCtxWaitEvent = wait;
	assert_int_equal(take(64 << 20), p);
	assert_int_equal(fake.orders, 1);
	assert_int_equal(fake.natives, 0);
}

/* A device that is full for a moment costs a marker, not the pool. */
static void test_want_of_memory_passes(void **state)
{
	uint64_t tag = vs_fence_tag(fence);

	(void)state;
	record_event = vs_real.cuCtxRecordEvent;
	refusal = CUDA_ERROR_OUT_OF_MEMORY;
	vs_real.cuCtxRecordEvent = refuses;
	assert_false(vs_fence_record(fence));
	vs_real.cuCtxRecordEvent = record_event;
	assert_false(vs_fence_is_covered(fence, tag));
	give(take(64 << 20));
	assert_true(vs_fence_wait_tag(fence, tag, NEVER));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_an_error_goes_with_its_context,
				       fresh),
		cmocka_unit_test_setup(test_markers_are_tried_again, fresh),
		cmocka_unit_test(test_waits_are_tried_again),
		cmocka_unit_test(test_waits_want_memory),
		cmocka_unit_test_setup(test_want_of_memory_passes, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
