/* SPDX-License-Identifier: MIT
 *
 * process: who is there, in whatever state, is never taken for gone, and who
 * has ended is, also while nobody has asked how.
 */
#include "base/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Before Linux 5.3, or in a sandbox, nobody tells of zombies. */
static bool tells_of_zombies(void)
{
	int fd = vs_sys_pidfd_open(vs_sys_getpid());

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static pid_t start(void (*live)(void))
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* no test is outlived */
		live();
		_exit(0);
	}
	assert_true(pid > 0);
	return pid;
}

static void wait_in(void)
{
	for (;;)
		pause();
}

/* Until it has ended (WEXITED) or stopped (WSTOPPED); it is not reaped. */
static void wait_until(pid_t pid, int how)
{
	siginfo_t info;

	assert_int_equal(waitid(P_PID, (id_t)pid, &info, how | WNOWAIT), 0);
}

/* It is told to go, and reaped. */
static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_who_is_there(void **state)
{
	pid_t pid = start(wait_in);

	(void)state;
	assert_false(vs_process_is_gone(vs_sys_getpid()));
	assert_false(vs_process_is_gone(vs_sys_getppid()));
	assert_false(vs_process_is_gone(pid));
	kill(pid, SIGSTOP);
	wait_until(pid, WSTOPPED);
	assert_false(vs_process_is_gone(pid));
	end(pid);
	assert_true(vs_process_is_gone(pid));
}

static void go(void)
{
}

static void test_zombie(void **state)
{
	pid_t pid = start(go);

	(void)state;
	wait_until(pid, WEXITED);
	assert_int_equal(vs_process_is_gone(pid), tells_of_zombies());
	end(pid);
	assert_true(vs_process_is_gone(pid));
}

/* When the first thread is gone the other one writes. */
static int other_lives[2];

static void *live_on(void *unused)
{
	char path[64], state = 0;
	ssize_t n;

	(void)unused;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat",
		 (int)vs_sys_getpid());
	while (state != 'Z') {
		int fd = open(path, O_RDONLY);
		char text[256] = "", *at;

		n = read(fd, text, sizeof(text) - 1);
		close(fd);
		at = n > 0 ? strrchr(text, ')') : NULL;
		state = at ? at[2] : 0;
		usleep(1000);
	}
	n = write(other_lives[1], &state, 1);
	wait_in();
	return (void *)(intptr_t)n;
}

static void leave_first(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, live_on, NULL) == 0)
		pthread_exit(NULL);
}

/* Its PID is a zombie's, by /proc. */
static void test_without_its_first_thread(void **state)
{
	pid_t pid;
	char z;

	(void)state;
	assert_int_equal(pipe(other_lives), 0);
	pid = start(leave_first);
	close(other_lives[1]);
	assert_int_equal(read(other_lives[0], &z, 1), 1);
	assert_false(vs_process_is_gone(pid));
	kill(pid, SIGKILL);
	wait_until(pid, WEXITED);
	assert_int_equal(vs_process_is_gone(pid), tells_of_zombies());
	end(pid);
	close(other_lives[0]);
}

static pid_t asked;

/* By one who may send them no signal. */
static void ask_as_another(void)
{
	if (setresgid(65534, 65534, 65534) != 0 ||
	    setresuid(65534, 65534, 65534) != 0)
		_exit(99);
	_exit(vs_process_is_gone(asked));
}

static int answer_to_another(pid_t pid)
{
	int status;
	pid_t asker;

	asked = pid;
	asker = start(ask_as_another);
	assert_int_equal(waitpid(asker, &status, 0), asker);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void test_of_another_user(void **state)
{
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	pid = start(wait_in);
	assert_int_equal(answer_to_another(pid), false);
	kill(pid, SIGKILL);
	wait_until(pid, WEXITED);
	assert_int_equal(answer_to_another(pid), tells_of_zombies());
	end(pid);
	assert_int_equal(answer_to_another(pid), true);
}

/* Nobody can tell then, so it is there. No descriptor is left over either. */
static void test_without_descriptors(void **state)
{
	struct rlimit limit, none;
	int before, after;

	(void)state;
	before = dup(0);
	close(before);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int i = 0; i < 3; i++) {
		none = limit;
		none.rlim_cur = (rlim_t)before;
		assert_false(vs_process_is_gone(vs_sys_getppid()));
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
		assert_false(vs_process_is_gone(vs_sys_getppid()));
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	}
	after = dup(0);
	close(after);
	assert_int_equal(after, before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who_is_there),
		cmocka_unit_test(test_zombie),
		cmocka_unit_test(test_without_its_first_thread),
		cmocka_unit_test(test_of_another_user),
		cmocka_unit_test(test_without_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
