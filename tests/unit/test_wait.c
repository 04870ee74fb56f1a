/* SPDX-License-Identifier: MIT
 *
 * The waits for the GPU (pool/wait) on the counting driver: what they are for,
 * what they are not for, and when they end without it.
 */
#include <unistd.h>

#include "driver/real.h"
#include "fake_test.h"
#include "pool/ctx.h"
#include "pool/share.h"
#include "pool/state.h"

#define OTHER_CTX ((CUcontext)0x2000)
#define NEVER ((uint64_t)1 << 60)
#define LAG ((uint64_t)150000000)
#define PATIENCE ((uint64_t)100000000)

static struct vs_fence *fence;
static CUdeviceptr block;

static int begin(void)
{
	block = take(4 * MiB);
	fence = &vs_pool_of(0)->fence;
	alarm(60); /* for a wait that never ends */
	return 0;
}

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_COMPLETE;
	return begin();
}

static int fresh_old(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	make_driver_old();
	begin();
	assert_false(fence->has_context_events);
	return 0;
}

/* One that ran out of time is not repeated for its marker, but for the next. */
static void test_each_marker_is_waited_for_once(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		uint64_t epoch = record_marker(LAG), began = fake.now;

		assert_false(vs_fence_wait(fence, PATIENCE));
		assert_in_range(fake.now - began, PATIENCE, PATIENCE + MS);
		began = fake.now;
		assert_false(vs_fence_wait(fence, PATIENCE));
		assert_int_equal(fake.now, began);
		/* but by one that is longer */
		assert_true(vs_fence_wait(fence, 2 * PATIENCE));
		assert_true(vs_fence_is_complete(fence, epoch));
	}
}

static uint64_t done_at;

/* Another one asks every 10 us, and once it is time sees the marker done. */
static void another_asks(unsigned round)
{
	(void)round;
	fake.now += 10000;
	atomic_store(&fence->asked, fake.now);
	if (fake.now >= done_at)
		vs_fence_poll(fence);
}

/* What others who wait have just asked is not asked again, but for a ms. */
static void test_of_many_who_wait_one_asks(void **state)
{
	uint64_t epoch = record_marker(LAG), polls;

	(void)state;
	done_at = fake.now + LAG;
	fence->waiting = 1;
	vs_vmm_pause = another_asks;
	polls = vs_stat_get(stats(), polls);
	assert_true(vs_fence_wait(fence, 2 * LAG));
	assert_true(vs_fence_is_complete(fence, epoch));
	assert_in_range(fake.now, done_at, done_at + 10000);
	assert_in_range(vs_stat_get(stats(), polls) - polls, 90, 110);
	/* nobody else waits any more */
	fence->waiting = 0;
	record_marker(LAG);
	done_at = UINT64_MAX;
	polls = vs_stat_get(stats(), polls);
	assert_true(vs_fence_wait(fence, 2 * LAG));
	assert_in_range(vs_stat_get(stats(), polls) - polls, LAG / 10000 - 10,
			LAG / 10000 + 10);
}

#define STOPPED (60000 * MS)

static void be_stopped(unsigned round)
{
	fake.now += round == 10 ? STOPPED : 10000;
}

/* What the process was stopped for is no patience of its. */
static void test_a_wait_goes_on_once_stopped(void **state)
{
	(void)state;
	record_marker(STOPPED + LAG);
	vs_vmm_pause = be_stopped;
	assert_true(vs_fence_wait(fence, 3 * PATIENCE));
	record_marker(STOPPED + LAG);
	assert_false(vs_fence_wait(fence, 2 * PATIENCE));
}

static CUresult CUDAAPI has_no_answer(CUevent event)
{
	(void)event;
	return CUDA_ERROR_UNKNOWN;
}

/* Nobody knows whether the work is done: then it is not, and no wait helps. */
static void test_no_answer_is_no_end(void **state)
{
	uint64_t epoch = record_marker(LAG);

	(void)state;
	vs_real.cuEventQuery = has_no_answer;
	fake.now += LAG;
	assert_false(vs_fence_wait(fence, UINT64_MAX));
	assert_false(vs_fence_is_complete(fence, epoch));
	assert_true(atomic_load(&fence->is_broken));
}

/* That would be for work that may wait for this very thread. */
static void test_no_barrier_where_a_marker_can_be_had(void **state)
{
	unsigned long records = fake.records;

	(void)state;
	fake_allow_barriers();
	fake.lag_ns = LAG;
	assert_false(vs_fence_barrier(fence));
	assert_false(vs_fence_barrier_for(fence, PATIENCE));
	assert_int_equal(fake.barriers, 0);
	assert_int_equal(fake.records, records + 2);
}

/* A later one covers later work. */
static void test_a_marker_is_waited_for_by_itself(void **state)
{
	uint64_t epoch;

	(void)state;
	epoch = record_marker(LAG);
	assert_true(vs_fence_wait_out(fence, epoch));
	epoch = vs_fence_turn(fence); /* it has none */
	record_marker(NEVER);
	assert_false(vs_fence_wait_out(fence, epoch));
}

/* While a wait for all work is under way another thread frees. */
static uint64_t freed_meanwhile;

static void *give_block(void *unused)
{
	give(block);
	freed_meanwhile = vs_pool_of(0)->bare_tag;
	return unused;
}

static CUresult CUDAAPI wait_beside_a_free(void)
{
	in_a_thread(give_block, NULL);
	return CUDA_SUCCESS;
}

static __typeof__(vs_real.cuMemFree_v2) free_natively;

static CUresult CUDAAPI barrier_beside_a_free(CUdeviceptr p)
{
	in_a_thread(give_block, NULL);
	vs_real.cuMemFree_v2 = free_natively;
	return free_natively(p);
}

/* What is freed meanwhile may have had work of which the wait knows nothing. */
static void test_a_barrier_is_for_what_came_before(void **state)
{
	uint64_t tag = vs_fence_tag(fence);

	(void)state;
	fake_allow_barriers();
	begin_capture((CUstream)0x77);
	free_natively = vs_real.cuMemFree_v2;
	vs_real.cuMemFree_v2 = barrier_beside_a_free;
	assert_true(vs_fence_barrier(fence));
	vs_capture_ended((CUstream)0x77, false);
	assert_ptr_equal(vs_real.cuMemFree_v2, free_natively);
	assert_true(vs_fence_is_complete(fence, tag));
	assert_false(vs_fence_is_complete(fence, freed_meanwhile));
}

/* The same without room for a barrier. */
static void test_a_wait_for_contexts_is_for_what_came_before(void **state)
{
	uint64_t tag = vs_fence_tag(fence);

	(void)state;
	vs_real.cuCtxSynchronize = wait_beside_a_free;
	assert_true(vs_fence_barrier(fence));
	assert_true(vs_fence_is_complete(fence, tag));
	assert_false(vs_fence_is_complete(fence, freed_meanwhile));
}

/* Whether the program's own wait, in that context, is known to be for all. */
static bool is_waited_for_in(CUcontext current)
{
	uint64_t epoch;
	bool is;

	fake.current = current;
	is = vs_fence_is_waited_for(fence, &epoch);
	fake.current = FAKE_CTX;
	return is;
}

static void test_a_wait_of_the_program_serves(void **state)
{
	struct vs_pool_sync sync;
	uint64_t tag;

	(void)state;
	tag = vs_fence_tag_freed(fence);
	assert_true(is_waited_for_in(FAKE_CTX));
	assert_false(is_waited_for_in(NULL));
	assert_false(is_waited_for_in(OTHER_CTX));
	vs_pool_sync_begins(&sync);
	in_a_thread(give_block, NULL);
	vs_pool_sync_ended(&sync);
	assert_true(vs_fence_is_complete(fence, tag));
	/* not for what was freed since it began */
	assert_false(vs_fence_is_complete(fence, freed_meanwhile));
	/* nor of one context for the other */
	assert_non_null(vs_ctx_born(OTHER_CTX, 0));
	assert_false(is_waited_for_in(FAKE_CTX));
	assert_false(is_waited_for_in(OTHER_CTX));
	end_ctx(OTHER_CTX);
	vs_fence_tag_freed(fence);
	assert_true(is_waited_for_in(FAKE_CTX));
}

static __typeof__(vs_real.cuCtxRecordEvent) plain_record;

/* Work of one context never ends. */
static CUresult CUDAAPI record_for_ever(CUcontext ctx, CUevent event)
{
	fake.lag_ns = ctx == OTHER_CTX ? NEVER : MS;
	return plain_record(ctx, event);
}

static _Atomic unsigned need;

static void need_ends(unsigned round)
{
	if (round == 0)
		atomic_fetch_sub(&need, 1);
	fake.now += MS;
}

/* A free that heeds another thread's need waits as the driver's own does. */
static void test_heed_is_for_the_own_context(void **state)
{
	uint64_t began;

	(void)state;
	assert_non_null(vs_ctx_born(OTHER_CTX, 0));
	plain_record = vs_real.cuCtxRecordEvent;
	vs_real.cuCtxRecordEvent = record_for_ever;
	atomic_store(&need, 1);
	began = fake.now;
	vs_fence_heed(fence, vs_ctx_peek(FAKE_CTX), &need, NEVER);
	assert_in_range(fake.now - began, MS, 2 * MS);
	/* not for longer than the need lasts, nor than patience */
	began = fake.now;
	vs_fence_heed(fence, vs_ctx_peek(OTHER_CTX), &need, 5 * MS);
	assert_in_range(fake.now - began, 5 * MS, 6 * MS);
	vs_vmm_pause = need_ends;
	began = fake.now;
	vs_fence_heed(fence, vs_ctx_peek(OTHER_CTX), &need, NEVER);
	assert_int_equal(fake.now - began, MS);
}

/* Beside a capture no event can be had for a copy between two contexts. */
static void test_a_copy_beside_a_capture_waits(void **state)
{
	(void)state;
	fake_allow_barriers();
	assert_non_null(vs_ctx_born(OTHER_CTX, 0));
	begin_capture((CUstream)0x77);
	vs_pool_follow(OTHER_CTX, FAKE_CTX);
	assert_int_equal(fake.barriers, 1);
	vs_capture_ended((CUstream)0x77, false);
}

static CUresult CUDAAPI not_beside_a_capture(void)
{
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Nor may the context of one be waited for, whose end takes it along. */
static void test_the_end_of_one_that_captures_waits(void **state)
{
	(void)state;
	fake_allow_barriers();
	vs_real.cuCtxSynchronize = not_beside_a_capture;
	begin_capture((CUstream)0x77);
	end_ctx(FAKE_CTX);
	assert_int_equal(fake.barriers, 1);
	assert_int_equal(fake.held, 0);
}

static CUresult CUDAAPI record_behind_the_host(CUevent event, CUstream stream)
{
	(void)stream;
	*(uint64_t *)event = NEVER;
	return CUDA_SUCCESS;
}

/* The work of a peer may wait for the program; what it may reach stays. */
static void test_the_end_is_not_behind_a_peer_for_ever(void **state)
{
	uint64_t began = fake.now;

	(void)state;
	assert_non_null(vs_ctx_born(OTHER_CTX, 1));
	assert_int_equal(vs_pool_peer(OTHER_CTX, FAKE_CTX, true), CUDA_SUCCESS);
	vs_real.cuEventRecord = record_behind_the_host;
	give(block);
	end_ctx(FAKE_CTX);
	assert_in_range(fake.now - began, 1000 * MS, 1100 * MS);
	assert_int_not_equal(fake_mapping(block), 0);
}

static CUresult CUDAAPI wait_for_event(CUevent event)
{
	if (fake.now < *(uint64_t *)event)
		fake.now = *(uint64_t *)event;
	return CUDA_SUCCESS;
}

/* Before what was opened goes: the own context's work for ever, no other's. */
static void test_settled_for_the_own_context(void **state)
{
	uint64_t began;

	(void)state;
	vs_real.cuEventSynchronize = wait_for_event;
	fake.lag_ns = LAG;
	for (uint64_t devices = 0; devices < 2; devices++) {
		began = fake.now;
		assert_true(vs_share_settle(devices, FAKE_CTX, PATIENCE));
		assert_int_equal(fake.now - began, LAG);
	}
	assert_non_null(vs_ctx_born(OTHER_CTX, 1));
	plain_record = vs_real.cuCtxRecordEvent;
	vs_real.cuCtxRecordEvent = record_for_ever;
	began = fake.now;
	assert_false(vs_share_settle(3, FAKE_CTX, PATIENCE));
	assert_in_range(fake.now - began, PATIENCE, PATIENCE + MS);
	/* no event can be had: it is waited for all the same */
	vs_real.cuCtxRecordEvent = NULL;
	fake.lag_ns = LAG;
	began = fake.now;
	assert_true(vs_share_settle(1, FAKE_CTX, PATIENCE));
	assert_int_equal(fake.now - began, LAG);
}

#define T(name) cmocka_unit_test_setup(test_##name, fresh)
#define OLD(name) cmocka_unit_test_setup(test_##name, fresh_old)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(each_marker_is_waited_for_once),
		T(of_many_who_wait_one_asks),
		T(a_wait_goes_on_once_stopped),
		T(no_answer_is_no_end),
		T(no_barrier_where_a_marker_can_be_had),
		T(a_marker_is_waited_for_by_itself),
		T(a_barrier_is_for_what_came_before),
		OLD(a_wait_for_contexts_is_for_what_came_before),
		OLD(a_wait_of_the_program_serves),
		T(heed_is_for_the_own_context),
		T(a_copy_beside_a_capture_waits),
		T(the_end_of_one_that_captures_waits),
		T(settled_for_the_own_context),
		OLD(the_end_is_not_behind_a_peer_for_ever),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
