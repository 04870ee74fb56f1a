/* SPDX-License-Identifier: MIT
 *
 * Requests for more than there is, by programs that try how much there is, on
 * the counting driver (fake.h): Note [Too much] in pool/greed.h.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "fake_test.h"
#include "pool/greed.h"
#include "pool/mark.h"
#include "pool/tcache.h"

#define BLOCK (256 * MiB)

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* So much is live, in blocks, and a fifth of that idle, whose work is done. */
static void fill(uint64_t live)
{
	static CUdeviceptr spare[512];
	size_t n = live / BLOCK / 5;

	for (uint64_t had = 0; had < live; had += BLOCK)
		take(BLOCK);
	for (size_t i = 0; i < n; i++)
		spare[i] = take(BLOCK);
	for (size_t i = 0; i < n; i++)
		give(spare[i]);
	fake.now += MS;
	vs_pool_synchronized();
}

static void is_refused(uint64_t size)
{
	CUdeviceptr p;

	assert_int_equal(vs_pool_alloc(size, &p), CUDA_ERROR_OUT_OF_MEMORY);
}

/* What the driver was asked for, but creates that it refused. */
static unsigned long calls(void)
{
	return fake.creates + fake.releases + fake.maps + fake.unmaps +
	       fake.accesses;
}

static void test_more_than_the_live_leave(void **state)
{
	unsigned long before, refused;

	(void)state;
	fill(60 * GiB);
	before = calls();
	refused = fake.refused;
	for (uint64_t size = 139 * GiB; size > 80 * GiB; size -= GiB)
		is_refused(size);
	assert_int_equal(calls(), before);
	assert_int_equal(fake.refused, refused);
	/* as if it had been */
	assert_true(vs_mark_is_scarce(vs_pool_of(0)));
	take(70 * GiB);
}

static void test_more_than_a_limit(void **state)
{
	unsigned long before;

	(void)state;
	vs_knobs.memory_limit.value = 100 * GiB;
	vs_knobs.memory_limit.is_given = true;
	fill(50 * GiB);
	before = calls();
	for (uint64_t size = 100 * GiB; size > 51 * GiB; size -= GiB)
		is_refused(size);
	assert_int_equal(calls(), before);
	assert_false(vs_mark_is_scarce(vs_pool_of(0)));
	take(48 * GiB);
}

/* Nobody tells before the driver has no more, but once is enough. */
static void test_more_than_others_leave(void **state)
{
	unsigned long before;
	uint64_t held;

	(void)state;
	fake.others = 40 * GiB;
	fill(50 * GiB);
	held = fake.held;
	is_refused(60 * GiB);
	assert_int_equal(fake.held, held);
	before = calls();
	for (uint64_t size = 60 * GiB; size > 50 * GiB; size -= GiB)
		is_refused(size);
	assert_int_equal(calls(), before);
	assert_int_equal(fake.held, held);
	take(45 * GiB);
}

/* Nor for ever: others may have gone. */
static void test_others_go(void **state)
{
	(void)state;
	fake.others = 40 * GiB;
	fill(50 * GiB);
	is_refused(60 * GiB);
	is_refused(60 * GiB);
	fake.others = 0;
	take(60 * GiB);
}

static CUresult CUDAAPI all_is_used(size_t *unused_out, size_t *total_out)
{
	*unused_out = 0;
	*total_out = fake.memory;
	return CUDA_SUCCESS;
}

/* As where managed memory lies on the device. */
static void test_the_driver_has_more_than_it_says(void **state)
{
	(void)state;
	fake.others = 40 * GiB;
	fill(50 * GiB);
	is_refused(60 * GiB);
	vs_real.cuMemGetInfo_v2 = all_is_used;
	take(45 * GiB);
}

/* What is pending is waited for as ever. */
static void test_what_is_pending_is_enough(void **state)
{
	CUdeviceptr p;

	(void)state;
	fake.others = 40 * GiB;
	fake.lag_ns = 500 * MS;
	fill(20 * GiB);
	p = take(60 * GiB);
	is_refused(30 * GiB);
	give(p);
	take(70 * GiB);
}

/*
 * Caches of two threads, of which one takes back what the other handed out. The
 * sum of all comes first to that which was entered last, and takes its time.
 */
#define PASSED (16 * MiB)
static struct vs_tcache giver, between[100], taker;
static _Atomic bool is_over;

static void *pass_on(void *unused)
{
	(void)unused;
	while (!atomic_load(&is_over)) {
		vs_stat_bump(&giver, alloc_spans, PASSED);
		vs_stat_bump(&giver, live_bytes, PASSED);
		vs_stat_bump(&giver, live_spans, PASSED);
		atomic_thread_fence(memory_order_seq_cst);
		vs_stat_bump(&taker, live_bytes, -PASSED);
		vs_stat_bump(&taker, live_spans, -PASSED);
		atomic_thread_fence(memory_order_seq_cst);
	}
	return NULL;
}

/* Small objects are no more than that, however often they change hands. */
static void test_what_changes_hands_meanwhile(void **state)
{
	enum { OBJECTS = 512, LOOKS = 50000 };
	static CUdeviceptr p[OBJECTS];
	struct vs_pool *pool;
	pthread_t thread;

	(void)state;
	fake_install(GiB);
	/* there are slabs for more */
	for (int i = 0; i < OBJECTS; i++)
		p[i] = take(MiB);
	for (int i = 0; i < OBJECTS; i++)
		give(p[i]);
	pool = vs_pool_of(0);
	pthread_mutex_lock(&pool->lock);
	vs_census_enter(&pool->census, &giver);
	for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++)
		vs_census_enter(&pool->census, &between[i]);
	vs_census_enter(&pool->census, &taker);
	/* as it may have been added up */
	pool->small_bytes = OBJECTS * MiB;
	pthread_mutex_unlock(&pool->lock);
	assert_int_equal(pthread_create(&thread, NULL, pass_on, NULL), 0);
	for (int i = 0; i < LOOKS; i++) {
		assert_false(vs_greed_is_beyond_all(pool, GiB));
		assert_true(vs_mark_lacking(pool, GiB) == 0);
	}
	atomic_store(&is_over, true);
	pthread_join(thread, NULL);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(more_than_the_live_leave),
		T(more_than_a_limit),
		T(more_than_others_leave),
		T(others_go),
		T(the_driver_has_more_than_it_says),
		T(what_is_pending_is_enough),
		T(what_changes_hands_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
