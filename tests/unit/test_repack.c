/* SPDX-License-Identifier: MIT
 *
 * A device that was full of small objects, on the counting driver: how far it
 * is filled again, and what brings that about (pool/repack).
 */
#include "fake_test.h"
#include "pool/repack.h"

#define MEMORY (2 * GiB)

enum { MOST = 16384, ROUNDS = 10, N = 500 };

static CUdeviceptr p[MOST];
static unsigned n_live;

static int fresh(void **state)
{
	(void)state;
	fresh_driver(MEMORY);
	n_live = 0;
	return 0;
}

/* Random sizes until there is no more; how many thousandths of it are live. */
static unsigned fill(uint64_t *seed)
{
	unsigned full;

	while (n_live < MOST) {
		size_t size = 16 * KiB + next_random(seed) % (1008 * KiB);

		if (vs_pool_alloc(size, &p[n_live]) != CUDA_SUCCESS)
			break;
		n_live++;
	}
	assert_in_range(n_live, 1, MOST - 1);
	full = (unsigned)(stats()->live * 1000 / MEMORY);
	print_message("filled to %u\n", full);
	return full;
}

/* In any order, to so few. */
static void empty(uint64_t *seed, unsigned n)
{
	while (n_live > n) {
		unsigned k = next_random(seed) % n_live;

		give(p[k]);
		p[k] = p[--n_live];
	}
}

/* It was 94 % the second time, and 86 to 94 later. */
static void test_as_far_as_the_first_time(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4; seed++) {
		uint64_t random = seed;

		print_message("seed %llu\n", (unsigned long long)seed);
		fresh(NULL);
		for (int i = 0; i < ROUNDS; i++) {
			assert_in_range(fill(&random), 946, 1000);
			empty(&random, 0);
		}
	}
}

/* Later work waits for that of what was freed: it was 86 to 94 %. */
static void test_where_later_work_waits(void **state)
{
	uint64_t random = 1;

	(void)state;
	vs_knobs.reuse = VS_REUSE_ORDERED;
	for (int i = 0; i < ROUNDS; i++) {
		assert_in_range(fill(&random), 946, 1000);
		fake.gpu_free = fake.now + 1000 * MS;
		empty(&random, 0);
	}
}

/* It was 91 % on average. */
static void test_where_half_stays(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 4; seed++) {
		uint64_t random = seed;
		unsigned sum = 0;

		print_message("seed %llu\n", (unsigned long long)seed);
		fresh(NULL);
		for (int i = 0; i < ROUNDS; i++) {
			sum += fill(&random);
			empty(&random, n_live / 2);
		}
		assert_in_range(sum, ROUNDS * 925, ROUNDS * 1000);
	}
}

/* Of many small ones some go home in each call, and soon all have. */
static void test_in_parts(void **state)
{
	enum {
		SIZE = 1024,
		AT_ONCE = 80 * 1024 * SIZE,
		CALLS = 4000,
		MOST_SMALL = 300 * 1024
	};
	static CUdeviceptr small[MOST_SMALL];
	uint64_t before, most = 0;
	unsigned n = 0;

	(void)state;
	fresh_driver(256 * MiB);
	while (n < MOST_SMALL && vs_pool_alloc(SIZE, &small[n]) == CUDA_SUCCESS)
		n++;
	assert_in_range(n, 200 * 1024, MOST_SMALL - 1);
	while (n > 0)
		give(small[--n]);
	for (int i = 0; i < CALLS; i++) {
		before = vs_pool_of(0)->slab_bytes;
		take(SIZE);
		if (vs_pool_of(0)->slab_bytes + most < before)
			most = before - vs_pool_of(0)->slab_bytes;
	}
	assert_in_range(most, 1, AT_ONCE);
	assert_in_range(vs_pool_of(0)->slab_bytes, CALLS * SIZE, 64 * MiB);
}

/* Memory that is full no more is not looked at for ever. */
static void test_not_for_ever(void **state)
{
	const struct vs_repack *repack;
	CUdeviceptr few[N];
	uint64_t random = 1, at = 0;
	unsigned turns = 0, looks = 0;

	(void)state;
	fill(&random);
	repack = &vs_pool_of(0)->repack;
	assert_true(repack->at > repack->returned);
	empty(&random, n_live / 2);
	for (; repack->at > 0 && turns < 1000; turns++) {
		looks += repack->at != at;
		at = repack->at;
		for (int i = 0; i < N; i++)
			few[i] = take(512 * KiB);
		for (int i = 0; i < N; i++)
			give(few[i]);
	}
	assert_in_range(looks, 8, 8);
	assert_int_equal(repack->at, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(as_far_as_the_first_time),
		T(where_later_work_waits),
		T(where_half_stays),
		T(in_parts),
		T(not_for_ever),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
