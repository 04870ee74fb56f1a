/* SPDX-License-Identifier: MIT
 *
 * thread: what a thread finds in the struct of one that has ended, and that it
 * gets one.
 */
#include "base/thread.h"

#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

enum { N_THREADS = 300, N_AT_MOST = 30 };

static int n_flushed;

static void count_flush(struct vs_thread *t, int tid)
{
	(void)t;
	(void)tid;
	n_flushed++;
}

/*
 * Threads after each other, none of which takes the struct of this one: they
 * leave few.
 */
static void run_in_turn(void *(*fn)(void *))
{
	struct vs_thread *own = vs_thread_self();
	int n = 0;

	for (int i = 0; i < N_THREADS; i++)
		CHECK(in_a_thread(fn) != own);
	for (struct vs_thread *t = vs_thread_first(); t; t = t->next)
		n++;
	/* a number may be taken for a moment after its thread was joined */
	CHECK(n <= N_AT_MOST);
	CHECK(vs_thread_self() == own);
}

static void run_many(void)
{
	vs_thread_on_exit = count_flush;
	run_in_turn(look);
	CHECK(n_flushed >= N_THREADS - N_AT_MOST);
}

static pthread_key_t last_key;
static __thread int n_rounds;

/* A destructor that puts itself off to the last round, as POSIX lets it. */
static void look_last(void *value)
{
	if (++n_rounds < PTHREAD_DESTRUCTOR_ITERATIONS)
		CHECK(pthread_setspecific(last_key, value) == 0);
	else
		look(NULL);
}

static void *end_late(void *unused)
{
	(void)unused;
	CHECK(pthread_setspecific(last_key, &n_rounds) == 0);
	return look(NULL);
}

static void end_many_late(void *unused)
{
	(void)unused;
	CHECK(pthread_key_create(&last_key, look_last) == 0);
	run_in_turn(end_late);
}

static void used_in_the_last_round(void **unused)
{
	(void)unused;
	child_run(&c, NULL, end_many_late, NULL);
	assert_child_ok(&c);
}

/* A process that shares all memory adopts nobody's struct. */
static int share_memory(void *of_parent)
{
	/* its thread-local variables are this thread's, too */
	vs_thread_current = NULL;
	return vs_thread_self() == of_parent;
}

static void clone_one(void *unused)
{
	static _Alignas(16) char stack[65536];
	struct vs_thread *own = vs_thread_self();
	int status;
	pid_t pid;

	(void)unused;
	pid = clone(share_memory, stack + sizeof(stack),
		    CLONE_VM | CLONE_VFORK | SIGCHLD, own);
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void beside_a_process_in_one_memory(void **unused)
{
	(void)unused;
	child_run(&c, NULL, clone_one, NULL);
	assert_child_ok(&c);
}

static void take_keys(void)
{
	pthread_key_t key;

	while (pthread_key_create(&key, NULL) == 0)
		;
}

static void take_all_keys(void *unused)
{
	int status;
	pid_t pid;

	(void)unused;
	take_keys();
	run_many();
	pid = fork();
	if (!pid) {
		vs_thread_forked();
		n_flushed = 0;
		run_many();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void hear_of_the_ended(struct vs_thread *t, int tid)
{
	(void)t;
	n_flushed++;
	CHECK(vs_thread_is_gone(tid));
}

/* Who takes a struct over is told whose it was. */
static void end_unseen(void *unused)
{
	(void)unused;
	take_keys();
	vs_thread_on_exit = hear_of_the_ended;
	/* a number may be taken for a moment after its thread was joined */
	for (int i = 0; i < N_THREADS && n_flushed == 0; i++)
		in_a_thread(look);
	CHECK(n_flushed > 0);
}

static void whose_it_was(void **unused)
{
	(void)unused;
	child_run(&c, NULL, end_unseen, NULL);
	assert_child_ok(&c);
}

static void without_a_key(void **unused)
{
	(void)unused;
	child_run(&c, NULL, take_all_keys, NULL);
	assert_child_ok(&c);
}

/* More living threads than a new one looks at. */
enum { N_LIVING = 100 };

static pthread_barrier_t all_of_them;

static void *live(void *struct_out)
{
	*(struct vs_thread **)struct_out = vs_thread_self();
	pthread_barrier_wait(&all_of_them);
	return NULL;
}

static void live_without_keys(void *unused)
{
	struct vs_thread *structs[N_LIVING];
	pthread_t threads[N_LIVING];

	(void)unused;
	take_keys();
	pthread_barrier_init(&all_of_them, NULL, N_LIVING);
	for (int i = 0; i < N_LIVING; i++)
		CHECK(!pthread_create(&threads[i], NULL, live, &structs[i]));
	for (int i = 0; i < N_LIVING; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < N_LIVING; i++)
		for (int j = 0; j < i; j++)
			CHECK(structs[i] != structs[j]);
}

static void one_each_without_a_key(void **unused)
{
	(void)unused;
	child_run(&c, NULL, live_without_keys, NULL);
	assert_child_ok(&c);
}

/* Its thread ends when it is told to. */
struct guest {
	pthread_t thread;
	struct vs_thread *t;
	_Atomic int tid, may_end;
};

static void *stay(void *guest)
{
	struct guest *g = guest;

	g->t = vs_thread_self();
	atomic_store(&g->tid, vs_thread_tid(g->t));
	CHECK(reaches(&g->may_end, 1));
	return NULL;
}

static void come(struct guest *g)
{
	CHECK(!pthread_create(&g->thread, NULL, stay, g));
	CHECK(reaches(&g->tid, 1));
}

static void go(struct guest *g)
{
	atomic_store(&g->may_end, 1);
	pthread_join(g->thread, NULL);
}

/* Whether a thread is there is not answered before `listener` has been asked.
 */
static int hold_back_answers(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {sizeof(code) / sizeof(code[0]), code};

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
			    SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
}

static _Atomic int listener;

static void *adopt_slowly(void *unused)
{
	int fd = hold_back_answers();

	(void)unused;
	if (fd < 0)
		_exit(CHILD_NOT_HERE);
	atomic_store(&listener, fd);
	return vs_thread_self();
}

static void end_and_be_replaced(void *unused)
{
	struct guest first = {.tid = 0}, second = {.tid = 0};
	struct seccomp_notif_resp answer = {
		.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
	struct seccomp_notif question = {.id = 0};
	pthread_t adopter;
	void *adopted;

	(void)unused;
	CHECK(vs_thread_self());
	come(&first);
	CHECK(!pthread_create(&adopter, NULL, adopt_slowly, NULL));
	CHECK(reaches(&listener, 1));
	CHECK(!ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question));
	CHECK((int)question.data.args[1] == first.tid);
	go(&first);
	come(&second);
	CHECK(second.t == first.t);
	/* a number may be taken for a moment after its thread was joined */
	for (int i = 0; i < 500 && !vs_thread_is_gone(first.tid); i++)
		sleep_ms(10);
	answer.id = question.id;
	CHECK(!ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer));
	close(listener); /* no further question is held back */
	CHECK(!pthread_join(adopter, &adopted));
	CHECK(adopted != second.t);
	go(&second);
}

static void ended_while_it_was_asked_for(void **unused)
{
	(void)unused;
	child_run(&c, NULL, end_and_be_replaced, NULL);
	if (c.exit_code == CHILD_NOT_HERE)
		skip();
	assert_child_ok(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_a_cancelled_thread),
		cmocka_unit_test(after_a_thread_of_the_parent),
		cmocka_unit_test(without_a_key),
		cmocka_unit_test(whose_it_was),
		cmocka_unit_test(used_in_the_last_round),
		cmocka_unit_test(beside_a_process_in_one_memory),
		cmocka_unit_test(one_each_without_a_key),
		cmocka_unit_test(ended_while_it_was_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
