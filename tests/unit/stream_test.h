/* SPDX-License-Identifier: MIT
 *
 * stream_test: what the tests of policy stream share. A pool on the counting
 * driver, and work in a stream or another.
 */
#ifndef VS_TESTS_STREAM_TEST_H
#define VS_TESTS_STREAM_TEST_H

#include "base/stream.h"
#include "fake_test.h"
#include "pool/state.h"

#define NEVER ((uint64_t)1 << 60)
#define ONE ((CUstream)0x100)
#define TWO ((CUstream)0x200)

static CUdeviceptr large; /* live */

static inline void work_in(CUstream stream)
{
	vs_stream_given(stream, false);
	vs_pool_before_work();
}

static inline void much_work_in(CUstream stream)
{
	/* the first, which may change the stream, is not counted */
	for (int i = 0; i <= VS_STREAM_ENOUGH; i++)
		work_in(stream);
}

/* Nothing of another stream is left. */
static inline void settle_in(CUstream stream)
{
	much_work_in(stream);
	give(take(4 * MiB));
	work_in(stream);
	fake.now += 10 * MS;
	assert_true(vs_fence_poll(&vs_pool_of(0)->fence));
}

static inline void forget_streams(void)
{
	atomic_store(&vs_stream.last, VS_THREAD_NOWHERE);
	atomic_store(&vs_stream.n, 0);
	atomic_store(&vs_stream.changes, 0);
	atomic_store(&vs_stream.hasty, 0);
	atomic_store(&vs_stream.is_relied_on, false);
	atomic_store(&vs_stream.shared, VS_THREAD_NOWHERE);
	vs_thread_self()->worked_in = VS_THREAD_NOWHERE;
}

static inline int fresh_with(enum vs_reuse reuse)
{
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = reuse;
	forget_streams();
	work_in(ONE);
	large = take(200 * MiB);
	/* a program that is new has memory to spare (pool/turnover) */
	fake.now += 1000 * MS;
	give(take(4 * MiB));
	return 0;
}

static inline int fresh(void **state)
{
	(void)state;
	return fresh_with(VS_REUSE_STREAM);
}

static inline int fresh_complete(void **state)
{
	(void)state;
	return fresh_with(VS_REUSE_COMPLETE);
}

/* The block, freed behind work that takes for ever, and more work. */
static inline void free_before_work(void)
{
	fake.lag_ns = NEVER;
	give(large);
	work_in(ONE);
}

/* As much again; whether the host waited for that. */
static inline bool waits_for_it(void)
{
	uint64_t before = vs_stat_get(stats(), waits);

	large = take(200 * MiB);
	return vs_stat_get(stats(), waits) > before;
}

#endif
