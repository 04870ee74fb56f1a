/* SPDX-License-Identifier: MIT
 *
 * service: the thread is out of the way when the process exits.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"
#include "service_test.h"

static struct child c;

static int n_at_exit;

/* Stands for the driver's exit handler, which was there before. */
static void driver_ends(void)
{
	n_at_exit = fake_n_ticks + fake_n_trims;
	vs_service_post_trim();
	sleep_ms(300);
	if (fake_n_ticks + fake_n_trims != n_at_exit)
		_exit(98);
}

static void exit_quietly(void *unused)
{
	(void)unused;
	fake_n_pools = 1;
	fake_is_waiting = true;
	atexit(driver_ends);
	start();
	CHECK(reaches(&fake_n_ticks, 2));
	exit(0);
}

static void no_call_after_exit(void **unused)
{
	const char *environment[] = {"VMMSHIM_DECAY_MS=0", NULL};

	(void)unused;
	child_run(&c, environment, exit_quietly, NULL);
	assert_child_ok(&c);
}

static _Atomic int is_trimming;

static void trim_for_ever(void)
{
	is_trimming = 1;
	sleep_ms(20000);
}

static void trim_shortly(void)
{
	is_trimming = 1;
	sleep_ms(10);
}

static void exit_in_trim(void *trim)
{
	fake_in_trim = (void (*)(void))trim;
	start();
	vs_service_post_trim();
	while (!is_trimming)
		sched_yield();
	exit(0);
}

static void exit_is_not_held_up(void **unused)
{
	struct timespec from, to;

	(void)unused;
	clock_gettime(CLOCK_MONOTONIC, &from);
	child_run(&c, NULL, exit_in_trim, (void *)trim_for_ever);
	clock_gettime(CLOCK_MONOTONIC, &to);
	assert_child_ok(&c);
	assert_true(to.tv_sec - from.tv_sec < 5);
}

static void exit_in_short_trim(void *unused)
{
	(void)unused;
	atexit(driver_sees_no_trim);
	exit_in_trim((void *)trim_shortly);
}

static void driver_sees_no_refresh(void)
{
	if (!fake_n_refreshes)
		_exit(98);
}

/* What it found would hide what the process dumps at its end. */
static void exit_in_refresh(void *unused)
{
	(void)unused;
	fake_n_pools = 1;
	fake_in_refresh = trim_shortly;
	atexit(driver_sees_no_refresh);
	start();
	while (!is_trimming)
		sched_yield();
	exit(0);
}

static void exit_waits_for_a_refresh(void **unused)
{
	(void)unused;
	child_run(&c, NULL, exit_in_refresh, NULL);
	assert_child_ok(&c);
}

/* As a long one does that looks after each chunk. */
static void trim_until_end(void)
{
	is_trimming = 1;
	while (!fake_is_ending)
		sched_yield();
}

static void exit_in_long_trim(void *unused)
{
	(void)unused;
	atexit(driver_sees_all_undone);
	exit_in_trim((void *)trim_until_end);
}

/* Longer than the end of the process waits. */
static void trim_past_end(void)
{
	trim_until_end();
	sleep_ms(100);
}

static void driver_sees_memory_again(void)
{
	for (int ms = 0; fake_is_ending; ms++) {
		if (ms > 10000)
			_exit(97);
		sleep_ms(1);
	}
	driver_sees_no_trim();
}

static void exit_in_slow_trim(void *unused)
{
	(void)unused;
	atexit(driver_sees_memory_again);
	exit_in_trim((void *)trim_past_end);
}

static void exit_outlasts_a_trim(void **unused)
{
	(void)unused;
	child_run(&c, NULL, exit_in_slow_trim, NULL);
	assert_child_ok(&c);
}

static void exit_ends_a_trim(void **unused)
{
	(void)unused;
	child_run(&c, NULL, exit_in_long_trim, NULL);
	assert_child_ok(&c);
}

static void exit_waits_a_little(void **unused)
{
	(void)unused;
	child_run(&c, NULL, exit_in_short_trim, NULL);
	assert_child_ok(&c);
}

static void exit_amid_signals(void *unused)
{
	child_tick();
	exit_in_short_trim(unused);
}

static void exit_waits_amid_signals(void **unused)
{
	(void)unused;
	child_run(&c, NULL, exit_amid_signals, NULL);
	assert_child_ok(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_call_after_exit),
		cmocka_unit_test(exit_is_not_held_up),
		cmocka_unit_test(exit_waits_for_a_refresh),
		cmocka_unit_test(exit_waits_a_little),
		cmocka_unit_test(exit_waits_amid_signals),
		cmocka_unit_test(exit_ends_a_trim),
		cmocka_unit_test(exit_outlasts_a_trim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
