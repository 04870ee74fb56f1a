/* SPDX-License-Identifier: MIT
 *
 * How much is done in one hold of a pool's locks, on the counting driver. All
 * others wait meanwhile, so what was freed comes home in parts, however much it
 * is; but no request does without what is yet to come. Counted, not timed.
 */
#include <pthread.h>
#include <string.h>

#include "fake_test.h"
#include "pool/mark.h"
#include "pool/reuse.h"
#include "pool/slab.h"
#include "pool/state.h"

#define SECOND_CTX ((CUcontext)0x2000)

/*
 * Blocks, small objects; and what of them may come home in one hold of the
 * lock: blocks, slabs among them, or pieces of blocks; batches of objects.
 */
enum { MANY = 20000, SOME = 1100 };
enum { OBJECTS = 10 * MANY, BATCHES = 300 };
/* Chunks, and what of them may be released in one hold of the grow lock. */
enum { CHUNKS = 2000, GO = 128 };

static CUdeviceptr blocks[OBJECTS];

/* In a hold of the lock, so far; and the most that one of them did. */
static struct {
	unsigned blocks;  /* that became idle */
	unsigned batches; /* that were emptied */
	unsigned pieces;  /* of blocks, a chunk's each, taken or given */
} now, most;

/* Chunks yet to be sorted anew; fewer by so many after a hold, if counted. */
static unsigned stale_before, most_sorted;
static bool is_sorting_counted;

/* The same of the grow lock: chunks that were released. */
static unsigned long releases_before, most_releases;

/* What another thread does as soon as it has the lock, once. */
static void (*on_unlock)(struct vs_pool *pool);

/* The linker calls them in place of what they are named after (Makefile.am). */
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
void __real_vs_heap_give(struct vs_pool *pool, struct vs_heap *h,
			 struct vs_range *r);
void __real_vs_meta_free(void *p, size_t size);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
void __wrap_vs_meta_free(void *p, size_t size);
void __wrap_vs_heap_give(struct vs_pool *pool, struct vs_heap *h,
			 struct vs_range *r);

static bool is_pools(const pthread_mutex_t *mutex)
{
	struct vs_pool *pool = vs_pool_of(0);

	return pool && mutex == &pool->lock;
}

static bool is_grow(const pthread_mutex_t *mutex)
{
	struct vs_pool *pool = vs_pool_of(0);

	return pool && mutex == &pool->grow;
}

static unsigned count_stale(void)
{
	unsigned n = 0;

	for (struct vs_chunk *c = vs_pool_of(0)->chunks.stale;
	     c && is_sorting_counted; c = c->next_stale)
		n++;
	return n;
}

static unsigned count_pieces(void)
{
	return (unsigned)vs_pool_of(0)->chunks.touches;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	int error = __real_pthread_mutex_lock(mutex);

	if (is_pools(mutex)) {
		memset(&now, 0, sizeof(now));
		now.pieces = count_pieces();
		stale_before = count_stale();
	}
	if (is_grow(mutex))
		releases_before = fake.releases;
	return error;
}

static void raise_to(unsigned *high, unsigned n)
{
	if (*high < n)
		*high = n;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	void (*others)(struct vs_pool *) = on_unlock;
	unsigned n_stale;

	if (is_pools(mutex) && others) {
		on_unlock = NULL;
		others(vs_pool_of(0));
	} else if (is_pools(mutex)) {
		raise_to(&most.blocks, now.blocks);
		raise_to(&most.batches, now.batches);
		raise_to(&most.pieces, count_pieces() - now.pieces);
		n_stale = count_stale();
		if (n_stale < stale_before)
			raise_to(&most_sorted, stale_before - n_stale);
	}
	if (is_grow(mutex) && fake.releases - releases_before > most_releases)
		most_releases = fake.releases - releases_before;
	return __real_pthread_mutex_unlock(mutex);
}

void __wrap_vs_heap_give(struct vs_pool *pool, struct vs_heap *h,
			 struct vs_range *r)
{
	now.blocks++;
	__real_vs_heap_give(pool, h, r);
}

void __wrap_vs_meta_free(void *p, size_t size)
{
	now.batches += size == sizeof(struct vs_batch);
	__real_vs_meta_free(p, size);
}

static void forget_holds(void)
{
	memset(&most, 0, sizeof(most));
	most_releases = most_sorted = 0;
}

static int fresh(void **state)
{
	(void)state;
	is_sorting_counted = false;
	fresh_driver(139 * GiB);
	return 0;
}

/* Of the device: other processes have the rest. */
static void leave(uint64_t bytes)
{
	fake.others = fake.memory - bytes;
}

/* So many are freed behind one piece of work, and that is done by now. */
static void free_blocks(unsigned n, size_t size)
{
	for (unsigned i = 0; i < n; i++)
		blocks[i] = take(size);
	fake.gpu_free = fake.now + 100 * MS;
	for (unsigned i = 0; i < n; i++)
		give(blocks[i]);
	assert_int_equal(stats()->pending, n * size);
	fake.now += 200 * MS;
	forget_holds();
}

static void free_many(void)
{
	free_blocks(MANY, 2 * MiB);
}

/* Freed behind a piece of work, and that is done by now. */
static void give_and_finish(CUdeviceptr p)
{
	fake.gpu_free = fake.now + 100 * MS;
	give(p);
	fake.now += 200 * MS;
}

static void check_blocks(void)
{
	assert_in_range(most.blocks, 1, SOME);
}

/* A request that some of it serves, and those after it bring the rest home. */
static void test_a_request_brings_some_home(void **state)
{
	unsigned long creates;

	(void)state;
	free_many();
	creates = fake.creates;
	take(2 * MiB);
	check_blocks();
	assert_in_range(stats()->pending, MANY * MiB, MANY * 2 * MiB);
	for (int i = 1; i < MANY; i++)
		take(2 * MiB);
	check_blocks();
	assert_int_equal(stats()->pending, 0);
	assert_int_equal(fake.creates, creates);
}

/* Of blocks that lie in many chunks fewer do. */
static void test_a_request_beside_blocks_in_pieces(void **state)
{
	enum { N = MANY / 32 };
	unsigned long creates;

	(void)state;
	vs_knobs.chunk_size.value = 2 * MiB;
	free_blocks(N, 64 * MiB);
	creates = fake.creates;
	for (int i = 0; i < N; i++)
		take(64 * MiB);
	assert_in_range(most.pieces, 1, SOME);
	assert_int_equal(stats()->pending, 0);
	assert_int_equal(fake.creates, creates);
}

/* The same where some of it is kept as it is. */
static void test_a_request_beside_pieces_that_are_kept(void **state)
{
	enum { N = MANY / 32 };
	int n = 1;

	(void)state;
	vs_knobs.chunk_size.value = 2 * MiB;
	vs_knobs.reuse = VS_REUSE_ORDERED;
	free_blocks(N, 64 * MiB);
	take(64 * MiB);
	assert_true(vs_pool_of(0)->kept.n > 0);
	for (; stats()->pending > 0; n++)
		take(64 * MiB);
	assert_in_range(n, 2, N);
	assert_in_range(most.pieces, 1, SOME);
}

/* What only the last of it serves is served so: nothing is mapped for it. */
static void test_a_request_for_the_last_of_it(void **state)
{
	CUdeviceptr last = take(64 * MiB);
	unsigned long maps, misses;

	(void)state;
	free_many();
	give_and_finish(last);
	maps = fake.maps;
	misses = stats()->large_miss;
	assert_int_equal(take(64 * MiB), last);
	check_blocks();
	assert_int_equal(fake.maps, maps);
	assert_int_equal(stats()->large_miss, misses);
	assert_int_equal(stats()->waits, 0);
	assert_int_equal(stats()->pending, 0);
}

static void bring_all_home(struct vs_pool *pool)
{
	while (vs_reuse_harvest(pool))
		;
}

/*
 * Another thread brings the rest home before this one goes on: it is looked for
 * all the same, where the pool has no addresses to grow by.
 */
static void test_a_request_when_others_bring_it_home(void **state)
{
	CUdeviceptr last = take(64 * MiB);
	struct vs_pool *pool = vs_pool_of(0);

	(void)state;
	free_many();
	give_and_finish(last);
	atomic_store(&pool->cramped_span[VS_HEAP_LARGE], 64 * MiB);
	atomic_store(&pool->cramped[VS_HEAP_LARGE], fake.now);
	on_unlock = bring_all_home;
	assert_int_equal(take(64 * MiB), last);
	assert_int_equal(stats()->native, 0);
}

/* Nor is anything made for what none of it serves before all of it is idle. */
static void test_a_request_of_another_heap(void **state)
{
	(void)state;
	free_many();
	take(64 * KiB);
	check_blocks();
	assert_int_equal(stats()->pending, 0);
	assert_int_equal(stats()->waits, 0);
}

/* Nor comes more of it home at once in a program that churns, by its shelves */
static void test_a_request_of_one_that_churns(void **state)
{
	struct vs_pool *pool;

	(void)state;
	free_many();
	pool = vs_pool_of(0);
	pool->turnover.is_fast = true;
	pool->need = 0;
	vs_pool_look(1);
	take(3 * MiB);
	check_blocks();
	assert_in_range(pool->pending_bytes, MANY * MiB, MANY * 2 * MiB);
}

static void test_a_trim_releases_all(void **state)
{
	(void)state;
	free_many();
	vs_pool_trim();
	check_blocks();
	assert_int_equal(stats()->pending, 0);
	assert_int_equal(fake.held, 0);
}

static void test_a_tick_brings_all_home(void **state)
{
	(void)state;
	free_many();
	vs_pool_tick();
	check_blocks();
	assert_int_equal(stats()->pending, 0);
}

static void test_the_end_of_a_context(void **state)
{
	(void)state;
	take(2 * MiB);
	fake.current = SECOND_CTX;
	for (int i = 0; i < MANY; i++)
		take(2 * MiB);
	fake.current = FAKE_CTX;
	forget_holds();
	end_ctx(SECOND_CTX);
	check_blocks();
	assert_int_equal(stats()->pending, 0);
	assert_int_equal(stats()->live, 2 * MiB);
}

/* Guarded blocks that are left to others: their context has ended. */
static void leave_guarded(void)
{
	vs_knobs.guard = true;
	take(2 * MiB);
	fake.current = SECOND_CTX;
	for (int i = 0; i < CHUNKS; i++)
		take(2 * MiB);
	fake.current = FAKE_CTX;
	end_ctx(SECOND_CTX);
	assert_int_equal(fake.held, (CHUNKS + 1) * 2 * MiB);
	forget_holds();
}

static void test_a_tick_releases_guarded_blocks(void **state)
{
	(void)state;
	leave_guarded();
	vs_pool_tick();
	assert_in_range(most_releases, 1, GO);
	assert_int_equal(fake.held, 2 * MiB);
	assert_int_equal(stats()->pending, 0);
}

static void test_an_allocation_beside_guarded_blocks(void **state)
{
	(void)state;
	leave_guarded();
	take(2 * MiB);
	assert_in_range(most_releases, 1, GO);
	assert_int_equal(fake.held, 2 * 2 * MiB);
	assert_int_equal(stats()->pending, 0);
}

/* The same of small objects. */
static void free_small(void)
{
	for (int i = 0; i < OBJECTS; i++)
		blocks[i] = take(4096);
	fake.gpu_free = fake.now + 100 * MS;
	for (int i = 0; i < OBJECTS; i++)
		give(blocks[i]);
	fake.now += 200 * MS;
	forget_holds();
}

/* Of the slabs nothing is left, but what fewer than two batches had. */
static void check_objects(void)
{
	assert_in_range(most.batches, 1, BATCHES);
	check_blocks();
	assert_in_range(vs_pool_of(0)->slab_bytes, 0, 2 * VS_BATCH * 4096);
}

static void test_a_trim_of_small_objects(void **state)
{
	(void)state;
	free_small();
	vs_pool_trim();
	check_objects();
	assert_int_equal(fake.held, 0);
}

/* A look marks them, and one an age later sees that they are old. */
static void test_ticks_of_small_objects(void **state)
{
	(void)state;
	free_small();
	for (int i = 0; i < 3; i++) {
		vs_pool_tick();
		fake.now += vs_knobs.decay_ms * MS;
		give(take(2 * MiB)); /* it goes on */
	}
	check_objects();
}

/* Nothing is made beyond what is needed. */
static void test_a_request_beside_small_objects(void **state)
{
	uint64_t held;

	(void)state;
	free_small();
	held = fake.held;
	take(OBJECTS / 8 * 7 * (size_t)4096);
	check_objects();
	assert_in_range(fake.held, 0, held + 64 * MiB);
}

/* On a device that they filled. */
static void test_small_objects_before_out_of_memory(void **state)
{
	(void)state;
	leave(OBJECTS * (uint64_t)4096 + 64 * MiB);
	free_small();
	take(OBJECTS * (size_t)4096);
	check_objects();
	assert_int_equal(stats()->oom_native, 0);
}

/* So many chunks are all dead; their work is done by then. */
static void kill_chunks(uint64_t ns)
{
	vs_knobs.contiguous = true;
	vs_knobs.chunk_size.value = 2 * MiB;
	for (int i = 0; i < CHUNKS; i++) {
		blocks[i] = take(2 * MiB);
		vs_pool_pin(blocks[i]);
	}
	fake.gpu_free = fake.now + ns;
	for (int i = 0; i < CHUNKS; i++)
		give(blocks[i]);
	vs_pool_synchronizing();
	assert_int_equal(stats()->dead, CHUNKS * 2 * MiB);
	forget_holds();
}

/* The same, and it is done by now. */
static void kill_chunks_and_finish(void)
{
	kill_chunks(100 * MS);
	fake.now += 200 * MS;
}

/* A miss releases some, and those after it the rest. */
static void test_a_miss_beside_dead_chunks(void **state)
{
	const uint64_t before = (CHUNKS - GO) * 2 * MiB;

	(void)state;
	kill_chunks_and_finish();
	vs_pool_look(1);
	take(2 * MiB);
	assert_in_range(most_releases, 1, GO);
	assert_in_range(stats()->dead, before, CHUNKS * 2 * MiB);
	for (int i = 0; i < CHUNKS; i++)
		take(2 * MiB);
	assert_in_range(most_releases, 1, GO);
	assert_int_equal(stats()->dead, 0);
	assert_in_range(fake.held_high, 0, (CHUNKS + 1) * 2 * MiB + 64 * MiB);
}

static void test_a_tick_releases_dead_chunks(void **state)
{
	(void)state;
	kill_chunks_and_finish();
	vs_pool_tick();
	assert_in_range(most_releases, 1, GO);
	assert_int_equal(fake.held, 0);
}

static void test_a_trim_releases_dead_chunks(void **state)
{
	(void)state;
	kill_chunks_and_finish();
	vs_pool_trim();
	assert_in_range(most_releases, 1, GO);
	assert_int_equal(fake.held, 0);
}

/*
 * All of them go before more is held than what the program needs lately, and
 * before anything is waited for.
 */
static void test_dead_chunks_before_need_is_passed(void **state)
{
	CUdeviceptr last = take(32 * MiB);

	(void)state;
	kill_chunks(100 * 1000 * MS);
	for (int s = 0; s < 80; s++) {
		vs_pool_tick();
		fake.now += 1000 * MS;
	}
	assert_int_equal(stats()->dead, CHUNKS * 2 * MiB);
	fake.now += 30 * 1000 * MS;
	vs_pool_look(1);
	fake.gpu_free = fake.now + 50 * MS;
	give(last);
	take(48 * MiB);
	assert_in_range(fake.held, 0, 112 * MiB);
	assert_int_equal(stats()->waits, 0);
}

/* Nor is anything refused while one is there. */
static void test_dead_chunks_before_out_of_memory(void **state)
{
	(void)state;
	leave(CHUNKS * 2 * MiB);
	kill_chunks_and_finish();
	vs_pool_look(1);
	for (int i = 0; i < CHUNKS / 2; i++)
		take(4 * MiB);
	assert_int_equal(stats()->oom_native, 0);
	assert_int_equal(stats()->dead, 0);
}

/* What was left of them is no reason to take memory for scarce (a minute). */
static void test_dead_chunks_before_memory_is_scarce(void **state)
{
	(void)state;
	leave(CHUNKS * 2 * MiB);
	kill_chunks_and_finish();
	vs_pool_look(1);
	take(128 * MiB);
	assert_int_equal(stats()->oom_native, 0);
	assert_false(vs_mark_is_scarce(vs_pool_of(0)));
}

/* All chunks were used since they were last sorted. */
static void test_chunks_are_sorted_before_a_move(void **state)
{
	(void)state;
	leave(MANY * 2 * MiB + 16 * MiB);
	free_many();
	is_sorting_counted = true;
	take(64 * MiB);
	assert_in_range(most_sorted, 1, SOME);
	assert_int_not_equal(stats()->chunks_moved, 0);
	assert_int_equal(stats()->oom_native, 0);
}

static void test_chunks_are_sorted_before_a_trim(void **state)
{
	(void)state;
	free_many();
	is_sorting_counted = true;
	vs_pool_trim();
	assert_in_range(most_sorted, 1, SOME);
	assert_int_equal(fake.held, 0);
}

static void test_chunks_are_sorted_before_dead_ones_go(void **state)
{
	(void)state;
	free_many();
	for (int i = 0; i < MANY; i++)
		take(2 * MiB);
	kill_chunks_and_finish();
	vs_pool_look(1);
	is_sorting_counted = true;
	take(48 * MiB);
	assert_in_range(most_releases, 1, GO);
	assert_in_range(most_sorted, 1, SOME);
}

#define T(name) cmocka_unit_test_setup(test_##name, fresh)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_request_brings_some_home),
		T(a_request_beside_blocks_in_pieces),
		T(a_request_beside_pieces_that_are_kept),
		T(a_request_for_the_last_of_it),
		T(a_request_when_others_bring_it_home),
		T(a_request_of_another_heap),
		T(a_request_of_one_that_churns),
		T(a_trim_releases_all),
		T(chunks_are_sorted_before_a_move),
		T(chunks_are_sorted_before_a_trim),
		T(a_tick_brings_all_home),
		T(the_end_of_a_context),
		T(a_tick_releases_guarded_blocks),
		T(an_allocation_beside_guarded_blocks),
		T(a_trim_of_small_objects),
		T(ticks_of_small_objects),
		T(a_request_beside_small_objects),
		T(small_objects_before_out_of_memory),
		T(a_miss_beside_dead_chunks),
		T(chunks_are_sorted_before_dead_ones_go),
		T(a_tick_releases_dead_chunks),
		T(a_trim_releases_dead_chunks),
		T(dead_chunks_before_need_is_passed),
		T(dead_chunks_before_out_of_memory),
		T(dead_chunks_before_memory_is_scarce),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
