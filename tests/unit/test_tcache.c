/* SPDX-License-Identifier: MIT
 *
 * The thread caches on the counting driver: whose markers serve a thread that
 * allocates and frees in a loop, and how it waits for a trim. What they hold:
 * test_hoard.
 */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "pool/range.h"
#include "pool/state.h"
#include "pool/tcache.h"
#include "pool/trouble.h"
#include "tcache_test.h"

/* p are live, nothing is in the thread's bin but what is idle, N fit in. */
static void take_all(CUdeviceptr p[N])
{
	struct vs_tcache *tc = vs_thread_self()->cache;

	vs_tcache_flush(tc->pool);
	for (int i = 0; i < N; i++)
		p[i] = take(MiB);
	tc->bin[vs_class_of(MiB)].cap = N;
}

static bool is_in(CUdeviceptr p, const CUdeviceptr *list, int n)
{
	for (int i = 0; i < n; i++) {
		if (list[i] == p)
			return true;
	}
	return false;
}

static void test_marker_of_another_thread_serves(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr p[N], more[4 * N];
	unsigned long records;
	int n = 0;

	(void)state;
	warm_up();
	pool = vs_pool_of(0);
	take_all(p);
	for (int i = 0; i < N / 2; i++)
		give(p[i]);
	/* as another thread would */
	assert_true(vs_fence_record(&pool->fence));
	for (int i = N / 2; i < N - 1; i++)
		give(p[i]);
	records = fake.records;
	do
		more[n] = take(MiB);
	while (!is_in(more[n], p, N / 2) && ++n < 4 * N);
	assert_in_range(n, 0, 4 * N - 1);
	assert_int_equal(fake.records, records);
}

static void test_not_before_it_is_complete(void **state)
{
	struct vs_pool *pool;
	CUdeviceptr p[N];

	(void)state;
	warm_up();
	pool = vs_pool_of(0);
	take_all(p);
	fake.lag_ns = (uint64_t)1 << 40;
	for (int i = 0; i < N / 2; i++)
		give(p[i]);
	assert_true(vs_fence_record(&pool->fence));
	for (int i = N / 2; i < N; i++)
		give(p[i]);
	for (int i = 0; i < 4 * N; i++)
		assert_false(is_in(take(MiB), p, N));
}

/* Nor what comes after a batch of which a part was complete. */
static void test_nor_behind_a_batch_that_is_full(void **state)
{
	struct vs_tcache *tc;
	struct vs_pool *pool;
	struct vs_bin *bin;
	CUdeviceptr p[N], last;

	(void)state;
	warm_up();
	pool = vs_pool_of(0);
	last = take(MiB);
	take_all(p);
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(MiB)];
	fake.lag_ns = MS;
	for (int i = 0; i < N / 2; i++)
		give(p[i]);
	assert_true(vs_fence_record(&pool->fence));
	fake.lag_ns = (uint64_t)1 << 40;
	for (int i = N / 2; i < N; i++)
		give(p[i]);
	assert_int_equal(bin->freed->n, bin->cap);
	give(last);
	assert_int_equal(bin->freed->n, 1);
	fake.now += MS;
	assert_true(vs_fence_poll(&pool->fence));
	for (int i = 0; i < 4 * N; i++)
		assert_int_not_equal(take(MiB), last);
}

#define OTHER_CTX ((CUcontext)0x2000)

/* That of another device's pool is none of this one's. */
static void test_a_cache_stays_with_its_pool(void **state)
{
	(void)state;
	vs_pool_ctx_born(OTHER_CTX, 1);
	fake.current = OTHER_CTX;
	give(take(512));
	assert_non_null(vs_pool_of(1));
	end_ctx(OTHER_CTX);
	fake.current = FAKE_CTX;
	give(take(512));
	assert_int_not_equal(vs_tcache_flush(vs_pool_of(0)), 0);
}

/* Where there are no markers; while a thread is short none goes by a cache. */
static void test_frees_past_the_caches_wait_too(void **state)
{
	enum { MANY = 64 };
	CUdeviceptr p[MANY];
	struct vs_pool *pool;

	(void)state;
	make_driver_old();
	for (int i = 0; i < MANY; i++)
		p[i] = take(MiB);
	pool = vs_pool_of(0);
	atomic_store(&pool->n_short, 1);
	vs_trouble_beware(pool);
	for (int i = 0; i < MANY; i++) {
		give(p[i]);
		assert_in_range(pool->bare_bytes, 0, 20 * MiB);
	}
	atomic_store(&pool->n_short, 0);
	assert_in_range(vs_stat_get(stats(), waits), 1, MANY / 8);
}

static void test_one_marker_for_many(void **state)
{
	struct vs_pool *pool;
	unsigned long records;
	uint64_t tag;

	(void)state;
	warm_up();
	pool = vs_pool_of(0);
	tag = vs_fence_tag(&pool->fence);
	records = fake.records;
	assert_true(vs_fence_cover(&pool->fence, tag));
	assert_true(vs_fence_cover(&pool->fence, tag));
	assert_int_equal(fake.records, records + 1);
}

static void test_markers_a_pair(void **state)
{
	unsigned long records;
	uint64_t held;

	(void)state;
	warm_up();
	held = fake.held;
	records = fake.records;
	work(PAIRS);
	assert_in_range(fake.records - records, 1, PAIRS / 5);
	assert_int_equal(fake.held, held);
}

/* More memory, so that a marker serves more, where it is most of the cost. */
static void test_markers_a_pair_of_a_loop(void **state)
{
	(void)state;
	warm_up();
	loop(1000, 0);
	assert_in_range(loop(PAIRS, 0), 1, PAIRS / 55);
	assert_in_range(fake.held, 0, 80 * MiB);
}

/* As where a pair takes 0.15 us, and a marker, for ten of them, 3. */
static void test_markers_of_a_slow_loop(void **state)
{
	(void)state;
	warm_up();
	loop(1000, 1200);
	assert_in_range(loop(PAIRS, 1200), 1, PAIRS / 50);
}

/* It has a part of a batch, and the pool has others to spare. */
static void test_no_more_than_a_batch_in_a_loop(void **state)
{
	CUdeviceptr p[128];
	struct vs_tcache *tc;
	struct vs_bin *bin;

	(void)state;
	for (int i = 0; i < 128; i++)
		p[i] = take(MiB);
	for (int i = 0; i < 128; i++)
		give(p[i]);
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(MiB)];
	loop(1000, 0);
	vs_tcache_flush(tc->pool);
	bin->cap = 64;
	for (int i = 0; i < 64; i++)
		p[i] = take(MiB);
	assert_int_equal(bin->idle->n, 0);
	for (int i = 0; i < 30; i++)
		give(p[i]);
	for (int i = 0; i < PAIRS; i++) {
		loop(1, 0);
		assert_in_range(bin->idle->n + bin->freed->n, 1, 64);
	}
}

struct caps {
	unsigned soon, late; /* objects a batch may hold, after some turns */
};

static void *turn(void *caps_out)
{
	struct caps *caps = caps_out;
	struct vs_tcache *tc;
	struct vs_bin *bin;

	warm_up();
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(MiB)];
	caps->soon = bin->cap;
	for (int i = 0; i < 60; i++)
		warm_up();
	caps->late = bin->cap;
	return NULL;
}

static void test_larger_batches_in_a_crowd(void **state)
{
	struct caps alone, crowded;
	struct vs_fence *f;
	pthread_t thread;
	uint64_t before;

	(void)state;
	turn(&alone);
	f = &vs_pool_of(0)->fence;
	before = f->crowded;
	pthread_mutex_lock(&f->lock);
	assert_int_equal(pthread_create(&thread, NULL, turn, &crowded), 0);
	while (f->crowded == before)
		sched_yield();
	pthread_mutex_unlock(&f->lock);
	pthread_join(thread, NULL);
	assert_int_equal(alone.soon, alone.late);
	assert_true(crowded.soon > alone.soon);
	assert_int_equal(crowded.late, alone.late);
}

static struct vs_tcache *held;
static unsigned n_pauses;

/* Who holds the cache gets to run when this thread sleeps, not before. */
static void let_go_late(unsigned round)
{
	assert_int_equal(round, n_pauses++);
	if (round == 1000)
		atomic_store(&held->spin, 0);
}

static void test_pauses_for_a_trim(void **state)
{
	void (*saved)(unsigned) = vs_vmm_pause;

	(void)state;
	warm_up();
	held = vs_thread_self()->cache;
	n_pauses = 0;
	vs_vmm_pause = let_go_late;
	atomic_store(&held->spin, 1);
	alarm(60); /* for one that only yields */
	take(MiB);
	alarm(0);
	vs_vmm_pause = saved;
	assert_int_equal(n_pauses, 1001);
}

/* Another thread destroys a context of which this one has objects cached. */
static void test_cache_of_a_dying_context(void **state)
{
	struct vs_ctx *dying, *other;
	struct vs_pool *pool;

	(void)state;
	do
		take(512);
	while (((struct vs_tcache *)vs_thread_self()->cache)
		       ->bin[vs_class_of(512)]
		       .idle->n == 0);
	pool = vs_pool_of(0);
	dying = vs_ctx_peek(FAKE_CTX);
	/* it has come so far and waits for a lock */
	vs_ctx_bury(dying);
	fake.current = (CUcontext)0x2000;
	other = vs_ctx_get(fake.current);
	for (int i = 0; i < N; i++)
		assert_ptr_equal(vs_slab_at(pool, take(512))->ctx, other);
	vs_tcache_drop_ctx(pool, dying);
	vs_range_drop_ctx(pool, dying);
	for (int i = 0; i < 100; i++)
		assert_ptr_equal(vs_slab_at(pool, take(512))->ctx, other);
}

/*
 * All is in use, and of each slab an object was freed: no slab can be made, but
 * there are objects when their work is complete.
 */
static void test_what_came_back_while_it_waited(void **state)
{
	static CUdeviceptr p[30000];
	const size_t size = 40000;
	unsigned n = 0, n_back = 0;

	(void)state;
	fresh_driver((uint64_t)1 << 30);
	while (vs_pool_alloc(size, &p[n]) == CUDA_SUCCESS)
		n++;
	vs_tcache_flush(vs_pool_by_index(0));
	fake.lag_ns = 1000000000;
	for (unsigned i = 0; i < n; i += 20, n_back++)
		give(p[i]);
	for (unsigned i = 0; i < n_back; i++)
		take(size);
	assert_int_not_equal(vs_pool_alloc(size, &p[0]), CUDA_SUCCESS);
}

/*
 * A reader that loses its processor between two threads' counters misses what
 * one handed out, and not what the other took back.
 */
static void test_sum_of_counters_that_go_on(void **state)
{
	CUdeviceptr p = take(MiB);
	struct vs_tcache *tc = vs_thread_self()->cache;
	struct vs_pool *pool = vs_pool_of(0);
	const struct vs_stats *stats = &pool->stats;
	uint64_t before = pool->need;

	(void)state;
	for (int sign = -1; sign <= 1; sign += 2) {
		uint64_t miss = (uint64_t)sign << 40;

		vs_stat_bump(tc, live_bytes, miss);
		vs_stat_bump(tc, live_spans, miss);
		vs_stat_bump(tc, allocs, miss);
		give(take(32 * MiB));
		vs_pool_refresh(0);
		assert_in_range(vs_stat_get(stats, live), 0, pool->slab_bytes);
		assert_in_range(vs_stat_get(stats, blocks), 0,
				pool->slab_bytes / 512);
		assert_in_range(vs_range_slack(pool), 0, pool->slab_bytes);
		vs_stat_bump(tc, live_bytes, -miss);
		vs_stat_bump(tc, live_spans, -miss);
		vs_stat_bump(tc, allocs, -miss);
	}
	assert_in_range(pool->need, before,
			before + 32 * MiB + pool->slab_bytes);
	give(p);
}

/* A batch that threads gave back, and that is done, is a hoard as well. */
static void test_one_at_a_time_while_memory_is_short(void **state)
{
	struct vs_bin *bin;
	struct vs_tcache *tc;
	CUdeviceptr p[N], q[N];

	(void)state;
	warm_up();
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(MiB)];
	take_all(p);
	for (int i = 0; i < N; i++)
		give(p[i]);
	vs_tcache_flush(tc->pool);
	vs_fence_record(&tc->pool->fence);
	fake.now += MS;
	assert_true(vs_fence_poll(&tc->pool->fence));
	atomic_store(&tc->pool->n_short, 1);
	for (int i = 0; i < N; i++) {
		q[i] = take(MiB);
		assert_true(is_in(q[i], p, N));
		assert_int_equal(bin->idle->n, 0);
	}
	atomic_store(&tc->pool->n_short, 0);
}

/*
 * Every other object of a full device is live, so no slab can be had: smaller
 * ones are served by what is free all the same, and the driver is not asked for
 * more before each of them.
 */
static void test_larger_ones_of_a_full_device(void **state)
{
	static CUdeviceptr p[1024];
	uint64_t asked, given, blocks;
	unsigned long refused;
	size_t n = 0;

	(void)state;
	fresh_driver(64 * MiB);
	while (n < 1024 && vs_pool_alloc(128 * KiB, &p[n]) == CUDA_SUCCESS)
		n++;
	assert_int_equal(n, 64 * MiB / (128 * KiB));
	for (size_t i = 0; i < n; i += 2)
		give(p[i]);
	refused = fake.refused;
	for (size_t i = 0; i < n; i += 2)
		p[i] = take(100 * KiB);
	assert_in_range(fake.refused - refused, 1, 8);
	assert_int_equal(stats()->live, n / 2 * 228 * KiB);
	for (size_t i = 0; i < n; i++)
		give(p[i]);
	vs_range_live(vs_pool_of(0), &asked, &given, &blocks);
	assert_int_equal(asked, 0);
	assert_int_equal(given, 0);
	assert_int_equal(blocks, 0);
	/* nor do small ones have them when slabs can be had again */
	for (size_t i = 0; i < n; i++)
		take(4 * KiB);
	while (n < 992 && vs_pool_alloc(128 * KiB, &p[n]) == CUDA_SUCCESS)
		n++;
	assert_int_equal(n, 992);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(marker_of_another_thread_serves),
		T(not_before_it_is_complete),
		T(nor_behind_a_batch_that_is_full),
		T(a_cache_stays_with_its_pool),
		T(frees_past_the_caches_wait_too),
		T(one_marker_for_many),
		T(markers_a_pair),
		T(markers_a_pair_of_a_loop),
		T(markers_of_a_slow_loop),
		T(no_more_than_a_batch_in_a_loop),
		T(larger_batches_in_a_crowd),
		T(pauses_for_a_trim),
		T(cache_of_a_dying_context),
		T(what_came_back_while_it_waited),
		T(sum_of_counters_that_go_on),
		T(one_at_a_time_while_memory_is_short),
		T(larger_ones_of_a_full_device),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
