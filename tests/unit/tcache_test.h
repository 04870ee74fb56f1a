/* SPDX-License-Identifier: MIT
 *
 * tcache_test: what the tests of the thread caches share.
 */
#ifndef VS_TESTS_TCACHE_TEST_H
#define VS_TESTS_TCACHE_TEST_H

#include "fake_test.h"

enum { N = 8, PAIRS = 10000, WORK_NS = 10000 };

static inline int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	return 0;
}

/* A program that works with its memory. */
static inline void work(int n_pairs)
{
	for (int i = 0; i < n_pairs; i++) {
		give(take(MiB));
		fake.now += WORK_NS;
	}
}

/* Lets the bin hold N objects at a time. */
static inline void warm_up(void)
{
	work(100);
}

/* The markers of a loop that does nothing but allocate and free. */
static inline unsigned long loop(int n_pairs, uint64_t pair_ns)
{
	unsigned long records = fake.records;

	for (int i = 0; i < n_pairs; i++) {
		give(take(MiB));
		fake.now += pair_ns;
	}
	return fake.records - records;
}

#endif
