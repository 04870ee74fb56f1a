/* SPDX-License-Identifier: MIT
 *
 * Captures (pool/capture) that the shim has missed the begin or the end of, on
 * the counting driver.
 */
#include <pthread.h>
#include <string.h>

#include "child.h"
#include "driver/real.h"
#include "fake_test.h"
#include "pool/capture.h"
#include "pool/state.h"

#define ONE ((CUstream)0x100)
#define TWO ((CUstream)0x200)

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	return 0;
}

static void begin(CUstream stream, CUstreamCaptureMode mode)
{
	vs_capture_before_begin(stream);
	vs_capture_after_begin(stream, false, mode, true);
}

static void *begin_there(void *unused)
{
	begin(TWO, CU_STREAM_CAPTURE_MODE_GLOBAL);
	return unused;
}

/* What the driver allows a thread is none of the others' affair. */
static void test_one_that_forbids_nothing(void **state)
{
	(void)state;
	begin(ONE, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	begin(ONE, CU_STREAM_CAPTURE_MODE_GLOBAL);
	in_a_thread(begin_there, NULL);
	assert_true(vs_capture_forbids());
	vs_capture_allows();
	assert_false(vs_capture_forbids());
	/* they are open all the same: no marker is set */
	assert_int_equal(vs_capture_count(), 3);
	assert_int_equal(vs_capture_strict(), 1);
	/* the next one forbids again */
	begin(ONE, CU_STREAM_CAPTURE_MODE_GLOBAL);
	assert_true(vs_capture_forbids());
	for (int n = 0; n < 3; n++)
		vs_capture_ended(ONE, false);
	assert_int_equal(vs_capture_strict(), 1);
	vs_capture_ended(TWO, false);
	assert_int_equal(vs_capture_strict(), 0);
	assert_int_equal(vs_capture_count(), 0);
}

static CUstreamCaptureMode mode_now, mode_then;

static CUresult CUDAAPI exchange(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = mode_now;

	mode_now = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI free_natively(CUdeviceptr p)
{
	(void)p;
	mode_then = mode_now;
	return CUDA_SUCCESS;
}

/* The driver's own is called relaxed, but beside one of the thread's own. */
static void test_what_falls_to_the_driver(void **state)
{
	(void)state;
	vs_real.cuThreadExchangeStreamCaptureMode = exchange;
	vs_real.cuMemFree_v2 = free_natively;
	mode_now = CU_STREAM_CAPTURE_MODE_GLOBAL;
	in_a_thread(begin_there, NULL);
	vs_capture_free_beside(0);
	assert_int_equal(mode_then, CU_STREAM_CAPTURE_MODE_RELAXED);
	assert_int_equal(mode_now, CU_STREAM_CAPTURE_MODE_GLOBAL);
	begin(ONE, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	vs_capture_free_beside(0);
	assert_int_equal(mode_then, CU_STREAM_CAPTURE_MODE_GLOBAL);
	/* which says so itself */
	mode_now = CU_STREAM_CAPTURE_MODE_RELAXED;
	vs_capture_free_beside(0);
	assert_int_equal(mode_then, CU_STREAM_CAPTURE_MODE_RELAXED);
	assert_int_equal(mode_now, CU_STREAM_CAPTURE_MODE_RELAXED);
	vs_capture_ended(ONE, false);
	vs_capture_ended(TWO, false);
	assert_int_equal(vs_capture_count(), 0);
}

static CUresult CUDAAPI captured(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult CUDAAPI captured_before(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static void beside_one(void *record)
{
	__typeof__(vs_real.cuCtxRecordEvent) plain;
	struct vs_fence *fence;
	uint64_t tag;
	CUdeviceptr p;

	fresh_driver((uint64_t)16 << 30);
	vs_log_level = VS_LOG_ERROR;
	CHECK(vs_pool_alloc(64 * MiB, &p) == CUDA_SUCCESS);
	fence = &vs_pool_of(0)->fence;
	plain = vs_real.cuCtxRecordEvent;
	*(void **)&vs_real.cuCtxRecordEvent = record;
	tag = vs_fence_tag(fence);
	CHECK(vs_pool_free(p) == CUDA_SUCCESS);
	for (int n = 0; n < 3; n++)
		CHECK(!vs_fence_record(fence));
	/* nothing tells that it is complete */
	vs_fence_poll(fence);
	CHECK(!vs_fence_is_complete(fence, tag));
	CHECK(!atomic_load(&fence->is_broken));
	vs_real.cuCtxRecordEvent = plain;
	CHECK(vs_fence_record(fence));
	vs_fence_poll(fence);
	CHECK(vs_fence_is_complete(fence, tag));
}

/* It is told once; and a marker that it refused is none. */
static void test_one_that_was_not_seen(void **state)
{
	static void *const records[] = {(void *)captured,
					(void *)captured_before};
	static const char *const line = "a stream capture began unseen";
	static struct child c;

	(void)state;
	for (int i = 0; i < 2; i++) {
		const char *at;

		child_run(&c, NULL, beside_one, records[i]);
		assert_child_ok(&c);
		at = strstr(c.err, line);
		assert_non_null(at);
		assert_null(strstr(at + 1, line));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_one_that_forbids_nothing, fresh),
		cmocka_unit_test_setup(test_what_falls_to_the_driver, fresh),
		cmocka_unit_test(test_one_that_was_not_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
