/* SPDX-License-Identifier: MIT
 *
 * What ends policy stream (vs_fence_lend), on the counting driver: a context
 * that comes, a peer, memory that is registered or exported. What was handed
 * out early is waited for, and all is as by policy complete from then on. And
 * a device that comes in policy ordered.
 */
#include <time.h>

#include "pool/capture.h"
#include "stream_test.h"

#define NEWCOMER ((CUcontext)0x2000)

/* As the hook of its making does. */
static void a_context_comes(void)
{
	vs_pool_ctx_born(NEWCOMER, 0);
	vs_pool_ctx_come();
}

static int fresh_ordered(void **state)
{
	(void)state;
	return fresh_with(VS_REUSE_ORDERED);
}

static bool is_all_complete(void)
{
	struct vs_fence *f = &vs_pool_of(0)->fence;

	return atomic_load(&f->complete) >= atomic_load(&f->done);
}

/* Freed, and handed out again, before its work is complete. */
static void hand_out_early(uint64_t lag_ns)
{
	fake.lag_ns = lag_ns;
	give(large);
	work_in(ONE);
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
	assert_false(is_all_complete());
}

/* As by policy complete, whatever comes. */
static void check_that_it_is_over(void)
{
	unsigned long before = fake.orders;

	assert_true(is_all_complete());
	fake.now += 10000 * MS;
	settle_in(ONE);
	large = take(200 * MiB);
	free_before_work();
	assert_int_not_equal(take(200 * MiB), large);
	assert_int_equal(fake.orders, before);
}

/* The host waits for what was handed out, and nothing is ordered any more. */
static void test_a_context_is_born(void **state)
{
	uint64_t before;

	(void)state;
	settle_in(ONE);
	hand_out_early(3000 * MS);
	before = fake.now;
	a_context_comes();
	assert_in_range(fake.now, before + 2900 * MS, before + 3100 * MS);
	end_ctx(NEWCOMER);
	fake.lag_ns = 0;
	check_that_it_is_over();
}

/* No event can be waited for on the device, nor need it. */
static void test_one_is_born_beside_a_capture(void **state)
{
	(void)state;
	settle_in(ONE);
	hand_out_early(3000 * MS);
	begin_capture(TWO);
	a_context_comes();
	assert_true(is_all_complete());
	vs_capture_ended(TWO, false);
	end_ctx(NEWCOMER);
}

static CUresult CUDAAPI no_waits(CUcontext ctx, CUevent event)
{
	(void)ctx, (void)event;
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* It comes to the pool, though no hook told of it before. */
static void test_one_was_born_unseen(void **state)
{
	(void)state;
	settle_in(ONE);
	hand_out_early(3000 * MS);
	fake.current = NEWCOMER;
	take(4 * KiB);
	fake.current = FAKE_CTX;
	assert_true(is_all_complete());
	end_ctx(NEWCOMER);
}

/* Nothing is ordered from then on; what was is not complete. */
static void refuse_an_order(void)
{
	vs_real.cuCtxWaitEvent = no_waits;
	give(take(4 * MiB));
	vs_pool_synchronizing(); /* a marker, due or not */
	assert_false(vs_fence_order(&vs_pool_of(0)->fence));
	assert_true(atomic_load(&vs_pool_of(0)->fence.is_barred));
	assert_false(is_all_complete());
}

static void test_one_was_born_unseen_after_a_refusal(void **state)
{
	(void)state;
	settle_in(ONE);
	hand_out_early(3000 * MS);
	refuse_an_order();
	fake.current = NEWCOMER;
	take(4 * KiB);
	fake.current = FAKE_CTX;
	assert_true(is_all_complete());
	end_ctx(NEWCOMER);
}

static void (*pause_alone)(unsigned round);
static bool was_complete;

static void *take_one(void *unused)
{
	take(4 * KiB);
	was_complete = is_all_complete();
	return unused;
}

/* While one thread waits. */
static void another_allocates(unsigned round)
{
	vs_vmm_pause = pause_alone;
	in_a_thread(take_one, NULL);
	pause_alone(round);
}

static void test_two_threads_of_one_that_was(void **state)
{
	(void)state;
	settle_in(ONE);
	hand_out_early(3000 * MS);
	fake.current = NEWCOMER;
	pause_alone = vs_vmm_pause;
	vs_vmm_pause = another_allocates;
	take(4 * KiB);
	assert_ptr_equal(vs_vmm_pause, pause_alone);
	assert_true(was_complete);
	fake.current = FAKE_CTX;
	end_ctx(NEWCOMER);
}

/* A peer need not use any stream of ours. */
static void test_not_with_a_peer(void **state)
{
	(void)state;
	vs_pool_ctx_born(NEWCOMER, 1);
	assert_int_equal(vs_pool_peer(NEWCOMER, FAKE_CTX, true), CUDA_SUCCESS);
	settle_in(ONE);
	free_before_work();
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static _Atomic bool has_come;
static bool has_overtaken;
static pthread_t second;
static CUresult(CUDAAPI *wait_in)(CUcontext, CUevent);

static void *come(void *unused)
{
	vs_pool_reach(large, 1, false);
	has_come = true;
	return unused;
}

/* Right before the other device waits for what was handed out early. */
static CUresult CUDAAPI another_thread_comes(CUcontext ctx, CUevent event)
{
	const struct timespec tick = {.tv_nsec = 1000000};

	vs_real.cuCtxWaitEvent = wait_in;
	assert_int_equal(pthread_create(&second, NULL, come, NULL), 0);
	for (int i = 0; i < 200 && !has_come; i++)
		nanosleep(&tick, NULL);
	has_overtaken = has_come;
	return wait_in(ctx, event);
}

/* A block is handed out under its work, then a context of a peer is born. */
static void hand_out_and_come(void)
{
	fake.lag_ns = NEVER;
	give(large);
	large = take(200 * MiB);
	assert_false(is_all_complete());
	vs_pool_ctx_born(NEWCOMER, 1);
}

/* Policy ordered: no work of that device may be given before. */
static void test_two_threads_of_a_device_come(void **state)
{
	(void)state;
	hand_out_and_come();
	wait_in = vs_real.cuCtxWaitEvent;
	vs_real.cuCtxWaitEvent = another_thread_comes;
	vs_pool_reach(large, 1, false);
	assert_ptr_equal(vs_real.cuCtxWaitEvent, wait_in);
	assert_int_equal(pthread_join(second, NULL), 0);
	assert_false(has_overtaken);
	end_ctx(NEWCOMER);
}

/* Markers are for its work as well, from then on. */
static void test_a_device_that_comes_is_marked(void **state)
{
	unsigned long records;

	(void)state;
	vs_pool_ctx_born(NEWCOMER, 1);
	vs_pool_reach(large, 1, false);
	records = fake.records;
	assert_true(vs_fence_record(&vs_pool_of(0)->fence));
	assert_int_equal(fake.records, records + 2);
	end_ctx(NEWCOMER);
}

/* A peer is told of what was handed out before, as the others were. */
static void test_a_peer_comes_late(void **state)
{
	unsigned long orders;

	(void)state;
	hand_out_and_come();
	orders = fake.orders;
	assert_int_equal(vs_pool_peer(NEWCOMER, FAKE_CTX, true), CUDA_SUCCESS);
	assert_int_not_equal(fake.orders, orders);
	end_ctx(NEWCOMER);
}

static void *order(void *is_ordered)
{
	*(bool *)is_ordered = vs_fence_order(&vs_pool_of(0)->fence);
	return NULL;
}

/* It was to be ordered, as far as another thread has seen. */
static void test_not_by_one_that_comes_too_late(void **state)
{
	const struct timespec enough = {.tv_nsec = 50000000};
	struct vs_fence *f = &vs_pool_of(0)->fence;
	bool is_ordered = true;
	pthread_t thread;

	(void)state;
	settle_in(ONE);
	free_before_work();
	assert_true(vs_fence_may_order(f));
	pthread_mutex_lock(&f->lock);
	assert_int_equal(pthread_create(&thread, NULL, order, &is_ordered), 0);
	nanosleep(&enough, NULL);
	atomic_store(&f->is_barred, true);
	pthread_mutex_unlock(&f->lock);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(is_ordered);
	assert_int_equal(fake.orders, 0);
}

/* What is registered, or exported, is complete; and all that comes after. */
static void test_memory_is_lent(void **state)
{
	uint64_t before;

	(void)state;
	settle_in(ONE);
	hand_out_early(5 * MS);
	before = fake.now;
	vs_pool_pin(large);
	assert_in_range(fake.now, before + 4 * MS, before + 10 * MS);
	fake.lag_ns = 0;
	check_that_it_is_over();
}

static void test_all_is_lent(void **state)
{
	(void)state;
	settle_in(ONE);
	hand_out_early(5 * MS);
	vs_pool_lend_all();
	fake.lag_ns = 0;
	check_that_it_is_over();
}

/*
 * The work may wait for the thread that lends, which the driver would not hold
 * up: it is not for ever, and not each time.
 */
static void test_what_is_lent_is_not_waited_for_for_ever(void **state)
{
	uint64_t before;

	(void)state;
	settle_in(ONE);
	hand_out_early(NEVER);
	before = fake.now;
	vs_pool_pin(large);
	assert_in_range(fake.now, before + 9000 * MS, before + 11000 * MS);
	before = fake.now;
	a_context_comes();
	vs_pool_pin(large);
	assert_in_range(fake.now, before, before + 100 * MS);
	end_ctx(NEWCOMER);
	assert_int_equal(fake.orders, 1);
}

int main(void)
{
#define T(name, setup) cmocka_unit_test_setup(test_##name, setup)
	const struct CMUnitTest tests[] = {
		T(a_context_is_born, fresh),
		T(one_is_born_beside_a_capture, fresh),
		T(one_was_born_unseen, fresh),
		T(one_was_born_unseen_after_a_refusal, fresh),
		T(two_threads_of_one_that_was, fresh),
		T(two_threads_of_a_device_come, fresh_ordered),
		T(memory_is_lent, fresh),
		T(all_is_lent, fresh),
		T(what_is_lent_is_not_waited_for_for_ever, fresh),
		T(not_by_one_that_comes_too_late, fresh),
		T(a_device_that_comes_is_marked, fresh),
		T(not_with_a_peer, fresh), /* it stays one */
		T(a_peer_comes_late, fresh_ordered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
