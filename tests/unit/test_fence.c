/* SPDX-License-Identifier: MIT
 *
 * The markers (pool/fence) on the counting driver: how many are asked to see
 * many complete, and which may not be passed over. What the driver refuses:
 * test_refused.
 */
#include <unistd.h>

#include "driver/real.h"
#include "fence_test.h"
#include "pool/capture.h"
#include "pool/state.h"
#include "race_test.h"

enum { MANY = 64 };
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
		last = record_marker(0);
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
			uint64_t epoch = record_marker(i < n ? 0 : NEVER);

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

/* While the GPU is as far behind as it was: one that is, one that is not. */
static void test_those_due_are_asked_first(void **state)
{
	uint64_t before;

	(void)state;
	record_marker(LAG);
	fake.now += LAG;
	assert_true(vs_fence_poll(fence));
	for (int i = 0; i < MANY; i++) {
		record_marker(LAG);
		fake.now += LAG / MANY;
	}
	fake.now += LAG / 4;
	before = polls();
	assert_true(vs_fence_poll(fence));
	assert_int_equal(polls() - before, 2);
}

/* While work waits on the device: one that was likely to be complete, and is.
 */
static void test_a_look_that_nothing_hangs_on_is_brief(void **state)
{
	uint64_t before, first, last = 0, n_looks = 0;

	(void)state;
	fence->may_order = true;
	atomic_store(&vs_stream.n, VS_STREAM_ENOUGH);
	record_marker(LAG);
	fake.now += LAG;
	assert_true(vs_fence_poll(fence));
	first = record_marker(0);
	for (int i = 0; i < MANY; i++) {
		fake.now += LAG / MANY;
		last = record_marker(0);
	}
	before = polls();
	vs_fence_glance_at(fence, vs_vmm_ticks());
	assert_int_equal(polls() - before, 1);
	assert_true(vs_fence_is_complete(fence, first));
	assert_false(vs_fence_is_complete(fence, last));
	/* newer ones are tried the next time */
	while (!vs_fence_is_complete(fence, last) && n_looks++ < 10)
		vs_fence_glance_at(fence, vs_vmm_ticks());
	assert_in_range(n_looks, 2, 8);
	atomic_store(&vs_stream.n, 0);
}

/* One look a turn, while the oldest is long overdue. */
static void test_a_wait_asks_for_the_oldest(void **state)
{
	uint64_t before = polls();

	(void)state;
	for (int i = 0; i < MANY; i++)
		record_marker(NEVER);
	for (int i = 0; i < 1000; i++) {
		fake.now += 1000;
		assert_false(vs_fence_poll(fence));
	}
	assert_in_range(polls() - before, 1000, 1100);
}

static void test_a_kept_one_is_not_passed_over(void **state)
{
	uint64_t first, kept;

	(void)state;
	first = record_marker(0);
	kept = record_marker(1000);
	vs_fence_keep(fence);
	for (int i = 0; i < MANY; i++)
		record_marker(0);
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, first));
	assert_false(vs_fence_is_complete(fence, kept));
	fake.now += 1000;
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, kept + MANY));
}

/* Note [Thin out]: every second one, but the oldest and one that is kept. */
static void test_too_many_are_thinned_out(void **state)
{
	uint64_t first, kept = 0, last = 0;

	(void)state;
	first = record_marker(1000);
	for (int i = 1; i <= VS_MARKERS; i++) {
		last = record_marker(2000);
		if (i == 5) {
			vs_fence_keep(fence);
			kept = last;
		}
	}
	assert_int_equal(fence->tail - fence->head, VS_MARKERS / 2 + 3);
	assert_int_equal(fence->ring[fence->head % VS_MARKERS].epoch, first);
	assert_int_equal(fence->ring[(fence->head + 3) % VS_MARKERS].epoch,
			 kept);
	fake.now += 1000;
	assert_true(vs_fence_poll(fence));
	assert_false(vs_fence_is_complete(fence, first + 1));
	fake.now += 1000;
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, last));
}

static CUresult (*wait_event)(CUcontext, CUevent);
static uint64_t waited_until[VS_MARKERS]; /* when its events are complete */
static unsigned n_waited;

static CUresult CUDAAPI note_wait(CUcontext ctx, CUevent event)
{
	if (ctx == SECOND_CTX)
		waited_until[n_waited++] = *(uint64_t *)event;
	return wait_event(ctx, event);
}

/*
 * Policy ordered: a context that comes waits behind the markers by which memory
 * was handed out, up to the last of them and no later one, which may cover work
 * that waits for the program; however many have come since.
 */
static void check_newcomer(unsigned n_later)
{
	uint64_t began = fake.now;

	for (uint64_t i = 1; i <= 4; i++) {
		vs_fence_tag_freed(fence);
		record_marker(1000 * i);
		assert_true(vs_fence_order(fence));
	}
	for (unsigned i = 0; i < n_later; i++)
		record_marker(NEVER);
	wait_event = vs_real.cuCtxWaitEvent;
	vs_real.cuCtxWaitEvent = note_wait;
	n_waited = 0;
	vs_pool_ctx_born(SECOND_CTX, 0);
	vs_real.cuCtxWaitEvent = wait_event;
	assert_in_range(n_waited, 1, 4);
	assert_int_equal(waited_until[n_waited - 1], began + 4000);
}

static void test_a_newcomer_waits_for_what_was_handed_out(void **state)
{
	fresh_ordered(state);
	check_newcomer(1);
	fresh_ordered(state);
	check_newcomer(VS_MARKERS);
}

/* And where one captures, which cannot be told, the host waits. */
static void test_a_newcomer_beside_a_capture(void **state)
{
	uint64_t tag;

	fresh_ordered(state);
	vs_fence_tag_freed(fence);
	tag = record_marker(LAG);
	assert_true(vs_fence_order(fence));
	begin_capture((CUstream)0x77);
	vs_pool_ctx_born(SECOND_CTX, 0);
	assert_true(vs_fence_is_complete(fence, tag));
	vs_capture_ended((CUstream)0x77, false);
}

/* What was freed last waits for no work but that before its own marker. */
static void test_an_order_is_by_the_first_that_covers(void **state)
{
	uint64_t tag;

	fresh_ordered(state);
	tag = vs_fence_tag_freed(fence);
	record_marker(LAG);
	record_marker(NEVER);
	assert_true(vs_fence_order(fence));
	assert_int_equal(atomic_load(&fence->done), tag);
}

static CUstreamCaptureMode mode_now;
static CUresult (*plain_query)(CUevent);

static CUresult CUDAAPI exchange(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode before = mode_now;

	mode_now = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI query_relaxed(CUevent event)
{
	assert_int_equal(mode_now, CU_STREAM_CAPTURE_MODE_RELAXED);
	return plain_query(event);
}

/* Else it would end a capture in mode global, be it another thread's. */
static void test_a_look_ends_no_capture(void **state)
{
	uint64_t tag = record_marker(LAG);
	uint64_t looked = polls();

	(void)state;
	vs_real.cuThreadExchangeStreamCaptureMode = exchange;
	plain_query = vs_real.cuEventQuery;
	vs_real.cuEventQuery = query_relaxed;
	mode_now = CU_STREAM_CAPTURE_MODE_GLOBAL;
	begin_capture((CUstream)0x77);
	vs_fence_poll(fence);
	vs_fence_glance_at(fence, vs_vmm_ticks());
	vs_fence_settle(fence, tag);
	assert_true(polls() >= looked + 3);
	assert_int_equal(mode_now, CU_STREAM_CAPTURE_MODE_GLOBAL);
	vs_capture_ended((CUstream)0x77, false);
}

static CUevent of_the_second;

static CUresult CUDAAPI record_noted(CUcontext ctx, CUevent event)
{
	if (ctx == SECOND_CTX)
		of_the_second = event;
	return record_event(ctx, event);
}

static CUresult CUDAAPI query_the_others(CUevent event)
{
	assert_ptr_not_equal(event, of_the_second);
	return plain_query(event);
}

/* The driver has destroyed them, or is about to. */
static void test_events_go_with_their_context(void **state)
{
	uint64_t tag;

	(void)state;
	vs_pool_ctx_born(SECOND_CTX, 0);
	record_event = vs_real.cuCtxRecordEvent;
	vs_real.cuCtxRecordEvent = record_noted;
	tag = record_marker(LAG);
	plain_query = vs_real.cuEventQuery;
	vs_real.cuEventQuery = query_the_others;
	end_ctx(SECOND_CTX);
	fake.now += LAG;
	assert_true(vs_fence_poll(fence));
	assert_true(vs_fence_is_complete(fence, tag));
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
		record_marker(seen[i].lag);
		fake.now += seen[i].lag;
		assert_true(vs_fence_poll(fence));
		pace = vs_fence_pace(fence);
		assert_int_equal(pace, seen[i].pace);
		epoch = record_marker(0);
		vs_fence_glance(fence);
		assert_true(vs_fence_is_complete(fence, epoch));
		/* that was a lag of nothing */
		assert_int_equal(vs_fence_pace(fence), 200000);
		epoch = record_marker(0);
		fake.now += 199999;
		vs_fence_glance(fence);
		assert_false(vs_fence_is_complete(fence, epoch));
		fake.now++;
		vs_fence_glance(fence);
		assert_true(vs_fence_is_complete(fence, epoch));
		fake.now += pace;
	}
}

static void it_is_away(struct vs_fence *f)
{
	uint64_t tag;

	atomic_store(f->reach, 1);
	/* one that is recorded without it, most of the time */
	tag = vs_fence_tag(f);
	while (!vs_fence_is_covered(f, tag))
		sched_yield();
}

static void it_arrives(struct vs_fence *f)
{
	atomic_store(f->reach, 3);
}

/*
 * While markers are recorded a context comes to the memory, works, and frees:
 * the marker that covers the free must be recorded in that context, too.
 */
static void test_covers_a_context_that_arrives(void **state)
{
	(void)state;
	assert_non_null(vs_ctx_born(SECOND_CTX, 1));
	assert_int_equal(count_missed(fence, SECOND_CTX,
				      vs_real.cuCtxRecordEvent, it_is_away,
				      it_arrives),
			 0);
	atomic_store(fence->reach, 1);
}

/* A marker stands for the work of every context, however many there are. */
static void test_many_contexts(void **state)
{
	unsigned long records = fake.records;

	(void)state;
	for (uintptr_t i = 1; i <= 300; i++)
		assert_non_null(
			vs_ctx_born((CUcontext)((uintptr_t)FAKE_CTX + i), 0));
	record_marker(0);
	assert_int_equal(fake.records, records + 301);
}

static uint64_t unmapped; /* the first time */

static void note_unmap(CUdeviceptr at, uint64_t size)
{
	(void)at, (void)size;
	if (!unmapped)
		unmapped = fake.now;
}

/* Another device that reaches the memory may be at a copy of it. */
static void test_the_end_of_a_context_waits_for_peers(void **state)
{
	uint64_t began;

	(void)state;
	vs_pool_ctx_born(SECOND_CTX, 1);
	assert_int_equal(vs_pool_peer(SECOND_CTX, FAKE_CTX, true),
			 CUDA_SUCCESS);
	take(64 << 20);
	fake.lag_ns = LAG;
	fake.on_unmap = note_unmap;
	began = fake.now;
	unmapped = 0;
	end_ctx(FAKE_CTX);
	/* for its own work, and then for the peer's */
	assert_true(unmapped >= began + 2 * LAG);
	assert_int_equal(fake.held, 0);
}

/* Beside a capture no marker tells when: what was freed goes later. */
static void test_what_a_peer_copies_outlives_the_context(void **state)
{
	CUdeviceptr p, small;

	(void)state;
	vs_pool_ctx_born(SECOND_CTX, 1);
	assert_int_equal(vs_pool_peer(SECOND_CTX, FAKE_CTX, true),
			 CUDA_SUCCESS);
	p = take(64 << 20);
	small = take(512);
	fake.lag_ns = LAG;
	fake.current = SECOND_CTX;
	begin_capture((CUstream)0x77);
	fake.current = FAKE_CTX;
	give(p);
	give(small);
	end_ctx(FAKE_CTX);
	vs_pool_tick();
	assert_int_not_equal(fake_mapping(p), 0);
	assert_int_not_equal(fake_mapping(small), 0);
	vs_capture_ended((CUstream)0x77, false);
	vs_pool_tick();
	fake.now += LAG;
	vs_pool_tick();
	assert_int_equal(fake.held, 0);
}

/* A marker in flight that a wait beside a capture has overtaken is no more. */
static void test_waits_behind_a_barrier(void **state)
{
	uint64_t tag;

	(void)state;
	record_marker(1000);
	fake_allow_barriers();
	vs_capture_before_begin((CUstream)1);
	vs_capture_after_begin((CUstream)1, false,
			       CU_STREAM_CAPTURE_MODE_RELAXED, true);
	assert_true(vs_fence_barrier(fence));
	vs_capture_ended((CUstream)1, false);
	tag = vs_fence_tag(fence);
	assert_int_equal(record_marker(1000), tag);
	alarm(5); /* it would go by the old one for ever */
	assert_true(vs_fence_wait_tag(fence, tag, NEVER));
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_few_are_asked, fresh),
		cmocka_unit_test_setup(test_all_complete_ones_are_found, fresh),
		cmocka_unit_test_setup(test_those_due_are_asked_first, fresh),
		cmocka_unit_test_setup(
			test_a_look_that_nothing_hangs_on_is_brief, fresh),
		cmocka_unit_test_setup(test_a_wait_asks_for_the_oldest, fresh),
		cmocka_unit_test_setup(test_a_kept_one_is_not_passed_over,
				       fresh),
		cmocka_unit_test_setup(test_too_many_are_thinned_out, fresh),
		cmocka_unit_test(test_a_newcomer_waits_for_what_was_handed_out),
		cmocka_unit_test(test_a_newcomer_beside_a_capture),
		cmocka_unit_test(test_an_order_is_by_the_first_that_covers),
		cmocka_unit_test_setup(test_a_look_ends_no_capture, fresh),
		cmocka_unit_test_setup(test_events_go_with_their_context,
				       fresh),
		cmocka_unit_test_setup(test_settled_by_one, fresh),
		cmocka_unit_test_setup(test_looks_follow_the_lag, fresh),
		cmocka_unit_test_setup(test_covers_a_context_that_arrives,
				       fresh),
		cmocka_unit_test_setup(test_many_contexts, fresh),
		cmocka_unit_test_setup(
			test_the_end_of_a_context_waits_for_peers, fresh),
		cmocka_unit_test_setup(
			test_what_a_peer_copies_outlives_the_context, fresh),
		cmocka_unit_test_setup(test_waits_behind_a_barrier, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
