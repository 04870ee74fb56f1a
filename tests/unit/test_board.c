/* SPDX-License-Identifier: MIT
 *
 * Processes that find each other: each neighbour is a forked child with a slot
 * of its own, which answers as its role says. Devices are named by the PID of
 * the test, so that nobody else on the machine is asked.
 */
#include "base/board.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum role { ANSWERS, ANSWERS_LATE, IS_DEAF, LEAVES, DIES_WHEN_ASKED };

#define GIVEN 1000
#define STOP ((uint32_t)1)

static uint64_t device(unsigned i)
{
	return (uint64_t)getpid() << 16 | (i + 1);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What a service thread does, in small. */
static void live(enum role role, uint64_t shown, int ready)
{
	uint32_t number;

	vs_board_forked();
	vs_board_join();
	vs_board_show(0, shown + 1);
	vs_board_show(3, shown);
	if (role == LEAVES)
		vs_board_leave();
	if (write(ready, "", 1) != 1)
		_exit(1);
	for (;;) {
		vs_board_sleep(0);
		vs_board_take();
		if (!vs_board_is_asked(3, &number))
			continue;
		if (role == DIES_WHEN_ASKED)
			_exit(0);
		if (role == IS_DEAF)
			continue;
		if (role == ANSWERS_LATE)
			usleep(100000);
		vs_board_answer(3, number, GIVEN);
	}
}

static pid_t neighbour(enum role role, unsigned i)
{
	uint64_t shown = device(i);
	int pipe_fds[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(pipe_fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		live(role, shown, pipe_fds[1]);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static int join(void **state)
{
	(void)state;
	vs_board_join();
	return 0;
}

static void test_all_on_the_device_are_asked(void **state)
{
	pid_t a = neighbour(ANSWERS, 10), b = neighbour(ANSWERS, 10);
	pid_t other = neighbour(ANSWERS, 20);

	(void)state;
	assert_int_equal(vs_board_ask(device(10), 5000), 2 * GIVEN);
	assert_int_equal(vs_board_ask(device(10), 5000), 2 * GIVEN);
	end(a);
	assert_int_equal(vs_board_ask(device(10), 5000), GIVEN);
	end(b);
	assert_int_equal(vs_board_ask(device(10), 5000), 0);
	assert_int_equal(vs_board_ask(0, 5000), 0);
	end(other);
}

static void test_own_pools_are_not_asked(void **state)
{
	uint32_t number;

	(void)state;
	vs_board_show(0, device(30));
	assert_int_equal(vs_board_ask(device(30), 5000), 0);
	assert_false(vs_board_is_asked(0, &number));
	vs_board_show(0, 0);
}

static void test_an_answer_is_waited_for(void **state)
{
	pid_t pid = neighbour(ANSWERS_LATE, 40);

	(void)state;
	assert_int_equal(vs_board_ask(device(40), 1), 0);
	assert_int_equal(vs_board_ask(device(40), 5000), GIVEN);
	end(pid);
}

/* One who does not answer costs a second once, not each time. */
static void test_the_deaf_are_waited_for_once(void **state)
{
	pid_t pid = neighbour(IS_DEAF, 50);
	uint64_t began = now_ms();

	(void)state;
	assert_int_equal(vs_board_ask(device(50), 1100), 0);
	assert_in_range(now_ms() - began, 1100, 4000);
	began = now_ms();
	for (int i = 0; i < 100; i++)
		assert_int_equal(vs_board_ask(device(50), 1100), 0);
	assert_in_range(now_ms() - began, 0, 1000);
	end(pid);
}

static void test_who_leaves_or_dies_is_not_waited_for(void **state)
{
	pid_t gone = neighbour(LEAVES, 60), dying = neighbour(ANSWERS, 60);
	uint64_t began = now_ms();

	(void)state;
	end(dying);
	assert_int_equal(vs_board_ask(device(60), 20000), 0);
	/* a zombie can still be signalled: so its parent reaps it */
	signal(SIGCHLD, SIG_IGN);
	neighbour(DIES_WHEN_ASKED, 70);
	assert_int_equal(vs_board_ask(device(70), 20000), 0);
	signal(SIGCHLD, SIG_DFL);
	assert_in_range(now_ms() - began, 0, 10000);
	end(gone);
}

/* 300 processes one after the other, more than there are slots. */
static void test_slots_are_taken_over(void **state)
{
	(void)state;
	for (int i = 0; i < 300; i++) {
		pid_t pid = neighbour(ANSWERS, 80);

		assert_int_equal(vs_board_ask(device(80), 5000), GIVEN);
		end(pid);
	}
}

/* Bits that were set before the slot was there are not lost. */
static void test_the_word_goes_along(void **state)
{
	(void)state;
	vs_board_forked();
	vs_board_post(STOP);
	assert_int_equal(vs_board_look(), STOP);
	vs_board_join();
	assert_int_equal(vs_board_look(), STOP);
	vs_board_sleep(0); /* there is one: returns */
	assert_int_equal(vs_board_take(), STOP);
	assert_int_equal(vs_board_look(), 0);
	vs_board_sleep(1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup(test_##name, join)
		T(all_on_the_device_are_asked),
		T(own_pools_are_not_asked),
		T(an_answer_is_waited_for),
		T(the_deaf_are_waited_for_once),
		T(who_leaves_or_dies_is_not_waited_for),
		T(slots_are_taken_over),
		T(the_word_goes_along),
#undef T
	};

	alarm(120);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
