/* SPDX-License-Identifier: MIT
 *
 * How long memory that a late GPU still uses is waited for, and what a program
 * is taken to need, on the counting driver (fake.h).
 */
#include "fake_test.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* Blocks in turn behind a late GPU, up to a time; the most that was live. */
static uint64_t go_on_until(uint64_t end, uint64_t seed)
{
	CUdeviceptr p[8] = {0};
	uint64_t sizes[8] = {0}, live = 0, most = 0, tick = fake.now;

	for (unsigned i = 0; fake.now < end; i = (i + 1) % 8) {
		if (p[i])
			give(p[i]);
		live -= sizes[i];
		sizes[i] = (50 + next_random(&seed) % 100) * MiB;
		live += sizes[i];
		most = live > most ? live : most;
		p[i] = take(sizes[i]);
		fake.now += 4 * MS;
		if (fake.now - tick < 500 * MS)
			continue;
		vs_pool_tick();
		tick = fake.now;
	}
	for (unsigned i = 0; i < 8; i++)
		give(p[i]);
	return most;
}

/* Note [Late] in pool/ladder.c: longer than the pool has patience at first. */
static void go_on_behind(uint64_t lag_ns)
{
	CUdeviceptr p[64] = {0};
	uint64_t seed = 7, high;

	fake.lag_ns = lag_ns;
	for (int i = 0; i < 4000; i++) {
		if (p[i % 64])
			give(p[i % 64]);
		p[i % 64] = take((20 + next_random(&seed) % 40) * MiB);
		fake.now += MS / 10;
	}
	high = vs_stat_get(stats(), live_high);
	assert_in_range(fake.held_high, high, high + high / 8);
}

static void test_a_gpu_far_behind(void **state)
{
	static const uint64_t lag_ms[] = {110, 150, 250, 700};

	for (int i = 0; i < 4; i++) {
		fresh(state);
		go_on_behind(lag_ms[i] * MS);
	}
}

/*
 * A block is freed behind work that takes so long, and one as large is wanted,
 * beyond need; how long that took. Then all of it is given back.
 */
static uint64_t wait_behind(size_t size, uint64_t lag_ns)
{
	CUdeviceptr p = take(size);
	uint64_t took;

	fake.lag_ns = lag_ns;
	give(p);
	took = fake.now;
	p = take(size);
	took = fake.now - took;
	fake.now += 2 * lag_ns;
	fake.lag_ns = 0;
	give(p);
	vs_pool_trim();
	return took;
}

/* There a wait is no good, however long, and is soon a short one. */
static void test_work_that_waits_for_the_host(void **state)
{
	uint64_t took = 0;

	(void)state;
	for (int i = 0; i < 8; i++) {
		took = wait_behind(1000 * MiB, 5000 * MS);
		if (i == 0)
			assert_in_range(took, 1000 * MS, 2000 * MS);
		assert_int_equal(fake.held, 0);
	}
	assert_in_range(took, 50 * MS, 150 * MS);
}

/* Short ones that were vain say no more of long ones than those that ended. */
static void test_short_waits_in_vain_do_not_shorten_long_ones(void **state)
{
	CUdeviceptr most = take(910 * MiB);

	(void)state;
	for (int i = 0; i < 8; i++)
		wait_behind(90 * MiB, 150 * MS);
	fake.lag_ns = 150 * MS;
	give(most);
	take(910 * MiB);
	assert_true(fake.held <= 1100 * MiB);
}

/*
 * Nor do waits that end in time, of which each program has some, make those for
 * work that waits for the host long again.
 */
static void test_short_waits_prove_nothing_of_long_ones(void **state)
{
	uint64_t took = 0;

	(void)state;
	for (int i = 0; i < 20; i++) {
		fake.lag_ns = 20 * MS;
		give(take(1000 * MiB));
		took += wait_behind(1000 * MiB, 20000 * MS);
		if (i == 9)
			took = 0;
	}
	assert_in_range(took / 10, 50 * MS, 250 * MS);
}

/* 250 ms late, as it was before, after work that waited for the host. */
static void be_late_again(void)
{
	struct vs_fence *fence;
	CUdeviceptr p, most;

	fence = &vs_pool_by_index(0)->fence;
	most = take(900 * MiB);
	p = take(100 * MiB);
	fake.lag_ns = 250 * MS;
	give(p);
	vs_fence_record(fence);
	fake.now += 240 * MS;
	assert_false(vs_fence_poll(fence));
	fake.now += 9000 * MS; /* it had other things to do */
	assert_true(vs_fence_poll(fence));
	assert_int_equal(vs_fence_calm_lag(fence), 240 * MS);
	give(take(100 * MiB));
	/* as far past need as is worth twice the shortest wait */
	give(most);
	most = take(900 * MiB);
	assert_true(fake.held <= 1100 * MiB);
}

static void test_as_late_as_before(void **state)
{
	(void)state;
	for (int i = 0; i < 8; i++)
		wait_behind(1000 * MiB, 20000 * MS);
	be_late_again();
}

static uint64_t ticks_begin; /* clock, ns, at which the counter was 0 */

static uint64_t ticks_anew(void)
{
	return fake.now - ticks_begin;
}

/* A machine that was suspended counts from 0, and another has long counted. */
static void test_as_late_where_the_counter_is_another(void **state)
{
	static const uint64_t on_ms[] = {0, 1000000000};
	uint64_t (*ticks)(void) = vs_vmm_ticks;

	for (int i = 0; i < 2; i++) {
		fresh(state);
		for (int j = 0; j < 8; j++)
			wait_behind(1000 * MiB, 20000 * MS);
		ticks_begin = fake.now - on_ms[i] * MS;
		vs_vmm_ticks = ticks_anew;
		be_late_again();
		vs_vmm_ticks = ticks;
	}
}

/* It was behind for once, but then it is the host that is waited for. */
static void test_a_long_kernel_is_not_remembered_for_ever(void **state)
{
	static const uint64_t lag_ms[] = {900, 3000};
	uint64_t took = 0;

	for (int i = 0; i < 2; i++) {
		CUdeviceptr p;

		fresh(state);
		p = take(100 * MiB);
		fake.lag_ns = lag_ms[i] * MS;
		give(p);
		for (int k = 0; k < 32; k++) {
			vs_pool_tick();
			fake.now += 125 * MS;
		}
		for (int k = 0; k < 12; k++) {
			took = wait_behind(1000 * MiB, 20000 * MS);
			if (k == 0)
				assert_in_range(took, 1000 * MS, 2000 * MS);
		}
		assert_in_range(took, 50 * MS, 150 * MS);
	}
}

enum { PEAK = 160 };

/* So many blocks of 128 MiB live at once, and no more. */
static void pass_a_peak(int n)
{
	CUdeviceptr p[PEAK];

	for (int i = 0; i < n; i++)
		p[i] = take(128 * MiB);
	for (int i = 0; i < n; i++)
		give(p[i]);
}

/*
 * What was live at the begin of a long life is not held for ever: chunks of up
 * to 192 MiB, in which no block of today leaves much idle for long. Nor is what
 * a GPU far behind keeps pending at each look.
 */
static void test_an_old_peak_is_no_need(void **state)
{
	static const struct {
		uint64_t lag, until; /* ms */
		unsigned share;	     /* beyond what is live */
	} cases[] = {{20, 200000, 3}, {500, 300000, 2}};

	for (uint64_t seed = 1; seed <= 10; seed++) {
		uint64_t until = cases[seed % 2].until * MS, most;

		fresh(state);
		pass_a_peak(PEAK);
		fake.lag_ns = cases[seed % 2].lag * MS;
		go_on_until(until, seed);
		fake.held_high = fake.held;
		most = go_on_until(until + 30000 * MS, seed);
		assert_in_range(fake.held_high, most,
				most + most / cases[seed % 2].share);
		assert_in_range(vs_stat_get(stats(), live_high), 20 * GiB,
				20 * GiB);
	}
}

/*
 * Nor is what a thread fetched for its small blocks while there was enough: it
 * stays in use, so none of it is idle.
 */
static void test_small_blocks_after_a_peak(void **state)
{
	CUdeviceptr p[4] = {0};
	uint64_t seed = 7;

	(void)state;
	pass_a_peak(PEAK);
	fake.lag_ns = MS;
	for (int i = 0; i < 120000; i++) {
		if (p[i % 4])
			give(p[i % 4]);
		p[i % 4] = take((512 + next_random(&seed) % 512) * KiB);
		fake.now += 2 * MS;
		if (i % 250 == 0)
			vs_pool_tick();
	}
	/* 3 MiB are live */
	assert_in_range(fake.held, MiB, 128 * MiB);
}

/*
 * A program that churns, and rests between two ticks, each second: what it
 * holds for that is not made again for each burst.
 */
static void test_bursts_find_what_they_had(void **state)
{
	CUdeviceptr p[32] = {0};
	uint64_t seed = 7, end, tick = 0;
	unsigned long creates = 0;
	unsigned i = 0;

	(void)state;
	fake.lag_ns = MS;
	for (int burst = 0; burst < 60; burst++) {
		if (burst == 20)
			creates = fake.creates;
		for (end = fake.now + 100 * MS; fake.now < end;
		     i = (i + 1) % 32) {
			if (p[i])
				give(p[i]);
			p[i] = take(2 * MiB + next_random(&seed) % (18 * MiB));
			fake.now += 3000;
		}
		for (end = fake.now + 900 * MS; fake.now < end;
		     fake.now += 50 * MS) {
			if (fake.now < tick + 750 * MS)
				continue;
			vs_pool_tick();
			tick = fake.now;
		}
	}
	assert_in_range(fake.creates - creates, 0, 200);
}

/* Three large blocks for a moment, each 50 ms, up to a time. */
static void step_until(uint64_t end)
{
	uint64_t seed = 7, tick = fake.now;
	CUdeviceptr p[3];

	while (fake.now < end) {
		for (int i = 0; i < 3; i++)
			p[i] = take((100 + next_random(&seed) % 800) * MiB);
		for (int i = 0; i < 3; i++)
			give(p[i]);
		fake.now += 50 * MS;
		if (fake.now - tick < 500 * MS)
			continue;
		vs_pool_tick();
		tick = fake.now;
	}
}

/*
 * What stays of a cache lies all over its chunks, so more than need is held for
 * good. That is no reason to make what each step needs anew after each look;
 * nor does it keep what a later peak leaves.
 */
static void test_what_is_made_again_is_left(void **state)
{
	enum { N = 640, STAYS = 8 };
	static CUdeviceptr p[N];
	unsigned long creates;
	uint64_t most = 0;

	(void)state;
	for (int i = 0; i < N; i++)
		p[i] = take(20 * MiB);
	for (int i = 0; i < N; i++) {
		if (i % STAYS != 0)
			give(p[i]);
	}
	step_until(70000 * MS);
	creates = fake.creates;
	step_until(120000 * MS);
	assert_in_range(fake.creates - creates, 0, 100);
	for (int i = 0; i < N; i += STAYS)
		give(p[i]);
	pass_a_peak(PEAK);
	fake.lag_ns = 20 * MS;
	for (uint64_t s = 130; s <= 180; s += 10)
		most = go_on_until(s * 1000 * MS, 1);
	assert_in_range(fake.held, most, most + most / 3);
}

/*
 * What went once and was made anew may be needed no more: the next look takes
 * what is idle by then, whatever its age.
 */
static void test_one_look_in_vain_is_no_reason(void **state)
{
	enum { N = 128 };
	CUdeviceptr p[N], q[N], more;

	(void)state;
	for (int i = 0; i < N; i++) {
		p[i] = take(120 * MiB);
		q[i] = take(9 * MiB);
	}
	more = take(600 * MiB);
	for (int i = 0; i < N; i++)
		give(p[i]);
	for (int i = 0; i < 2; i++) {
		if (i == 1)
			give(more);
		fake.now += 30000 * MS;
		vs_pool_tick();
	}
	assert_int_equal(vs_pool_of(0)->need, (N * 9 + 600) * MiB);
	/* of the rest no chunk is idle; what is comes back once */
	for (int i = 0; i < 2; i++) {
		give(take(600 * MiB));
		fake.now += 500 * MS;
		vs_pool_tick();
	}
	assert_int_equal(vs_pool_of(0)->n_vain_looks, 1);
	assert_true(fake.held > 8 * GiB);
	for (int i = 0; i < N; i++)
		give(q[i]);
	fake.now += 500 * MS;
	vs_pool_tick();
	assert_in_range(fake.held, 0, 2 * GiB);
}

/* With DECAY_MS=0 all goes at a synchronize, also what is not beyond need. */
static void test_a_synchronize_leaves_nothing(void **state)
{
	(void)state;
	vs_knobs.decay_ms = 0;
	vs_knobs.release_threshold.value = 0;
	fake.lag_ns = 20000 * MS;
	for (int round = 0; round < 6; round++)
		pass_a_peak(8);
	assert_true(fake.held > 2 * GiB);
	vs_pool_synchronizing();
	fake.now += 25000 * MS;
	vs_pool_synchronized();
	assert_int_equal(fake.held, 0);
}

/* One that no tick meets, and that is served by what is there, is a need. */
static void test_a_short_peak_is_a_need(void **state)
{
	unsigned long releases = 0;

	(void)state;
	for (int step = 0; step < 400; step++) {
		pass_a_peak(40);
		fake.now += 500 * MS;
		vs_pool_tick();
		if (step == 0)
			releases = fake.releases;
	}
	assert_int_equal(fake.releases, releases);
}

/* Two threads look at the clock, and the later one comes first. */
static void test_a_late_look_ends_no_window(void **state)
{
	unsigned long releases;

	(void)state;
	pass_a_peak(8);
	fake.now += 30000 * MS;
	pass_a_peak(8);
	vs_pool_tick();
	releases = fake.releases;
	fake.now -= 1;
	vs_pool_tick();
	assert_int_equal(fake.releases, releases);
	assert_int_equal(vs_pool_of(0)->need, 1024 * MiB);
}

/*
 * Small objects of one class after another, of which a fifth stays: the
 * rest of their slabs serves no other class, and nothing is pending.
 */
static void test_survivors_are_not_waited_for(void **state)
{
	static const size_t sizes[] = {140000, 70000, 33000, 18500};
	static CUdeviceptr p[8000];
	uint64_t seed = 7;

	(void)state;
	fake.lag_ns = 2 * MS;
	for (int wave = 0; wave < 4; wave++) {
		for (int i = 0; i < 8000; i++) {
			p[i] = take(sizes[wave]);
			fake.now += MS / 500;
		}
		for (int i = 0; i < 8000; i++) {
			int other = (int)(next_random(&seed) % 8000);
			CUdeviceptr q = p[i];

			p[i] = p[other];
			p[other] = q;
		}
		for (int i = 1600; i < 8000; i++) {
			give(p[i]);
			fake.now += MS / 1000;
		}
	}
	assert_in_range(vs_stat_get(stats(), waits), 0, 50);
}

/*
 * 400 MiB are freed in such blocks behind a GPU that is late, beside one of
 * `live` bytes. Most that is pending at a time, and how often it was waited
 * for.
 */
static uint64_t most_pending(uint64_t limit, uint64_t live, size_t size,
			     uint64_t *waits_out)
{
	uint64_t most = 0;

	fresh_driver((uint64_t)2 << 30);
	vs_knobs.pending_limit.value = limit;
	take(live);
	fake.lag_ns = 20 * MS;
	for (size_t bytes = 0; bytes < 400 * MiB; bytes += size) {
		give(take(size));
		if (vs_stat_get(stats(), pending) > most)
			most = vs_stat_get(stats(), pending);
	}
	*waits_out = vs_stat_get(stats(), waits);
	return most;
}

static void test_limit_of_what_is_pending(void **state)
{
	const size_t size = 10 * MiB;
	uint64_t waits;

	(void)state;
	/* one that comes when so much is pending is the last */
	assert_in_range(most_pending(35 * MiB, 4 * MiB, size, &waits), 30 * MiB,
			50 * MiB);
	assert_true(waits > 0);
	assert_in_range(most_pending(1, GiB, size, &waits), 10 * MiB, 10 * MiB);
	assert_in_range(waits, 30, 40);
	/* and no wait below it, whatever the program needs */
	assert_int_equal(most_pending(400 * MiB, 4 * MiB, size, &waits),
			 400 * MiB);
	assert_int_equal(waits, 0);
	assert_in_range(most_pending(0, 4 * MiB, size, &waits), 60 * MiB,
			100 * MiB);
	assert_true(waits > 0);
}

/* They are not counted one by one, but are no less of a burden. */
static void test_limit_of_what_is_pending_in_small_blocks(void **state)
{
	uint64_t waits;

	(void)state;
	most_pending(1, 4 * MiB, MiB / 2, &waits);
	assert_true(waits > 0);
	assert_in_range(vs_stat_get(stats(), reserved_high), 0, 128 * MiB);
	most_pending(450 * MiB, 4 * MiB, MiB / 2, &waits);
	assert_int_equal(waits, 0);
	vs_knobs.pending_limit.value = 0;
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(a_gpu_far_behind),
		T(work_that_waits_for_the_host),
		T(short_waits_in_vain_do_not_shorten_long_ones),
		T(short_waits_prove_nothing_of_long_ones),
		T(as_late_as_before),
		T(as_late_where_the_counter_is_another),
		T(a_long_kernel_is_not_remembered_for_ever),
		T(an_old_peak_is_no_need),
		T(small_blocks_after_a_peak),
		T(bursts_find_what_they_had),
		T(what_is_made_again_is_left),
		T(one_look_in_vain_is_no_reason),
		T(a_synchronize_leaves_nothing),
		T(a_short_peak_is_a_need),
		T(a_late_look_ends_no_window),
		T(survivors_are_not_waited_for),
		T(limit_of_what_is_pending),
		T(limit_of_what_is_pending_in_small_blocks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
