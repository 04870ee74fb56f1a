/* SPDX-License-Identifier: MIT
 *
 * Views that are asleep, on the counting driver (fake.h): when they fall
 * asleep, and what wakes them. Note [Asleep] in pool/view.h.
 */
#include "driver/real.h"
#include "fake_test.h"
#include "heap_check.h"
#include "pool/mark.h"
#include "pool/reuse.h"
#include "pool/state.h"

/* Blocks of one size, each a chunk; there is memory for no more. */
enum { N = 24 };
static CUdeviceptr p[N];
static uint64_t unit; /* bytes */
static struct vs_pool *pool;

static int fill_with(uint64_t size, bool is_contiguous)
{
	fresh_driver(139 * GiB);
	vs_knobs.reuse = VS_REUSE_COMPLETE;
	vs_knobs.chunk_size.value = size;
	vs_knobs.contiguous = is_contiguous;
	vs_knobs.memory_limit.value = N * size;
	without_trunks();
	unit = size;
	for (int i = 0; i < N; i++)
		p[i] = take(size);
	pool = vs_pool_of(0);
	return 0;
}

static int fresh(void **state)
{
	(void)state;
	return fill_with(2 * MiB, false);
}

static int fresh_larger(void **state)
{
	(void)state;
	return fill_with(4 * MiB, false);
}

static int fresh_contiguous(void **state)
{
	(void)state;
	return fill_with(16 * MiB, true);
}

static const struct vs_chunk *chunk_of(CUdeviceptr at)
{
	return vs_view_at(pool, at)->chunk;
}

static void free_some(const int *which, int n)
{
	for (int i = 0; i < n; i++)
		give(p[which[i]]);
}

/* They are taken again, each in its chunk. */
static void take_some(const int *which, int n)
{
	const struct vs_chunk *was[N];

	for (int i = 0; i < n; i++) {
		was[i] = chunk_of(p[which[i]]);
		p[which[i]] = take(unit);
	}
	for (int i = 0; i < n; i++) {
		for (int k = i; k < n; k++) {
			CUdeviceptr other = p[which[k]];

			if (chunk_of(other) != was[i])
				continue;
			p[which[k]] = p[which[i]];
			p[which[i]] = other;
		}
	}
}

/* A block over the chunks of some: where it was. */
static CUdeviceptr join(const int *which, int n)
{
	CUdeviceptr block;

	free_some(which, n);
	block = take((uint64_t)n * unit);
	give(block);
	take_some(which, n);
	heap_check(pool);
	return block;
}

static CUdeviceptr join_two(int a, int b)
{
	return join((int[]){a, b}, 2);
}

/* ns; each 8 us would be a churn. */
#define OFTEN (MS / 50)

/*
 * One chunk is used so often, so far apart. By sizes that differ in turn: what
 * is taken as it was freed is not told to other views.
 */
static void use(int which, int times, uint64_t apart_ns)
{
	for (int i = 0; i < times; i++) {
		fake.now += apart_ns;
		give(p[which]);
		p[which] = take(i % 2 ? unit : unit / 4 * 3);
	}
	heap_check(pool);
}

static void test_the_one_longest_not_used_sleeps(void **state)
{
	const struct vs_chunk *one = chunk_of(p[0]);
	CUdeviceptr first = 0;
	unsigned long maps;

	(void)state;
	for (int i = 1; i < VS_VIEWS_MOST; i++) {
		CUdeviceptr at = join_two(0, i);

		first = first ? first : at;
		fake.now += 100 * MS;
		assert_int_equal(one->n_had, i + 1);
		assert_int_equal(one->n_on, i < VS_VIEWS ? i + 1 : VS_VIEWS);
	}
	assert_int_equal(fake.unmaps, 0);
	maps = fake.maps;
	assert_int_equal(join_two(0, 1), first);
	assert_int_equal(fake.maps, maps);
	assert_int_equal(one->n_on, VS_VIEWS);
	/* and then one goes for another */
	join_two(0, VS_VIEWS_MOST);
	join_two(0, VS_VIEWS_MOST + 1);
	assert_int_equal(one->n_had, VS_VIEWS_MOST);
	assert_int_equal(fake.unmaps, 2);
}

static void test_those_not_used_sleep_where_uses_are_many(void **state)
{
	const struct vs_chunk *one = chunk_of(p[0]);
	unsigned long maps;

	(void)state;
	for (int i = 1; i <= 6; i++) {
		join_two(0, i);
		fake.now += 100 * MS;
	}
	use(0, 100, MS);
	assert_int_equal(one->n_on, 7);
	use(0, 100, OFTEN);
	assert_int_equal(one->n_on, 1);
	assert_int_equal(one->n_had, 7);
	maps = fake.maps;
	join_two(0, 4);
	assert_int_equal(one->n_on, 2);
	assert_int_equal(fake.maps, maps);
}

static uint64_t ticks_begin;

static uint64_t ticks_anew(void)
{
	return fake.now - ticks_begin;
}

/* As after a machine was suspended. */
static void test_uses_are_many_no_more_when_ticks_begin_again(void **state)
{
	uint64_t (*ticks)(void) = vs_vmm_ticks;
	const struct vs_chunk *two = chunk_of(p[7]);

	(void)state;
	for (int i = 1; i <= 6; i++) {
		join_two(0, i);
		join_two(7, 7 + i);
		fake.now += 100 * MS;
	}
	use(0, 100, OFTEN);
	assert_int_equal(chunk_of(p[0])->n_on, 1);
	ticks_begin = fake.now;
	vs_vmm_ticks = ticks_anew;
	use(7, 100, MS);
	assert_int_equal(two->n_on, 7);
	use(7, 100, OFTEN);
	vs_vmm_ticks = ticks;
	assert_int_equal(two->n_on, 1);
}

/* All views but one of each of the first chunks sleep. */
static void put_to_sleep(int n)
{
	for (int i = 0; i < n; i++) {
		use(i, 800, OFTEN);
		assert_int_equal(chunk_of(p[i])->n_on, 1);
	}
}

static void test_the_best_fit_wakes(void **state)
{
	const int some[] = {0, 1, 2, 3};
	CUdeviceptr three = join(some, 3), two = join_two(0, 3), block;
	unsigned long maps;

	(void)state;
	put_to_sleep(4);
	maps = fake.maps;
	free_some(some, 4);
	assert_int_equal(take(4 * MiB), two);
	give(two);
	block = take(6 * MiB);
	assert_int_equal(block, three);
	assert_int_equal(fake.maps, maps);
	heap_check(pool);
}

/* All that was freed is idle. */
static void bring_home(void)
{
	pthread_mutex_lock(&pool->lock);
	vs_mark_settle(pool);
	assert_true(vs_reuse_harvest(pool));
	pthread_mutex_unlock(&pool->lock);
}

/* Also for who would be out of memory, in whatever heap they sleep. */
static void test_the_last_resort_wakes(void **state)
{
	const int some[] = {0, 1, 2};
	CUdeviceptr three = join(some, 3);
	struct vs_range *r;

	(void)state;
	put_to_sleep(3);
	free_some(some, 3);
	bring_home();
	r = vs_reuse_anywhere(pool, 6 * MiB);
	assert_true(r && r->base == three);
	heap_check(pool);
}

/* The tail of one chunk and the head of the next, both used in part. */
static void test_two_parts_wake(void **state)
{
	const int some[] = {0, 5}; /* they lie apart */
	CUdeviceptr two, head;
	unsigned long maps;
	int first;

	(void)state;
	free_some(some, 2);
	two = take(7 * MiB);
	give(two);
	take_some(some, 2);
	first = chunk_of(p[0]) == chunk_of(two) ? 0 : 5;
	put_to_sleep(6);
	maps = fake.maps;
	give(p[first]);
	take(2560 * KiB);
	give(p[5 - first]);
	head = take(2304 * KiB);
	take(4 * MiB - 2304 * KiB);
	give(head);
	heap_check(pool);
	assert_int_equal(take(4 * MiB - 256 * KiB), two + 2560 * KiB);
	assert_int_equal(fake.maps, maps);
	heap_check(pool);
}

/* Ranges do not merge there; a chunk may be idle in another heap alone. */
static void test_one_of_another_heap_wakes(void **state)
{
	CUdeviceptr middle;
	unsigned long maps;

	(void)state;
	give(p[0]);
	middle = take(6 * MiB);
	give(middle);
	p[0] = take(unit);
	put_to_sleep(1);
	assert_int_equal(chunk_of(middle)->n_had, 2);
	maps = fake.maps;
	give(p[0]);
	assert_int_equal(take(6 * MiB), middle);
	assert_int_equal(fake.maps, maps);
	heap_check(pool);
}

static void test_what_sleeps_is_given_back(void **state)
{
	(void)state;
	for (int i = 1; i < VS_VIEWS_MOST; i++)
		join_two(0, i);
	put_to_sleep(N);
	for (int i = 0; i < N; i++)
		give(p[i]);
	assert_int_equal(vs_pool_trim(), N * 2 * MiB);
	assert_int_equal(fake.mappings, 0);
	assert_int_equal(fake.held, 0);
	heap_check(pool);
}

/* Where addresses are short all go but one that is on. */
static void test_what_sleeps_is_spare(void **state)
{
	const struct vs_chunk *one = chunk_of(p[0]);
	struct vs_heap *h = &pool->heap[VS_HEAP_MIDDLE];
	struct vs_view *v;

	(void)state;
	for (int i = 1; i < 6; i++)
		join_two(0, i);
	put_to_sleep(1);
	give(p[0]);
	bring_home();
	pthread_mutex_lock(&pool->lock);
	assert_int_equal(one->used, 0);
	while ((v = vs_view_spare(pool, vs_view_at(pool, p[0])->chunk, h)))
		assert_true(vs_view_off(pool, v));
	pthread_mutex_unlock(&pool->lock);
	assert_int_equal(one->n_had, 1);
	assert_int_equal(one->n_on, 1);
	heap_check(pool);
}

/* The next view of the chunk falls asleep: it comes last. */
static void move_next(CUdeviceptr at, uint64_t size)
{
	struct vs_view *v = vs_view_at(pool, at);
	struct vs_view_list *views = &v->chunk->views;

	(void)size;
	pthread_mutex_lock(&pool->lock);
	v = TAILQ_NEXT(v, link);
	if (v) {
		TAILQ_REMOVE(views, v, link);
		TAILQ_INSERT_TAIL(views, v, link);
	}
	pthread_mutex_unlock(&pool->lock);
}

/* All go at once, whatever others do with them meanwhile. */
static void test_what_is_spare_goes_while_others_move_it(void **state)
{
	enum { VIEWS = 6 };
	const int others[] = {10, 11, 12}, some[] = {0, VIEWS};
	struct vs_heap *h = &pool->heap[VS_HEAP_MIDDLE];
	const struct vs_chunk *one = chunk_of(p[0]);
	struct vs_range *hole;
	CUdeviceptr three;

	(void)state;
	for (int i = 1; i < VIEWS; i++)
		join_two(0, i);
	three = join(others, 3);
	/* there are no more addresses */
	pthread_mutex_lock(&pool->lock);
	while ((hole = vs_heap_hole(h, VS_AWAY, 0)))
		assert_non_null(
			vs_heap_claim(pool, h, hole, hole->base, hole->span));
	pthread_mutex_unlock(&pool->lock);
	free_some(some, 2);
	bring_home();
	assert_int_equal(one->n_had, VIEWS);
	fake.on_unmap = move_next;
	/* where two of them were mapped beside the third */
	assert_in_range(take(4 * MiB), three, three + 2 * MiB);
	/* where it was, and now is */
	assert_int_equal(one->n_had, 2);
}

/* A driver that keeps a chunk leaves it as it was. */
static void test_one_that_stays_can_be_had(void **state)
{
	(void)state;
	for (int i = 1; i < 12; i++)
		join_two(0, i);
	put_to_sleep(2);
	for (int i = 0; i < N; i++)
		give(p[i]);
	fake.fail_unmap = 3;
	assert_true(vs_pool_trim() > 0);
	heap_check(pool);
	for (int i = 0; i < N; i++)
		p[i] = take(2 * MiB);
	heap_check(pool);
}

/* One that unmaps nothing leaves more and more; no more of it is used. */
static void test_what_a_driver_never_unmaps_is_not_all_had(void **state)
{
	enum { ROUNDS = 3 };
	const struct vs_chunk *one = chunk_of(p[0]);
	const struct vs_view *v;
	unsigned n = 0;

	(void)state;
	vs_real.cuMemUnmap = unmaps_nothing;
	/* beside others each time, in one order and another */
	for (int i = 1; i < N - ROUNDS; i++) {
		for (int k = 1; k <= ROUNDS; k++)
			join((int[]){0, i, i + k}, 3);
	}
	TAILQ_FOREACH (v, &one->views, link)
		n++;
	assert_true(n > VS_VIEWS_WAITING);
	for (int i = 0; i < N; i++)
		give(p[i]);
	assert_int_equal(vs_pool_trim(), 0);
	assert_int_equal(one->n_had, VS_VIEWS_WAITING);
	heap_check(pool);
}

#define T(name) cmocka_unit_test_setup(test_##name, fresh)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(the_one_longest_not_used_sleeps),
		T(those_not_used_sleep_where_uses_are_many),
		T(uses_are_many_no_more_when_ticks_begin_again),
		T(the_best_fit_wakes),
		cmocka_unit_test_setup(test_two_parts_wake, fresh_larger),
		cmocka_unit_test_setup(test_one_of_another_heap_wakes,
				       fresh_contiguous),
		T(the_last_resort_wakes),
		T(what_sleeps_is_given_back),
		T(what_sleeps_is_spare),
		T(what_is_spare_goes_while_others_move_it),
		T(one_that_stays_can_be_had),
		T(what_a_driver_never_unmaps_is_not_all_had),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
