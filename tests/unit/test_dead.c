/* SPDX-License-Identifier: MIT
 *
 * Dead memory, that was exported or registered (vs_pool_pin) and is free, on
 * the counting driver: it is used again before the program is told that there
 * is no memory, and little of it is dead beside what stays.
 */
#include "fake_test.h"

enum { MANY = 64 };

static int fresh(void **state)
{
	(void)state;
	fresh_driver((uint64_t)1 << 30);
	vs_knobs.release_threshold.value = (uint64_t)1 << 30;
	vs_knobs.decay_ms = 3000;
	return 0;
}

/*
 * All that is left of the memory, in blocks of a size; returns how many. Of
 * them `want` is one, if it is not 0.
 */
static unsigned fill(size_t size, CUdeviceptr want, bool *is_had_out)
{
	CUdeviceptr p;
	unsigned n = 0;

	*is_had_out = false;
	while (vs_pool_alloc(size, &p) == CUDA_SUCCESS) {
		*is_had_out |= p == want;
		n++;
	}
	return n;
}

/* Beside a live neighbour, with so much of other memory to be had. */
static CUdeviceptr dead_beside_live(size_t size)
{
	CUdeviceptr dead = take(size);

	take(size);
	vs_pool_pin(dead);
	give(dead);
	return dead;
}

static void test_is_used_before_out_of_memory(void **state)
{
	CUdeviceptr dead;
	bool is_had;

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	dead = dead_beside_live(16 * MiB);
	assert_int_equal(fill(16 * MiB, dead, &is_had),
			 63 - (fake.natives > 1));
	assert_true(is_had);
	assert_int_equal(stats()->dead, 0);
	assert_int_equal(stats()->revived, 16 * MiB);
	/* who has it now did not export it */
	give(dead);
	fake.now += MS;
	assert_int_equal(take(16 * MiB), dead);
}

/* A limit counts as out of memory. */
static void test_is_used_before_the_limit(void **state)
{
	CUdeviceptr dead;
	bool is_had;

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	vs_knobs.memory_limit.value = 128 * MiB;
	vs_knobs.memory_limit.is_percent = false;
	dead = dead_beside_live(8 * MiB);
	assert_int_equal(fill(8 * MiB, dead, &is_had), 15);
	assert_true(is_had);
}

/* All memory is live, but for a dead block and one that is freed behind work.
 */
static void fill_but_for(CUdeviceptr *dead_out, CUdeviceptr *pending_out,
			 uint64_t lag_ns)
{
	*dead_out = dead_beside_live(16 * MiB);
	*pending_out = take(16 * MiB);
	for (int i = 3; i < 64; i++)
		take(16 * MiB);
	fake.now += MS;
	vs_pool_tick();
	vs_pool_tick();
	fake.lag_ns = lag_ns;
	give(*pending_out);
}

static void test_what_is_pending_comes_first(void **state)
{
	CUdeviceptr dead, pending;
	bool is_had;

	(void)state;
	/* one more is within what the program needs: no wait but the last */
	vs_knobs.chunk_size.value = 32 * MiB;
	fill_but_for(&dead, &pending, 50 * MS);
	assert_int_equal(take(16 * MiB), pending);
	assert_int_equal(stats()->dead, 16 * MiB);
	assert_int_equal(take(16 * MiB), dead);
	assert_int_equal(fill(16 * MiB, 0, &is_had), 0);
}

/* Not before its work is complete, nor after a wait that takes long. */
static void test_is_used_when_its_work_is_done(void **state)
{
	CUdeviceptr dead, pending;
	uint64_t began;

	(void)state;
	vs_knobs.chunk_size.value = 64 * MiB;
	fill_but_for(&dead, &pending, 20000 * MS);
	began = fake.now;
	assert_int_equal(take(16 * MiB), dead);
	assert_true(fake.now - began < 1000 * MS);
	fake.lag_ns = 200 * MS;
	fake.now += 20000 * MS;
	vs_pool_pin(dead);
	give(dead);
	began = fake.now;
	assert_int_equal(take(16 * MiB), pending);
	assert_int_equal(take(16 * MiB), dead);
	assert_true(fake.now - began >= 200 * MS);
}

static void test_small_is_used_before_out_of_memory(void **state)
{
	static CUdeviceptr p[40000];
	const size_t size = 40000;
	unsigned n = 0, n_dead = 0;
	bool is_had;

	(void)state;
	while (vs_pool_alloc(size, &p[n]) == CUDA_SUCCESS)
		n++;
	for (unsigned i = 0; i < n; i += 20, n_dead++) {
		vs_pool_pin(p[i]);
		give(p[i]);
	}
	assert_in_range(stats()->dead, n_dead * size, n_dead * (size + 4096));
	assert_int_equal(fill(size, 0, &is_had), n_dead);
	assert_int_equal(stats()->dead, 0);
	assert_int_equal(stats()->blocks, n);
	/* not pinned any more: they come back as ever */
	for (unsigned i = 0; i < n; i++)
		vs_pool_free(p[i]);
	fake.now += MS;
	vs_pool_trim();
	vs_pool_trim();
	assert_int_equal(fake.held, 0);
	assert_int_equal(stats()->dead, 0);
}

/* However much was pinned beside what stays, large and small. */
static void test_only_a_share_is_dead(void **state)
{
	const uint64_t most = ((uint64_t)1 << 30) / 16;
	uint64_t kept = 0;

	(void)state;
	for (int i = 0; i < 3 * MANY; i++) {
		CUdeviceptr p = take(3 * MiB), q = take(70000);

		take(MiB + 1);
		take(70000);
		kept += MiB + 64 * KiB + 70000;
		vs_pool_pin(p);
		vs_pool_pin(q);
		give(p);
		give(q);
		fake.now += MS;
		/* what was buried since the last miss is more */
		assert_true(stats()->dead <= most + 4 * MiB);
	}
	assert_true(stats()->revived > 0);
	assert_true(fake.held_high < kept + 2 * most);
}

/* Small ones alone: of 24 in a slab a few are live. */
static void test_only_a_share_is_dead_in_slabs(void **state)
{
	const size_t size = 64 * KiB;

	(void)state;
	for (int i = 0; i < 100 * MANY; i++) {
		CUdeviceptr p = take(size);

		if (i % 8 == 0)
			continue;
		vs_pool_pin(p);
		give(p);
		fake.now += MS;
	}
	assert_true(stats()->revived > 0);
	assert_true(fake.held_high < 100 * MANY / 8 * size + 128 * MiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(is_used_before_out_of_memory),
		T(is_used_before_the_limit),
		T(what_is_pending_comes_first),
		T(is_used_when_its_work_is_done),
		T(small_is_used_before_out_of_memory),
		T(only_a_share_is_dead),
		T(only_a_share_is_dead_in_slabs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
