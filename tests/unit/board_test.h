/* SPDX-License-Identifier: MIT
 *
 * board_test: what the tests of the board share. Each neighbour is a forked
 * child with a slot of its own, which answers as its role says. Devices are
 * named by the PID of the test, so that nobody else on the machine is asked.
 */
#ifndef VS_TESTS_BOARD_TEST_H
#define VS_TESTS_BOARD_TEST_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/board.h"
#include "child.h"

enum role {
	ANSWERS,
	ANSWERS_LATE,
	ANSWERS_ONCE,
	FOLLOWS,
	IS_DEAF,
	LEAVES,
	DIES_WHEN_ASKED
};

#define GIVEN 1000

/*
 * The clock of the C library stands still, as under libfaketime: no wait may
 * go by it.
 */
int clock_gettime(clockid_t clock, struct timespec *out)
{
	(void)clock;
	*out = (struct timespec){.tv_sec = 1577836800};
	return 0;
}

static inline uint64_t device(unsigned i)
{
	return (uint64_t)getpid() << 16 | (i + 1);
}

/* What a service thread does, in small. */
static inline void live(enum role role, uint64_t shown, int ready)
{
	uint64_t gives = GIVEN;
	uint32_t number;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* no test is outlived */
	vs_board_forked();
	vs_board_join();
	vs_board_show(0, shown + 1);
	vs_board_show(3, shown);
	if (role == LEAVES)
		vs_board_leave();
	if (write(ready, "", 1) != 1)
		_exit(1);
	for (;;) {
		uint32_t rung = vs_board_rung();

		if (!vs_board_is_asked(3, &number)) {
			vs_board_sleep(rung, role == FOLLOWS ? 10 : 0);
			if (role == FOLLOWS && vs_board_is_missed()) {
				vs_board_join();
				vs_board_show(3, shown);
			}
			continue;
		}
		if (role == DIES_WHEN_ASKED)
			_exit(0);
		if (role == IS_DEAF)
			pause();
		if (role == ANSWERS_LATE)
			usleep(600000);
		vs_board_answer(3, number, gives);
		if (role == ANSWERS_ONCE)
			gives = 0;
	}
}

static inline pid_t neighbour(enum role role, unsigned i)
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

/* One that nobody reaps. */
static inline void zombie(enum role role, unsigned i)
{
	pid_t pid = neighbour(role, i);

	kill(pid, SIGKILL);
	assert_int_equal(
		waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT),
		0);
}

static inline void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* In a process with System V objects of its own. */
static inline void apart(int flags, int (*run)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		vs_board_forked();
		if (!child_unshare_ipc(flags))
			_exit(CHILD_NOT_HERE);
		_exit(run());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_NOT_HERE)
		skip();
	assert_int_equal(status, 0);
}

static inline int join(void **state)
{
	(void)state;
	vs_board_join();
	return 0;
}

static int n_asked;

static inline uint64_t ask(uint64_t named, uint64_t ms)
{
	return vs_board_ask(named, ms, &n_asked);
}

static inline void expect_served(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#endif
