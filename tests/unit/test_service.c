/* SPDX-License-Identifier: MIT
 *
 * service: the thread works when there is work, sleeps when there is none, and
 * is out of the way after a fork; at exit: test_service_exit.
 */
#include "report/service.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/board.h"
#include "base/knob.h"
#include "base/thread.h"
#include "child.h"
#include "report/trace.h"
#include "service_test.h"

/* Thread-local memory of the program, and what the driver needs of a stack. */
#define TLS_BYTES (224 * 1024)
#define CALL_BYTES (128 * 1024)

static struct child c;
static __thread volatile char variables[TLS_BYTES];

static void read_task(const char *tid, const char *name, char *text,
		      size_t size)
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/%s", tid, name);
	file = fopen(path, "r");
	text[0] = '\0';
	if (!file)
		return;
	text[fread(text, 1, size - 1, file)] = '\0';
	fclose(file);
}

/* Threads by the name of the shim's; a sanitizer has some of its own. */
static int n_service_threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	struct dirent *entry;
	char name[32];
	int n = 0;

	while ((entry = readdir(folder))) {
		read_task(entry->d_name, "comm", name, sizeof(name));
		n += !strcmp(name, "vmmshim\n");
	}
	closedir(folder);
	return n;
}

static _Atomic int trimmer; /* thread that trims */

static sigset_t trimmer_mask;
static int trimmer_depth;

static void note_thread(void)
{
	pthread_sigmask(SIG_BLOCK, NULL, &trimmer_mask);
	trimmer_depth = vs_thread_self()->depth;
	trimmer = (int)syscall(SYS_gettid);
}

static void look_at_thread(void *unused)
{
	char text[32], tid[16];

	(void)unused;
	fake_in_trim = note_thread;
	vs_service_post_trim();
	vs_service_wake();
	CHECK(n_service_threads() == 0); /* starts nothing */
	start();
	vs_service_post_trim();
	CHECK(reaches(&fake_n_trims, 1));
	CHECK(trimmer != syscall(SYS_gettid));
	CHECK(n_service_threads() == 1);
	snprintf(tid, sizeof(tid), "%d", trimmer);
	read_task(tid, "comm", text, sizeof(text));
	CHECK(!strcmp(text, "vmmshim\n"));
	for (int number = 1; number < SIGRTMAX; number++)
		/* libc keeps two for itself */
		CHECK(sigismember(&trimmer_mask, number) || number == SIGKILL ||
		      number == SIGSTOP || number == SIGSYS ||
		      (number > 31 && number < SIGRTMIN));
	/* a sandbox whose handler makes calls may send it that */
	CHECK(sigismember(&trimmer_mask, SIGSYS) == 0);
	CHECK(fake_n_relaxes == 1);
	/* each request is served once */
	sleep_ms(100);
	CHECK(fake_n_trims == 1);
}

static void make_a_deep_call(void)
{
	volatile char room[CALL_BYTES];

	for (size_t i = 0; i < sizeof(room); i += 1024)
		room[i] = 1;
}

static void have_much_thread_local_memory(void *unused)
{
	(void)unused;
	for (size_t i = 0; i < sizeof(variables); i++)
		variables[i] = 1;
	fake_in_trim = make_a_deep_call;
	start();
	vs_service_post_trim();
	CHECK(reaches(&fake_n_trims, 1));
}

/* The C library takes that out of the stack. */
static void has_a_stack_all_the_same(void **unused)
{
	(void)unused;
	child_run(&c, NULL, have_much_thread_local_memory, NULL);
	assert_child_ok(&c);
}

static void a_thread_of_its_own(void **unused)
{
	(void)unused;
	child_run(&c, NULL, look_at_thread, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

/* DECAY_MS 200: a tick every 50 ms while there is something to do. */
static void tick_and_sleep(void *unused)
{
	int n;

	(void)unused;
	fake_n_pools = 2;
	vs_stat_set(&fake_stats[1], idle, 1000);
	start();
	CHECK(reaches(&fake_n_ticks, 4));
	/* nothing changes: it goes to sleep for good */
	sleep_ms(1000);
	n = fake_n_ticks;
	CHECK(n < 14);
	sleep_ms(500);
	CHECK(fake_n_ticks == n);
	/* work comes: it ticks until that is done */
	vs_stat_set(&fake_stats[1], idle, 2000);
	vs_service_wake();
	CHECK(reaches(&fake_n_ticks, n + 4));
	sleep_ms(1000);
	n = fake_n_ticks;
	sleep_ms(500);
	CHECK(fake_n_ticks == n);
	/* a program at work: ticks go on for longer than DECAY_MS */
	vs_service_wake();
	CHECK(reaches(&fake_n_ticks, n + 1));
	for (uint64_t i = 0; i < 40; i++) {
		vs_stat_add(&fake_stats[1], small_hit, 1);
		sleep_ms(25);
	}
	CHECK(fake_n_ticks > n + 8);
	sleep_ms(1000);
	n = fake_n_ticks;
	/* freed memory that is not complete yet: ticks go on */
	fake_is_waiting = true;
	vs_service_wake();
	CHECK(reaches(&fake_n_ticks, n + 20));
	fake_is_waiting = false;
	sleep_ms(1000);
	n = fake_n_ticks;
	sleep_ms(500);
	CHECK(fake_n_ticks == n);
	/* a trim wakes it, too */
	vs_service_post_trim();
	CHECK(reaches(&fake_n_trims, 1));
}

static void sleeps_when_quiet(void **unused)
{
	const char *environment[] = {"VMMSHIM_DECAY_MS=200", NULL};

	(void)unused;
	child_run(&c, environment, tick_and_sleep, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

/* Never a lost wake-up: change, wake, wait, at all moments of its cycle. */
static void wake_often(void *unused)
{
	unsigned random = 1;

	(void)unused;
	fake_n_pools = 1;
	start();
	for (int i = 0; i < 40; i++) {
		int n = fake_n_ticks;

		vs_stat_set(&fake_stats[0], idle, (uint64_t)i);
		vs_service_wake();
		CHECK(reaches(&fake_n_ticks, n + 1));
		random = random * 1103515245 + 12345;
		sleep_ms((long)(random >> 16) % 250);
	}
}

static void loses_no_wake(void **unused)
{
	const char *environment[] = {"VMMSHIM_DECAY_MS=0", NULL};

	(void)unused;
	child_run(&c, environment, wake_often, NULL);
	assert_child_ok(&c);
}

static void fork_with_thread(void *unused)
{
	int status;
	pid_t pid;

	(void)unused;
	start();
	vs_service_post_trim();
	CHECK(reaches(&fake_n_trims, 1));
	pid = fork();
	if (!pid) {
		vs_service_forked();
		vs_service_post_trim();
		vs_service_wake();
		CHECK(n_service_threads() == 0);
		/* a child that may use CUDA gets a thread of its own */
		fake_n_trims = 0;
		vs_service_start();
		vs_service_post_trim();
		CHECK(reaches(&fake_n_trims, 1));
		exit(0);
	}
	waitpid(pid, &status, 0);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	vs_service_post_trim();
	CHECK(reaches(&fake_n_trims, 2));
}

static void forked(void **unused)
{
#if defined(__SANITIZE_THREAD__)
	skip(); /* starts no threads after a fork of several */
#endif
	(void)unused;
	child_run(&c, NULL, fork_with_thread, NULL);
	assert_child_ok(&c);
}

static void no_thread(void *unused)
{
	struct rlimit limit = {1, RLIM_INFINITY};

	(void)unused;
	atexit(driver_sees_all_undone); /* by who has nobody to wait for */
	fake_in_trim = note_thread;
	/* no address space for a stack */
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	start();
	limit.rlim_cur = RLIM_INFINITY;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	vs_service_wake();
	CHECK(fake_n_trims == 0);
	vs_service_post_trim();
	CHECK(fake_n_trims == 0); /* not in a signal handler */
	CHECK(vs_thread_go_within(vs_thread_self()));
	vs_service_wake();
	CHECK(fake_n_trims == 0); /* nor under the pool's locks */
	vs_thread_come_out(vs_thread_self());
	vs_service_wake();
	CHECK(fake_n_trims == 1 && trimmer == syscall(SYS_gettid));
	/* the driver may call the program back from there */
	CHECK(trimmer_depth == 1 && vs_thread_self()->depth == 0);
	vs_service_wake();
	CHECK(fake_n_trims == 1);
	exit(0);
}

static void without_a_thread(void **unused)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	skip(); /* needs address space itself */
#endif
	(void)unused;
	if (is_on_valgrind())
		skip(); /* likewise */
	child_run(&c, NULL, no_thread, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c),
			    "vmmshim warn: cannot start the service thread "
			    "(no more threads): idle memory goes back only "
			    "when it is needed elsewhere\n");
}

static char path[] = "/tmp/vmmshim-service.XXXXXX";

static size_t file_size(void)
{
	FILE *file = fopen(path, "r");
	size_t size;

	CHECK(file);
	fseek(file, 0, SEEK_END);
	size = (size_t)ftell(file);
	fclose(file);
	return size;
}

static void trace_in_background(void *unused)
{
	(void)unused;
	vs_knob_init();
	vs_trace_init();
	start();
	vs_trace_alloc(1, 1);
	for (int i = 0; i < 500 && !file_size(); i++)
		sleep_ms(10);
	CHECK(file_size() > 0);
}

static void writes_the_trace(void **unused)
{
	char setting[128];
	const char *environment[] = {setting, NULL};

	(void)unused;
	close(mkstemp(path));
	snprintf(setting, sizeof(setting), "VMMSHIM_TRACE=%s", path);
	child_run(&c, environment, trace_in_background, NULL);
	unlink(path);
	assert_child_ok(&c);
}

/* In a process of its own: what the one before gives for a device. */
static uint64_t ask_as_another(uint64_t device)
{
	uint64_t given = 0;
	int pipe_fds[2], n;
	pid_t pid;

	CHECK(pipe(pipe_fds) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		vs_board_forked();
		vs_board_join();
		given = vs_board_ask(device, 5000, &n);
		_exit(write(pipe_fds[1], &given, sizeof(given)) < 0);
	}
	CHECK(read(pipe_fds[0], &given, sizeof(given)) == sizeof(given));
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	return given;
}

/* So many pools, each of which has something to give. */
static void start_with(int n_pools)
{
	atomic_store(&fake_n_pools, n_pools);
	atomic_store(&fake_id, (uint64_t)getpid() << 16);
	atomic_store(&fake_given, 4242);
	start();
	CHECK(reaches(&fake_n_ticks, 1));
}

static void be_asked(void *unused)
{
	(void)unused;
	start_with(2);
	CHECK(ask_as_another(fake_id + 1) == 4242);
	CHECK(ask_as_another(fake_id + 2) == 0);
	/* also while it sleeps without a timer */
	for (int i = 0; i < 500 && !vs_hot.is_dozing; i++)
		sleep_ms(10);
	CHECK(vs_hot.is_dozing);
	sleep_ms(300);
	CHECK(ask_as_another(fake_id) == 4242);
}

static void not_be_asked(void *unused)
{
	(void)unused;
	start_with(1);
	CHECK(ask_as_another(fake_id) == 0);
}

enum { N_SLOTS = 128 };

/* The thread finds all slots in use, goes to sleep, and they become free. */
static void join_late(void *unused)
{
	pid_t others[N_SLOTS];
	uint64_t given = 0;
	int ready[2];
	char byte;

	(void)unused;
	if (!child_unshare_ipc(0))
		_exit(CHILD_NOT_HERE);
	CHECK(pipe(ready) == 0);
	for (int i = 0; i < N_SLOTS; i++) {
		others[i] = fork();
		if (others[i] == 0) {
			vs_board_join();
			CHECK(write(ready[1], "", 1) == 1);
			pause();
		}
		CHECK(others[i] > 0 && read(ready[0], &byte, 1) == 1);
	}
	start_with(1);
	for (int i = 0; i < 500 && !vs_hot.is_dozing; i++)
		sleep_ms(10);
	CHECK(vs_hot.is_dozing);
	sleep_ms(300);
	for (int i = 0; i < N_SLOTS; i++) {
		kill(others[i], SIGKILL);
		waitpid(others[i], NULL, 0);
	}
	for (int i = 0; i < 100 && given == 0; i++) {
		sleep_ms(50);
		given = ask_as_another(fake_id);
	}
	CHECK(given == 4242);
}

static void joins_when_there_is_room(void **unused)
{
	static const char *const quick[] = {"VMMSHIM_DECAY_MS=200", NULL};

	(void)unused;
	child_run(&c, quick, join_late, NULL);
	if (c.exit_code == CHILD_NOT_HERE)
		skip();
	assert_child_ok(&c);
}

static void answers_other_processes(void **unused)
{
	static const char *const quick[] = {"VMMSHIM_DECAY_MS=200", NULL};
	static const char *const off[] = {"VMMSHIM_NEIGHBOURS=0", NULL};

	(void)unused;
	child_run(&c, quick, be_asked, NULL);
	assert_child_ok(&c);
	child_run(&c, off, not_be_asked, NULL);
	assert_child_ok(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_thread_of_its_own),
		cmocka_unit_test(has_a_stack_all_the_same),
		cmocka_unit_test(sleeps_when_quiet),
		cmocka_unit_test(loses_no_wake),
		cmocka_unit_test(forked),
		cmocka_unit_test(without_a_thread),
		cmocka_unit_test(writes_the_trace),
		cmocka_unit_test(answers_other_processes),
		cmocka_unit_test(joins_when_there_is_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
