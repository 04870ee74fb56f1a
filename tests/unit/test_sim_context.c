/* SPDX-License-Identifier: MIT */
/* Contexts: life and death, what they take along, peers, green ones. */
#include "../sim/sim_test.h"

static struct sim_books books(void)
{
	struct sim_books b;

	sim_books(-1, &b);
	return b;
}

/* cuda.h, cuCtxDestroy; seen on an H200. */
static void reset_takes_legacy_and_leaves_vmm(void **state)
{
	CUdeviceptr legacy, vmm;
	CUcontext ctx;

	(void)state;
	ctx = boot("");
	legacy = new_legacy(4);
	vmm = new_mapping(0, 2 * MIB);
	OK(cuMemsetD32(vmm, 42, 1));
	OK(cuDevicePrimaryCtxReset(0));
	assert_int_equal(books().n_legacy, 0);
	assert_int_equal(books().vmm_bytes, 2 * MIB);
	GIVES(cuMemFree(legacy), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	assert_ptr_equal(use_device(0), ctx);
	GIVES(cuMemFree(legacy), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_BAD_FREE);
	assert_int_equal(read_word(vmm), 42);
}

static void a_reset_context_has_a_new_id(void **state)
{
	unsigned long long before, after;
	unsigned flags;
	int active;
	CUcontext ctx;

	(void)state;
	ctx = boot("");
	OK(cuCtxGetId(ctx, &before));
	OK(cuDevicePrimaryCtxReset(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	assert_int_equal(active, 0);
	use_device(0);
	OK(cuCtxGetId(ctx, &after));
	assert_int_not_equal(before, after);
}

static void the_last_release_ends_a_primary_context(void **state)
{
	unsigned flags;
	int active;
	CUcontext ctx;

	(void)state;
	boot("");
	OK(cuDevicePrimaryCtxRetain(&ctx, 0));
	new_legacy(4);
	OK(cuDevicePrimaryCtxRelease(0));
	assert_int_equal(books().n_legacy, 1);
	OK(cuDevicePrimaryCtxRelease(0));
	assert_int_equal(books().n_legacy, 0);
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	assert_int_equal(active, 0);
	GIVES(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

static void destroy_takes_everything_along(void **state)
{
	struct kernels k;
	CUcontext ctx, current;
	CUstream s;
	CUevent e;
	CUdeviceptr p;

	(void)state;
	boot("");
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	load_kernels(&k);
	s = new_stream(CU_STREAM_NON_BLOCKING);
	e = new_event();
	p = new_legacy(4);
	OK(slow_fill(&k, s, 100, p, 1, 1));
	OK(cuCtxDestroy(ctx));
	assert_int_equal(books().n_streams, 0);
	assert_int_equal(books().n_events, 0);
	assert_int_equal(books().n_legacy, 0);
	assert_int_equal(books().n_pending, 0);
	OK(cuCtxGetCurrent(&current));
	assert_ptr_not_equal(current, ctx);
	GIVES(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
	expect_violation(SIM_V_STALE);
	GIVES(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
	expect_violation(SIM_V_STALE);
}

/* It can be made current, and then only what reads its struct answers. */
static void a_destroyed_one_is_known_by_its_handle(void **state)
{
	CUcontext ctx, popped;
	unsigned int version;
	CUdeviceptr p;
	int device;

	(void)state;
	boot("");
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	OK(cuCtxGetApiVersion(ctx, &version));
	OK(cuCtxDestroy(ctx));
	GIVES(cuCtxGetApiVersion(ctx, &version), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxPushCurrent(ctx));
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	GIVES(cuCtxGetApiVersion(NULL, &version),
	      CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuCtxGetDevice(&device));
	expect_violation(SIM_V_STALE);
	OK(cuCtxPopCurrent(&popped));
	OK(cuCtxSetCurrent(ctx));
	OK(cuCtxSetCurrent(NULL));
	GIVES(cuCtxSetCurrent((CUcontext)&ctx), CUDA_ERROR_INVALID_CONTEXT);
}

/* The struct of a primary one stays, and so does its handle. */
static void a_primary_one_that_was_reset_tells_its_device(void **state)
{
	CUcontext primary;
	unsigned int version;
	int device;

	(void)state;
	primary = boot("");
	OK(cuDevicePrimaryCtxReset(0));
	OK(cuCtxGetDevice(&device));
	assert_int_equal(device, 0);
	GIVES(cuCtxGetApiVersion(primary, &version),
	      CUDA_ERROR_INVALID_CONTEXT);
	assert_ptr_equal(use_device(0), primary);
	OK(cuCtxGetApiVersion(primary, &version));
}

static void a_handle_may_come_back(void **state)
{
	CUcontext primary, ctx, again;

	(void)state;
	primary = boot("SIM_HANDLE_REUSE=1");
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	assert_ptr_not_equal(ctx, primary);
	OK(cuCtxDestroy(ctx));
	OK(cuCtxCreate(&again, NULL, 0, 0));
	assert_ptr_equal(again, ctx);
	OK(cuDevicePrimaryCtxReset(0));
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	assert_ptr_not_equal(ctx, primary);
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	assert_ptr_equal(ctx, primary);
	assert_ptr_not_equal(use_device(0), primary);
	OK(cuCtxDestroy(ctx));
}

static void the_stack_is_per_thread(void **state)
{
	CUcontext primary, a, b, got;

	(void)state;
	primary = boot("");
	OK(cuCtxCreate(&a, NULL, 0, 0));
	OK(cuCtxCreate(&b, NULL, 0, 0));
	OK(cuCtxPopCurrent(&got));
	assert_ptr_equal(got, b);
	OK(cuCtxGetCurrent(&got));
	assert_ptr_equal(got, a);
	OK(cuCtxSetCurrent(b));
	OK(cuCtxPopCurrent(&got));
	assert_ptr_equal(got, b);
	OK(cuCtxPopCurrent(&got));
	assert_ptr_equal(got, primary);
	GIVES(cuCtxPopCurrent(&got), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuCtxDestroy(primary), CUDA_ERROR_INVALID_CONTEXT);
}

static void a_broken_context_stays_broken(void **state)
{
	CUcontext ctx;
	CUevent e;
	CUdeviceptr p;

	(void)state;
	ctx = boot("");
	e = new_event();
	sim_set_sticky(ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	GIVES(cuEventQuery(e), CUDA_ERROR_ILLEGAL_ADDRESS);
	GIVES(cuCtxRecordEvent(ctx, e), CUDA_ERROR_ILLEGAL_ADDRESS);
	GIVES(cuMemFree(4096), CUDA_ERROR_ILLEGAL_ADDRESS);
	sim_set_sticky(ctx, 0);
	OK(cuMemAlloc(&p, 4));
}

/* ---- peers (cuda.h, cuCtxEnablePeerAccess) ----------------------------- */

static CUresult fill_on(CUcontext ctx, const struct kernels *k, CUdeviceptr p)
{
	OK(cuCtxSetCurrent(ctx));
	OK(fill(k, NULL, p, 7, 1));
	return cuCtxSynchronize();
}

static void legacy_memory_needs_peer_access(void **state)
{
	CUcontext ctx0, ctx1;
	struct kernels k1;
	CUdeviceptr p, later;

	(void)state;
	ctx0 = boot("SIM_DEVICES=2");
	p = new_legacy(4);
	ctx1 = use_device(1);
	load_kernels(&k1);
	GIVES(cuCtxDisablePeerAccess(ctx0), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	OK(cuCtxEnablePeerAccess(ctx0, 0));
	GIVES(cuCtxEnablePeerAccess(ctx0, 0),
	      CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	OK(cuCtxSetCurrent(ctx0));
	later = new_legacy(4);
	OK(fill_on(ctx1, &k1, p));
	OK(fill_on(ctx1, &k1, later));
	OK(cuCtxDisablePeerAccess(ctx0));
	GIVES(fill_on(ctx1, &k1, p), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
}

static void vmm_memory_needs_set_access(void **state)
{
	CUcontext ctx0, ctx1;
	struct kernels k1;
	CUdeviceptr p;

	(void)state;
	ctx0 = boot("SIM_DEVICES=2");
	p = new_mapping(0, 2 * MIB);
	ctx1 = use_device(1);
	load_kernels(&k1);
	OK(cuCtxEnablePeerAccess(ctx0, 0));
	OK(grant(p, 2 * MIB, 1));
	OK(fill_on(ctx1, &k1, p));
	OK(cuMemUnmap(p, 2 * MIB));
	p = new_mapping(0, 2 * MIB);
	/* enabling peers does not cover mappings */
	GIVES(fill_on(ctx1, &k1, p), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
}

static void devices_may_be_no_peers(void **state)
{
	CUcontext ctx0;
	CUdeviceptr p;
	int can;

	(void)state;
	ctx0 = boot("SIM_DEVICES=2 SIM_PEER=0");
	p = new_mapping(0, 2 * MIB);
	use_device(1);
	OK(cuDeviceCanAccessPeer(&can, 1, 0));
	assert_int_equal(can, 0);
	GIVES(cuCtxEnablePeerAccess(ctx0, 0),
	      CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	GIVES(grant(p, 2 * MIB, 1), CUDA_ERROR_INVALID_DEVICE);
	boot("SIM_DEVICES=2 SIM_SET_ACCESS_PEER_FAILS=1");
	p = new_mapping(0, 2 * MIB);
	GIVES(grant(p, 2 * MIB, 1), CUDA_ERROR_INVALID_VALUE);
}

/* ---- green contexts --------------------------------------------------- */

static CUgreenCtx new_green(void)
{
	CUdevResourceDesc desc;
	CUdevResource resource;
	CUgreenCtx green;

	OK(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevResourceGenerateDesc(&desc, &resource, 1));
	OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
	return green;
}

static void the_primary_marker_covers_green_contexts(void **state)
{
	struct kernels k;
	CUgreenCtx green, of_green;
	CUcontext ctx, converted, of_stream;
	CUstream s;
	CUevent e;
	CUdeviceptr p;

	(void)state;
	ctx = boot("");
	load_kernels(&k);
	p = new_legacy(4);
	e = new_event();
	green = new_green();
	OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
	OK(cuStreamGetCtx(s, &of_stream));
	OK(cuCtxFromGreenCtx(&converted, green));
	assert_ptr_equal(of_stream, converted);
	OK(cuStreamGetCtx_v2(s, &of_stream, &of_green));
	assert_ptr_equal(of_stream, ctx);
	assert_ptr_equal(of_green, green);
	OK(slow_fill(&k, s, 100, p, 1, 1));
	OK(cuCtxRecordEvent(ctx, e));
	GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(e));
	OK(cuStreamQuery(s));
	OK(cuGreenCtxDestroy(green));
}

static void a_green_context_has_the_peers_of_its_primary_one(void **state)
{
	CUcontext ctx0, ctx1, converted;
	CUgreenCtx green;

	(void)state;
	ctx0 = boot("SIM_DEVICES=2");
	ctx1 = use_device(1);
	green = new_green();
	OK(cuCtxFromGreenCtx(&converted, green));
	OK(cuCtxSetCurrent(converted));
	GIVES(cuCtxEnablePeerAccess(ctx0, 0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxEnablePeerAccess(ctx1, 0));
	OK(cuCtxSetCurrent(ctx0));
	GIVES(cuCtxEnablePeerAccess(ctx1, 0),
	      CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	OK(cuCtxDisablePeerAccess(ctx1));
	OK(cuGreenCtxDestroy(green));
}

#define CONTEXT_TEST(f) cmocka_unit_test_setup_teardown(f, NULL, clean)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CONTEXT_TEST(reset_takes_legacy_and_leaves_vmm),
		CONTEXT_TEST(a_reset_context_has_a_new_id),
		CONTEXT_TEST(the_last_release_ends_a_primary_context),
		CONTEXT_TEST(destroy_takes_everything_along),
		CONTEXT_TEST(a_destroyed_one_is_known_by_its_handle),
		CONTEXT_TEST(a_primary_one_that_was_reset_tells_its_device),
		CONTEXT_TEST(a_handle_may_come_back),
		CONTEXT_TEST(the_stack_is_per_thread),
		CONTEXT_TEST(a_broken_context_stays_broken),
		CONTEXT_TEST(legacy_memory_needs_peer_access),
		CONTEXT_TEST(vmm_memory_needs_set_access),
		CONTEXT_TEST(devices_may_be_no_peers),
		CONTEXT_TEST(the_primary_marker_covers_green_contexts),
		CONTEXT_TEST(a_green_context_has_the_peers_of_its_primary_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
