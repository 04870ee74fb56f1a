/* SPDX-License-Identifier: MIT
 *
 * prepare: the pool is made with the context, the first blocks are hits, and
 * what was made ahead goes back as all idle memory does. And the owner index,
 * where ranges are larger than what one of its coarse entries stands for.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/meta.h"
#include "fake_test.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(160 * GiB);
	vs_knobs.release_threshold.value = 64 * MiB;
	vs_knobs.decay_ms = 3000;
	return 0;
}

/* Driver calls since `from`: creates, maps, accesses, all others. */
static void expect_calls(const struct fake *from, unsigned long creates,
			 unsigned long maps, unsigned long accesses)
{
	assert_int_equal(fake.creates - from->creates, creates);
	assert_int_equal(fake.maps - from->maps, maps);
	assert_int_equal(fake.accesses - from->accesses, accesses);
	assert_int_equal(fake.releases - from->releases, 0);
	assert_int_equal(fake.unmaps - from->unmaps, 0);
	assert_int_equal(fake.records - from->records, 0);
	assert_int_equal(fake.queries - from->queries, 0);
	assert_int_equal(fake.natives - from->natives, 0);
}

static void test_first_blocks_are_hits(void **state)
{
	struct fake before;

	(void)state;
	vs_pool_ctx_born(FAKE_CTX, 0);
	assert_true(vs_pool_prepare(0));
	assert_int_equal(vs_stat_get(stats(), reserved), 6 * MiB);
	assert_int_equal(vs_stat_get(stats(), idle), 6 * MiB);
	assert_int_equal(vs_stat_get(stats(), live_high), 0);
	before = fake;
	give(take(4096));
	take(2 * MiB);
	expect_calls(&before, 0, 0, 0);
	assert_int_equal(vs_stat_get(stats(), large_hit), 1);
}

/* A larger one needs each call once, and extends what is there. */
static void test_a_first_large_block(void **state)
{
	struct fake before;

	(void)state;
	vs_pool_ctx_born(FAKE_CTX, 0);
	assert_true(vs_pool_prepare(0));
	before = fake;
	take(64 * MiB);
	expect_calls(&before, 1, 1, 1);
	assert_int_equal(vs_stat_get(stats(), reserved), 68 * MiB);
	before = fake;
	take(GiB);
	expect_calls(&before, 1, 1, 1);
}

/* Each larger than what was live before: a chunk each, as of the driver. */
static void test_a_series_of_first_blocks(void **state)
{
	struct fake before;

	(void)state;
	vs_pool_ctx_born(FAKE_CTX, 0);
	assert_true(vs_pool_prepare(0));
	take(2 * MiB);
	for (size_t size = 4 * MiB; size <= 64 * MiB; size *= 4) {
		before = fake;
		take(size);
		expect_calls(&before, 1, 1, 1);
	}
	before = fake;
	take(4 * MiB);
	expect_calls(&before, 0, 0, 0);
	assert_true(fake.held <= (86 + 4 + 32) * MiB);
}

/* A small device, or a small part of one, has small chunks. */
static void test_little_memory(void **state)
{
	(void)state;
	fresh_driver(256 * MiB);
	take(3 * MiB);
	take(8 * MiB);
	assert_int_equal(fake.held, 12 * MiB);
	fresh_driver(160 * GiB);
	vs_knobs.memory_limit.value = 256 * MiB;
	take(3 * MiB);
	take(8 * MiB);
	assert_int_equal(fake.held, 12 * MiB);
}

/* Where one after another goes: near, so that the tables have been touched. */
static void test_large_blocks_lie_near(void **state)
{
	CUdeviceptr first, p;

	(void)state;
	vs_pool_ctx_born(FAKE_CTX, 0);
	assert_true(vs_pool_prepare(0));
	first = take(64 * MiB); /* at the heap's begin */
	p = take(GiB);
	assert_int_equal((p - first) % GiB, 0);
	assert_true(p - first + GiB <= 8 * GiB);
	p = take(64 * GiB);
	assert_int_equal((p - first) % GiB, 0);
	assert_true(p - first + 64 * GiB <= 128 * GiB);
}

/* Without, as where the birth of the context was not seen. */
static void test_first_blocks_unprepared(void **state)
{
	struct fake before;

	(void)state;
	take(4096);
	before = fake;
	take(2 * MiB);
	expect_calls(&before, 1, 1, 1);
	before = fake;
	take(64 * MiB);
	expect_calls(&before, 1, 1, 1);
}

static void test_goes_back_for_good(void **state)
{
	(void)state;
	vs_pool_ctx_born(FAKE_CTX, 0);
	assert_true(vs_pool_prepare(0));
	assert_int_equal(vs_pool_trim(), 6 * MiB);
	assert_int_equal(vs_stat_get(stats(), reserved), 0);
	assert_true(vs_pool_prepare(0));
	vs_pool_tick();
	assert_int_equal(vs_stat_get(stats(), reserved), 0);
	assert_int_equal(fake.held, 0);
	give(take(2 * MiB));
	/* nor after the context's end, with the next one */
	end_ctx(FAKE_CTX);
	vs_pool_ctx_born(FAKE_CTX, 0);
	assert_true(vs_pool_prepare(0));
	assert_int_equal(fake.held, 0);
}

static void test_decays(void **state)
{
	(void)state;
	vs_knobs.release_threshold.value = 0;
	fake.now += (uint64_t)10000000000;
	assert_true(vs_pool_prepare(0));
	vs_pool_tick();
	assert_int_equal(fake.held, 6 * MiB);
	fake.now += (uint64_t)4000000000;
	vs_pool_tick();
	assert_int_equal(fake.held, 0);
}

/* MiB held when 10 s pass after 40 MiB were freed beside what stays live. */
static uint64_t held_at_rest(size_t live)
{
	assert_true(vs_pool_prepare(0));
	take(live);
	give(take(40 * MiB));
	for (int i = 0; i < 40; i++) {
		fake.now += 250000000;
		vs_pool_tick();
	}
	return fake.held / MiB;
}

/* Many such processes share a device; the driver holds 2 MiB for it. */
static void test_a_small_program_at_rest(void **state)
{
	assert_int_equal(held_at_rest(4096), 2);
	/* what is a part of what it uses may stay */
	fresh(state);
	assert_in_range(held_at_rest(160 * MiB), 160 + 40, 160 + 48);
	/* and what the user says */
	fresh(state);
	vs_knobs.release_threshold.is_given = true;
	assert_in_range(held_at_rest(4096), 40, 48);
	/* or that he wants what is above at once */
	fresh(state);
	vs_knobs.decay_ms = 0;
	assert_in_range(held_at_rest(4096), 40, 48);
}

/* What was made ahead is gone when the first block comes. */
static void test_a_program_that_begins_late(void **state)
{
	struct fake before;

	(void)state;
	assert_true(vs_pool_prepare(0));
	for (int i = 0; i < 40; i++) {
		fake.now += 250 * MS;
		vs_pool_tick();
	}
	assert_int_equal(fake.held, 0);
	take(4096);
	take(1500 * KiB);
	take(9 * MiB);
	assert_int_equal(fake.held, (2 + 2 + 10) * MiB);
	/* further ones share what is larger */
	before = fake;
	for (int i = 0; i < 4; i++)
		take(2 * MiB);
	expect_calls(&before, 1, 1, 1);
	assert_int_equal(fake.held - before.held, 8 * MiB);
}

static void test_not_where_unwanted(void **state)
{
	(void)state;
	vs_knobs.memory_limit.value = 32 * MiB;
	assert_true(vs_pool_prepare(0));
	assert_int_equal(fake.held, 0);
	fresh(NULL);
	vs_knobs.contiguous = true;
	assert_true(vs_pool_prepare(0));
	assert_int_equal(fake.held, 0);
	fresh(NULL);
	vs_knobs.ipc = VS_IPC_NATIVE;
	assert_false(vs_pool_prepare(0));
	assert_int_equal(vs_pool_count(), 0);
}

/* What fails is undone; the first allocations then do it themselves. */
static void test_driver_refuses(void **state)
{
	unsigned *calls[] = {&fake.fail_create, &fake.fail_map,
			     &fake.fail_access};

	for (int i = 0; i < 3; i++) {
		fresh(state);
		take(1); /* the pool is made: the probe is not to fail */
		vs_pool_trim();
		*calls[i] = 1;
		assert_true(vs_pool_prepare(0));
		give(take(2 * MiB));
		give(take(64 * MiB));
		end_ctx(FAKE_CTX);
		assert_int_equal(fake.held, 0);
		assert_int_equal(fake.mappings, 0);
	}
}

static void expect_found(CUdeviceptr p, CUdeviceptr base, size_t size)
{
	struct vs_span span;

	assert_true(vs_pool_find(p, &span));
	assert_int_equal(span.base, base);
	assert_int_equal(span.size, size);
}

/* Looks at every 256 KiB or so of a block. */
static void expect_all_found(CUdeviceptr base, size_t size)
{
	for (size_t at = 0; at < size; at += 250000)
		expect_found(base + at, base, size);
	expect_found(base + size - 1, base, size);
}

static bool is_found(CUdeviceptr p)
{
	struct vs_span span;

	return vs_pool_find(p, &span);
}

static void test_owner_of_huge_blocks(void **state)
{
	size_t size = 10 * GiB + 3 * MiB + 5;
	CUdeviceptr p[4], q[4];

	(void)state;
	/* begins inside a GiB, begins with one, ends with one */
	p[0] = take(700 * MiB);
	p[1] = take(size);
	p[2] = take(4 * GiB);
	p[3] = take(1500 * MiB);
	expect_all_found(p[0], 700 * MiB);
	expect_all_found(p[1], size);
	expect_all_found(p[2], 4 * GiB);
	expect_all_found(p[3], 1500 * MiB);
	assert_false(is_found(p[1] + size));
	give(p[1]);
	for (size_t at = 0; at < size; at += 100 * MiB)
		assert_false(is_found(p[1] + at));
	/* smaller ones where it was */
	for (int i = 0; i < 4; i++)
		q[i] = take((size_t)(i + 1) * 900 * MiB);
	for (int i = 0; i < 4; i++)
		expect_all_found(q[i], (size_t)(i + 1) * 900 * MiB);
	for (int i = 0; i < 4; i += 2)
		give(q[i]);
	for (int i = 0; i < 4; i++)
		for (size_t at = 0; at < 900 * MiB; at += 100 * MiB)
			assert_int_equal(is_found(q[i] + at), i % 2);
	/* and a large one again, over the entries of small ones */
	give(q[1]);
	give(q[3]);
	q[0] = take(size);
	expect_all_found(q[0], size);
	expect_all_found(p[2], 4 * GiB);
	give(q[0]);
	assert_false(is_found(q[0] + 5 * GiB));
}

static CUdeviceptr block;
static _Atomic bool is_over;
static _Atomic unsigned long n_looks;

/* A block that lives all the while is found at every moment. */
static void *look(void *unused)
{
	unsigned long wrong = 0;
	struct vs_span span;

	for (size_t i = 0; !atomic_load(&is_over); i++) {
		CUdeviceptr p = block + i * 1234567 % (3 * GiB);

		wrong += !vs_pool_find(p, &span) || span.base != block ||
			 span.size != 3 * GiB;
		atomic_fetch_add(&n_looks, 1);
	}
	return wrong ? &n_looks : unused;
}

static void test_owner_beside_a_change(void **state)
{
	CUdeviceptr before, after;
	pthread_t reader;
	void *wrong;

	(void)state;
	/* the block lies where smaller ones were, in the middle of others */
	before = take(6 * GiB);
	give(before);
	for (int i = 0; i < 6; i++)
		give(take((size_t)(i + 1) * 500 * MiB));
	before = take(500 * MiB);
	block = take(3 * GiB);
	assert_int_equal(pthread_create(&reader, NULL, look, NULL), 0);
	for (int i = 0; i < 2000 || atomic_load(&n_looks) < 20000; i++) {
		give(before);
		after = take((size_t)(i % 7 + 1) * 300 * MiB);
		before = take(500 * MiB);
		give(after);
	}
	atomic_store(&is_over, true);
	pthread_join(reader, &wrong);
	assert_null(wrong);
}

/* Bytes of the arena of the driver's only device. */
static uint64_t arena(void)
{
	struct vs_pool *pool;

	take(MiB);
	pool = vs_pool_of(0);
	return pool->end - pool->base;
}

/* The same where the system's policy is this. */
static uint64_t arena_where(const char *policy)
{
	char path[] = "/tmp/test_prepare.XXXXXX";
	int fd = mkstemp(path);
	uint64_t size;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, policy, 2), 2);
	close(fd);
	fresh_driver(139 * GiB);
	vs_meta_overcommit_path = path;
	size = arena();
	unlink(path);
	vs_meta_overcommit_path = "/dev/null";
	return size;
}

/* 38 MiB of tables for 195. */
static void test_an_arena_where_tables_count(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	skip(); /* it leaves few addresses */
#endif
	assert_int_equal(arena_where("0\n"), 8192 * GiB);
	assert_int_equal(arena_where("1\n"), 8192 * GiB);
	assert_int_equal(arena_where("2\n"), 1024 * GiB);
}

/* As that of a program which has limited itself to half of all addresses. */
static void test_an_arena_within_a_limit(void **state)
{
	struct rlimit before, limit;

	(void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	skip(); /* they have most of them */
#endif
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	limit = before;
	limit.rlim_cur = 65536 * GiB;
	if (limit.rlim_cur > limit.rlim_max)
		skip();
	fresh_driver(139 * GiB);
	assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	assert_int_equal(arena(), 2048 * GiB);
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
}

static CUresult CUDAAPI thirty_two(int *out)
{
	*out = 32;
	return CUDA_SUCCESS;
}

/* A half of all addresses is the program's, however many devices there are. */
static void test_an_arena_beside_many(void **state)
{
	(void)state;
#if defined(__SANITIZE_THREAD__)
	skip(); /* it leaves few addresses */
#endif
	fresh_driver(139 * GiB);
	vs_real.cuDeviceGetCount = thirty_two;
	assert_int_equal(arena(), 2048 * GiB);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(first_blocks_are_hits),	T(a_first_large_block),
		T(a_series_of_first_blocks),	T(little_memory),
		T(large_blocks_lie_near),	T(first_blocks_unprepared),
		T(goes_back_for_good),		T(decays),
		T(a_small_program_at_rest),	T(a_program_that_begins_late),
		T(not_where_unwanted),		T(driver_refuses),
		T(owner_of_huge_blocks),	T(owner_beside_a_change),
		T(an_arena_where_tables_count), T(an_arena_within_a_limit),
		T(an_arena_beside_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
