/* SPDX-License-Identifier: MIT
 *
 * starting: what comes while the service starts: a second thread that starts it
 * and has the loader's lock, which the start of a thread needs, or ends the
 * process; a trim, where no thread can be had; one that is slow. The linker
 * puts a board whose join lasts before the real one, and a look at the loader
 * that may wait.
 */
#include "report/service.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/board.h"
#include "base/clock.h"
#include "base/knob.h"
#include "base/thread.h"
#include "child.h"
#include "driver/loader.h"
#include "fake_pool.h"

size_t __real_vs_loader_tls(void);
size_t __wrap_vs_loader_tls(void);
void __real_vs_board_join(void);
void __wrap_vs_board_join(void);

static struct child c;
static atomic_int n_joins, n_looks, n_handlers, may_start;
static bool is_ending;
static pthread_t first;

static void wait_for(atomic_int *count)
{
	while (atomic_load(count) == 0)
		sleep_ms(1);
}

void __wrap_vs_board_join(void)
{
	atomic_fetch_add(&n_joins, 1);
	sleep_ms(200);
	__real_vs_board_join();
}

/* The thread is made only now. */
size_t __wrap_vs_loader_tls(void)
{
	atomic_fetch_add(&n_looks, 1);
	if (is_ending)
		wait_for(&n_handlers);
	return __real_vs_loader_tls();
}

static void *start_first(void *unused)
{
	wait_for(&may_start);
	vs_service_start();
	return unused;
}

static int start_in_a_look(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)info;
	(void)size;
	(void)unused;
	atomic_store(&may_start, 1);
	wait_for(&n_joins);
	vs_service_start();
	return 1;
}

static void start_both(void *unused)
{
	pthread_t thread;

	(void)unused;
	alarm(60);
	vs_knob_init();
	CHECK(pthread_create(&thread, NULL, start_first, NULL) == 0);
	CHECK(dl_iterate_phdr(start_in_a_look, NULL) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(n_joins == 1);
}

static void nobody_waits_for_the_loader(void **unused)
{
	(void)unused;
	child_run(&c, NULL, start_both, NULL);
	assert_child_ok(&c);
}

/* Stands for the driver's own handler: from here on a call may crash. */
static void driver_ends(void)
{
	atomic_fetch_add(&n_handlers, 1);
	pthread_join(first, NULL);
	sleep_ms(200);
	if (fake_n_ticks + fake_n_relaxes > 0)
		_exit(98);
}

static void end_beside(void *unused)
{
	(void)unused;
	alarm(60);
	vs_knob_init();
	atexit(driver_ends);
	is_ending = true;
	atomic_store(&may_start, 1);
	CHECK(pthread_create(&first, NULL, start_first, NULL) == 0);
	wait_for(&n_looks);
	vs_service_start();
	exit(0);
}

static void an_end_before_the_thread_is_made(void **unused)
{
	(void)unused;
	child_run(&c, NULL, end_beside, NULL);
	assert_child_ok(&c);
}

static int refuse(pthread_t *thread, const pthread_attr_t *attributes,
		  void *(*run)(void *), void *argument)
{
	(void)thread;
	(void)attributes;
	(void)run;
	(void)argument;
	vs_service_post_trim();
	return EAGAIN;
}

static void trim_without_a_thread(void *unused)
{
	(void)unused;
	alarm(60);
	vs_knob_init();
	vs_thread_create = refuse;
	vs_service_start();
	CHECK(fake_n_trims == 0);
	vs_service_wake();
	CHECK(fake_n_trims == 1);
}

static void a_trim_before_no_thread_is_had(void **unused)
{
	(void)unused;
	child_run(&c, NULL, trim_without_a_thread, NULL);
	assert_child_ok(&c);
}

/* As a C library that puts more into a stack than is asked for. */
static int create_if_usual(pthread_t *thread, const pthread_attr_t *attributes,
			   void *(*run)(void *), void *argument)
{
	pthread_attr_t usual;
	size_t bytes, least;

	CHECK(pthread_attr_init(&usual) == 0);
	CHECK(pthread_attr_getstacksize(&usual, &least) == 0);
	CHECK(pthread_attr_getstacksize(attributes, &bytes) == 0);
	return bytes < least
		       ? EINVAL
		       : pthread_create(thread, attributes, run, argument);
}

static void start_with_a_small_stack(void *unused)
{
	(void)unused;
	alarm(60);
	vs_knob_init();
	vs_thread_create = create_if_usual;
	vs_service_start();
	vs_service_post_trim();
	CHECK(reaches(&fake_n_trims, 1) && fake_n_trims == 1);
}

static void a_stack_that_is_too_small(void **unused)
{
	(void)unused;
	child_run(&c, NULL, start_with_a_small_stack, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

struct late_start {
	void *(*run)(void *);
	void *argument;
};

static pthread_t latest;
static uint64_t created; /* ms */

static void *run_late(void *data)
{
	const struct late_start *late = data;

	sleep_ms(5);
	return late->run(late->argument);
}

static int create_late(pthread_t *thread, const pthread_attr_t *attributes,
		       void *(*run)(void *), void *argument)
{
	static struct late_start late;
	int error;

	late = (struct late_start){run, argument};
	error = pthread_create(thread, attributes, run_late, &late);
	latest = *thread;
	created = vs_clock_ms();
	return error;
}

static void start_on_a_busy_machine(void *unused)
{
	char name[16] = "";

	(void)unused;
	alarm(60);
	vs_knob_init();
	vs_thread_create = create_late;
	vs_service_start();
	/* the last that it asks for; it is not waited for any longer */
	CHECK(pthread_getname_np(latest, name, sizeof(name)) == 0);
	CHECK(strcmp(name, "vmmshim") == 0 || vs_clock_ms() - created >= 20);
}

/* The program may forbid a moment later what its start asks the system for. */
static void is_up_when_it_was_started(void **unused)
{
	(void)unused;
	child_run(&c, NULL, start_on_a_busy_machine, NULL);
	assert_child_ok(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_waits_for_the_loader),
		cmocka_unit_test(an_end_before_the_thread_is_made),
		cmocka_unit_test(a_trim_before_no_thread_is_had),
		cmocka_unit_test(a_stack_that_is_too_small),
		cmocka_unit_test(is_up_when_it_was_started),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
