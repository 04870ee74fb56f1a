/* SPDX-License-Identifier: MIT
 *
 * What a thread still does under a context that another has ended meanwhile:
 * it frees, makes it current, fills and clears memory.
 */
#include "driver/real.h"
#include "driver/vmm.h"
#include "fake_test.h"
#include "pool/fill.h"
#include "pool/range.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define OTHER ((CUcontext)0x2000)

static int fresh(void **state)
{
	(void)state;
	fresh_driver(16 * GiB);
	return 0;
}

/* Its device is still told: an H200. */
static CUresult CUDAAPI version_of_none(CUcontext ctx, unsigned int *out)
{
	(void)ctx;
	*out = 0;
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Until one of another context has this address. */
static void take_again(CUdeviceptr p, size_t size)
{
	for (int i = 0; i < 10000; i++) {
		if (take(size) == p)
			return;
	}
	fail();
}

/*
 * The context of a thread ends, by another, and its block is the other's by
 * now: it is not freed while the end takes its time, and not afterwards.
 */
static void free_too_late(size_t size)
{
	struct vs_ctx *gone;
	CUdeviceptr p;

	vs_pool_ctx_born(OTHER, 0);
	p = take(size);
	gone = vs_pool_ctx_dying(FAKE_CTX);
	fake.current = OTHER;
	take_again(p, size);
	fake.current = FAKE_CTX;
	assert_int_equal(vs_pool_free(p), VS_PASS);
	vs_pool_ctx_gone(gone);
	vs_real.cuCtxGetApiVersion = version_of_none;
	assert_int_equal(vs_pool_free(p), VS_PASS);
	fake.current = OTHER;
	give(p);
	assert_int_equal(vs_pool_free(p), VS_PASS);
}

static void test_free_too_late(void **state)
{
	(void)state;
	free_too_late(512);
}

static void test_free_too_late_large(void **state)
{
	(void)state;
	free_too_late(10 * MiB);
}

/* The same within a free, which had found the context alive. */
static void test_free_overtaken_by_the_end(void **state)
{
	struct vs_ctx *ctx;
	struct vs_tcache *own, cache;
	struct vs_slab *slab;
	struct vs_pool *pool;
	CUdeviceptr small, large;

	(void)state;
	vs_pool_ctx_born(OTHER, 0);
	small = take(512);
	large = take(10 * MiB);
	pool = vs_pool_of(0);
	own = vs_thread_self()->cache;
	cache = *own;
	ctx = cache.ctx;
	bury_ctx(ctx);
	fake.current = OTHER;
	take_again(large, 10 * MiB);
	take_again(small, 512);
	slab = vs_slab_at(pool, small);
	assert_int_equal(vs_range_free(pool, ctx, large), VS_PASS);
	assert_int_equal(vs_tcache_put(&cache, slab, small), VS_PASS);
	assert_int_equal(vs_tcache_put_elsewhere(pool, ctx, slab, small),
			 VS_PASS);
	give(large);
	give(small);
}

static CUresult answer;

/* By the handle; one whose kernel faulted is alive. */
static CUresult CUDAAPI version_of_handle(CUcontext ctx, unsigned int *out)
{
	*out = 0;
	return ctx == FAKE_CTX ? answer : CUDA_SUCCESS;
}

static int n_pushed;

static CUresult CUDAAPI count_push(CUcontext ctx)
{
	(void)ctx;
	n_pushed++;
	return CUDA_SUCCESS;
}

/* What a driver crashes of, later, is not made current. */
static void test_no_push_after_the_end(void **state)
{
	static const struct {
		CUcontext current;
		CUresult version, result;
		bool is_pushed;
	} cases[] = {
		{OTHER, CUDA_SUCCESS, CUDA_SUCCESS, true},
		{OTHER, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_SUCCESS, true},
		{OTHER, CUDA_ERROR_INVALID_CONTEXT,
		 CUDA_ERROR_CONTEXT_IS_DESTROYED, false},
		{OTHER, CUDA_ERROR_CONTEXT_IS_DESTROYED,
		 CUDA_ERROR_CONTEXT_IS_DESTROYED, false},
		{FAKE_CTX, CUDA_ERROR_INVALID_CONTEXT, CUDA_SUCCESS, false},
	};

	(void)state;
	vs_real.cuCtxGetApiVersion = version_of_handle;
	vs_real.cuCtxPushCurrent_v2 = count_push;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool is_pushed = false;

		n_pushed = 0;
		fake.current = cases[i].current;
		answer = cases[i].version;
		assert_int_equal(vs_vmm_push(FAKE_CTX, &is_pushed),
				 cases[i].result);
		assert_int_equal(is_pushed, cases[i].is_pushed);
		assert_int_equal(n_pushed, cases[i].is_pushed);
	}
}

static CUresult CUDAAPI no_stream(CUstream *out, unsigned int flags)
{
	(void)out;
	(void)flags;
	fail();
	return CUDA_ERROR_UNKNOWN;
}

static CUresult CUDAAPI no_stream_call(CUstream stream)
{
	(void)stream;
	return CUDA_ERROR_UNKNOWN;
}

static CUresult CUDAAPI no_set(CUdeviceptr p, unsigned char value, size_t size,
			       CUstream stream)
{
	(void)p;
	(void)value;
	(void)size;
	return no_stream_call(stream);
}

static CUresult CUDAAPI no_copy(void *to, CUdeviceptr p, size_t size,
				CUstream stream)
{
	(void)to;
	return no_set(p, 0, size, stream);
}

/* Of an end that the pool was not told of, too: JUNK warns of other errors. */
static void test_no_fill_after_the_end(void **state)
{
	(void)state;
	vs_pool_ctx_born(FAKE_CTX, 0);
	vs_real.cuStreamCreate = no_stream;
	vs_real.cuStreamDestroy_v2 = no_stream_call;
	vs_real.cuStreamSynchronize = no_stream_call;
	vs_real.cuMemsetD8Async = no_set;
	vs_real.cuMemcpyDtoHAsync_v2 = no_copy;
	vs_real.cuCtxGetApiVersion = version_of_handle;
	answer = CUDA_ERROR_INVALID_CONTEXT;
	fake.current = OTHER;
	assert_int_equal(vs_fill_set(vs_ctx_peek(FAKE_CTX), 0, 0, 1),
			 CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static CUresult CUDAAPI a_stream(CUstream *out, unsigned int flags)
{
	(void)flags;
	*out = (CUstream)0x77;
	return CUDA_SUCCESS;
}

/* What cannot be cleared is not handed out, and nobody's then. */
static void test_what_cannot_be_cleared(void **state)
{
	const size_t sizes[] = {512, 10 * MiB};
	CUdeviceptr p;

	(void)state;
	vs_knobs.zero = VS_ZERO_ALWAYS;
	vs_real.cuStreamCreate = a_stream;
	vs_real.cuStreamDestroy_v2 = no_stream_call;
	vs_real.cuStreamSynchronize = no_stream_call;
	vs_real.cuMemsetD8Async = no_set;
	for (int i = 0; i < 2; i++) {
		assert_int_not_equal(vs_pool_alloc(sizes[i], &p), CUDA_SUCCESS);
		assert_int_equal(vs_stat_get(stats(), live), 0);
		assert_int_equal(vs_stat_get(stats(), blocks), 0);
	}
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(free_too_late),
		T(free_too_late_large),
		T(free_overtaken_by_the_end),
		T(no_push_after_the_end),
		T(no_fill_after_the_end),
		T(what_cannot_be_cleared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
