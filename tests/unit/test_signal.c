/* SPDX-License-Identifier: MIT
 *
 * signal: which signals are taken, and that a dump comes whatever the program
 * is stuck in.
 */
#include "report/signal.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/knob.h"
#include "child.h"
#include "fake_pool.h"
#include "report/dump.h"
#include "report/service.h"

static struct child c;

#ifndef IS_SANITIZED
/*
 * A malloc whose lock is held while a signal arrives, as it would be when the
 * signal hits a program in the middle of its own. Taken twice, it hangs.
 */
void *__libc_malloc(size_t size);

static atomic_flag malloc_lock = ATOMIC_FLAG_INIT;
static volatile int signal_inside; /* the compiler knows malloc */

void *malloc(size_t size)
{
	void *p;

	while (atomic_flag_test_and_set(&malloc_lock))
		;
	if (signal_inside)
		raise(signal_inside);
	p = __libc_malloc(size);
	atomic_flag_clear(&malloc_lock);
	return p;
}

/*
 * What another thread of the program sets after the first, second and third
 * call for SIGUSR1; NULL: nothing.
 */
static void (*meanwhile[3])(int number);
static int n_calls;

int __sigaction(int number, const struct sigaction *set, struct sigaction *old);

int sigaction(int number, const struct sigaction *set, struct sigaction *old)
{
	int result = __sigaction(number, set, old);

	if (number == SIGUSR1 && n_calls < 3 && meanwhile[n_calls])
		__sigaction(
			number,
			&(struct sigaction){.sa_handler = meanwhile[n_calls]},
			NULL);
	n_calls += number == SIGUSR1;
	return result;
}
#endif

static void install(void)
{
	vs_knob_init();
	vs_signal_install();
	vs_signal_install();
}

static void one_dump(void *number)
{
	struct sigaction now;

	install();
	sigaction(*(int *)number, NULL, &now);
	CHECK((now.sa_flags & (SA_RESTART | SA_ONSTACK)) ==
	      (SA_RESTART | SA_ONSTACK));
	/* a handler of the program's must not jump out of a dump */
	CHECK(sigismember(&now.sa_mask, SIGALRM) == 1);
	/* one that makes calls for a sandbox comes into it */
	CHECK(sigismember(&now.sa_mask, SIGSYS) == 0);
	errno = 77;
	CHECK(raise(*(int *)number) == 0);
	CHECK(errno == 77);
}

/* What the child wrote, without what differs from run to run. */
static const char *dump_text(void)
{
	char *up = child_text(&c);

	while ((up = strstr(up, ", up "))) {
		char *end = strchr(up + 2, ',');

		memmove(up, end, strlen(end) + 1);
	}
	return c.err;
}

#define assert_dumped()                                                        \
	assert_non_null(strstr(dump_text(), ", signal, mode pool\n"))

static void statistics(void **unused)
{
	int number = SIGUSR1;

	(void)unused;
	child_run(&c, NULL, one_dump, &number);
	assert_child_ok(&c);
	assert_dumped();
	assert_null(strstr(c.err, "warn"));
}

static void another_number(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_SIGNAL=SIGRTMIN+3", NULL};
	int number = SIGRTMIN + 3;

	(void)unused;
	child_run(&c, environment, one_dump, &number);
	assert_child_ok(&c);
	assert_dumped();
}

static void is_default(void *number)
{
	struct sigaction now;

	install();
	sigaction(*(int *)number, NULL, &now);
	CHECK(now.sa_handler == SIG_DFL);
}

static void none(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_SIGNAL=none",
				     "VMMSHIM_TRIM_SIGNAL=0", NULL};
	int first = SIGUSR1, second = SIGUSR2;

	(void)unused;
	child_run(&c, environment, is_default, &first);
	assert_child_ok(&c);
	child_run(&c, environment, is_default, &second);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void nothing(int number)
{
	(void)number;
}

static void nothing_at_length(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	(void)context;
}

static const struct owner {
	struct sigaction action;
	const char *words;
} owners[] = {
	{{.sa_handler = SIG_IGN}, "ignored"},
	{{.sa_handler = nothing}, "handled"},
	{{.sa_sigaction = nothing_at_length, .sa_flags = SA_SIGINFO},
	 "handled"},
};

static void install_over(void *arg)
{
	const struct owner *owner = arg;
	struct sigaction now;

	sigaction(SIGUSR1, &owner->action, NULL);
	install();
	sigaction(SIGUSR1, NULL, &now);
	CHECK(now.sa_sigaction == owner->action.sa_sigaction);
	raise(SIGUSR1);
}

/* `level`: how it is told; NULL: it is not. */
static void assert_stays(const char *const *environment, const char *level)
{
	for (size_t i = 0; i < sizeof(owners) / sizeof(owners[0]); i++) {
		char expected[256] = "";

		if (level)
			snprintf(expected, sizeof(expected),
				 "vmmshim %s: VMMSHIM_STATS_SIGNAL: SIGUSR1 is "
				 "%s by the program and stays so; choose "
				 "another signal or none\n",
				 level, owners[i].words);
		child_run(&c, environment, install_over, (void *)&owners[i]);
		assert_child_ok(&c);
		assert_string_equal(child_text(&c), expected);
	}
}

/* What a runtime handles in each of its programs is told to who asked. */
static void owned(void **unused)
{
	const char *signal_given[] = {"VMMSHIM_STATS_SIGNAL=USR1", NULL};
	const char *other_given[] = {"VMMSHIM_TRIM_SIGNAL=USR2", NULL};
	const char *info[] = {"VMMSHIM_LOG=info", NULL};

	(void)unused;
	assert_stays(NULL, NULL);
	assert_stays(signal_given, "warn");
	assert_stays(other_given, NULL);
	assert_stays(info, "info");
}

#ifndef IS_SANITIZED
static void nothing_either(int number)
{
	(void)number;
}

static void nothing_at_last(int number)
{
	(void)number;
}

static const struct race {
	void (*set[3])(int number);
} races[] = {
	{{nothing, NULL, NULL}},
	{{nothing, nothing_either, NULL}},
	{{nothing, nothing_either, nothing_at_last}},
	{{nothing, SIG_IGN, nothing_at_last}},
	{{SIG_IGN, NULL, nothing_at_last}},
};

static void install_amid(void *arg)
{
	const struct race *race = arg;
	void (*last)(int number) = NULL;
	struct sigaction now;

	n_calls = 0;
	memcpy(meanwhile, race->set, sizeof(meanwhile));
	install();
	for (int i = 0; i < 3 && i < n_calls; i++)
		if (race->set[i])
			last = race->set[i];
	__sigaction(SIGUSR1, NULL, &now);
	CHECK(now.sa_handler == last);
}
#endif

/* A handler that the program sets while ours is being set. */
static void set_meanwhile(void **unused)
{
#ifdef IS_SANITIZED
	(void)unused;
	skip(); /* has a sigaction of its own */
#else
	const char *environment[] = {"VMMSHIM_STATS_SIGNAL=USR1", NULL};

	(void)unused;
	for (size_t i = 0; i < sizeof(races) / sizeof(races[0]); i++) {
		child_run(&c, environment, install_amid, (void *)&races[i]);
		assert_child_ok(&c);
		assert_non_null(strstr(c.err, "by the program and stays so"));
	}
#endif
}

static void same_for_both(void **unused)
{
	const char *environment[] = {"VMMSHIM_TRIM_SIGNAL=10", NULL};
	int number = SIGUSR1;

	(void)unused;
	child_run(&c, environment, one_dump, &number);
	assert_child_ok(&c);
	assert_memory_equal(child_text(&c),
			    "vmmshim warn: VMMSHIM_TRIM_SIGNAL: SIGUSR1 is "
			    "VMMSHIM_STATS_SIGNAL already; no signal trims\n",
			    92);
	assert_null(strstr(c.err + 92, "warn"));
	assert_dumped();
}

static void replaced(void *unused)
{
	(void)unused;
	install();
	signal(SIGUSR1, nothing);
	raise(SIGUSR1);
}

static void program_comes_later(void **unused)
{
	(void)unused;
	child_run(&c, NULL, replaced, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

/* The main thread in a read that nothing ends but the other thread's byte. */
static int ends[2];

static void *poke(void *unused)
{
	sleep_ms(50);
	kill(getpid(), SIGUSR1);
	sleep_ms(50);
	CHECK(write(ends[1], "x", 1) == 1);
	return unused;
}

static void read_forever(void *unused)
{
	pthread_t thread;
	sigset_t set;
	char byte;

	(void)unused;
	install();
	CHECK(pipe(ends) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	pthread_create(&thread, NULL, poke, NULL);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	/* the handler ran, the call went on */
	CHECK(read(ends[0], &byte, 1) == 1);
	pthread_join(thread, NULL);
}

static void in_a_system_call(void **unused)
{
	(void)unused;
	child_run(&c, NULL, read_forever, NULL);
	assert_child_ok(&c);
	assert_dumped();
}

static void hold_locks(void *unused)
{
	(void)unused;
	fake_n_pools = 2;
	install();
	flockfile(stderr);
	flockfile(stdout);
#ifndef IS_SANITIZED
	{
		/* volatile, or the compiler leaves the calls out */
		void *volatile p;

		signal_inside = SIGUSR1;
		p = malloc(100);
		free(p);
		signal_inside = SIGUSR2;
		p = malloc(100);
		signal_inside = 0;
		free(p);
	}
#else
	raise(SIGUSR1);
	raise(SIGUSR2);
#endif
}

static void under_the_locks_of_libc(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_FORMAT=json", NULL};

	(void)unused;
	child_run(&c, NULL, hold_locks, NULL);
	assert_child_ok(&c);
	assert_dumped();
	child_run(&c, environment, hold_locks, NULL);
	assert_child_ok(&c);
	assert_memory_equal(c.err, "{\"version\":1,", 13);
}

/* Where statistics go: first to a file, then nowhere, for two reasons. */
static const char *const places[] = {"/dev/null", "/dev/full", "/no/file"};
static char place[] = "/tmp/vmmshim-XXXXXX/stats";

static void move(size_t i)
{
	unlink(place);
	CHECK(symlink(places[i], place) == 0);
}

/*
 * The kernel's frame and 1.5 KiB more (README.md says 2), with nothing mapped
 * below.
 */
static void on_a_small_stack(void *unused)
{
	enum { AT_FRAME = 51 }; /* AT_MINSIGSTKSZ; older headers lack it */
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t frame = getauxval(AT_FRAME); /* 0 before Linux 5.14 */
	size_t need = (frame ? frame : MINSIGSTKSZ) + 1536;
	size_t size = (need + page - 1) / page * page;
	char *map = mmap(NULL, size + page, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stack_t stack = {.ss_sp = map + page + size - need, .ss_size = need};

	(void)unused;
	fake_n_pools = 2;
	CHECK(mprotect(map, page, PROT_NONE) == 0);
	memset(map + page, 0x5a, size);
	CHECK(sigaltstack(&stack, NULL) == 0);
	move(0);
	install();
	/* lazy binding, which the shim is linked without, needs more */
	vs_dump_write("program");
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		move(i);
		raise(SIGUSR1);
	}
	raise(SIGUSR2);
	for (char *p = map + page; p < (char *)stack.ss_sp; p++)
		CHECK(*p == 0x5a);
}

static void small_stack(void **unused)
{
	char setting[64], *slash = strrchr(place, '/');
	const char *environment[] = {setting, NULL};

	(void)unused;
#ifdef IS_SANITIZED
	skip();
#endif
	if (is_on_valgrind())
		skip(); /* its frames are larger */
	*slash = '\0';
	assert_non_null(mkdtemp(place));
	*slash = '/';
	snprintf(setting, sizeof(setting), "VMMSHIM_STATS_FILE=%s", place);
	child_run(&c, environment, on_a_small_stack, NULL);
	unlink(place);
	*slash = '\0';
	rmdir(place);
	assert_child_ok(&c);
	assert_dumped();
	assert_non_null(strstr(c.err, "(writing failed)"));
	assert_non_null(strstr(c.err, "(no such folder)"));
}

/* What became of a forked child that got the signal from `sender`. */
enum sender { PARENT, ITSELF, STRANGER, QUEUER, OWNER };

static int to_owner[2], from_owner[2];

/* By who installed the handlers, which is no parent of `pid`. */
static void ask_owner(pid_t pid)
{
	char byte;

	CHECK(write(to_owner[1], &pid, sizeof(pid)) == sizeof(pid));
	CHECK(read(from_owner[0], &byte, 1) == 1);
}

static int send_as_stranger(enum sender sender, pid_t pid, int number)
{
	const union sigval none = {.sival_int = 0};

	return sender == QUEUER ? sigqueue(pid, number, none)
				: kill(pid, number);
}

static int signalled(enum sender sender, int number)
{
	int gate[2], status;
	pid_t pid, stranger;
	bool is_strange;
	char byte;

	CHECK(pipe(gate) == 0);
	pid = fork();
	if (!pid) {
		vs_service_forked();
		if (sender == ITSELF)
			raise(number);
		close(gate[1]);
		_exit(read(gate[0], &byte, 1) == 0 ? 7 : 8);
	}
	is_strange = sender == STRANGER || sender == QUEUER;
	stranger = is_strange ? fork() : 0;
	if (is_strange && !stranger)
		_exit(send_as_stranger(sender, pid, number));
	if (stranger)
		waitpid(stranger, &status, 0);
	if (sender == PARENT)
		kill(pid, number);
	if (sender == OWNER)
		ask_owner(pid);
	close(gate[0]);
	close(gate[1]);
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* The same of a child's child, whose parent installed nothing. */
static bool ends_grandchild(enum sender sender, int number)
{
	pid_t pid, grandchild;
	int status;

	CHECK(pipe(to_owner) == 0 && pipe(from_owner) == 0);
	pid = fork();
	if (!pid) {
		vs_service_forked();
		_exit(signalled(sender, number) == -number ? 0 : 1);
	}
	if (sender == OWNER) {
		CHECK(read(to_owner[0], &grandchild, sizeof(grandchild)) ==
		      sizeof(grandchild));
		kill(grandchild, number);
		CHECK(write(from_owner[1], "", 1) == 1);
	}
	waitpid(pid, &status, 0);
	for (int i = 0; i < 2; i++) {
		close(to_owner[i]);
		close(from_owner[i]);
	}
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void signal_children(void *unused)
{
	static const int numbers[] = {SIGUSR1, SIGUSR2};

	(void)unused;
	install();
	for (int i = 0; i < 2; i++) {
		CHECK(signalled(PARENT, numbers[i]) == -numbers[i]);
		CHECK(signalled(ITSELF, numbers[i]) == -numbers[i]);
		/* one to a whole group must not kill the program's workers */
		CHECK(signalled(STRANGER, numbers[i]) == 7);
		CHECK(signalled(QUEUER, numbers[i]) == 7);
		CHECK(ends_grandchild(PARENT, numbers[i]));
		CHECK(ends_grandchild(OWNER, numbers[i]));
	}
}

static void (*before)(int number);

/* As handlers do that came later: the default action was none to call. */
static void call_on(int number)
{
	if (before != SIG_DFL && before != SIG_IGN)
		before(number);
}

static void signal_chained(void *unused)
{
	static const int numbers[] = {SIGUSR1, SIGUSR2};

	(void)unused;
	install();
	for (int i = 0; i < 2; i++) {
		before = signal(numbers[i], call_on);
		CHECK(before != SIG_DFL);
		CHECK(signalled(ITSELF, numbers[i]) == 7);
		CHECK(signalled(PARENT, numbers[i]) == 7);
		raise(numbers[i]); /* still dumps, by way of the other */
		/* put back so, it is not told who sent the signal */
		CHECK(signal(numbers[i], before) == call_on);
		CHECK(signalled(PARENT, numbers[i]) == -numbers[i]);
		CHECK(signalled(ITSELF, numbers[i]) == -numbers[i]);
	}
}

static void chained(void **unused)
{
	(void)unused;
	child_run(&c, NULL, signal_chained, NULL);
	assert_child_ok(&c);
	assert_dumped();
}

static void forked(void **unused)
{
	(void)unused;
	child_run(&c, NULL, signal_children, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void trim_by_signal(void *unused)
{
	(void)unused;
	install();
	raise(SIGUSR2); /* nothing to trim yet: no thread */
	CHECK(fake_n_trims == 0);
	vs_service_start();
	errno = 77;
	raise(SIGUSR2);
	CHECK(errno == 77);
	CHECK(reaches(&fake_n_trims, 1) && fake_n_trims == 1);
}

static void trim(void **unused)
{
	(void)unused;
	child_run(&c, NULL, trim_by_signal, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(statistics),
		cmocka_unit_test(another_number),
		cmocka_unit_test(none),
		cmocka_unit_test(owned),
		cmocka_unit_test(set_meanwhile),
		cmocka_unit_test(same_for_both),
		cmocka_unit_test(program_comes_later),
		cmocka_unit_test(in_a_system_call),
		cmocka_unit_test(under_the_locks_of_libc),
		cmocka_unit_test(small_stack),
		cmocka_unit_test(forked),
		cmocka_unit_test(chained),
		cmocka_unit_test(trim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
