/* SPDX-License-Identifier: MIT
 *
 * Host memory runs out, on the counting driver: each allocation of base/meta
 * fails in turn, once or from then on. What was begun is undone, and once there
 * is memory again all goes on as before.
 */
#include <pthread.h>
#include <time.h>

#include "base/meta.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/share.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define SECOND_CTX ((CUcontext)0x2000)
#define LAG (10 * MS)

/* The linker calls them in place of base/meta's (Makefile.am). */
void *__real_vs_meta_alloc(size_t size);
void *__real_vs_meta_alloc_dirty(size_t size);
void __real_vs_meta_free(void *p, size_t size);
void *__wrap_vs_meta_alloc(size_t size);
void *__wrap_vs_meta_alloc_dirty(size_t size);
void __wrap_vs_meta_free(void *p, size_t size);

static unsigned to_come;  /* so many until one fails; 0: none does */
static bool is_for_good;  /* and all after it */
static size_t least;	  /* of those that fail, in bytes */
static unsigned n_failed; /* so far */
static long n_live;	  /* structures */

static bool is_refused(size_t size)
{
	if (size < least || to_come == 0 || (to_come > 1 && --to_come > 0))
		return false;
	to_come = is_for_good;
	n_failed++;
	return true;
}

void *__wrap_vs_meta_alloc(size_t size)
{
	void *p = is_refused(size) ? NULL : __real_vs_meta_alloc(size);

	n_live += p != NULL;
	return p;
}

void *__wrap_vs_meta_alloc_dirty(size_t size)
{
	void *p = is_refused(size) ? NULL : __real_vs_meta_alloc_dirty(size);

	n_live += p != NULL;
	return p;
}

void __wrap_vs_meta_free(void *p, size_t size)
{
	n_live -= p != NULL;
	__real_vs_meta_free(p, size);
}

/* The n-th from now on fails; 0: none. */
static void refuse(unsigned n, bool and_all_after)
{
	to_come = n;
	is_for_good = and_all_after;
	if (n > 0)
		n_failed = 0;
}

static int fresh(void **state)
{
	(void)state;
	refuse(0, false);
	least = 0;
	n_failed = 0;
	fresh_driver((uint64_t)16 << 30);
	vs_thread_self(); /* its struct is for ever */
	return 0;
}

/* --- allocations -----------------------------------------------------------
 */

/* The pool is as the books say, and nobody holds its locks. */
static void check_pool(void)
{
	struct vs_pool *pool = vs_pool_of(0);

	if (!pool)
		return;
	assert_int_equal(pthread_mutex_trylock(&pool->grow), 0);
	assert_int_equal(pthread_mutex_trylock(&pool->lock), 0);
	pthread_mutex_unlock(&pool->lock);
	pthread_mutex_unlock(&pool->grow);
	heap_check(pool);
}

/* Whether the n-th that a request takes was met. */
static bool try_with(size_t size, unsigned n, bool and_all_after)
{
	const CUdeviceptr untouched = 0x1234;
	CUdeviceptr p = untouched;
	CUresult r;
	bool is_met;

	refuse(n, and_all_after);
	r = vs_pool_alloc(size, &p);
	refuse(0, false);
	is_met = n_failed > 0;
	check_pool();
	if (r == CUDA_SUCCESS)
		give(p);
	else
		assert_int_equal(p, untouched);
	fake.now += MS;
	vs_pool_tick();
	return is_met;
}

/* Structures that nothing knows of any more, and some more: a fixed number. */
static long n_lost(void)
{
	struct vs_pool *pool = vs_pool_of(0);
	long n = n_live;

	if (!pool)
		return n;
	n -= pool->stock.n;
	for (int k = 0; k < VS_N_HEAPS; k++) {
		for (struct vs_range *r = pool->heap[k].first; r; r = r->next)
			n--;
	}
	return n;
}

/* Who fails time and again does not lose some each time. */
static void fail_often(size_t size, unsigned n, bool and_all_after)
{
	enum { ROUNDS = 40 };
	long before = n_lost();

	for (int i = 0; i < ROUNDS; i++) {
		if (!try_with(size, n, and_all_after))
			return;
	}
	assert_true(n_lost() - before < ROUNDS / 2);
}

/* A device for which none could be made is the driver's from then on. */
static void go_on(size_t size)
{
	CUdeviceptr p;
	CUresult r = vs_pool_alloc(size, &p);

	assert_int_equal(r, vs_pool_count() > 0 ? CUDA_SUCCESS : VS_PASS);
	if (r == CUDA_SUCCESS)
		give(p);
	check_pool();
}

/* Structures that there are more of when all of it is over. */
static long lost_by(void (*prepare)(void), size_t size, unsigned n,
		    bool and_all_after)
{
	long before;

	fresh(NULL);
	before = n_live;
	prepare();
	try_with(size, n, and_all_after);
	go_on(size);
	end_ctx(FAKE_CTX);
	assert_int_equal(fake.held, 0);
	return n_lost() - before;
}

/* A request behind which the pool has to do what `prepare` makes it do. */
static void fail_each(void (*prepare)(void), size_t size)
{
	for (int all = 0; all < 2; all++) {
		long lost, most = 0;
		unsigned n = 1;

		while (lost = lost_by(prepare, size, n, all), n_failed > 0) {
			most = lost > most ? lost : most;
			fresh(NULL);
			prepare();
			fail_often(size, n++, all);
		}
		assert_true(n > 1);
		/* no more than without a failure */
		assert_true(most <= lost);
	}
}

static void nothing(void)
{
}

/* In the pool's first pieces; the pool is there. */
static void begin(void)
{
	give(take(512));
	give(take(2 * MiB));
	vs_pool_trim();
}

static void test_a_first_one(void **state)
{
	(void)state;
	fail_each(nothing, 64 * MiB);
	fail_each(nothing, 1000);
}

static void test_new_chunks(void **state)
{
	(void)state;
	fail_each(begin, 64 * MiB);
	fail_each(begin, 700 * MiB);
}

static void test_a_slab(void **state)
{
	(void)state;
	fail_each(begin, 512);
	fail_each(begin, 100 * KiB);
}

/* Whole chunks and parts of others are idle; there may be no new ones. */
static void scatter(void)
{
	CUdeviceptr p[24];

	vs_knobs.chunk_size.value = 16 * MiB;
	vs_knobs.memory_limit.value = 24 * 24 * MiB;
	for (int i = 0; i < 24; i++)
		p[i] = take(24 * MiB);
	for (int i = 0; i < 24; i++) {
		if (i % 3 != 1)
			give(p[i]);
	}
}

static void test_chunks_that_move(void **state)
{
	(void)state;
	fail_each(scatter, 56 * MiB);
	fail_each(scatter, 200 * MiB);
}

/* Of another thread, whose cache is yet to hold any of this size. */
static void *free_there(void *argument)
{
	CUdeviceptr *p = argument;

	give(take(512));
	/* it takes two batches; without the second this one waits in its slab
	 */
	refuse(2, false);
	give(p[0]);
	refuse(0, false);
	/* but no other */
	give(p[1]);
	return NULL;
}

/* What a slab takes is there, what a thread keeps its objects in is not. */
static void test_a_slab_for_nobody(void **state)
{
	CUdeviceptr p;

	(void)state;
	begin();
	least = sizeof(struct vs_batch);
	refuse(1, true);
	assert_int_equal(vs_pool_alloc(700 * KiB, &p), VS_PASS);
	refuse(0, false);
	assert_true(n_failed > 0);
	assert_true(fake.held_high < GiB);
	go_on(700 * KiB);
}

/* A slab is dead with the last of its objects, and goes with the next trim. */
static void trim_dead(void)
{
	vs_pool_trim();
	vs_pool_trim();
}

static void test_a_cache_of_one_batch(void **state)
{
	CUdeviceptr p[2] = {take(5000), take(5000)};
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, free_there, p), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(n_failed, 1);
	trim_dead();
	assert_int_equal(fake.held, 0);
	check_pool();
}

/* Two, fewer than a cache hands over. */
static void *free_few(void *argument)
{
	CUdeviceptr *p = argument;

	give(p[0]);
	give(p[1]);
	/* what they would leave it in is not there, nor when the thread ends */
	refuse(1, true);
	vs_pool_trim();
	return NULL;
}

static void test_a_cache_that_is_emptied(void **state)
{
	pthread_t thread;

	(void)state;
	for (int i = 0; i < 2; i++) {
		CUdeviceptr p[2] = {take(5000), take(5000)};

		if (i == 0)
			free_few(p);
		else if (pthread_create(&thread, NULL, free_few, p) ||
			 pthread_join(thread, NULL))
			fail();
		refuse(0, false);
		assert_true(n_failed > 0);
		vs_pool_trim();
		assert_int_equal(fake.held, 0);
		check_pool();
	}
}

/* More than a batch that cannot be handed over, but for room in its page. */
static void test_frees_beyond_a_batch(void **state)
{
	enum { N = 200 };
	CUdeviceptr p[N];

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(5000);
	refuse(1, true);
	for (int i = 0; i < N; i++)
		give(p[i]);
	refuse(0, false);
	assert_true(n_failed > 0);
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	check_pool();
}

/* More than that has room for: they wait in their slabs. */
static void test_frees_beyond_a_page(void **state)
{
	enum { N = VS_BATCH + 50 };
	static CUdeviceptr p[N];
	const struct vs_bin *bin;
	const struct vs_tcache *tc;

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(5000);
	tc = vs_thread_self()->cache;
	bin = &tc->bin[vs_class_of(5000)];
	refuse(1, true);
	for (int i = 0; i < N; i++)
		give(p[i]);
	refuse(0, false);
	assert_int_equal(bin->freed->n, VS_BATCH);
	assert_int_equal(vs_pool_free(p[N - 1]), VS_PASS);
	trim_dead();
	assert_int_equal(bin->freed->n, 0);
	assert_int_equal(fake.held, 0);
	check_pool();
}

static void *free_alone(void *block)
{
	give(*(CUdeviceptr *)block);
	return NULL;
}

/* By a thread that has no cache of that class, and by one without any. */
static void test_frees_without_a_cache(void **state)
{
	enum { N = 600 };
	static CUdeviceptr p[N];
	pthread_t thread;

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(5000);
	vs_pool_trim();
	give(take(100));
	refuse(1, true);
	for (int i = 0; i < N; i++) {
		if (i % 100 > 0)
			give(p[i]);
		else if (pthread_create(&thread, NULL, free_alone, &p[i]) ||
			 pthread_join(thread, NULL))
			fail();
	}
	refuse(0, false);
	assert_true(n_failed > 0);
	trim_dead();
	assert_int_equal(fake.held, 0);
	check_pool();
}

enum { SOME = 60, MOST = 3000 };

static struct {
	CUdeviceptr p[MOST];
	unsigned n;
	uint64_t seed;
} some;

static void *free_some(void *unused)
{
	(void)unused;
	for (int i = 0; i < SOME && some.n > 0; i++) {
		unsigned which = next_random(&some.seed) % some.n;

		give(some.p[which]);
		some.p[which] = some.p[--some.n];
	}
	return NULL;
}

/* Of all sizes, by threads that stay and that end: none keeps memory. */
static void test_frees_at_random(void **state)
{
	enum { ROUNDS = 100, MORE = 200 };
	pthread_t thread;

	(void)state;
	some.seed = (uint64_t)time(NULL);
	print_message("seed %llu\n", (unsigned long long)some.seed);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < MORE && some.n < MOST; i++)
			some.p[some.n++] =
				take(1 + next_random(&some.seed) % (300 * KiB));
		refuse(1 + next_random(&some.seed) % 5,
		       next_random(&some.seed) % 2);
		if (round % 2 == 0)
			free_some(NULL);
		else if (pthread_create(&thread, NULL, free_some, NULL) ||
			 pthread_join(thread, NULL))
			fail();
		if (round % 4 == 0)
			vs_pool_trim();
		refuse(0, false);
	}
	while (some.n > 0)
		give(some.p[--some.n]);
	trim_dead();
	assert_int_equal(fake.held, 0);
	check_pool();
}

/* --- contexts --------------------------------------------------------------
 */

/* One that cannot be noted is the driver's, until it can be. */
static void test_a_context(void **state)
{
	CUdeviceptr p = 0;
	long before;

	(void)state;
	give(take(512));
	for (unsigned n = 1; n < 3; n++) {
		CUcontext ctx = (CUcontext)((uintptr_t)SECOND_CTX * n);

		before = n_live;
		refuse(1, true);
		vs_pool_ctx_born(ctx, 0);
		fake.current = ctx;
		assert_int_equal(vs_pool_alloc(MiB, &p), VS_PASS);
		assert_int_equal(p, 0);
		assert_int_equal(vs_pool_ctx_count(), (int)n);
		end_ctx(ctx);
		refuse(0, false);
		assert_int_equal(n_live, before);
		give(take(MiB));
		assert_int_equal(vs_pool_ctx_count(), (int)n + 1);
	}
}

/* A green one counts as a context of its own then. */
static void test_a_green_one(void **state)
{
	(void)state;
	give(take(512));
	refuse(1, false);
	vs_pool_green_born(SECOND_CTX, FAKE_CTX);
	assert_int_equal(n_failed, 1);
	fake.current = SECOND_CTX;
	give(take(MiB));
	assert_int_equal(vs_pool_ctx_count(), 2);
	/* once there is memory it is not */
	vs_pool_green_born(SECOND_CTX, FAKE_CTX);
	assert_ptr_equal(vs_pool_ctx_owning(SECOND_CTX), FAKE_CTX);
}

static long n_events;
static CUresult(CUDAAPI *create)(CUevent *, unsigned);
static CUresult(CUDAAPI *destroy)(CUevent);

static CUresult CUDAAPI counted_create(CUevent *out, unsigned flags)
{
	n_events++;
	return create(out, flags);
}

static CUresult CUDAAPI wait_for(CUevent event)
{
	while (vs_real.cuEventQuery(event) == CUDA_ERROR_NOT_READY)
		fake.now += MS;
	return CUDA_SUCCESS;
}

static CUresult CUDAAPI counted_destroy(CUevent event)
{
	n_events--;
	return destroy(event);
}

/*
 * All work of many contexts is waited for: one after the other without host
 * memory for the events of all, and not at all without that for their list.
 */
static void test_work_of_many(void **state)
{
	uint64_t began;

	(void)state;
	give(take(512));
	for (uintptr_t i = 1; i <= VS_CTX_FEW; i++)
		vs_pool_ctx_born((CUcontext)(0x10000 * i), 0);
	create = vs_real.cuEventCreate;
	destroy = vs_real.cuEventDestroy_v2;
	vs_real.cuEventCreate = counted_create;
	vs_real.cuEventDestroy_v2 = counted_destroy;
	vs_real.cuEventSynchronize = wait_for;
	fake.lag_ns = LAG;
	for (unsigned n = 0; n < 3; n++) {
		long before = n_live;

		n_events = 0;
		began = fake.now;
		refuse(n, false);
		assert_int_equal(vs_share_settle(1, FAKE_CTX, 60 * LAG),
				 n != 1);
		assert_int_equal(n_failed, n > 0);
		assert_int_equal(n_live, before);
		assert_int_equal(n_events, 0);
		assert_true(n == 1 || fake.now >= began + LAG);
		/* captures can begin */
		begin_capture((CUstream)0x77);
		vs_capture_ended((CUstream)0x77, false);
	}
	/* the last: each in its turn */
	assert_true(fake.now >= began + VS_CTX_FEW * LAG);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(test_##name, fresh)
	const struct CMUnitTest tests[] = {
		T(a_first_one),
		T(new_chunks),
		T(a_slab),
		T(chunks_that_move),
		T(a_cache_of_one_batch),
		T(a_cache_that_is_emptied),
		T(frees_beyond_a_batch),
		T(frees_beyond_a_page),
		T(frees_without_a_cache),
		T(frees_at_random),
		T(a_slab_for_nobody),
		T(a_context),
		T(a_green_one),
		T(work_of_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
