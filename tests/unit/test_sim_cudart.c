/* SPDX-License-Identifier: MIT */
/* The thin runtime over the simulated driver. */
#include "../sim/sim_test.h"

#include <cuda_runtime_api.h>

static int n_tests;

/* One process, one runtime: the driver is reset only by its own means. */
static int fresh(void **state)
{
	(void)state;
	if (n_tests++ == 0)
		start_with("SIM_DEVICES=2");
	cudaGetLastError();
	return 0;
}

static void the_first_call_makes_a_context(void **state)
{
	unsigned flags;
	int active;

	(void)state;
	assert_int_equal(cudaFree(NULL), cudaSuccess);
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	assert_int_equal(active, 1);
	assert_true(sim_calls("cuGetProcAddress") > 100);
	assert_int_equal(sim_calls("cuInit"), 1);
}

static void allocation_edges(void **state)
{
	size_t pitch;
	void *p = &p;

	(void)state;
	assert_int_equal(cudaMalloc(&p, 0), cudaSuccess);
	assert_null(p);
	p = &p;
	assert_int_equal(cudaMalloc(&p, (size_t)1 << 50),
			 cudaErrorMemoryAllocation);
	assert_null(p);
	assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
	assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
	assert_int_equal(cudaGetLastError(), cudaSuccess);
	assert_int_equal(cudaMallocPitch(&p, &pitch, 100, 3), cudaSuccess);
	assert_int_equal(pitch, 512);
	assert_int_equal(cudaFree(p), cudaSuccess);
	assert_int_equal(cudaFree(p), cudaErrorInvalidValue);
	expect_violation(SIM_V_BAD_FREE);
	assert_int_equal(cudaMalloc(NULL, 4), cudaErrorInvalidValue);
}

static void copies_of_every_kind(void **state)
{
	char in[4] = "abc", out[4] = "";
	cudaStream_t s;
	void *p, *q;

	(void)state;
	assert_int_equal(cudaMalloc(&p, 4), cudaSuccess);
	assert_int_equal(cudaMalloc(&q, 4), cudaSuccess);
	assert_int_equal(cudaMemcpy(p, in, 4, cudaMemcpyHostToDevice), 0);
	assert_int_equal(cudaMemcpy(q, p, 4, cudaMemcpyDefault), 0);
	assert_int_equal(cudaMemcpy(out, q, 4, cudaMemcpyDeviceToHost), 0);
	assert_string_equal(out, "abc");
	assert_int_equal(cudaMemcpy(out, q, 4, (enum cudaMemcpyKind)9),
			 cudaErrorInvalidMemcpyDirection);
	assert_int_equal(cudaStreamCreate(&s), cudaSuccess);
	assert_int_equal(cudaMemsetAsync(p, 'x', 4, s), cudaSuccess);
	assert_int_equal(cudaMemcpyAsync(out, p, 4, cudaMemcpyDeviceToHost, s),
			 cudaSuccess);
	assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
	assert_memory_equal(out, "xxxx", 4);
	assert_int_equal(cudaStreamDestroy(s), cudaSuccess);
	assert_int_equal(cudaFree(p), cudaSuccess);
	assert_int_equal(cudaFree(q), cudaSuccess);
}

static void pointers_are_told_apart(void **state)
{
	struct cudaPointerAttributes a;
	void *p;

	(void)state;
	assert_int_equal(cudaMalloc(&p, 4), cudaSuccess);
	assert_int_equal(cudaPointerGetAttributes(&a, p), cudaSuccess);
	assert_int_equal(a.type, cudaMemoryTypeDevice);
	assert_ptr_equal(a.devicePointer, p);
	assert_null(a.hostPointer);
	assert_int_equal(cudaPointerGetAttributes(&a, &p), cudaSuccess);
	assert_int_equal(a.type, cudaMemoryTypeUnregistered);
	assert_int_equal(cudaFree(p), cudaSuccess);
}

static void devices_are_chosen(void **state)
{
	struct sim_books books;
	void *p;
	int n;

	(void)state;
	assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
	assert_int_equal(n, 2);
	assert_int_equal(cudaSetDevice(1), cudaSuccess);
	assert_int_equal(cudaMalloc(&p, 4), cudaSuccess);
	sim_books(1, &books);
	assert_int_equal(books.n_legacy, 1);
	assert_int_equal(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
	assert_int_equal(cudaFree(p), cudaSuccess);
	assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
	assert_int_equal(cudaSetDevice(0), cudaSuccess);
}

static void reset_and_go_on(void **state)
{
	void *p, *q;

	(void)state;
	assert_int_equal(cudaMalloc(&p, 4), cudaSuccess);
	assert_int_equal(cudaDeviceReset(), cudaSuccess);
	assert_int_equal(cudaFree(p), cudaErrorInvalidValue);
	expect_violation(SIM_V_BAD_FREE);
	assert_int_equal(cudaMalloc(&q, 4), cudaSuccess);
	assert_int_equal(cudaFree(q), cudaSuccess);
}

static void entry_points_are_the_drivers(void **state)
{
	enum cudaDriverEntryPointQueryResult status;
	void *f = NULL;

	(void)state;
	assert_int_equal(
		cudaGetDriverEntryPointByVersion("cuMemCreate", &f, 12000,
						 cudaEnableDefault, &status),
		cudaSuccess);
	assert_int_equal(status, cudaDriverEntryPointSuccess);
	assert_ptr_equal(f, (void *)cuMemCreate);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(the_first_call_makes_a_context),
		SIM_TEST(allocation_edges),
		SIM_TEST(copies_of_every_kind),
		SIM_TEST(pointers_are_told_apart),
		SIM_TEST(devices_are_chosen),
		SIM_TEST(reset_and_go_on),
		SIM_TEST(entry_points_are_the_drivers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
