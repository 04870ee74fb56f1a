/* SPDX-License-Identifier: MIT
 *
 * The caches of ended threads on the counting driver: nobody walks them, and
 * what they counted is part of each sum.
 */
#include <pthread.h>
#include <semaphore.h>

#include "driver/vmm.h"
#include "fake_test.h"
#include "pool/ctx.h"
#include "pool/range.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define OTHER_CTX ((CUcontext)0x2000)
#define SIZE ((size_t)4096)

enum { N = 50, PAIRS = 20 };

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_vmm_pause = let_others;
	return 0;
}

/* How many a miss walks. */
static int count_walked(void)
{
	int n = 0;

	VS_EACH_TCACHE (tc, vs_pool_of(0))
		n++;
	return n;
}

static int count_made(void)
{
	int n = 0;

	VS_EVERY_TCACHE (tc, vs_pool_of(0))
		n++;
	return n;
}

struct sums {
	uint64_t asked, given, blocks, allocs, handed;
};

static struct sums sums_of(struct vs_pool *pool)
{
	struct sums s;

	pthread_mutex_lock(&pool->lock);
	s.handed = pool->census.alloc_spans;
	vs_range_live(pool, &s.asked, &s.given, &s.blocks);
	s.allocs = vs_range_allocs(pool);
	VS_EACH_TCACHE (tc, pool)
		s.handed += vs_stat_get(tc, alloc_spans);
	pthread_mutex_unlock(&pool->lock);
	return s;
}

/* So many objects are live, and so many were handed out. */
static void check_sums(uint64_t n_live, uint64_t n_allocs)
{
	struct vs_pool *pool = vs_pool_of(0);
	struct sums s = sums_of(pool), t;

	assert_int_equal(s.asked, n_live * SIZE);
	assert_int_equal(s.given, n_live * SIZE);
	assert_int_equal(s.blocks, n_live);
	assert_int_equal(s.allocs, n_allocs);
	assert_int_equal(s.handed, n_allocs * SIZE);
	t.allocs = vs_range_live_unlocked(pool, &t.asked, &t.given, &t.blocks);
	assert_int_equal(t.asked, s.asked);
	assert_int_equal(t.given, s.given);
	assert_int_equal(t.blocks, s.blocks);
	assert_int_equal(t.allocs, s.allocs);
}

static sem_t has_taken, may_end;

static void *take_and_stay(void *p_out)
{
	*(CUdeviceptr *)p_out = take(SIZE);
	sem_post(&has_taken);
	sem_wait(&may_end);
	return NULL;
}

/* Threads that are alive at once. */
static void begin(pthread_t *threads, CUdeviceptr *p, int n)
{
	sem_init(&has_taken, 0, 0);
	sem_init(&may_end, 0, 0);
	for (int i = 0; i < n; i++) {
		pthread_create(&threads[i], NULL, take_and_stay, &p[i]);
		sem_wait(&has_taken);
	}
}

static void end(pthread_t *threads, int n)
{
	for (int i = 0; i < n; i++)
		sem_post(&may_end);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

static void test_caches_that_nobody_walks(void **state)
{
	CUdeviceptr first = take(SIZE), p[2 * N];
	pthread_t threads[N];

	(void)state;
	begin(threads, p, N);
	assert_int_equal(count_walked(), N + 1);
	check_sums(N + 1, N + 1);
	end(threads, N);
	assert_int_equal(count_walked(), 1);
	check_sums(N + 1, N + 1);
	/* those that begin have the caches of who ended */
	begin(threads, p + N, N);
	assert_int_equal(count_walked(), N + 1);
	assert_int_equal(count_made(), N + 1);
	check_sums(2 * N + 1, 2 * N + 1);
	/* so that this one's counters are below zero */
	for (int i = 0; i < 2 * N; i++)
		give(p[i]);
	check_sums(1, 2 * N + 1);
	end(threads, N);
	assert_int_equal(count_walked(), 1);
	check_sums(1, 2 * N + 1);
	give(first);
	check_sums(0, 2 * N + 1);
}

static void *only_free(void *p)
{
	give(*(CUdeviceptr *)p);
	return NULL;
}

static void *only_begin(void *unused)
{
	vs_thread_self();
	return unused;
}

/* A thread that allocates nothing, or not at all uses what it got. */
static void test_who_takes_nothing(void **state)
{
	CUdeviceptr p = take(SIZE), q;
	pthread_t thread;

	(void)state;
	begin(&thread, &q, 1);
	end(&thread, 1);
	for (int i = 0; i < 2; i++)
		in_a_thread(only_begin, NULL);
	check_sums(2, 2);
	in_a_thread(only_free, &p);
	in_a_thread(only_begin, NULL);
	check_sums(1, 2);
	in_a_thread(only_free, &q);
	assert_int_equal(count_made(), 2);
	assert_int_equal(count_walked(), 1);
	check_sums(0, 2);
}

/* The cache of one context serves the next thread's under another. */
static void test_one_cache_for_several_contexts(void **state)
{
	CUdeviceptr p = take(SIZE), q[4];
	pthread_t thread;

	(void)state;
	for (int i = 0; i < 4; i++) {
		fake.current = i % 2 ? FAKE_CTX : OTHER_CTX;
		begin(&thread, &q[i], 1);
		assert_ptr_equal(vs_slab_at(vs_pool_of(0), q[i])->ctx,
				 vs_ctx_peek(fake.current));
		end(&thread, 1);
	}
	assert_int_equal(count_made(), 2);
	check_sums(5, 5);
	give(p);
	for (int i = 0; i < 4; i++)
		give(q[i]);
	check_sums(0, 5);
}

static int count_cached(const struct vs_tcache *tc)
{
	int n = 0;

	for (int c = 0; c < VS_N_CLASSES; c++) {
		if (tc->bin[c].idle)
			n += (int)(tc->bin[c].idle->n + tc->bin[c].freed->n);
	}
	return n;
}

/* Between the beginning of a context's end and the flush of its caches. */
static void *stay_while_its_context_dies(void *tc_out)
{
	struct vs_tcache *tc;

	do {
		take(512);
		tc = vs_thread_self()->cache;
	} while (count_cached(tc) == 0);
	vs_ctx_bury(vs_ctx_peek(FAKE_CTX));
	*(struct vs_tcache **)tc_out = tc;
	return NULL;
}

static void test_nothing_of_a_dying_context(void **state)
{
	struct vs_ctx *dying;
	struct vs_tcache *tc;
	struct vs_pool *pool;
	CUdeviceptr p;

	(void)state;
	give(take(SIZE));
	dying = vs_ctx_peek(FAKE_CTX);
	in_a_thread(stay_while_its_context_dies, &tc);
	assert_int_equal(count_cached(tc), 0);
	pool = vs_pool_of(0);
	vs_tcache_drop_ctx(pool, dying);
	vs_range_drop_ctx(pool, dying);
	fake.current = OTHER_CTX;
	for (int i = 0; i < N; i++) {
		pthread_t thread;

		begin(&thread, &p, 1);
		end(&thread, 1);
		assert_ptr_equal(vs_slab_at(pool, p)->ctx,
				 vs_ctx_peek(OTHER_CTX));
	}
}

enum { N_PARENTS = 4, N_CHILDREN = 250, N_KEPT = 20 };

static _Atomic int n_parents;

static void *pairs_and_one_more(void *p_out)
{
	for (int i = 0; i < PAIRS; i++)
		give(take(SIZE));
	*(CUdeviceptr *)p_out = take(SIZE);
	return NULL;
}

/* Children leave one object each, which goes when they have ended. */
static void *have_children(void *unused)
{
	CUdeviceptr p;

	for (int i = 0; i < N_CHILDREN; i++) {
		in_a_thread(pairs_and_one_more, &p);
		give(p);
	}
	atomic_fetch_sub(&n_parents, 1);
	return unused;
}

/*
 * A parent and its child have one object at most, but by their caches' counters
 * ever more and less than none. Who holds the lock never sees that.
 */
static void test_sums_while_threads_come_and_go(void **state)
{
	uint64_t allocs = 0, unlocked = 0, n, asked, given, blocks;
	pthread_t parents[N_PARENTS];
	struct vs_pool *pool;
	CUdeviceptr kept[N_KEPT];
	struct sums s;

	(void)state;
	for (int i = 0; i < N_KEPT; i++)
		kept[i] = take(SIZE);
	pool = vs_pool_of(0);
	atomic_store(&n_parents, N_PARENTS);
	for (int i = 0; i < N_PARENTS; i++)
		pthread_create(&parents[i], NULL, have_children, NULL);
	while (atomic_load(&n_parents) > 0) {
		s = sums_of(pool);
		assert_in_range(s.asked, N_KEPT * SIZE,
				(N_KEPT + N_PARENTS) * SIZE);
		assert_in_range(s.given, N_KEPT * SIZE,
				(N_KEPT + N_PARENTS) * SIZE);
		assert_true(s.allocs >= allocs);
		allocs = s.allocs;
		n = vs_range_live_unlocked(pool, &asked, &given, &blocks);
		assert_true(n >= unlocked);
		unlocked = n;
	}
	for (int i = 0; i < N_PARENTS; i++)
		pthread_join(parents[i], NULL);
	assert_int_equal(count_walked(), 1);
	check_sums(N_KEPT,
		   N_KEPT + N_PARENTS * N_CHILDREN * (uint64_t)(PAIRS + 1));
	for (int i = 0; i < N_KEPT; i++)
		give(kept[i]);
}

/* Of another thread, between the sum of all caches and a look at the misses. */
static void test_a_miss_while_hits_are_counted(void **state)
{
	CUdeviceptr p = take(SIZE);
	struct vs_stats *stats = &vs_pool_of(0)->stats;

	(void)state;
	vs_stat_add(stats, small_miss, 1);
	vs_pool_refresh(0);
	assert_int_equal(vs_stat_get(stats, small_hit), 0);
	give(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_caches_that_nobody_walks, fresh),
		cmocka_unit_test_setup(test_who_takes_nothing, fresh),
		cmocka_unit_test_setup(test_one_cache_for_several_contexts,
				       fresh),
		cmocka_unit_test_setup(test_nothing_of_a_dying_context, fresh),
		cmocka_unit_test_setup(test_sums_while_threads_come_and_go,
				       fresh),
		cmocka_unit_test_setup(test_a_miss_while_hits_are_counted,
				       fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
