/* SPDX-License-Identifier: MIT
 *
 * dump: the exact text, the JSON, who may dump and when. The file:
 * test_dump_file.
 */
#include "report/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/api.h"
#include "base/knob.h"
#include "base/thread.h"
#include "child.h"
#include "config.h"
#include "fake_pool.h"

static struct child c;

/* Two devices and a few calls, as a program in its middle might have. */
static void set_the_scene(void)
{
	struct vs_stats *s = &fake_stats[0];

	vs_stat_set(s, reserved, 67108864);
	vs_stat_set(s, reserved, 12897485);
	vs_stat_set(s, live, 12000000);
	vs_stat_set(s, blocks, 17);
	vs_stat_add(s, small_hit, 3999);
	vs_stat_add(s, small_miss, 1);
	vs_stat_add(s, wait_ns, 3400000);
	fake_n_pools = 2;
	vs_stat_set(&fake_stats[1], idle, 1ull << 40);
	for (int i = 0; i < 4000; i++)
		vs_thread_count(vs_thread_self(), VS_API_cuMemAlloc_v2);
}

/* An uptime is in the text: the one line that no golden text can hold. */
static char *without_uptime(char *text)
{
	char *up = strstr(text, ", up ");
	char *end = up ? strchr(up + 2, ',') : NULL;

	if (end)
		memmove(up, end, strlen(end) + 1);
	return text;
}

static void dump(void *why)
{
	vs_dump_init();
	set_the_scene();
	errno = 77;
	vs_dump_write(why);
	CHECK(errno == 77);
	CHECK(fake_n_refreshes == 2);
}

static const char golden[] =
	"vmmshim stats: libvmmshim " PACKAGE_VERSION
	", test_dump, signal, mode sync\n"
	"vmmshim stats: device 0                  now           exact        "
	"high           exact\n"
	"vmmshim stats:   uuid 0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n"
	"vmmshim stats:   reserved           12.3 MiB        12897485    "
	"64.0 MiB        67108864\n"
	"vmmshim stats:   live               11.4 MiB        12000000    "
	"11.4 MiB        12000000\n"
	"vmmshim stats:   pending                 0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   dead                    0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   idle                    0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   cached                  0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   blocks                   17                          "
	"17\n"
	"vmmshim stats:   small_hit              3999\n"
	"vmmshim stats:   small_miss                1\n"
	"vmmshim stats:   wait_ns              3.4 ms         3400000\n"
	"vmmshim stats:   chunks                    0                          "
	" "
	"0\n"
	"vmmshim stats:   99.9 % of 4000 allocations served by a hit\n"
	"vmmshim stats: device 1                  now           exact        "
	"high           exact\n"
	"vmmshim stats:   reserved                0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   live                    0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   pending                 0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   dead                    0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   idle                1.0 TiB   1099511627776     "
	"1.0 TiB   1099511627776\n"
	"vmmshim stats:   cached                  0 B               0         "
	"0 B               0\n"
	"vmmshim stats:   blocks                    0                          "
	" "
	"0\n"
	"vmmshim stats:   chunks                    0                          "
	" "
	"0\n"
	"vmmshim stats: calls\n"
	"vmmshim stats:   cuMemAlloc_v2                          4000\n"
	"vmmshim stats: knob VMMSHIM=sync (environment)\n"
	"vmmshim stats: knob VMMSHIM_DECAY_MS=3000 (default, the environment's "
	"was rejected)\n"
	/* that it is the default, too, is no reason to hide it */
	"vmmshim stats: knob VMMSHIM_ZERO=never (environment)\n"
	"vmmshim stats: knob VMMSHIM_LOG=none (environment)\n";

static void text(void **unused)
{
	const char *environment[] = {"VMMSHIM=sync", "VMMSHIM_DECAY_MS=x",
				     "VMMSHIM_ZERO=never", "VMMSHIM_LOG=none",
				     NULL};

	(void)unused;
	/* the name comes from argv[0], where libtool puts lt- in front */
	program_invocation_short_name = (char *)"test_dump";
	child_run(&c, environment, dump, (void *)"signal");
	assert_child_ok(&c);
	assert_string_equal(without_uptime(child_text(&c)), golden);
}

static void dump_nothing(void *unused)
{
	(void)unused;
	vs_dump_init();
	vs_dump_write("program");
}

static void before_any_pool(void **unused)
{
	(void)unused;
	child_run(&c, NULL, dump_nothing, NULL);
	assert_child_ok(&c);
	assert_string_equal(without_uptime(child_text(&c)),
			    "vmmshim stats: libvmmshim " PACKAGE_VERSION
			    ", test_dump, program, mode pool\n"
			    "vmmshim stats: no device has a pool yet\n");
}

static void dump_full(void *n_pools)
{
	vs_dump_init();
	fake_n_pools = *(int *)n_pools;
	for (int i = 0; i < FAKE_POOLS; i++)
		fake_fill(i);
	for (int api = 0; api < VS_API_COUNT; api++)
		vs_thread_count(vs_thread_self(), api);
	vs_dump_write("exit");
}

/* One whole line, every row by its name, every call, every knob. */
static void json(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_FORMAT=json",
				     "VMMSHIM_ONLY=a\"b\\c\xe4", "RANK=3",
				     NULL};
	int n_pools = 1;
	char part[256];
	size_t at = 0;

	(void)unused;
	child_run(&c, environment, dump_full, &n_pools);
	assert_child_ok(&c);
	assert_ptr_equal(strchr(c.err, '\n'), c.err + c.len - 1);
	assert_memory_equal(c.err, "{\"version\":1,\"vmmshim\":\"", 24);
	assert_string_equal(c.err + c.len - 3, "}}\n");
	assert_non_null(strstr(c.err, ",\"program\":\"test_dump\","));
	assert_non_null(strstr(c.err, ",\"rank\":\"3\",\"why\":\"exit\","));
	assert_non_null(strstr(c.err, ",\"mode\":\"pool\","));
	assert_non_null(strstr(c.err,
			       "\"devices\":[{\"device\":0,\"uuid\":"
			       "\"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\","));
#define ROW(name)                                                              \
	snprintf(part, sizeof(part), "\"%s\":%zu", name, 1000000 + at++);      \
	assert_non_null(strstr(c.err, part));
#define HIGH_GAUGE(name) ROW(#name "_high")
#define HIGH_COUNTER(name)
#define STAT(name, kind, unit, help)                                           \
	ROW(#name)                                                             \
	HIGH_##kind(name)
#include "stats.def"
#undef STAT
#define API(symbol, base, since, flags)                                        \
	assert_non_null(strstr(c.err, "\"" #symbol "\":1"));
#include "api.def"
#define KNOB(field, name, type, def, min, max, help)                           \
	snprintf(part, sizeof(part), "\"%s\":{\"value\":\"",                   \
		 sizeof(name) == 1 ? "VMMSHIM" : "VMMSHIM_" name);             \
	assert_non_null(strstr(c.err, part));
#include "knobs.def"
#undef KNOB
	assert_non_null(strstr(c.err,
			       "\"VMMSHIM_ONLY\":{\"value\":\"a\\\"b\\\\c"
			       "\\ufffd\",\"source\":\"environment\"}"));
	assert_non_null(strstr(c.err, "\"VMMSHIM_DECAY_MS\":{\"value\":\"3000\""
				      ",\"source\":\"default\"}"));
}

/* Python reads it, also at its longest: 64 devices and a 16 KiB knob. */
static void json_is_valid(void **unused)
{
	static char only[16000];
	const char *environment[] = {"VMMSHIM_STATS_FORMAT=json", only, NULL};
	int n_pools = FAKE_POOLS;
	FILE *reader;

	(void)unused;
	if (system("python3 -c pass >/dev/null 2>&1"))
		skip();
	snprintf(only, sizeof(only), "VMMSHIM_ONLY=");
	memset(only + strlen(only), 1, sizeof(only) - strlen(only) - 1);
	child_run(&c, environment, dump_full, &n_pools);
	assert_child_ok(&c);
	assert_true(c.len > 96000 && c.len < sizeof(c.err) - 1);
	reader = popen("python3 -c 'import json, sys\n"
		       "d = json.load(sys.stdin)\n"
		       "assert len(d[\"devices\"]) == 64\n"
		       "assert d[\"devices\"][1][\"uuid\"] == \"\"\n"
		       "assert d[\"devices\"][63][\"reserved\"] == 64000000\n"
		       "only = d[\"knobs\"][\"VMMSHIM_ONLY\"][\"value\"]\n"
		       "assert only == chr(1) * 15986, len(only)\n'",
		       "w");
	fwrite(c.err, 1, c.len, reader);
	assert_int_equal(pclose(reader), 0);
}

/* A value, or a program's name, cannot make lines of its own. */
static void one_line_each(void **unused)
{
	const char *environment[] = {
		"VMMSHIM_ONLY=a\nvmmshim stats: b\t\x1b[2J\x7f\xc3\xa4", NULL};
	char *saved = program_invocation_short_name;

	(void)unused;
	program_invocation_short_name = (char *)"a\rb\n";
	child_run(&c, environment, dump_nothing, NULL);
	program_invocation_short_name = saved;
	assert_child_ok(&c);
	assert_non_null(strstr(child_text(&c),
			       "stats: knob VMMSHIM_ONLY=a\\x0avmmshim stats: "
			       "b\\x09\\x1b[2J\\x7f\xc3\xa4 (environment)\n"));
	assert_non_null(strstr(c.err, ", a\\x0db\\x0a, "));
}

static void fork_and_dump(void *unused)
{
	int status;
	pid_t pid;

	(void)unused;
	vs_dump_write("too early"); /* before vs_dump_init: nothing */
	pid = fork();
	if (!pid) {
		/* a child from before CUDA may use it, and dump, itself */
		vs_dump_init();
		vs_dump_write("child");
		_exit(0);
	}
	waitpid(pid, &status, 0);
	vs_dump_init();
	pid = fork();
	if (!pid) {
		vs_dump_write("forked"); /* the numbers are the parent's */
		exit(0);
	}
	waitpid(pid, &status, 0);
	vs_dump_write("parent");
}

static void only_the_owner(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_AT_EXIT=1", NULL};

	(void)unused;
	child_run(&c, environment, fork_and_dump, NULL);
	assert_child_ok(&c);
	assert_non_null(strstr(c.err, ", child, "));
	assert_non_null(strstr(c.err, ", parent, "));
	assert_null(strstr(c.err, "early"));
	assert_null(strstr(c.err, "forked"));
	assert_null(strstr(c.err, "exit"));
}

static void end(void *uses_cuda)
{
	vs_knob_init();
	if (*(bool *)uses_cuda)
		vs_dump_init();
	exit(0);
}

static void at_exit(void **unused)
{
	const char *on[] = {"VMMSHIM_STATS_AT_EXIT=1", NULL};
	bool uses_cuda = true;

	(void)unused;
	child_run(&c, on, end, &uses_cuda);
	assert_child_ok(&c);
	assert_non_null(strstr(c.err, ", exit, "));
	child_run(&c, NULL, end, &uses_cuda);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
	uses_cuda = false;
	child_run(&c, on, end, &uses_cuda);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void *dump_often(void *name)
{
	for (int i = 0; i < 50; i++)
		vs_dump_write(name);
	return NULL;
}

static void on_signal(int number)
{
	(void)number;
	vs_dump_write("handler");
}

/* Dumps from threads and from a handler that hits them in the middle. */
static void dump_at_once(void *unused)
{
	const struct timespec pause = {.tv_nsec = 100000};
	pthread_t a, b;

	(void)unused;
	signal(SIGUSR1, on_signal);
	vs_dump_init();
	set_the_scene();
	pthread_create(&a, NULL, dump_often, (void *)"a");
	pthread_create(&b, NULL, dump_often, (void *)"b");
	for (int i = 0; i < 50; i++) {
		pthread_kill(i % 2 ? a : b, SIGUSR1);
		nanosleep(&pause, NULL);
	}
	pthread_join(a, NULL);
	pthread_join(b, NULL);
}

static void never_mixed(void **unused)
{
	const char *environment[] = {"VMMSHIM_LOG=none", NULL};
	char *first, *second;
	size_t length;
	int n = 0;

	(void)unused;
	child_run(&c, environment, dump_at_once, NULL);
	assert_child_ok(&c);
	child_text(&c);
	/* all that follows a header is the same in each dump */
	first = strchr(c.err, '\n');
	second = strstr(first, "libvmmshim");
	length = (size_t)(second - first) - strlen("vmmshim stats: ");
	for (char *p = c.err; *p; n++) {
		assert_memory_equal(p, "vmmshim stats: libvmmshim", 25);
		p = strchr(p, '\n');
		assert_memory_equal(p, first, length);
		p += length;
	}
	/* those of the threads, which may wait for each other, at least */
	assert_true(n >= 100);
}

static int slow_pipe[2]; /* its reader comes late */

static void *dump_first(void *unused)
{
	(void)unused;
	vs_dump_write("first");
	return NULL;
}

static void *read_late(void *text)
{
	char *to = text;
	ssize_t n;

	sleep_ms(60);
	while ((n = read(slow_pipe[0], to, 4096)) > 0)
		to += *to == 'x' ? 0 : n;
	*to = '\0';
	return NULL;
}

/* A dump that waits for another thread's, amid a profiler's timer. */
static void dump_amid_signals(void *unused)
{
	static char text[65536], full[4096];
	pthread_t writer, reader;
	sigset_t alarm;
	int own;

	(void)unused;
	memset(full, 'x', sizeof(full));
	CHECK(pipe(slow_pipe) == 0);
	fcntl(slow_pipe[1], F_SETFL, O_NONBLOCK);
	while (write(slow_pipe[1], full, sizeof(full)) > 0)
		;
	vs_dump_init();
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	own = dup(STDERR_FILENO);
	dup2(slow_pipe[1], STDERR_FILENO);
	pthread_create(&writer, NULL, dump_first, NULL);
	pthread_create(&reader, NULL, read_late, text);
	sleep_ms(10);
	child_tick();
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	vs_dump_write("second");
	pthread_join(writer, NULL);
	dup2(own, STDERR_FILENO);
	close(slow_pipe[1]);
	pthread_join(reader, NULL);
	CHECK(strstr(text, ", second, "));
}

static void waits_amid_signals(void **unused)
{
	(void)unused;
	child_run(&c, NULL, dump_amid_signals, NULL);
	assert_child_ok(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text),
		cmocka_unit_test(before_any_pool),
		cmocka_unit_test(json),
		cmocka_unit_test(json_is_valid),
		cmocka_unit_test(one_line_each),
		cmocka_unit_test(only_the_owner),
		cmocka_unit_test(at_exit),
		cmocka_unit_test(never_mixed),
		cmocka_unit_test(waits_amid_signals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
