/* SPDX-License-Identifier: MIT
 *
 * scarce_test: what the tests share in which host memory runs out. Each is one
 * file, whose calls of base/meta the linker turns here (Makefile.am).
 */
#ifndef VS_TESTS_SCARCE_TEST_H
#define VS_TESTS_SCARCE_TEST_H

#include <pthread.h>

#include "base/meta.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/state.h"

void *__real_vs_meta_alloc(size_t size);
void *__real_vs_meta_alloc_dirty(size_t size);
void __real_vs_meta_free(void *p, size_t size);
void *__wrap_vs_meta_alloc(size_t size);
void *__wrap_vs_meta_alloc_dirty(size_t size);
void __wrap_vs_meta_free(void *p, size_t size);

static unsigned to_come;  /* so many until one fails; 0: none does */
static bool is_for_good;  /* and all after it */
static size_t least;	  /* of those that fail, in bytes */
static unsigned n_failed; /* so far */
static long n_live;	  /* structures */

static bool is_refused(size_t size)
{
	if (size < least || to_come == 0 || (to_come > 1 && --to_come > 0))
		return false;
	to_come = is_for_good;
	n_failed++;
	return true;
}

void *__wrap_vs_meta_alloc(size_t size)
{
	void *p = is_refused(size) ? NULL : __real_vs_meta_alloc(size);

	n_live += p != NULL;
	return p;
}

void *__wrap_vs_meta_alloc_dirty(size_t size)
{
	void *p = is_refused(size) ? NULL : __real_vs_meta_alloc_dirty(size);

	n_live += p != NULL;
	return p;
}

void __wrap_vs_meta_free(void *p, size_t size)
{
	n_live -= p != NULL;
	__real_vs_meta_free(p, size);
}

/* The n-th from now on fails; 0: none. */
static void refuse(unsigned n, bool and_all_after)
{
	to_come = n;
	is_for_good = and_all_after;
	if (n > 0)
		n_failed = 0;
}

static int fresh(void **state)
{
	(void)state;
	refuse(0, false);
	least = 0;
	n_failed = 0;
	fresh_driver((uint64_t)16 << 30);
	vs_thread_self(); /* its struct is for ever */
	return 0;
}

/* The pool is as the books say, and nobody holds its locks. */
static void check_pool(void)
{
	struct vs_pool *pool = vs_pool_of(0);

	if (!pool)
		return;
	assert_int_equal(pthread_mutex_trylock(&pool->grow), 0);
	assert_int_equal(pthread_mutex_trylock(&pool->lock), 0);
	pthread_mutex_unlock(&pool->lock);
	pthread_mutex_unlock(&pool->grow);
	heap_check(pool);
}

/* A device for which none could be made is the driver's from then on. */
static inline void go_on(size_t size)
{
	CUdeviceptr p;
	CUresult r = vs_pool_alloc(size, &p);

	assert_int_equal(r, vs_pool_count() > 0 ? CUDA_SUCCESS : VS_PASS);
	if (r == CUDA_SUCCESS)
		give(p);
	check_pool();
}

/* In the pool's first pieces; the pool is there. */
static inline void begin(void)
{
	give(take(512));
	give(take(2 * MiB));
	vs_pool_trim();
}

#endif
