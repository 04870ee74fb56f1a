/* SPDX-License-Identifier: MIT
 *
 * thread: what a thread finds in the struct of one that has ended.
 */
#include "base/thread.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"

static struct child c;

/* Runs `fn` in a thread of its own, to its end; what it answers. */
static void *in_a_thread(void *(*fn)(void *))
{
	pthread_t thread;
	void *answer;

	CHECK(pthread_create(&thread, NULL, fn, NULL) == 0);
	CHECK(pthread_join(thread, &answer) == 0);
	return answer;
}

static void *get_cancelled(void *unused)
{
	struct vs_thread *t = vs_thread_self();

	(void)unused;
	t->depth = 1;
	pthread_exit(t);
}

static void *look(void *unused)
{
	struct vs_thread *t = vs_thread_self();

	(void)unused;
	CHECK(t->depth == 0);
	return t;
}

static void cancel_one(void *unused)
{
	(void)unused;
	CHECK(in_a_thread(get_cancelled) == in_a_thread(look));
}

static void after_a_cancelled_thread(void **unused)
{
	(void)unused;
	child_run(&c, NULL, cancel_one, NULL);
	assert_child_ok(&c);
}

static pthread_barrier_t both;

static void *stay_within(void *unused)
{
	vs_thread_self()->depth = 1;
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	return unused;
}

static void fork_beside_one(void *unused)
{
	pthread_t thread;
	int status;
	pid_t pid;

	(void)unused;
	pthread_barrier_init(&both, NULL, 2);
	CHECK(pthread_create(&thread, NULL, stay_within, NULL) == 0);
	pthread_barrier_wait(&both);
	pid = fork();
	if (!pid) {
		vs_thread_forked();
		look(NULL);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	pthread_barrier_wait(&both);
	pthread_join(thread, NULL);
}

static void after_a_thread_of_the_parent(void **unused)
{
	(void)unused;
	child_run(&c, NULL, fork_beside_one, NULL);
	assert_child_ok(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_a_cancelled_thread),
		cmocka_unit_test(after_a_thread_of_the_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
