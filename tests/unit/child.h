/* SPDX-License-Identifier: MIT
 *
 * child: runs part of a test in a forked process of its own, where the shim's
 * one-time state is fresh, and keeps what it wrote on stderr.
 */
#ifndef TESTS_UNIT_CHILD_H
#define TESTS_UNIT_CHILD_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHILD_SILENT_MS 120000

/* Defined where a sanitizer takes address space, signals or malloc itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif

struct child {
	char err[256 * 1024]; /* its stderr, ended by NUL */
	size_t len;
	int exit_code; /* -1: killed */
	int signal;    /* that killed it, else 0 */
};

/*
 * Runs fn(arg) in a child whose environment has no VMMSHIM variable but those
 * of `environment` ("NAME=value", ended by NULL; NULL: none). Returning from
 * fn is _exit(0). A child that says nothing for CHILD_SILENT_MS is killed.
 */
void child_run(struct child *c, const char *const *environment,
	       void (*fn)(void *arg), void *arg);

/* For use inside fn, where cmocka's asserts do not work. */
#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			dprintf(STDERR_FILENO, "%s:%d: not so: %s\n",          \
				__FILE__, __LINE__, #condition);               \
			_exit(99);                                             \
		}                                                              \
	} while (0)

/* Fails the test, with the child's stderr, unless it ended with 0. */
#define assert_child_ok(c)                                                     \
	do {                                                                   \
		if ((c)->exit_code != 0)                                       \
			print_error("child: code %d, signal %d, stderr:\n%s",  \
				    (c)->exit_code, (c)->signal, (c)->err);    \
		assert_int_equal((c)->exit_code, 0);                           \
	} while (0)

/* No signal ends it early. */
static inline void sleep_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Waits until a counter has risen to `n`; false after five seconds. */
static inline bool reaches(_Atomic int *counter, int n)
{
	for (int i = 0; i < 500 && atomic_load(counter) < n; i++)
		sleep_ms(10);
	return atomic_load(counter) >= n;
}

static inline void child_ticked(int number)
{
	(void)number;
}

/* From now on a timer as a profiler's, or the program's own, goes each 100 us.
 */
static inline void child_tick(void)
{
	const struct itimerval often = {{.tv_usec = 100}, {.tv_usec = 100}};

	signal(SIGALRM, child_ticked);
	setitimer(ITIMER_REAL, &often, NULL);
}

/* Exit code of a process that cannot have what the test needs. */
enum { CHILD_NOT_HERE = 77 };

/*
 * System V objects of this process's own, and what `flags` says (CLONE_NEW*).
 * False: it may not have them.
 */
static inline bool child_unshare_ipc(int flags)
{
	return unshare(CLONE_NEWIPC | flags) == 0 ||
	       unshare(CLONE_NEWUSER | CLONE_NEWIPC | flags) == 0;
}

/* Whether this process runs under valgrind, which has limits of its own. */
bool is_on_valgrind(void);

/* err without the "[pid]" of each line, so that it can be compared. */
char *child_text(struct child *c);

#endif
