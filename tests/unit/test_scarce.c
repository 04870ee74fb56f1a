/* SPDX-License-Identifier: MIT
 *
 * Host memory runs out, on the counting driver: each allocation of base/meta
 * fails in turn, once or from then on. What was begun is undone, and once there
 * is memory again all goes on as before.
 */
#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/share.h"
#include "scarce_test.h"

#define SECOND_CTX ((CUcontext)0x2000)
#define LAG (10 * MS)

/* --- allocations -----------------------------------------------------------
 */

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
		T(a_first_one),	     T(new_chunks), T(a_slab),
		T(chunks_that_move), T(a_context),  T(a_green_one),
		T(work_of_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
