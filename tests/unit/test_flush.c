/* SPDX-License-Identifier: MIT
 *
 * The caches of many threads are emptied on the counting driver: in parts, so
 * that no thread waits for all of them, and wholly, whatever others do between
 * two parts. Counted, not timed.
 */
#include <pthread.h>
#include <semaphore.h>

#include "driver/vmm.h"
#include "fake_test.h"
#include "pool/slab.h"
#include "pool/state.h"
#include "pool/tcache.h"

/* Threads; of each as many objects of so many sizes. */
enum { THREADS = 24, OBJECTS = 200, SIZES = 8, ROUNDS = 8 };
/* What may leave the caches in one hold of the lock. */
enum { SOME = 8192 + 2 * OBJECTS * SIZES };

static pthread_t threads[THREADS];
static sem_t has_filled, may_end[THREADS];

static unsigned count_cached(void)
{
	unsigned n = 0;

	VS_EACH_TCACHE (tc, vs_pool_of(0)) {
		for (int c = 0; c < VS_N_CLASSES; c++)
			if (tc->bin[c].idle)
				n += tc->bin[c].idle->n + tc->bin[c].freed->n;
	}
	return n;
}

/* In caches when the lock was taken; the most that left them in one hold. */
static unsigned before, most;
static bool is_counting;
/* What another thread does as soon as it has the lock, once. */
static void (*on_unlock)(void);

/* The linker calls them in place of what they are named after (Makefile.am). */
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

static bool is_counted(const pthread_mutex_t *mutex)
{
	return is_counting && mutex == &vs_pool_of(0)->lock;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
	int error = __real_pthread_mutex_lock(mutex);

	if (is_counted(mutex))
		before = count_cached();
	return error;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	void (*others)(void) = NULL;
	int error;

	if (is_counted(mutex)) {
		unsigned now = count_cached();

		if (now + most < before)
			most = before - now;
		others = now < before ? on_unlock : NULL;
	}
	error = __real_pthread_mutex_unlock(mutex);
	if (others) {
		on_unlock = NULL;
		others();
	}
	return error;
}

/* It allocates and frees until its cache is full, and stays. */
static void *fill(void *may_this_end)
{
	CUdeviceptr p[OBJECTS];

	for (int r = 0; r < SIZES * ROUNDS; r++) {
		for (int i = 0; i < OBJECTS; i++)
			p[i] = take((size_t)(r % SIZES + 1) * VS_ALIGN);
		for (int i = 0; i < OBJECTS; i++)
			give(p[i]);
	}
	sem_post(&has_filled);
	sem_wait(may_this_end);
	return NULL;
}

static int begin(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_vmm_pause = let_others;
	give(take(VS_ALIGN));
	sem_init(&has_filled, 0, 0);
	for (int i = 0; i < THREADS; i++) {
		sem_init(&may_end[i], 0, 0);
		pthread_create(&threads[i], NULL, fill, &may_end[i]);
		sem_wait(&has_filled);
	}
	most = 0;
	is_counting = true;
	return 0;
}

static void end_one(int i)
{
	sem_post(&may_end[i]);
	pthread_join(threads[i], NULL);
	threads[i] = pthread_self();
}

static int end(void **state)
{
	(void)state;
	is_counting = false;
	for (int i = 0; i < THREADS; i++)
		if (!pthread_equal(threads[i], pthread_self()))
			end_one(i);
	return 0;
}

static void check(void)
{
	assert_in_range(most, 1, SOME);
	assert_int_equal(count_cached(), 0);
}

static void test_all(void **state)
{
	unsigned n = count_cached();

	(void)state;
	assert_in_range(n, 2 * SOME, UINT_MAX);
	assert_in_range(vs_tcache_flush(vs_pool_of(0)), n * VS_ALIGN,
			n * SIZES * VS_ALIGN);
	check();
}

/* That look finds that none was used since the one before. */
static void test_unused(void **state)
{
	(void)state;
	vs_tcache_flush_unused(vs_pool_of(0));
	assert_in_range(count_cached(), 2 * SOME, UINT_MAX);
	vs_tcache_flush_unused(vs_pool_of(0));
	check();
}

/* What is to be emptied is so whatever others do after the first part. */
static void flush_while(void (*others)(void))
{
	on_unlock = others;
	vs_tcache_flush(vs_pool_of(0));
	assert_null(on_unlock);
	check();
}

static void look_for_unused(void)
{
	vs_tcache_flush_unused(vs_pool_of(0));
}

static void test_all_while_another_looks(void **state)
{
	(void)state;
	flush_while(look_for_unused);
}

static void end_all(void)
{
	for (int i = 0; i < THREADS; i++)
		end_one(i);
}

static void test_all_while_threads_end(void **state)
{
	(void)state;
	flush_while(end_all);
}

#define T(name) cmocka_unit_test_setup_teardown(test_##name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(all),
		T(unused),
		T(all_while_another_looks),
		T(all_while_threads_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
