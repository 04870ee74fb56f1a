/* SPDX-License-Identifier: MIT
 *
 * fence_test: what the tests of the markers share.
 */
#ifndef VS_TESTS_FENCE_TEST_H
#define VS_TESTS_FENCE_TEST_H

#include "fake_test.h"

#define NEVER ((uint64_t)1 << 60)
#define LAG ((uint64_t)6400000)
#define SECOND_CTX ((CUcontext)0x2000)

static struct vs_fence *fence;
static CUresult (*record_event)(CUcontext, CUevent);

static inline int fresh(void **state)
{
	CUdeviceptr p;

	(void)state;
	fresh_driver((uint64_t)16 << 30);
	assert_int_equal(vs_pool_alloc(512, &p), CUDA_SUCCESS);
	fence = &vs_pool_of(0)->fence;
	return 0;
}

static inline int fresh_ordered(void **state)
{
	CUdeviceptr p;

	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_ORDERED;
	assert_int_equal(vs_pool_alloc(512, &p), CUDA_SUCCESS);
	fence = &vs_pool_of(0)->fence;
	return 0;
}

#endif
