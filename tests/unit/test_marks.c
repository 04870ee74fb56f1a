/* SPDX-License-Identifier: MIT
 *
 * Whatever was freed gets a marker in time (pool/fence), on the counting
 * driver: by whomever it was freed, as small objects, as dead memory, in a
 * capture. A program that has freed enough must not run out of memory. When
 * what is due is waited for is in test_due.
 */
#include <pthread.h>
#include <unistd.h>

#include "fake_test.h"
#include "pool/capture.h"
#include "pool/fence.h"
#include "pool/mark.h"
#include "pool/slab.h"
#include "pool/state.h"

#define OTHER ((CUcontext)0x2000)

enum { N_SMALL = 900, ROUNDS = 20000, IN_FLIGHT = 16 };

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	return 0;
}

static void test_small_ones_then_a_large_one(void **state)
{
	static CUdeviceptr p[N_SMALL];

	(void)state;
	for (int i = 0; i < N_SMALL; i++)
		p[i] = take(MiB);
	for (int i = 0; i < N_SMALL; i++)
		give(p[i]);
	fake.lag_ns = MS;
	succeeds(800 * MiB);
}

static void test_dead_then_a_large_one(void **state)
{
	CUdeviceptr p = take(600 * MiB);

	(void)state;
	vs_pool_pin(p);
	give(p);
	fake.now += MS;
	succeeds(600 * MiB);
}

static void test_freed_in_a_capture_then_a_context_dies(void **state)
{
	CUstream stream = (CUstream)0x77;
	CUdeviceptr p;

	(void)state;
	take(512);
	vs_pool_ctx_born(OTHER, 0);
	p = take(600 * MiB);
	begin_capture(stream);
	give(p);
	vs_capture_ended(stream, false);
	end_ctx(OTHER);
	fake.now += MS;
	succeeds(600 * MiB);
}

/* The driver gives its handle to a stream of another thread, which captures. */
static void test_a_stream_that_is_gone_ends_no_later_capture(void **state)
{
	uint64_t last;

	(void)state;
	begin_capture((CUstream)1);
	last = vs_capture_begun();
	/* the driver's cuStreamDestroy */
	begin_capture((CUstream)1);
	vs_capture_destroyed((CUstream)1, last);
	assert_int_equal(vs_capture_count(), 1);
	vs_capture_destroyed((CUstream)1, last);
	assert_int_equal(vs_capture_count(), 1);
	vs_capture_destroyed((CUstream)1, vs_capture_begun());
	assert_int_equal(vs_capture_count(), 0);
	assert_int_equal(vs_capture_begun(), 0); /* so far as it matters */
}

/* An epoch that ended without a marker is not covered. */
static void test_an_epoch_without_a_marker(void **state)
{
	struct vs_fence *f;
	uint64_t tag;

	(void)state;
	take(512);
	f = &vs_pool_of(0)->fence;
	tag = vs_fence_turn(f);
	assert_false(vs_fence_is_covered(f, tag));
	assert_true(vs_fence_cover(f, tag));
	assert_true(vs_fence_is_covered(f, tag));
	assert_int_equal(fake.records, 1);
}

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	CUdeviceptr p[IN_FLIGHT];
	unsigned head, tail;
};

static void *freer(void *arg)
{
	struct queue *q = arg;

	for (int i = 0; i < ROUNDS; i++) {
		CUdeviceptr p;

		pthread_mutex_lock(&q->lock);
		while (q->head == q->tail)
			pthread_cond_wait(&q->turn, &q->lock);
		p = q->p[q->head++ % IN_FLIGHT];
		pthread_cond_signal(&q->turn);
		pthread_mutex_unlock(&q->lock);
		if (vs_pool_free(p) != CUDA_SUCCESS)
			return arg;
	}
	return NULL;
}

/* One thread only allocates, the other only frees: nobody turns a bin round. */
static void test_freed_by_another_thread(void **state)
{
	static struct queue q = {.lock = PTHREAD_MUTEX_INITIALIZER,
				 .turn = PTHREAD_COND_INITIALIZER};
	void *failed;
	pthread_t t;

	(void)state;
	q.head = q.tail = 0;
	take(512);
	assert_int_equal(pthread_create(&t, NULL, freer, &q), 0);
	for (int i = 0; i < ROUNDS; i++) {
		CUdeviceptr p = take(256 * KiB);

		pthread_mutex_lock(&q.lock);
		while (q.tail - q.head == IN_FLIGHT)
			pthread_cond_wait(&q.turn, &q.lock);
		q.p[q.tail++ % IN_FLIGHT] = p;
		pthread_cond_signal(&q.turn);
		pthread_mutex_unlock(&q.lock);
	}
	pthread_join(t, &failed);
	assert_null(failed);
	assert_int_equal(fake.natives, 0);
	assert_in_range(fake.held_high, 1, 128 * MiB);
}

/* What was freed before the program waits is idle when it has waited. */
static void test_the_programs_own_wait(void **state)
{
	const uint64_t lag = 100000;
	CUdeviceptr p[2] = {take(16 * MiB), take(16 * MiB)};
	unsigned long records;

	(void)state;
	/* with so little live a free gets no marker at once */
	fake.lag_ns = 200 * lag; /* so that looks are far apart */
	give(p[0]);
	vs_pool_synchronizing();
	fake.now += fake.lag_ns;
	vs_pool_synchronized();
	give(take(8 * MiB));
	assert_int_equal(stats()->pending, 8 * MiB);

	fake.lag_ns = lag;
	give(p[1]);
	records = fake.records;
	vs_pool_synchronizing();
	assert_int_equal(fake.records, records + 1);
	vs_pool_synchronizing();
	assert_int_equal(fake.records, records + 1);
	fake.now += lag;
	vs_pool_synchronized();
	take(8 * MiB);
	assert_int_equal(stats()->pending, 0);
	assert_int_equal(fake.records, records + 1);
}

/* A burst of frees calls nobody; those spread over time have markers. */
static void test_frees_leave_the_marker_to_the_next_allocation(void **state)
{
	CUdeviceptr p[8];
	unsigned long records;

	(void)state;
	for (int i = 0; i < 8; i++)
		p[i] = take(16 * MiB);
	fake.lag_ns = 1000;
	records = fake.records;
	for (int i = 0; i < 4; i++)
		give(p[i]);
	assert_int_equal(fake.records, records);
	take(16 * MiB);
	assert_int_equal(fake.records, records + 1);
	give(p[4]);
	assert_int_equal(fake.records, records + 1);
	fake.now += 60000;
	give(p[5]);
	assert_int_equal(fake.records, records + 2);
	give(p[6]);
	assert_int_equal(fake.records, records + 2);
}

/* No kernel that starts after the frees keeps their memory from the program. */
static void test_much_has_a_marker_at_its_free(void **state)
{
	static CUdeviceptr p[N_SMALL];

	(void)state;
	give(take(600 * MiB));
	fake.lag_ns = UINT64_MAX / 2;
	succeeds(600 * MiB);

	fresh(state);
	for (int i = 0; i < N_SMALL; i++)
		p[i] = take(MiB);
	for (int i = 0; i < N_SMALL; i++)
		give(p[i]);
	fake.lag_ns = UINT64_MAX / 2;
	succeeds(700 * MiB);
}

static void *capture_and_end(void *unused)
{
	(void)unused;
	give(take(MiB)); /* a thread that the pool knows of */
	begin_capture(CU_STREAM_PER_THREAD);
	begin_capture((CUstream)0x77);
	return NULL;
}

/* That of its own stream ends with a thread, any other does not. */
static void test_a_thread_ends_that_captures(void **state)
{
	CUdeviceptr p = take(4 * MiB);
	pthread_t thread;

	(void)state;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(
			pthread_create(&thread, NULL, capture_and_end, NULL),
			0);
		pthread_join(thread, NULL);
		/* the system may take a moment longer to forget its number */
		for (int ms = 0; vs_capture_count() > 1 && ms < 5000; ms++)
			usleep(1000);
		assert_int_equal(vs_capture_count(), 1);
		assert_false(vs_capture_shut_out());
		vs_capture_ended((CUstream)0x77, false);
		assert_int_equal(vs_capture_count(), 0);
	}
	assert_true(vs_capture_shut_out());
	vs_capture_let_in();
	give(p);
}

/* One wait serves for all that was freed before it. */
static void test_frees_beside_a_capture_wait_now_and_then(void **state)
{
	CUstream stream = (CUstream)0x77;
	CUdeviceptr p[32];

	(void)state;
	fake_allow_barriers();
	for (int i = 0; i < 32; i++)
		p[i] = take(16 * MiB);
	assert_int_equal(fake.barriers, 0);
	begin_capture(stream);
	for (int i = 0; i < 32; i++)
		give(p[i]);
	vs_capture_ended(stream, false);
	/* when a sixteenth of the device is freed, 64 MiB */
	assert_in_range(fake.barriers, 32 / 5, 32 / 5 + 1);
}

/*
 * Each thread ends before its caches had a batch to hand over. Returns bytes
 * held at last; *batches_out: what the pool keeps of what they left.
 */
static void *one_object(void *size)
{
	give(take(*(const size_t *)size));
	return NULL;
}

static uint64_t held_by_threads_that_end(size_t size, unsigned *batches_out)
{
	enum { N_THREADS = 1000 };
	const struct vs_batch *b;

	for (int i = 0; i < N_THREADS; i++)
		in_a_thread(one_object, &size);
	*batches_out = 0;
	b = vs_pool_of(0)->slabs->class[vs_class_of(size)].pending;
	for (; b; b = b->next)
		++*batches_out;
	return fake.held;
}

static void check_threads_that_end(void)
{
	unsigned n_batches;

	assert_in_range(held_by_threads_that_end(512, &n_batches), 1, 8 * MiB);
	assert_in_range(n_batches, 0, 8);
	assert_in_range(held_by_threads_that_end(600 * KiB, &n_batches), 1,
			160 * MiB);
}

static void test_threads_that_end_beside_a_capture(void **state)
{
	CUstream stream = (CUstream)0x77;

	(void)state;
	fake_allow_barriers();
	give(take(MiB));
	begin_capture(stream);
	check_threads_that_end();
	vs_capture_ended(stream, false);
}

static int fresh_old(void **state)
{
	fresh(state);
	make_driver_old();
	return 0;
}

static void test_threads_that_end_without_markers(void **state)
{
	(void)state;
	check_threads_that_end();
}

/* The driver, which is full, is seldom asked for what makes a barrier. */
static void test_no_room_for_a_barrier(void **state)
{
	CUstream stream = (CUstream)0x77;
	struct vs_fence *fence;

	(void)state;
	give(take(MiB));
	fence = &vs_pool_of(0)->fence;
	for (int i = 0; i < 64; i++) {
		assert_true(vs_fence_barrier(fence));
		give(take(MiB));
	}
	assert_int_equal(fake.natives, 1);
	/* but not for long: there may be room by then */
	fake.now += 200000000;
	assert_true(vs_fence_barrier(fence));
	assert_int_equal(fake.natives, 2);
	give(take(MiB));
	assert_true(vs_fence_barrier(fence));
	assert_int_equal(fake.natives, 2);
	/* beside a capture there is nothing else */
	fake_allow_barriers();
	begin_capture(stream);
	give(take(MiB));
	assert_true(vs_fence_barrier(fence));
	assert_int_equal(fake.barriers, 1);
	vs_capture_ended(stream, false);
}

/* A program that frees nothing, but ends its contexts, one stays. */
static void test_contexts_that_end_without_markers(void **state)
{
	enum { N_CONTEXTS = 400, N_OBJECTS = 10 };

	(void)state;
	take(MiB);
	for (int i = 0; i < N_CONTEXTS; i++) {
		fake.current = OTHER;
		for (int j = 0; j < N_OBJECTS; j++)
			take(100 * KiB);
		end_ctx(OTHER);
	}
	fake.current = FAKE_CTX;
	assert_in_range(fake.held, 1, 160 * MiB);
}

/*
 * Looks at markers that nothing waits for: one in half a million ticks. Each
 * round is of a program that works, and has something pending.
 */
static void test_looks_are_apart(void **state)
{
	CUdeviceptr p[32];
	unsigned looks;

	(void)state;
	for (int i = 0; i < 32; i++)
		p[i] = take(8 * MiB);
	for (int i = 8; i < 32; i++)
		give(p[i]); /* so that something fits */
	fake.now += 1000 * MS;
	fake.lag_ns = MS / 10;
	looks = rounds_with_a_look(p, vs_pool_before_work);
	assert_false(vs_pool_of(0)->turnover.is_fast);
	assert_in_range(looks, 30, 45);
}

/* Of ten small pieces that are freed, those that get a marker before work. */
static uint64_t rations(void)
{
	const struct vs_stats *stats = &vs_pool_of(0)->stats;
	CUdeviceptr p[10];
	uint64_t before;

	for (int i = 0; i < 10; i++)
		p[i] = take(2 * MiB);
	before = vs_stat_get(stats, markers);
	for (int i = 0; i < 10; i++) {
		give(p[i]);
		vs_pool_before_work();
	}
	return vs_stat_get(stats, markers) - before;
}

static uint64_t ticks_from_0(void)
{
	return fake.now % (1000000 * MS);
}

/* As after a machine was suspended. */
static void test_rations_when_ticks_begin_again(void **state)
{
	uint64_t (*ticks)(void) = vs_vmm_ticks;

	(void)state;
	take(400 * MiB);
	fake.now += 1000000 * MS - fake.now % (1000000 * MS) - MS;
	assert_in_range(rations(), 7, 9);
	fake.now += 2 * MS;
	vs_vmm_ticks = ticks_from_0;
	assert_in_range(rations(), 7, 9);
	vs_vmm_ticks = ticks;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_small_ones_then_a_large_one, fresh),
		cmocka_unit_test_setup(test_dead_then_a_large_one, fresh),
		cmocka_unit_test_setup(
			test_freed_in_a_capture_then_a_context_dies, fresh),
		cmocka_unit_test_setup(
			test_a_stream_that_is_gone_ends_no_later_capture,
			fresh),
		cmocka_unit_test_setup(test_an_epoch_without_a_marker, fresh),
		cmocka_unit_test_setup(
			test_frees_beside_a_capture_wait_now_and_then, fresh),
		cmocka_unit_test_setup(test_a_thread_ends_that_captures, fresh),
		cmocka_unit_test_setup(test_threads_that_end_beside_a_capture,
				       fresh),
		cmocka_unit_test_setup(test_threads_that_end_without_markers,
				       fresh_old),
		cmocka_unit_test_setup(test_no_room_for_a_barrier, fresh_old),
		cmocka_unit_test_setup(test_contexts_that_end_without_markers,
				       fresh_old),
		cmocka_unit_test_setup(test_freed_by_another_thread, fresh),
		cmocka_unit_test_setup(test_the_programs_own_wait, fresh),
		cmocka_unit_test_setup(
			test_frees_leave_the_marker_to_the_next_allocation,
			fresh),
		cmocka_unit_test_setup(test_much_has_a_marker_at_its_free,
				       fresh),
		cmocka_unit_test_setup(test_looks_are_apart, fresh),
		cmocka_unit_test_setup(test_rations_when_ticks_begin_again,
				       fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
