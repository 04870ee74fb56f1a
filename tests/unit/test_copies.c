/* SPDX-License-Identifier: MIT
 *
 * What another device copies (Notes [Peers] of pool/fence.h and [Copies one by
 * one] of pool/copies.h), on the counting driver: its work is waited for as
 * long as such a copy may be under way, and no longer once markers are curt.
 */
#include "driver/real.h"
#include "fake_test.h"
#include "pool/capture.h"
#include "pool/copies.h"
#include "pool/ctx.h"
#include "pool/state.h"
#include "race_test.h"

#define PEER_CTX ((CUcontext)0x2000)
#define PEER ((CUdevice)1)
#define STREAM ((CUstream)0x5000)
#define OTHER_STREAM ((CUstream)0x6000)
#define NEVER ((uint64_t)1 << 60)

static struct vs_pool *pool;
static struct vs_fence *fence;
static CUdeviceptr block;

/* Events of the peer, and whether what they stand for is still at work. */
enum { EVENTS = 4096 };
static struct {
	CUevent event;
	CUstream stream; /* NULL: in all of the context */
	bool is_behind;	 /* what spins */
} peers[EVENTS];
static unsigned n_peers;
static bool is_spinning;	      /* a kernel of the peer */
static bool is_copying, also_copying; /* in STREAM, in OTHER_STREAM */
static CUresult record_answer, query_answer;
static unsigned long n_events; /* recorded in a stream */

static CUresult (*plain_record)(CUcontext, CUevent);
static CUresult (*plain_query)(CUevent);

static void note_event(CUevent event, CUstream stream)
{
	unsigned i;

	for (i = 0; i < n_peers && peers[i].event != event; i++)
		;
	assert_true(i < EVENTS);
	peers[i].event = event;
	peers[i].stream = stream;
	peers[i].is_behind = is_spinning;
	if (i == n_peers)
		n_peers++;
}

static CUresult CUDAAPI record(CUcontext ctx, CUevent event)
{
	CUresult r = plain_record(ctx, event);

	if (ctx == PEER_CTX)
		note_event(event, NULL);
	return r;
}

static CUresult CUDAAPI record_in_stream(CUevent event, CUstream stream)
{
	if (record_answer != CUDA_SUCCESS)
		return record_answer;
	n_events++;
	assert_int_equal(plain_record(PEER_CTX, event), CUDA_SUCCESS);
	note_event(event, stream);
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI query(CUevent event)
{
	for (unsigned i = 0; i < n_peers; i++) {
		CUstream s = peers[i].stream;

		if (peers[i].event != event)
			continue;
		if (s && query_answer != CUDA_SUCCESS)
			return query_answer;
		if ((!s && peers[i].is_behind && is_spinning) ||
		    (s != OTHER_STREAM && is_copying) ||
		    (s != STREAM && also_copying))
			return CUDA_ERROR_NOT_READY;
	}
	return plain_query(event);
}

static CUresult CUDAAPI ctx_of_stream(CUstream stream, CUcontext *ctx_out)
{
	(void)stream;
	*ctx_out = PEER_CTX;
	return CUDA_SUCCESS;
}

static int fresh_in(enum vs_reuse reuse)
{
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = reuse;
	n_peers = 0;
	n_events = 0;
	is_spinning = is_copying = also_copying = false;
	record_answer = query_answer = CUDA_SUCCESS;
	plain_record = vs_real.cuCtxRecordEvent;
	plain_query = vs_real.cuEventQuery;
	vs_real.cuCtxRecordEvent = record;
	vs_real.cuEventRecord = record_in_stream;
	vs_real.cuEventQuery = query;
	vs_real.cuStreamGetCtx = ctx_of_stream;
	assert_int_equal(vs_pool_alloc(4 * MiB, &block), CUDA_SUCCESS);
	pool = vs_pool_of(0);
	fence = &pool->fence;
	vs_pool_ctx_born(PEER_CTX, PEER);
	assert_int_equal(vs_pool_peer(PEER_CTX, FAKE_CTX, true), CUDA_SUCCESS);
	return 0;
}

static int fresh(void **state)
{
	(void)state;
	return fresh_in(VS_REUSE_COMPLETE);
}

static int fresh_ordered(void **state)
{
	(void)state;
	return fresh_in(VS_REUSE_ORDERED);
}

static void copied(CUstream stream)
{
	vs_pool_copied(block, (uint64_t)1 << PEER, stream);
}

/* Whether what is freed now is complete at the next look. */
static bool is_free_at_once(void)
{
	uint64_t tag = vs_fence_tag_freed(fence);

	assert_true(vs_fence_record(fence));
	vs_fence_poll(fence);
	return vs_fence_is_complete(fence, tag);
}

/* A wait has shown that the peer's kernel takes long. */
static void be_curt(void)
{
	is_spinning = true;
	assert_false(is_free_at_once());
	assert_true(vs_fence_wait(fence, NEVER));
	assert_true(fence->is_curt);
	is_spinning = false;
}

/* A kernel of the peer is a courtesy, for a second. */
static void test_a_kernel_is_waited_for_a_second(void **state)
{
	uint64_t began;

	(void)state;
	is_spinning = true;
	assert_false(is_free_at_once());
	began = fake.now;
	assert_true(vs_fence_wait(fence, NEVER));
	assert_true(fake.now - began >= 1000 * MS);
	assert_true(fake.now - began < 1200 * MS);
	assert_true(is_free_at_once());
}

/* Several waits, none of them as long as that. */
static void test_waits_in_vain_add_up(void **state)
{
	uint64_t began;

	(void)state;
	is_spinning = true;
	for (uint64_t patience = 100; patience < 800; patience *= 2) {
		assert_false(is_free_at_once());
		assert_false(vs_fence_wait(fence, patience * MS));
	}
	began = fake.now;
	assert_true(vs_fence_wait(fence, 800 * MS));
	assert_true(fake.now - began >= 250 * MS);
	assert_true(fake.now - began < 350 * MS);
}

/* What it copied before counts until a marker shows it complete. */
static void test_a_copy_counts_until_it_is_complete(void **state)
{
	(void)state;
	copied(NULL);
	is_copying = true;
	assert_false(is_free_at_once());
	assert_false(vs_fence_wait(fence, 3000 * MS));
	assert_true(fence->is_curt);
	assert_false(is_free_at_once());
	is_copying = false;
	assert_true(is_free_at_once());
	is_spinning = true;
	assert_true(is_free_at_once());
}

/* Long ago, when nobody was curt: its kernels count no more. */
static void test_an_old_copy_is_forgotten(void **state)
{
	(void)state;
	copied(NULL);
	assert_true(is_free_at_once());
	be_curt();
	is_spinning = true;
	assert_true(is_free_at_once());
}

/* Nothing was freed between the copy and a kernel that never ends. */
static void test_a_copy_is_marked_before_what_comes_next(void **state)
{
	(void)state;
	copied(STREAM);
	is_spinning = true;
	assert_false(is_free_at_once());
	while (vs_fence_wait(fence, 3000 * MS))
		;
	assert_true(fence->is_curt);
	assert_true(is_free_at_once());
	/* and then each that is not followed */
	for (int i = 0; i < 100; i++) {
		is_spinning = false;
		copied(NULL);
		is_spinning = true;
		/* a look may show the copy, and the next one what was freed */
		if (!is_free_at_once())
			assert_true(is_free_at_once());
	}
}

/* Where nobody was seen to wait, it is not each that has its marker. */
static void test_markers_of_copies_are_rationed(void **state)
{
	unsigned long before;

	(void)state;
	before = fake.records;
	for (int i = 0; i < 100; i++)
		copied(STREAM);
	/* one in two contexts */
	assert_in_range(fake.records - before, 2, 2 * 20);
}

/* In the NULL stream, which is not followed: all of the device counts. */
static void test_a_copy_in_a_default_stream_counts(void **state)
{
	(void)state;
	be_curt();
	is_copying = true;
	copied(NULL);
	assert_int_equal(n_events, 0);
	assert_false(is_free_at_once());
	is_copying = false;
	assert_true(is_free_at_once());
}

static void test_each_copy_is_followed(void **state)
{
	(void)state;
	copied(STREAM);
	assert_int_equal(n_events, 0);
	assert_true(is_free_at_once());
	be_curt();
	is_spinning = true;
	is_copying = true;
	copied(STREAM);
	assert_int_equal(n_events, 1);
	/* nobody counts for markers, but for who waits beside a capture */
	assert_int_equal(vs_fence_counting(fence), 1);
	assert_true(vs_fence_counts_others(fence));
	assert_false(is_free_at_once());
	is_copying = false;
	assert_true(is_free_at_once());
	assert_false(vs_fence_counts_others(fence));
}

/* Markers come and go in whatever order their copies are complete. */
static void test_newer_copies_do_not_hold_up_older_frees(void **state)
{
	uint64_t first, second;

	(void)state;
	be_curt();
	is_copying = also_copying = true;
	copied(STREAM);
	first = vs_fence_tag_freed(fence);
	assert_true(vs_fence_record(fence));
	copied(OTHER_STREAM);
	second = vs_fence_tag_freed(fence);
	assert_true(vs_fence_record(fence));
	vs_fence_poll(fence);
	assert_false(vs_fence_is_complete(fence, first));
	/* the newer one alone is complete: the older is in the way of both */
	also_copying = false;
	vs_fence_poll(fence);
	assert_false(vs_fence_is_complete(fence, first));
	assert_false(vs_fence_is_complete(fence, second));
	also_copying = true;
	is_copying = false;
	vs_fence_poll(fence);
	assert_true(vs_fence_is_complete(fence, first));
	assert_false(vs_fence_is_complete(fence, second));
	also_copying = false;
	vs_fence_poll(fence);
	assert_true(vs_fence_is_complete(fence, second));
}

/* More than are followed at once, and events that cannot be had. */
static void test_where_none_can_follow_the_device_counts(void **state)
{
	(void)state;
	be_curt();
	is_copying = true;
	for (int i = 0; i < VS_COPIES; i++)
		copied(STREAM);
	assert_int_equal(vs_fence_counting(fence), 1);
	copied(STREAM);
	assert_int_equal(vs_fence_counting(fence), 3);
	assert_false(is_free_at_once());
	is_copying = false;
	assert_true(is_free_at_once());
	assert_int_equal(vs_fence_counting(fence), 1);
	record_answer = CUDA_ERROR_OUT_OF_MEMORY;
	is_copying = true;
	copied(STREAM);
	assert_int_equal(vs_fence_counting(fence), 3);
	assert_false(is_free_at_once());
	is_copying = false;
	assert_true(is_free_at_once());
}

/* A place among those that are followed is to be had again out of turn. */
static void test_what_is_complete_makes_room(void **state)
{
	(void)state;
	be_curt();
	is_copying = also_copying = true;
	copied(STREAM);
	for (int i = 1; i < VS_COPIES; i++)
		copied(OTHER_STREAM);
	also_copying = false;
	copied(STREAM);
	assert_int_equal(vs_fence_counting(fence), 1);
	assert_false(is_free_at_once());
	is_copying = false;
	assert_true(is_free_at_once());
}

/* A stream in a capture that nobody saw: the copy may come at any time. */
static void test_a_copy_that_cannot_be_told_counts_for_good(void **state)
{
	(void)state;
	be_curt();
	copied(STREAM);
	query_answer = CUDA_ERROR_CAPTURED_EVENT;
	vs_fence_record(fence);
	vs_fence_poll(fence);
	query_answer = CUDA_SUCCESS;
	assert_true(is_free_at_once());
	is_spinning = true;
	assert_false(is_free_at_once());
	assert_int_equal(vs_fence_counting(fence), 3);
}

/* In a host function, say, where nothing may be asked. */
static void test_no_answer_is_no_end(void **state)
{
	uint64_t tag;

	(void)state;
	be_curt();
	copied(STREAM);
	query_answer = CUDA_ERROR_NOT_PERMITTED;
	tag = vs_fence_tag_freed(fence);
	vs_fence_record(fence);
	vs_fence_poll(fence);
	assert_false(vs_fence_is_complete(fence, tag));
	query_answer = CUDA_SUCCESS;
	vs_fence_poll(fence);
	assert_true(vs_fence_is_complete(fence, tag));
	assert_int_equal(vs_fence_counting(fence), 1);
}

static void test_a_graphs_copy_counts_for_good(void **state)
{
	(void)state;
	be_curt();
	vs_pool_copies(block, (uint64_t)1 << PEER);
	assert_true(is_free_at_once());
	is_spinning = true;
	assert_false(is_free_at_once());
}

/* Barriers, one a context, that a wait beside a capture has taken. */
static unsigned long barriers_beside_a_capture(void)
{
	unsigned long before;

	begin_capture(OTHER_STREAM);
	before = fake.barriers;
	assert_true(vs_fence_barrier(fence));
	vs_capture_ended(OTHER_STREAM, false);
	return fake.barriers - before;
}

/* No marker is had there, and a copy is waited for in all of its context. */
static void test_a_wait_beside_a_capture_is_for_copies_too(void **state)
{
	(void)state;
	be_curt();
	fake_allow_barriers();
	is_copying = true;
	copied(STREAM);
	assert_int_equal(barriers_beside_a_capture(), 2);
	is_copying = false;
	assert_true(is_free_at_once());
	assert_int_equal(barriers_beside_a_capture(), 1);
	copied(NULL);
	assert_int_equal(barriers_beside_a_capture(), 2);
	assert_int_equal(barriers_beside_a_capture(), 1);
}

/* Barriers of frees beside a capture, of more than may be pending there. */
static unsigned long barriers_of_frees(void)
{
	CUdeviceptr p[4];
	unsigned long before;

	for (int i = 0; i < 4; i++)
		p[i] = take(300 * MiB);
	begin_capture(OTHER_STREAM);
	before = fake.barriers;
	for (int i = 0; i < 4; i++)
		give(p[i]);
	vs_capture_ended(OTHER_STREAM, false);
	return fake.barriers - before;
}

/* What the other device is at may wait for what comes behind this free. */
static void test_no_free_waits_for_another_device(void **state)
{
	(void)state;
	be_curt();
	fake_allow_barriers();
	assert_int_not_equal(barriers_of_frees(), 0);
	is_copying = true;
	copied(NULL);
	assert_int_equal(barriers_of_frees(), 0);
}

/* How many contexts a wait was for, by a driver without context events. */
static unsigned long n_waits;

static CUresult CUDAAPI count_wait(void)
{
	n_waits++;
	return CUDA_SUCCESS;
}

static unsigned long contexts_waited_for(void)
{
	uint64_t tag = vs_fence_tag_freed(fence);

	n_waits = 0;
	assert_true(vs_fence_wait_tag(fence, tag, UINT64_MAX));
	return n_waits;
}

static void test_a_wait_for_contexts_is_for_copies_too(void **state)
{
	uint64_t epoch;

	(void)state;
	fence->has_context_events = false;
	vs_real.cuCtxSynchronize = count_wait;
	assert_int_equal(contexts_waited_for(), 1);
	vs_fence_tag_freed(fence);
	assert_true(vs_fence_is_waited_for(fence, &epoch));
	copied(STREAM);
	assert_false(vs_fence_is_waited_for(fence, &epoch));
	assert_int_equal(contexts_waited_for(), 2);
	assert_int_equal(contexts_waited_for(), 1);
}

/* Also of one that an event follows, where no marker can be had. */
static void test_nor_is_one_forgotten_that_is_followed(void **state)
{
	(void)state;
	be_curt();
	is_copying = true;
	copied(STREAM);
	assert_int_equal(fence->copies.n, 1);
	vs_real.cuCtxSynchronize = count_wait;
	n_waits = 0;
	atomic_store(&fence->is_broken, true);
	assert_true(vs_fence_barrier(fence));
	assert_int_equal(n_waits, 2);
}

/* What its context was at is done with it. */
static void test_a_context_takes_its_copies_along(void **state)
{
	(void)state;
	be_curt();
	is_copying = true;
	copied(STREAM);
	assert_false(is_free_at_once());
	end_ctx(PEER_CTX);
	assert_int_equal(fence->copies.n, 0);
	assert_int_equal(fence->copies.devices, 0);
	assert_true(is_free_at_once());
}

/* Policy ordered has the device wait for all that reach the memory. */
static void test_policy_ordered_follows_none(void **state)
{
	(void)state;
	atomic_store(&fence->is_curt, true);
	copied(STREAM);
	assert_int_equal(n_events, 0);
	assert_int_equal(vs_fence_counting(fence), 3);
}

static void none_is_to_count(struct vs_fence *f)
{
	while (vs_fence_counting(f) != 1)
		sched_yield();
}

static void one_is_made(struct vs_fence *f)
{
	vs_fence_note_copy(f, PEER);
}

/*
 * While markers are recorded a copy is made, and then something is freed: the
 * marker that covers the free must be recorded in the peer's context, too.
 */
static void test_a_copy_is_covered_that_comes_meanwhile(void **state)
{
	(void)state;
	be_curt();
	vs_real.cuEventQuery = plain_query;
	assert_int_equal(count_missed(fence, PEER_CTX, plain_record,
				      none_is_to_count, one_is_made),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_kernel_is_waited_for_a_second,
				       fresh),
		cmocka_unit_test_setup(test_waits_in_vain_add_up, fresh),
		cmocka_unit_test_setup(test_a_copy_counts_until_it_is_complete,
				       fresh),
		cmocka_unit_test_setup(test_an_old_copy_is_forgotten, fresh),
		cmocka_unit_test_setup(
			test_a_copy_is_marked_before_what_comes_next, fresh),
		cmocka_unit_test_setup(test_markers_of_copies_are_rationed,
				       fresh),
		cmocka_unit_test_setup(test_a_copy_in_a_default_stream_counts,
				       fresh),
		cmocka_unit_test_setup(test_each_copy_is_followed, fresh),
		cmocka_unit_test_setup(
			test_newer_copies_do_not_hold_up_older_frees, fresh),
		cmocka_unit_test_setup(
			test_where_none_can_follow_the_device_counts, fresh),
		cmocka_unit_test_setup(test_what_is_complete_makes_room, fresh),
		cmocka_unit_test_setup(
			test_a_copy_that_cannot_be_told_counts_for_good, fresh),
		cmocka_unit_test_setup(test_no_answer_is_no_end, fresh),
		cmocka_unit_test_setup(test_a_graphs_copy_counts_for_good,
				       fresh),
		cmocka_unit_test_setup(
			test_a_wait_beside_a_capture_is_for_copies_too, fresh),
		cmocka_unit_test_setup(
			test_a_wait_for_contexts_is_for_copies_too, fresh),
		cmocka_unit_test_setup(test_no_free_waits_for_another_device,
				       fresh),
		cmocka_unit_test_setup(
			test_nor_is_one_forgotten_that_is_followed, fresh),
		cmocka_unit_test_setup(test_a_context_takes_its_copies_along,
				       fresh),
		cmocka_unit_test_setup(test_policy_ordered_follows_none,
				       fresh_ordered),
		cmocka_unit_test_setup(
			test_a_copy_is_covered_that_comes_meanwhile, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
