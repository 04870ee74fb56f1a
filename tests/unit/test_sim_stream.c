/* SPDX-License-Identifier: MIT */
/* Order: streams, events, whole contexts, as on an H200. */
#include "../sim/sim_test.h"

#include <pthread.h>

static struct kernels k;
static CUcontext ctx;

static int fresh(void **state)
{
	(void)state;
	ctx = boot("");
	load_kernels(&k);
	return 0;
}

static void work_is_asynchronous(void **state)
{
	CUdeviceptr p = new_legacy(4);
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUevent e = new_event();
	uint32_t *flag = new_flag();

	(void)state;
	OK(cuEventQuery(e)); /* never recorded: complete */
	OK(spin(&k, s, flag));
	OK(fill(&k, s, p, 5, 1));
	OK(cuEventRecord(e, s));
	GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	GIVES(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	raise_flag(flag);
	OK(cuEventSynchronize(e));
	OK(cuStreamQuery(s));
	assert_int_equal(read_word(p), 5);
}

static void kernels_do_what_their_ptx_does(void **state)
{
	CUdeviceptr p = new_legacy(400), q = new_legacy(400);
	CUdeviceptr count = new_legacy(8);
	uint32_t value = 12;
	uint64_t n = 100;
	void *check[] = {&q, &value, &n, &count};
	void *copy[] = {&q, &p, &n};
	void *add[] = {&p, &value, &n};
	char packed[24];
	size_t size = sizeof(packed);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed,
			 CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
			 CU_LAUNCH_PARAM_END};

	(void)state;
	OK(launch(k.add, NULL, add));
	OK(launch(k.copy, NULL, copy));
	OK(launch(k.check, NULL, check));
	assert_int_equal(read_word(count), 0);
	value = 13;
	OK(launch(k.check, NULL, check));
	assert_int_equal(read_word(count), 100);
	/* the other way to pass arguments: {u64, u32, u64} */
	memset(packed, 0, sizeof(packed));
	memcpy(packed, &p, 8);
	memcpy(packed + 8, &value, 4);
	memcpy(packed + 16, &n, 8);
	OK(cuLaunchKernel(k.fill, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	assert_int_equal(read_word(p + 396), 13);
	GIVES(cuLaunchKernel(k.fill, 0, 1, 1, 1, 1, 1, 0, NULL, add, NULL),
	      CUDA_ERROR_INVALID_VALUE);
}

static void modules_know_their_entries(void **state)
{
	CUfunction f;
	CUmodule m;

	(void)state;
	GIVES(cuModuleGetFunction(&f, k.module, "vs_nothing"),
	      CUDA_ERROR_NOT_FOUND);
	GIVES(cuModuleGetFunction(&f, k.module, "vs_fil"),
	      CUDA_ERROR_NOT_FOUND);
	GIVES(cuModuleLoadData(&m, "no ptx"), CUDA_ERROR_INVALID_IMAGE);
	OK(cuModuleUnload(k.module));
	GIVES(fill(&k, NULL, 0, 0, 0), CUDA_ERROR_INVALID_HANDLE);
	expect_violation(SIM_V_STALE);
}

static void streams_wait_for_events(void **state)
{
	CUstream a = new_stream(CU_STREAM_NON_BLOCKING);
	CUstream b = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(4);
	CUevent e = new_event();

	(void)state;
	OK(slow_fill(&k, a, 20, p, 1, 1));
	OK(cuEventRecord(e, a));
	OK(cuStreamWaitEvent(b, e, 0));
	OK(fill(&k, b, p, 2, 1));
	OK(cuStreamSynchronize(b));
	OK(cuStreamQuery(a));
	assert_int_equal(read_word(p), 2);
}

/* The legacy stream is a barrier for blocking streams, and only for them. */
static void legacy_stream_is_a_barrier(void **state)
{
	CUstream blocking = new_stream(CU_STREAM_DEFAULT);
	CUstream free_one = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	uint32_t *flag = new_flag();

	(void)state;
	OK(spin(&k, free_one, flag));
	OK(slow_fill(&k, blocking, 10, p, 1, 1));
	OK(fill(&k, NULL, p, 2, 1));
	OK(fill(&k, blocking, q, 3, 1));
	OK(cuStreamSynchronize(blocking));
	OK(cuStreamQuery(CU_STREAM_LEGACY));
	GIVES(cuStreamQuery(free_one), CUDA_ERROR_NOT_READY);
	assert_int_equal(read_word(p), 2);
	raise_flag(flag);
	OK(cuCtxSynchronize());
}

static void *query_own_stream(void *arg)
{
	(void)arg;
	cuCtxSetCurrent(ctx);
	return (void *)(uintptr_t)cuStreamQuery(CU_STREAM_PER_THREAD);
}

/* The same constant means another stream in another thread. */
static void per_thread_stream_is_per_thread(void **state)
{
	uint32_t *flag = new_flag();
	pthread_t thread;
	void *result;

	(void)state;
	OK(spin(&k, CU_STREAM_PER_THREAD, flag));
	GIVES(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	pthread_create(&thread, NULL, query_own_stream, NULL);
	pthread_join(thread, &result);
	GIVES((uintptr_t)result, CUDA_SUCCESS);
	raise_flag(flag);
	OK(cuCtxSynchronize());
}

static void *spin_own_stream(void *flag)
{
	cuCtxSetCurrent(ctx);
	return (void *)(uintptr_t)spin(&k, CU_STREAM_PER_THREAD, flag);
}

/* One marker covers all (an H200): each alone must hold it up. */
static void marker_covers_every_stream(void **state)
{
	CUstream s[] = {
		CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, NULL, NULL, NULL, NULL};
	CUevent e = new_event();
	pthread_t thread;
	unsigned i;

	(void)state;
	s[2] = new_stream(CU_STREAM_DEFAULT);
	s[3] = new_stream(CU_STREAM_NON_BLOCKING);
	s[4] = new_stream(CU_STREAM_NON_BLOCKING); /* destroyed */
	for (i = 0; i < 6; i++) {
		uint32_t *flag = new_flag();

		if (i == 5) {
			pthread_create(&thread, NULL, spin_own_stream, flag);
			pthread_join(thread, NULL);
		} else {
			OK(spin(&k, s[i], flag));
		}
		if (i == 4)
			OK(cuStreamDestroy(s[i]));
		OK(cuCtxSetCurrent(NULL)); /* needs none */
		OK(cuCtxRecordEvent(ctx, e));
		GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
		raise_flag(flag);
		OK(cuEventSynchronize(e));
		OK(cuCtxSetCurrent(ctx));
	}
}

static void context_wait_orders_all_later_work(void **state)
{
	CUstream old = new_stream(CU_STREAM_NON_BLOCKING), s;
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	CUevent e = new_event();
	unsigned i;

	(void)state;
	for (i = 0; i < 4; i++) {
		s = i == 0   ? NULL
		    : i == 1 ? CU_STREAM_PER_THREAD
			     : new_stream(i == 2 ? CU_STREAM_DEFAULT
						 : CU_STREAM_NON_BLOCKING);
		OK(slow_fill(&k, old, 20, p, 1, 1));
		OK(cuCtxRecordEvent(ctx, e));
		OK(cuCtxWaitEvent(ctx, e));
		OK(fill(&k, s, q, 1, 1));
		OK(cuStreamSynchronize(s));
		OK(cuStreamQuery(old));
	}
}

static void events_belong_to_their_context(void **state)
{
	CUcontext other;
	CUevent e = new_event();
	CUstream s;

	(void)state;
	OK(cuCtxCreate(&other, NULL, 0, 0));
	s = new_stream(CU_STREAM_NON_BLOCKING);
	GIVES(cuEventRecord(e, s), CUDA_ERROR_INVALID_HANDLE);
	GIVES(cuCtxRecordEvent(other, e), CUDA_ERROR_INVALID_HANDLE);
	OK(cuCtxDestroy(other));
	OK(cuEventDestroy(e));
	GIVES(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
	expect_violation(SIM_V_STALE);
}

static void events_tell_the_time(void **state)
{
	CUevent a, b;
	CUdeviceptr p = new_legacy(4);
	float ms = 0;

	(void)state;
	OK(cuEventCreate(&a, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&b, CU_EVENT_DEFAULT));
	GIVES(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(a, NULL));
	OK(slow_fill(&k, NULL, 100, p, 1, 1));
	OK(cuEventRecord(b, NULL));
	GIVES(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	assert_true(ms >= 100 && ms < 2000);
}

static void note_order(void *arg)
{
	*(CUresult *)arg = cuCtxSynchronize();
}

static void host_functions_may_not_call_the_driver(void **state)
{
	CUresult result = CUDA_SUCCESS;

	(void)state;
	OK(cuLaunchHostFunc(NULL, note_order, &result));
	OK(cuStreamSynchronize(NULL));
	GIVES(result, CUDA_ERROR_NOT_PERMITTED);
}

static void lag_slows_everything_down(void **state)
{
	CUdeviceptr p = new_legacy(4);

	(void)state;
	sim_set_lag_us(100000);
	OK(cuMemsetD32(p, 1, 1));
	GIVES(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	OK(cuStreamSynchronize(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(work_is_asynchronous),
		SIM_TEST(kernels_do_what_their_ptx_does),
		SIM_TEST(modules_know_their_entries),
		SIM_TEST(streams_wait_for_events),
		SIM_TEST(legacy_stream_is_a_barrier),
		SIM_TEST(per_thread_stream_is_per_thread),
		SIM_TEST(marker_covers_every_stream),
		SIM_TEST(context_wait_orders_all_later_work),
		SIM_TEST(events_belong_to_their_context),
		SIM_TEST(events_tell_the_time),
		SIM_TEST(host_functions_may_not_call_the_driver),
		SIM_TEST(lag_slows_everything_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
