/* SPDX-License-Identifier: MIT
 *
 * What the pool does for the driver's other calls that are out of memory, and
 * how often they are made again.
 */
#include <limits.h>

#include "fake_test.h"
#include "hook/hook.h"

/* A new driver and a pool that was never used. */
static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	return 0;
}

static void test_relieve_waits_for_pending(void **state)
{
	CUdeviceptr p = take(200 * MiB);

	(void)state;
	fake.lag_ns = 5 * MS;
	give(p);
	assert_true(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE) >= 200 * MiB);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 0);
	assert_int_equal(stats()->retries, 1);
}

/* The work ends between the call that is out of memory and the look at it. */
static void test_relieve_tells_of_what_just_ended(void **state)
{
	CUdeviceptr small = take(KiB), kept = take(KiB);

	(void)state;
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	fake.lag_ns = 5 * MS;
	give(small);
	vs_pool_synchronizing();
	fake.now += 5 * MS;
	assert_true(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE) > 0);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_DUE), 0);
	give(kept);
}

static void *trim(void *unused)
{
	(void)unused;
	assert_true(vs_pool_trim() >= 200 * MiB);
	return NULL;
}

/* Another thread gives it back between that call and the look. */
static void test_relieve_tells_of_what_another_gave_back(void **state)
{
	(void)state;
	give(take(200 * MiB));
	in_a_thread(trim, NULL);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 1);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 0);
}

static void *take_it(void *out)
{
	*(CUdeviceptr *)out = take(200 * MiB);
	return NULL;
}

/* It may have had other memory at that call, which it gave to the driver. */
static void test_relieve_tells_of_what_another_took(void **state)
{
	CUdeviceptr p;

	(void)state;
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	give(take(200 * MiB));
	in_a_thread(take_it, &p);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 1);
	assert_int_equal(vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE), 0);
	give(p);
}

/* What happens on another device is no help. */
static void test_relieve_tells_of_its_devices(void **state)
{
	(void)state;
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	give(take(200 * MiB));
	in_a_thread(trim, NULL);
	assert_int_equal(vs_pool_relieve(2, VS_RELIEF_IDLE), 0);
	assert_int_equal(vs_pool_relieve(1, VS_RELIEF_IDLE), 1);
	/* nor is it news when it is asked for in turn */
	assert_int_equal(vs_pool_relieve(2, VS_RELIEF_IDLE), 0);
	assert_int_equal(vs_pool_relieve(1, VS_RELIEF_IDLE), 0);
}

/* In place of hook/enter's, which goes by what the program has loaded. */
static bool relieved(uint64_t devices, enum vs_relief relief)
{
	return vs_pool_relieve(devices, relief) > 0;
}

/*
 * A call of the driver's that others overtake so often: they take what was
 * given up for it, and leave as much idle.
 */
static CUresult overtaken(unsigned *times)
{
	give(take(200 * MiB));
	if (*times == 0)
		return CUDA_SUCCESS;
	--*times;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define vs_again_relieved relieved
static void test_a_call_is_overtaken_often(void **state)
{
	unsigned times = 8, for_ever = UINT_MAX;
	CUresult result = overtaken(&times);

	(void)state;
	atomic_store(&vs_hot.is_open, true);
	VS_AGAIN(UINT64_MAX, result, overtaken(&times));
	assert_int_equal(result, CUDA_SUCCESS);
	result = overtaken(&for_ever);
	VS_AGAIN(UINT64_MAX, result, overtaken(&for_ever));
	assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
	atomic_store(&vs_hot.is_open, false);
}

/* Out of memory, while another thread takes what is idle. */
static CUresult refused(void)
{
	CUdeviceptr p;

	in_a_thread(take_it, &p);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A barrier of another thread's waits for work that does not end. */
static void test_a_call_waits_in_vain_once(void **state)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr pending;
	uint64_t before;

	(void)state;
	fresh_driver((uint64_t)16 << 30);
	pending = take(10 * MiB);
	before = fake.now;
	begin_capture((CUstream)0x5000);
	give(pending);
	atomic_store(&vs_pool_of(0)->fence.has_barrier, true);
	atomic_store(&vs_hot.is_open, true);
	VS_AGAIN(UINT64_MAX, result, refused());
	assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
	assert_in_range(fake.now - before, 9900 * MS, 11000 * MS);
	atomic_store(&vs_hot.is_open, false);
}

/* Work ends each time, which brings nothing. */
static CUresult refused_behind_work(CUdeviceptr **freed)
{
	give(*(*freed)++);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* They may wait each time, and the call is made again for other reasons. */
static void test_a_call_asks_others_seldom(void **state)
{
	CUdeviceptr p[10], *freed = p;
	CUresult result;
	uint64_t asked;

	(void)state;
	for (int i = 0; i < 10; i++)
		p[i] = take(KiB);
	vs_pool_trim();
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE); /* has heard of that */
	fake.lag_ns = 20 * MS; /* or who asks in vain is not asked for */
	asked = vs_stat_get(stats(), asked);
	atomic_store(&vs_hot.is_open, true);
	result = refused_behind_work(&freed);
	VS_AGAIN(UINT64_MAX, result, refused_behind_work(&freed));
	atomic_store(&vs_hot.is_open, false);
	assert_ptr_equal(freed, p + 1 + VS_MOST_AGAIN);
	assert_int_equal(vs_stat_get(stats(), asked) - asked, 4);
}
#undef vs_again_relieved

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(relieve_waits_for_pending),
		T(relieve_tells_of_what_just_ended),
		T(relieve_tells_of_what_another_gave_back),
		T(relieve_tells_of_what_another_took),
		T(relieve_tells_of_its_devices),
		T(a_call_is_overtaken_often),
		T(a_call_waits_in_vain_once),
		T(a_call_asks_others_seldom),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
