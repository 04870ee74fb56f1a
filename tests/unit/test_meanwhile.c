/* SPDX-License-Identifier: MIT
 *
 * What others do while a pool's lock is given up in between (Note [In parts] in
 * pool/reuse.h), on the counting driver: what they free meanwhile is not waited
 * for, or a call might never end; and the process may end.
 */
#include <pthread.h>

#include "fake_test.h"
#include "pool/reuse.h"
#include "pool/state.h"
#include "pool/tcache.h"

/* Blocks, and objects, that are freed before, and at most meanwhile. */
enum { BEFORE = 10000, MEANWHILE = 10000, OBJECTS = 200000 };
/* More than come home, or are sorted, in one hold of the lock. */
enum { SOME = 1100, SOME_OBJECTS = 40000 };
/* Holds that bring home, or sort, what was there before; and one more. */
enum { HOLDS = 22, HOLDS_OF_OBJECTS = 13 };

static CUdeviceptr blocks[BEFORE + MEANWHILE], objects[OBJECTS];
static struct vs_pool *pool;

/* Pauses, by whether the grow lock is held; what is still to be freed. */
static unsigned n_pauses[2], n_left;
static bool is_paused;
static void (*others)(void);

static void paused(unsigned round)
{
	bool is_held = pthread_mutex_trylock(&pool->grow) != 0;

	(void)round;
	if (!is_held)
		pthread_mutex_unlock(&pool->grow);
	if (is_paused)
		return;
	n_pauses[is_held]++;
	is_paused = true;
	others();
	is_paused = false;
}

static void meanwhile(void (*what)(void))
{
	others = what;
	n_pauses[0] = n_pauses[1] = 0;
	vs_vmm_pause = paused;
}

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	fake.lag_ns = 0;
	vs_pool_ending(false);
	give(take(2 * MiB));
	pool = vs_pool_of(0);
	return 0;
}

/* The work of all that was freed is done, and seen to be. */
static void finish(void)
{
	vs_fence_record(&pool->fence);
	vs_fence_poll(&pool->fence);
}

static void free_before(void)
{
	for (int i = 0; i < BEFORE + MEANWHILE; i++)
		blocks[i] = take(2 * MiB);
	for (int i = 0; i < BEFORE; i++)
		give(blocks[MEANWHILE + i]);
	finish();
	n_left = MEANWHILE;
}

static void free_more(void)
{
	for (int i = 0; i < SOME && n_left > 0; i++)
		give(blocks[--n_left]);
	finish();
}

/* It is served from another heap, and so only when none of it is left. */
static void test_a_request_does_not_wait_for_them(void **state)
{
	(void)state;
	free_before();
	meanwhile(free_more);
	take(64 * KiB);
	assert_in_range(n_pauses[false], BEFORE / SOME, HOLDS);
}

static void test_a_tick_does_not_wait_for_them(void **state)
{
	(void)state;
	free_before();
	meanwhile(free_more);
	vs_pool_tick();
	assert_in_range(n_pauses[false], BEFORE / SOME, HOLDS);
}

static void free_more_objects(void)
{
	for (int i = 0; i < SOME_OBJECTS && n_left > 0; i++)
		give(objects[--n_left]);
	vs_tcache_flush(pool);
	finish();
}

static void test_a_sweep_does_not_wait_for_them(void **state)
{
	(void)state;
	for (int i = 0; i < OBJECTS; i++)
		objects[i] = take(4096);
	n_left = OBJECTS;
	for (int i = 0; i < OBJECTS / 2; i++)
		give(objects[--n_left]);
	vs_tcache_flush(pool);
	finish();
	meanwhile(free_more_objects);
	vs_pool_trim();
	assert_in_range(n_pauses[false], 1, HOLDS_OF_OBJECTS);
}

/* So many chunks are used, and are to be sorted anew. */
static void use_chunks(void)
{
	if (n_left == 0)
		return;
	n_left--;
	for (int i = 0; i < SOME; i++)
		blocks[i] = take(2 * MiB);
	for (int i = 0; i < SOME; i++)
		give(blocks[i]);
	finish();
	vs_reuse_bring_home(pool);
}

static void test_sorting_does_not_wait_for_them(void **state)
{
	uint64_t most;

	(void)state;
	vs_knobs.chunk_size.value = 2 * MiB;
	free_before();
	for (unsigned i = 0; i < MEANWHILE; i++)
		give(blocks[i]);
	finish();
	vs_reuse_bring_home(pool);
	n_left = 4 * HOLDS;
	most = pool->chunks.count / SOME + 4;
	meanwhile(use_chunks);
	vs_chunks_refresh_slowly(pool);
	assert_in_range(n_pauses[false], BEFORE / SOME, most);
}

/* How often the driver was asked how much is unused. */
static unsigned long n_asked;

static CUresult CUDAAPI ask(size_t *unused_out, size_t *total_out)
{
	n_asked++;
	*unused_out = *total_out = 139 * GiB;
	return CUDA_SUCCESS;
}

/* Calls of the driver that a pool makes by itself. */
static unsigned long calls(void)
{
	return fake.records + fake.queries + fake.unmaps + fake.releases +
	       n_asked;
}

static unsigned long calls_before;

static void process_ends(void)
{
	vs_pool_ending(true);
	calls_before = calls();
}

/* No driver call may meet a driver that is shutting down. */
static void check_end(void (*serve)(void))
{
	vs_real.cuMemGetInfo_v2 = ask;
	meanwhile(process_ends);
	serve();
	assert_int_not_equal(n_pauses[false], 0);
	assert_int_equal(calls(), calls_before);
	/* nor is there another round, nor another pool's */
	fake.gpu_free = fake.now + 100 * MS;
	give(take(2 * MiB));
	serve();
	assert_int_equal(calls(), calls_before);
	vs_pool_ending(false);
}

static void trim(void)
{
	vs_pool_trim();
}

/* While blocks come home; what is dead goes as soon as it may. */
static void test_a_trim_ends_with_the_process(void **state)
{
	CUdeviceptr dead = take(300 * MiB);

	(void)state;
	vs_pool_pin(dead);
	free_before();
	give(dead);
	check_end(trim);
}

/* Another process asks for what is idle, of this pool or of the next. */
static void give_way(void)
{
	vs_pool_give_way(0);
}

static void test_giving_way_ends_with_the_process(void **state)
{
	(void)state;
	free_before();
	check_end(give_way);
}

/* So long that nothing was called for an age, and then it is done. */
static void test_a_quiet_tick_ends_with_the_process(void **state)
{
	(void)state;
	fake.gpu_free = fake.now + 3600000 * MS;
	free_before();
	vs_pool_tick();
	fake.now = fake.gpu_free;
	check_end(vs_pool_tick);
}

/* While small objects come home. */
static void test_a_tick_ends_with_the_process(void **state)
{
	CUdeviceptr dead = take(300 * MiB);

	(void)state;
	vs_pool_pin(dead);
	for (int i = 0; i < OBJECTS; i++)
		objects[i] = take(4096);
	for (int i = 0; i < OBJECTS; i++)
		give(objects[i]);
	vs_tcache_flush(pool);
	for (int i = 0; i < 2; i++) {
		vs_pool_tick();
		fake.now += vs_knobs.decay_ms * MS;
		give(take(2 * MiB)); /* it goes on */
	}
	give(dead);
	check_end(vs_pool_tick);
	/* nor are the other objects swept */
	assert_int_equal(n_pauses[false], 1);
}

/* Meanwhile an exit handler needs memory that the pool does not serve. */
static void test_exit_handlers_have_it_before_that_ends(void **state)
{
	(void)state;
	give(take(GiB));
	give(take(3 * GiB));
	finish();
	vs_pool_ending(true);
	assert_int_equal(vs_pool_trim(), 0);
	assert_true(vs_pool_relieve(1, VS_RELIEF_IDLE) >= 3 * GiB);
	assert_int_equal(fake.held, 0);
	give(take(GiB));
	finish();
	assert_true(vs_pool_trim_called() >= GiB);
	assert_int_equal(fake.held, 0);
	/* also what is to be waited for */
	fake.lag_ns = 10 * MS;
	give(take(GiB));
	assert_true(vs_pool_relieve(1, VS_RELIEF_DUE) >= GiB);
	assert_int_equal(fake.held, 0);
	vs_pool_ending(false);
}

/* One chunk of many that only dead memory is left of. */
static void test_what_is_dead_stays_with_the_process(void **state)
{
	void (*const serve[])(void) = {trim, vs_pool_tick};
	enum { BLOCKS = 20 };

	for (int i = 0; i < 2; i++) {
		unsigned long unmaps, releases;

		fresh(state);
		for (int b = 0; b < BLOCKS; b++)
			vs_pool_pin(blocks[b] = take(100 * MiB));
		for (int b = 0; b < BLOCKS; b++)
			give(blocks[b]);
		finish();
		unmaps = fake.unmaps;
		releases = fake.releases;
		fake.on_unmap = end_process;
		serve[i]();
		assert_int_equal(fake.unmaps, unmaps + 1);
		assert_int_equal(fake.releases, releases + 1);
		assert_int_not_equal(vs_stat_get(stats(), dead), 0);
		fake.on_unmap = NULL;
		vs_pool_ending(false);
		/* until it may go: more than at once */
		serve[i]();
		assert_in_range(fake.releases, releases + 33, releases + 64);
		assert_int_equal(vs_stat_get(stats(), dead), 0);
	}
}

static __typeof__(vs_real.cuEventQuery) query;

static CUresult CUDAAPI query_at_the_end(CUevent event)
{
	vs_pool_ending(true);
	return query(event);
}

/* Work goes on, so the other process would get nothing for most of a second. */
static void test_a_wait_for_others_ends_with_the_process(void **state)
{
	CUdeviceptr p = take(2 * MiB);
	unsigned long looks;

	(void)state;
	fake.gpu_free = fake.now + 3600000 * MS;
	give(p);
	vs_pool_trim();
	looks = fake.queries;
	vs_pool_give_way(0);
	assert_true(fake.queries > looks + 10);
	/* which is waited for once, and so not again */
	fake.now = fake.gpu_free;
	p = take(2 * MiB);
	fake.gpu_free = fake.now + 3600000 * MS;
	give(p);
	vs_pool_trim();
	query = vs_real.cuEventQuery;
	vs_real.cuEventQuery = query_at_the_end;
	looks = fake.queries;
	vs_pool_give_way(0);
	assert_in_range(fake.queries, looks + 1, looks + 2);
	vs_pool_ending(false);
}

static CUresult CUDAAPI query_later(CUevent event)
{
	fake.now += MS;
	return query(event);
}

static void free_in_chunks(void)
{
	for (int i = 0; i < 20; i++)
		blocks[i] = take(100 * MiB);
	for (int i = 0; i < 20; i++)
		give(blocks[i]);
}

/* One chunk of those that another process gets when work is done. */
static void test_what_was_waited_for_stays_with_the_process(void **state)
{
	unsigned long releases;

	(void)state;
	vs_pool_trim();
	fake.gpu_free = fake.now + 20 * MS;
	free_in_chunks();
	query = vs_real.cuEventQuery;
	vs_real.cuEventQuery = query_later;
	releases = fake.releases;
	fake.on_unmap = end_process;
	assert_int_not_equal(vs_pool_give_way(0), 0);
	assert_int_equal(fake.releases, releases + 1);
	vs_pool_ending(false);
}

/* One chunk of those that are old, each time. */
static void test_what_is_old_stays_with_the_process(void **state)
{
	unsigned long before, first = fake.releases;

	(void)state;
	free_in_chunks();
	finish();
	fake.on_unmap = end_process;
	for (int i = 0; i < 20; i++) {
		before = fake.releases;
		vs_pool_ending(false);
		fake.now += vs_knobs.decay_ms * MS / 4;
		vs_pool_tick();
		assert_in_range(fake.releases, before, before + 1);
	}
	assert_in_range(fake.releases, first + 2, first + 20);
}

static CUresult CUDAAPI almost_full(size_t *unused_out, size_t *total_out)
{
	*unused_out = GiB;
	*total_out = 139 * GiB;
	return CUDA_SUCCESS;
}

/* One chunk of those that others, who cannot ask for them, may need. */
static void test_what_others_need_stays_with_the_process(void **state)
{
	unsigned long before;

	(void)state;
	free_in_chunks();
	finish();
	vs_real.cuMemGetInfo_v2 = almost_full;
	fake.on_unmap = end_process;
	before = fake.releases;
	vs_pool_tick();
	assert_int_equal(fake.releases, before + 1);
	vs_pool_ending(false);
}

/* One chunk of those beyond need, when a time of less need is over. */
static void test_what_is_not_needed_stays_with_the_process(void **state)
{
	enum { LEAST_MS = 30000 }; /* NEED_LEAST */
	unsigned long before;

	(void)state;
	for (int i = 0; i < 2; i++) {
		fake.now += (uint64_t)LEAST_MS * MS;
		vs_pool_tick();
		free_in_chunks();
		finish();
	}
	fake.on_unmap = end_process;
	for (int i = 0; i < 2; i++) {
		before = fake.releases;
		fake.now += (uint64_t)LEAST_MS * MS;
		give(take(2 * MiB));
		vs_pool_tick();
		assert_int_equal(fake.releases, before + 1);
		vs_pool_ending(false);
	}
}

#define T(name) cmocka_unit_test_setup(test_##name, fresh)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_request_does_not_wait_for_them),
		T(a_tick_does_not_wait_for_them),
		T(a_sweep_does_not_wait_for_them),
		T(sorting_does_not_wait_for_them),
		T(a_trim_ends_with_the_process),
		T(giving_way_ends_with_the_process),
		T(a_quiet_tick_ends_with_the_process),
		T(a_tick_ends_with_the_process),
		T(exit_handlers_have_it_before_that_ends),
		T(what_is_dead_stays_with_the_process),
		T(a_wait_for_others_ends_with_the_process),
		T(what_was_waited_for_stays_with_the_process),
		T(what_is_old_stays_with_the_process),
		T(what_others_need_stays_with_the_process),
		T(what_is_not_needed_stays_with_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
