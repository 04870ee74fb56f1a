/* SPDX-License-Identifier: MIT
 *
 * A kernel faulted: who has nothing but that error from then on, and who goes
 * on, on the counting driver.
 */
#include "driver/real.h"
#include "fake_test.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)4 << 30);
	give(take(64 * MiB));
	give(take(4 * KiB));
	return 0;
}

static CUresult CUDAAPI alloc_faults(CUdeviceptr *p, size_t size)
{
	(void)p, (void)size;
	fake.natives++;
	return CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* The driver words the error of the context that has one, each time. */
static void test_the_driver_words_it(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_real.cuMemAlloc_v2 = alloc_faults;
	vs_pool_broken();
	for (int i = 0; i < 3; i++) {
		assert_int_equal(vs_pool_alloc(64 * MiB, &p),
				 CUDA_ERROR_ILLEGAL_ADDRESS);
		assert_int_equal(vs_pool_alloc(4 * KiB, &p),
				 CUDA_ERROR_ILLEGAL_ADDRESS);
	}
	assert_int_equal(fake.natives, 6);
}

/*
 * The error was that of a stream of another context. The driver has no more
 * memory, since the pool holds it: that says nothing against this one.
 */
static void test_another_was_meant(void **state)
{
	unsigned long natives;

	(void)state;
	give(take(3 * GiB));
	vs_pool_broken();
	give(take(3 * GiB));
	natives = fake.natives;
	for (int i = 0; i < 3; i++) {
		give(take(3 * GiB));
		give(take(4 * KiB));
	}
	assert_int_equal(fake.natives, natives);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_the_driver_words_it, fresh),
		cmocka_unit_test_setup(test_another_was_meant, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
