/* SPDX-License-Identifier: MIT */
/* Many threads in the driver at once; meant to run under ThreadSanitizer. */
#include "../sim/sim_test.h"

#include <pthread.h>

#define N_THREADS 8
#define N_ROUNDS 60

static struct kernels k;
static CUcontext ctx;

static int fresh(void **state)
{
	(void)state;
	ctx = boot("");
	load_kernels(&k);
	return 0;
}

static void run_threads(void *(*body)(void *))
{
	pthread_t threads[N_THREADS];
	uintptr_t i;

	for (i = 0; i < N_THREADS; i++)
		pthread_create(&threads[i], NULL, body, (void *)i);
	for (i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
}

/* Assertions of cmocka are for the main thread: this one ends the program. */
#define SURE(condition)                                                        \
	do {                                                                   \
		if (!(condition))                                              \
			abort();                                               \
	} while (0)

static void *use_own_memory(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg + 1, value;
	CUdeviceptr p;
	CUstream s;
	unsigned i;

	SURE(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	SURE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	for (i = 0; i < N_ROUNDS; i++) {
		SURE(cuMemAlloc(&p, 4096) == CUDA_SUCCESS);
		sim_note_alloc(p, 4096);
		SURE(fill(&k, s, p, me, 1024) == CUDA_SUCCESS);
		SURE(cuMemcpyDtoHAsync(&value, p + 4092, 4, s) == CUDA_SUCCESS);
		SURE(value == me);
		sim_note_free(p);
		SURE(cuMemFree(p) == CUDA_SUCCESS);
	}
	SURE(cuStreamDestroy(s) == CUDA_SUCCESS);
	return NULL;
}

static void threads_do_not_disturb_each_other(void **state)
{
	(void)state;
	run_threads(use_own_memory);
}

static void *map_and_unmap(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg + 1;
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = prop_of(0);
	CUdeviceptr p;
	CUevent e;
	unsigned i;

	SURE(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	SURE(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
	SURE(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0) == CUDA_SUCCESS);
	for (i = 0; i < N_ROUNDS; i++) {
		SURE(cuMemCreate(&h, 2 * MIB, &prop, 0) == CUDA_SUCCESS);
		SURE(cuMemMap(p, 2 * MIB, 0, h, 0) == CUDA_SUCCESS);
		SURE(cuMemRelease(h) == CUDA_SUCCESS);
		SURE(grant(p, 2 * MIB, 0) == CUDA_SUCCESS);
		SURE(fill(&k, CU_STREAM_PER_THREAD, p, me, 64) == CUDA_SUCCESS);
		SURE(cuCtxRecordEvent(ctx, e) == CUDA_SUCCESS);
		SURE(cuEventSynchronize(e) == CUDA_SUCCESS);
		SURE(cuMemUnmap(p, 2 * MIB) == CUDA_SUCCESS);
	}
	SURE(cuMemAddressFree(p, 2 * MIB) == CUDA_SUCCESS);
	SURE(cuEventDestroy(e) == CUDA_SUCCESS);
	return NULL;
}

static void mappings_change_under_other_work(void **state)
{
	struct sim_books books;

	(void)state;
	run_threads(map_and_unmap);
	sim_books(0, &books);
	assert_int_equal(books.physical, 0);
	assert_int_equal(books.n_reservations, 0);
}

/* Whoever unmaps under work is told, and the work never crashes us. */
static void *unmap_too_early(void *arg)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = prop_of(0);
	CUdeviceptr p;
	unsigned i;

	(void)arg;
	SURE(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	SURE(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0) == CUDA_SUCCESS);
	for (i = 0; i < 10; i++) {
		SURE(cuMemCreate(&h, 2 * MIB, &prop, 0) == CUDA_SUCCESS);
		SURE(cuMemMap(p, 2 * MIB, 0, h, 0) == CUDA_SUCCESS);
		SURE(cuMemRelease(h) == CUDA_SUCCESS);
		SURE(grant(p, 2 * MIB, 0) == CUDA_SUCCESS);
		fill(&k, CU_STREAM_PER_THREAD, p, 1, MIB / 2);
		SURE(cuMemUnmap(p, 2 * MIB) == CUDA_SUCCESS);
		sim_set_sticky(ctx, 0);
	}
	return NULL;
}

static void broken_programs_do_not_break_the_simulator(void **state)
{
	(void)state;
	run_threads(unmap_too_early);
	sim_set_sticky(ctx, 0);
	cuCtxSynchronize(); /* what was queued may break it anew */
	sim_set_sticky(ctx, 0);
	assert_true(sim_violations() > 0);
	sim_violations_clear();
}

static void *capture_or_free(void *arg)
{
	CUstream s;
	CUgraph graph;
	CUdeviceptr p;
	unsigned i;

	SURE(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	SURE(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	for (i = 0; i < N_ROUNDS; i++) {
		if ((uintptr_t)arg % 2) {
			SURE(cuMemAlloc(&p, 4) == CUDA_SUCCESS);
			SURE(cuMemFree(p) == CUDA_SUCCESS);
			continue;
		}
		SURE(cuStreamBeginCapture(
			     s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
		     CUDA_SUCCESS);
		SURE(cuStreamEndCapture(s, &graph) == CUDA_SUCCESS);
		SURE(cuGraphDestroy(graph) == CUDA_SUCCESS);
	}
	return NULL;
}

static void thread_local_captures_survive_other_threads(void **state)
{
	(void)state;
	run_threads(capture_or_free);
	assert_int_equal(sim_captures_killed(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(threads_do_not_disturb_each_other),
		SIM_TEST(mappings_change_under_other_work),
		SIM_TEST(broken_programs_do_not_break_the_simulator),
		SIM_TEST(thread_local_captures_survive_other_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
