/* SPDX-License-Identifier: MIT
 *
 * Contexts that end, by another thread, while one is in the middle of an
 * allocation or a free under them. What comes later: test_afterwards.
 */
#include <pthread.h>
#include <unistd.h>

#include "driver/real.h"
#include "fake_test.h"
#include "pool/capture.h"
#include "pool/range.h"
#include "pool/reuse.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define OTHER ((CUcontext)0x2000)

static int fresh(void **state)
{
	(void)state;
	fresh_driver(16 * GiB);
	alarm(60); /* for an allocation that never ends */
	return 0;
}

/* The driver's call under which it does. */
static __typeof__(vs_real.cuMemCreate) create;
static struct vs_ctx *ending; /* NULL: it has */
static CUresult answer;

static CUresult CUDAAPI end_beside_create(CUmemGenericAllocationHandle *out,
					  size_t size,
					  const CUmemAllocationProp *prop,
					  unsigned long long flags)
{
	if (ending)
		bury_ctx(ending);
	ending = NULL;
	return answer == CUDA_SUCCESS ? create(out, size, prop, flags) : answer;
}

/* The next memory is asked for, and answered, while the context ends. */
static void end_it_beside_growth(CUresult then)
{
	create = vs_real.cuMemCreate;
	vs_real.cuMemCreate = end_beside_create;
	ending = vs_ctx_peek(FAKE_CTX);
	answer = then;
}

/* Nothing of the pool is in use, and all of it can go back. */
static void expect_all_idle(void)
{
	struct vs_pool *pool = vs_pool_of(0);

	assert_int_equal(vs_stat_get(stats(), live), 0);
	assert_int_equal(vs_stat_get(stats(), blocks), 0);
	assert_int_equal(pool->slab_bytes, 0);
	assert_null(pool->slabs);
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
}

/* A small one needs memory meanwhile, and is answered so. */
static void small_one_beside_growth(CUresult then)
{
	CUdeviceptr p;

	take(512);
	end_it_beside_growth(then);
	assert_int_equal(vs_pool_alloc(MiB, &p), VS_PASS);
	assert_null(ending);
	expect_all_idle();
}

static void test_while_a_small_one_gets_memory(void **state)
{
	(void)state;
	small_one_beside_growth(CUDA_SUCCESS);
}

static void test_while_a_small_one_gets_none(void **state)
{
	(void)state;
	small_one_beside_growth(CUDA_ERROR_OUT_OF_MEMORY);
}

/* It was found alive, and is not when its cache is made, or refilled. */
static void test_before_the_cache_is_used(void **state)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_tcache *tc;
	struct vs_ctx *ctx;

	(void)state;
	take(512);
	tc = t->cache;
	ctx = tc->ctx;
	bury_ctx(ctx);
	assert_false(vs_tcache_refill(tc, vs_class_of(512)));
	assert_false(vs_tcache_refill(tc, vs_class_of(MiB)));
	assert_int_equal(vs_range_slab(tc->pool, ctx, 0), VS_PASS);
	assert_null(vs_tcache_make(t, tc->pool, ctx));
	expect_all_idle();
}

static void test_while_a_large_one_gets_memory(void **state)
{
	CUdeviceptr p;

	(void)state;
	take(512);
	end_it_beside_growth(CUDA_SUCCESS);
	assert_int_equal(vs_pool_alloc(100 * MiB, &p), VS_PASS);
	assert_null(ending);
	expect_all_idle();
}

static void test_before_a_large_one_hits(void **state)
{
	struct vs_ctx *ctx;
	CUdeviceptr p;

	(void)state;
	give(take(100 * MiB));
	ctx = vs_ctx_peek(FAKE_CTX);
	bury_ctx(ctx);
	assert_int_equal(vs_range_alloc(vs_pool_of(0), ctx, 100 * MiB, &p),
			 VS_PASS);
	expect_all_idle();
}

static void test_while_a_guarded_one_gets_memory(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_knobs.guard = true;
	take(512);
	end_it_beside_growth(CUDA_SUCCESS);
	assert_int_equal(vs_pool_alloc(3 * MiB, &p), VS_PASS);
	assert_null(ending);
	expect_all_idle();
}

/* The free of `freed` by a thread that has no cache for its context. */
static CUdeviceptr freed;
static _Atomic bool is_freeing;

static void *free_elsewhere(void *slab)
{
	atomic_store(&is_freeing, true);
	return (void *)(intptr_t)vs_tcache_put_elsewhere(
		vs_pool_of(0), vs_ctx_peek(OTHER), slab, freed);
}

/* Long enough to come to the lock, in most runs. */
static void wait_for_the_free(void)
{
	while (!atomic_load(&is_freeing))
		usleep(100);
	usleep(20000);
}

/*
 * A thread frees an object and waits for the lock; meanwhile its context ends,
 * and the struct of its slab serves another, at another place.
 */
static void test_while_a_free_waits_for_the_lock(void **state)
{
	unsigned class = vs_class_of(512);
	struct vs_slab *slab;
	struct vs_ctx *other;
	struct vs_pool *pool;
	pthread_t thread;
	void *answer_out;

	(void)state;
	freed = take(512);
	pool = vs_pool_of(0);
	slab = vs_slab_at(pool, freed);
	other = vs_ctx_born(OTHER, 0);
	vs_ctx_bury(vs_ctx_peek(FAKE_CTX));
	pthread_mutex_lock(&pool->lock);
	assert_int_equal(pthread_create(&thread, NULL, free_elsewhere, slab),
			 0);
	wait_for_the_free();
	vs_slab_drop_ctx(pool, slab->ctx);
	/* not where it was */
	vs_heap_take(pool, &pool->heap[VS_HEAP_SLABS], vs_slab_span(class),
		     true);
	assert_ptr_equal(
		vs_slab_make(pool, vs_slabs_of(pool, other), class,
			     vs_heap_take(pool, &pool->heap[VS_HEAP_SLABS],
					  vs_slab_span(class), true)),
		slab);
	pthread_mutex_unlock(&pool->lock);
	pthread_join(thread, &answer_out);
	assert_int_equal((intptr_t)answer_out, VS_PASS);
	fake.current = other->handle;
	for (unsigned i = 0; i < slab->n_objects; i++)
		assert_ptr_equal(vs_slab_at(pool, take(512)), slab);
}

/* What one of another context is about to be given was this one's before. */
static void test_memory_in_other_hands(void **state)
{
	struct vs_ctx *ctx;
	struct vs_range *r[2];
	struct vs_pool *pool;

	(void)state;
	take(10 * MiB);
	give(take(20 * MiB));
	pool = vs_pool_of(0);
	ctx = vs_ctx_peek(FAKE_CTX);
	/* as it was freed, and cut out of what is idle */
	r[0] = vs_reuse_take(pool, VS_HEAP_LARGE, 20 * MiB);
	vs_reuse_harvest(pool);
	give(take(30 * MiB));
	vs_fence_barrier(&pool->fence);
	vs_reuse_harvest(pool);
	r[1] = vs_reuse_take(pool, VS_HEAP_LARGE, 16 * MiB);
	bury_ctx(ctx);
	for (int i = 0; i < 2; i++) {
		assert_non_null(r[i]);
		assert_int_equal(r[i]->state, VS_RANGE_LIVE);
	}
	assert_int_equal(vs_stat_get(stats(), blocks), 0);
}

static void expect_pass(void)
{
	CUdeviceptr p;

	assert_int_equal(vs_pool_alloc(512, &p), VS_PASS);
	assert_int_equal(vs_pool_alloc(10 * MiB, &p), VS_PASS);
}

/* The driver answers as if nothing was until its own function has returned. */
static void test_not_born_again_meanwhile(void **state)
{
	struct vs_ctx *gone;

	(void)state;
	take(512);
	gone = vs_pool_ctx_dying(FAKE_CTX);
	assert_non_null(gone);
	expect_pass();
	assert_null(vs_ctx_peek(FAKE_CTX));
	assert_int_equal(vs_pool_ctx_count(), 0);
	expect_all_idle();
	/* and nobody ends it twice */
	assert_null(vs_pool_ctx_dying(FAKE_CTX));
	vs_pool_ctx_gone(gone);
	/* it failed, or somebody retains it */
	give(take(512));
	give(take(10 * MiB));
	assert_int_equal(vs_pool_ctx_count(), 1);
}

/* The same for one that the pool had not seen. */
static void test_not_seen_before_its_end(void **state)
{
	struct vs_ctx *gone;

	(void)state;
	fake.current = OTHER;
	give(take(512));
	for (int i = 0; i < 3; i++) {
		fake.current = FAKE_CTX;
		gone = vs_pool_ctx_dying(FAKE_CTX);
		expect_pass();
		assert_int_equal(vs_pool_ctx_count(), 1);
		vs_pool_ctx_gone(gone);
		fake.current = OTHER;
		give(take(512));
	}
	fake.current = FAKE_CTX;
	give(take(512));
	assert_int_equal(vs_pool_ctx_count(), 2);
}

/* The driver is about to return from the end of one that had this handle. */
static void test_handle_of_an_ending_one(void **state)
{
	struct vs_ctx *gone, *unseen;
	CUdeviceptr p;

	(void)state;
	take(512);
	gone = vs_pool_ctx_dying(FAKE_CTX);
	unseen = vs_pool_ctx_dying(OTHER);
	vs_pool_ctx_born(FAKE_CTX, 0);
	vs_pool_ctx_born(OTHER, 0);
	p = take(512);
	vs_pool_ctx_gone(gone);
	vs_pool_ctx_gone(unseen);
	take(10 * MiB);
	give(p);
	fake.current = OTHER;
	take(512);
	assert_int_equal(vs_pool_ctx_count(), 2);
}

/* A green context is its primary one's, and ends with it. */
static void test_green_one_of_an_ending_one(void **state)
{
	struct vs_ctx *gone;

	(void)state;
	take(512);
	vs_pool_green_born(OTHER, FAKE_CTX);
	fake.current = OTHER;
	take(512);
	gone = vs_pool_ctx_dying(FAKE_CTX);
	expect_pass();
	assert_int_equal(vs_pool_ctx_count(), 0);
	vs_pool_ctx_gone(gone);
	assert_ptr_equal(vs_pool_ctx_owning(OTHER), OTHER);
}

/* Until the driver has destroyed it, it is no context of its own. */
static void test_free_while_a_green_one_goes(void **state)
{
	CUdeviceptr p;

	(void)state;
	p = take(10 * MiB);
	vs_pool_green_born(OTHER, FAKE_CTX);
	vs_pool_green_dying(0);
	fake.current = OTHER;
	give(p);
	assert_int_equal(vs_pool_ctx_count(), 1);
	vs_pool_green_gone(OTHER);
	assert_ptr_equal(vs_pool_ctx_owning(OTHER), OTHER);
}

/* A marker covers its work, and is passed over by no look at later ones. */
static void test_a_green_one_has_a_marker(void **state)
{
	unsigned long records;
	struct vs_fence *f;

	(void)state;
	take(512);
	f = &vs_pool_of(0)->fence;
	vs_pool_green_born(OTHER, FAKE_CTX);
	fake.lag_ns = MS;
	/* be there no room for another: some may be complete */
	for (int i = 0; i <= VS_MARKERS; i++) {
		records = fake.records;
		if (i == VS_MARKERS)
			fake.now += MS;
		vs_pool_green_dying(0);
		assert_int_equal(fake.records, records + 1);
		assert_true(f->ring[(f->tail - 1) % VS_MARKERS].is_kept);
	}
}

/* The driver has destroyed it, and given its handle to another. */
static void test_handle_of_a_green_one(void **state)
{
	(void)state;
	take(512);
	vs_pool_green_born(OTHER, FAKE_CTX);
	fake.current = OTHER;
	take(512);
	vs_pool_ctx_born(OTHER, 0);
	assert_ptr_equal(vs_pool_ctx_owning(OTHER), OTHER);
	give(take(512));
	give(take(10 * MiB));
	assert_int_equal(vs_pool_ctx_count(), 2);
	end_ctx(FAKE_CTX);
	take(512);
}

/* A capture that begins while the end is under way goes with the context. */
static void test_capture_beside_the_end(void **state)
{
	struct vs_ctx *gone;

	(void)state;
	take(512);
	gone = vs_pool_ctx_dying(FAKE_CTX);
	vs_capture_before_begin(NULL);
	vs_capture_after_begin((CUstream)1, false,
			       CU_STREAM_CAPTURE_MODE_RELAXED, true);
	assert_int_equal(vs_capture_count(), 1);
	vs_pool_ctx_gone(gone);
	assert_int_equal(vs_capture_count(), 0);
}

/* Another thread ends the context when the driver has told its device. */
static CUresult CUDAAPI device_and_end(CUdevice *out)
{
	static int n;

	*out = 0;
	if (n++ == 0)
		end_ctx(FAKE_CTX);
	return n == 1 ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void test_end_while_it_is_seen_first(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_real.cuCtxGetDevice = device_and_end;
	assert_int_equal(vs_pool_alloc(512, &p), VS_PASS);
	assert_int_equal(vs_pool_ctx_count(), 0);
}

static struct vs_ctx *used;
static unsigned n_pauses;

static void unuse(unsigned round)
{
	(void)round;
	n_pauses++;
	vs_ctx_unuse(used);
}

/* Who uses it may be in the middle of a driver call. */
static void test_not_before_it_is_out_of_use(void **state)
{
	(void)state;
	take(512);
	used = vs_ctx_peek(FAKE_CTX);
	assert_true(vs_ctx_use(used));
	n_pauses = 0;
	vs_vmm_pause = unuse;
	vs_ctx_bury(used);
	assert_int_equal(n_pauses, 1);
	assert_false(vs_ctx_use(used));
}

/* It was found alive, and has ended when an object is taken. */
static void test_an_allocation_overtaken_by_the_end(void **state)
{
	struct vs_tcache *tc;

	(void)state;
	take(512);
	tc = vs_thread_self()->cache;
	assert_in_range(tc->bin[vs_class_of(512)].idle->n, 1, VS_BATCH);
	assert_non_null(vs_pool_ctx_dying(FAKE_CTX));
	assert_int_equal(vs_tcache_take(tc, 512), 0);
}

static struct vs_slabs *next_stock;

static const struct vs_batch *given_to_the_next(void)
{
	return next_stock->class[vs_class_of(512)].pending;
}

/* The end finds the cache empty; what is freed then is left in it. */
static void *free_beside_the_end(void *unused)
{
	struct vs_pool *pool;
	struct vs_ctx *ctx;

	take(512);
	pool = vs_pool_of(0);
	ctx = vs_ctx_peek(FAKE_CTX);
	give(take(512));
	vs_ctx_bury(ctx);
	vs_range_drop_ctx(pool, ctx);
	vs_pool_ctx_gone(ctx);
	/* the next one's stock may lie where that of the last did */
	next_stock = vs_slabs_of(pool, vs_ctx_get(FAKE_CTX));
	vs_tcache_flush(pool);
	assert_null(given_to_the_next());
	return unused;
}

/* It goes with its context, be it when the thread ends. */
static void test_what_is_left_in_a_cache(void **state)
{
	(void)state;
	in_a_thread(free_beside_the_end, NULL);
	assert_null(given_to_the_next());
	assert_int_equal(vs_stat_get(stats(), blocks), 0);
}

#define GREEN ((CUcontext)0x3000)

/* Of the last that had its handle a thread may remember what it was. */
static void test_a_green_one_is_known_anew(void **state)
{
	(void)state;
	take(512);
	vs_pool_ctx_born(OTHER, 1);
	vs_pool_green_born(GREEN, FAKE_CTX);
	assert_int_equal(vs_pool_ctx_device(GREEN), 0);
	/* its end was not seen */
	vs_pool_green_born(GREEN, OTHER);
	assert_int_equal(vs_pool_ctx_device(GREEN), 1);
	vs_pool_green_gone(GREEN);
	assert_int_not_equal(vs_pool_ctx_device(GREEN), 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(while_a_small_one_gets_memory),
		T(while_a_small_one_gets_none),
		T(before_the_cache_is_used),
		T(while_a_large_one_gets_memory),
		T(before_a_large_one_hits),
		T(while_a_guarded_one_gets_memory),
		T(while_a_free_waits_for_the_lock),
		T(memory_in_other_hands),
		T(not_born_again_meanwhile),
		T(not_seen_before_its_end),
		T(handle_of_an_ending_one),
		T(green_one_of_an_ending_one),
		T(free_while_a_green_one_goes),
		T(a_green_one_has_a_marker),
		T(handle_of_a_green_one),
		T(capture_beside_the_end),
		T(end_while_it_is_seen_first),
		T(not_before_it_is_out_of_use),
		T(an_allocation_overtaken_by_the_end),
		T(what_is_left_in_a_cache),
		T(a_green_one_is_known_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
