/* SPDX-License-Identifier: MIT
 *
 * fake_test: what the cmocka tests of the pool on the counting driver share.
 */
#ifndef VS_TESTS_FAKE_TEST_H
#define VS_TESTS_FAKE_TEST_H

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/real.h"
#include "fake.h"
#include "pool/capture.h"
#include "pool/pool.h"
#include "pool/range.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)
#define GiB ((uint64_t)1 << 30)
#define MS ((uint64_t)1000000) /* in nanoseconds, as fake.now */

/* 31 bits. */
static inline unsigned next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005 + 1442695040888963407;
	return (unsigned)(*seed >> 33);
}

/* In another one, to its end. */
static inline void in_a_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, run, argument), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/*
 * For vs_vmm_pause, where there are several threads: the counting driver would
 * let time pass, for one.
 */
static inline void let_others(unsigned round)
{
	(void)round;
	sched_yield();
}

/* A driver that unmaps nothing, for vs_real. */
static inline CUresult CUDAAPI unmaps_nothing(CUdeviceptr at, size_t size)
{
	(void)at, (void)size;
	return CUDA_ERROR_UNKNOWN;
}

/* A new driver with so many bytes, no pool yet, knobs at their defaults. */
static inline void fresh_driver(uint64_t memory)
{
	static struct vs_knobs defaults;
	static bool is_read;

	vs_knob_init();
	if (!is_read)
		defaults = vs_knobs;
	is_read = true;
	vs_knobs = defaults;
	vs_pool_forked();
	vs_thread_forked();
	vs_log_level = VS_LOG_NONE;
	fake_install(memory);
}

static inline CUresult CUDAAPI old_version(int *out)
{
	*out = 12040;
	return CUDA_SUCCESS;
}

/* It has no context events; before there is a pool. */
static inline void make_driver_old(void)
{
	vs_real.cuDriverGetVersion = old_version;
}

/* Where every call is refused, as in a host function. */
static inline CUresult CUDAAPI not_permitted(CUcontext ctx, unsigned *version)
{
	(void)ctx, (void)version;
	return CUDA_ERROR_NOT_PERMITTED;
}

/* Of the only pool. */
static inline const struct vs_stats *stats(void)
{
	CUdevice device;

	assert_int_equal(vs_pool_count(), 1);
	vs_pool_refresh(0);
	return vs_pool_stats(0, &device);
}

static inline CUdeviceptr take(size_t size)
{
	CUdeviceptr p = 0;

	assert_int_equal(vs_pool_alloc(size, &p), CUDA_SUCCESS);
	assert_int_equal(p % 512, 0);
	return p;
}

/* The pool serves it, without the driver's help. */
static inline void succeeds(size_t size)
{
	unsigned long before = fake.natives;

	take(size);
	assert_int_equal(fake.natives, before);
}

/* A marker of the only pool, complete after `lag_ns`; returns its epoch. */
static inline uint64_t record_marker(uint64_t lag_ns)
{
	struct vs_fence *f = &vs_pool_of(0)->fence;
	uint64_t tag = vs_fence_tag(f);

	fake.lag_ns = lag_ns;
	assert_true(vs_fence_record(f));
	return tag;
}

/* For fake.on_unmap: the process is about to end, by what vs_pool is told. */
static inline void end_process(CUdeviceptr at, uint64_t size)
{
	(void)at, (void)size;
	vs_pool_ending(true);
}

static inline void give(CUdeviceptr p)
{
	assert_int_equal(vs_pool_free(p), CUDA_SUCCESS);
}

/* A heap in which nothing is mapped has other bounds from now on. */
static inline void lay_heap(struct vs_pool *pool, enum vs_heap_kind kind,
			    uint64_t trunk, uint64_t size)
{
	struct vs_heap *h = &pool->heap[kind];
	CUdeviceptr base = h->base;

	assert_true(vs_heap_is_bare(h));
	vs_heap_drop(h);
	memset(h, 0, sizeof(*h));
	assert_true(vs_heap_init(pool, h, base, trunk, base + size));
}

/* The pool, made here, has no trunk: chunks lie in regions of their own. */
static inline void without_trunks(void)
{
	struct vs_pool *pool = vs_pool_for(0);

	for (int k = 0; k < VS_N_HEAPS; k++)
		lay_heap(pool, (enum vs_heap_kind)k, 0,
			 pool->heap[k].end - pool->heap[k].base);
}

/* Not where a sanitizer leaves too few addresses (tsan). Makes the pool. */
static inline bool has_trunks(void)
{
	const struct vs_heap *h = &vs_pool_for(0)->heap[VS_HEAP_LARGE];

	return h->trunk_end > h->base;
}

/*
 * Of 200 rounds of a free, work and an allocation, .1 ms each, those in which
 * somebody looks at a marker. The blocks are of 8 MiB.
 */
static inline unsigned rounds_with_a_look(CUdeviceptr p[8], void (*work)(void))
{
	unsigned looks = 0;

	for (int i = 0; i < 200; i++) {
		unsigned long before = fake.queries;

		give(p[i % 8]);
		work();
		p[i % 8] = take(8 * MiB);
		looks += fake.queries != before;
		fake.now += MS / 10;
	}
	return looks;
}

/* One in mode relaxed begins in a stream, which the program made. */
static inline void begin_capture(CUstream stream)
{
	vs_capture_before_begin(stream);
	vs_capture_after_begin(stream, false, CU_STREAM_CAPTURE_MODE_RELAXED,
			       true);
}

/* What another thread does with a context of which the pool was told. */
static inline void bury_ctx(struct vs_ctx *ctx)
{
	vs_ctx_bury(ctx);
	vs_tcache_drop_ctx(vs_pool_of(0), ctx);
	vs_range_drop_ctx(vs_pool_of(0), ctx);
}

/* A context ends, by the pool's part and the driver's own. */
static inline void end_ctx(CUcontext ctx)
{
	vs_pool_ctx_gone(vs_pool_ctx_dying(ctx));
}

#endif
