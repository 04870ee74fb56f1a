/* SPDX-License-Identifier: MIT
 *
 * fmt: against snprintf on random values (the seed is printed; give it as the
 * first argument to repeat a run), and against tables where printf has no word.
 */
#include "base/fmt.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"

static uint64_t seed;
static uint64_t state;

static uint64_t random_bits(void)
{
	/* splitmix64 */
	uint64_t z = (state += 0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* As many bits as not: short and long numbers alike, and the extremes. */
static uint64_t random_value(void)
{
	uint64_t v = random_bits() >> (random_bits() % 64);

	switch (random_bits() % 16) {
	case 0:
		return 0;
	case 1:
		return UINT64_MAX;
	case 2:
		return (uint64_t)1 << 63;
	case 3:
		return (uint64_t)1 << 31;
	default:
		return v;
	}
}

/* Both ways with the same arguments, into buffers of the same size. */
#define SAME(size, ...)                                                        \
	do {                                                                   \
		char ours_[256], theirs_[256];                                 \
		struct vs_fmt f_ = vs_fmt_start(ours_, (size));                \
		vs_fmt_f(&f_, __VA_ARGS__);                                    \
		snprintf(theirs_, (size), __VA_ARGS__);                        \
		assert_string_equal(ours_, theirs_);                           \
		assert_int_equal(f_.len, strlen(theirs_));                     \
	} while (0)

static void same_as_printf(void **unused)
{
	(void)unused;
	state = seed;
	for (int i = 0; i < 20000; i++) {
		uint64_t v = random_value();
		size_t size = 1 + random_bits() % 256;
		char word[16];

		snprintf(word, sizeof(word), "%llx", (unsigned long long)v);
		SAME(size, "%d|%i|%u|%x", (int)v, (int)v, (unsigned)v,
		     (unsigned)v);
		SAME(size, "%ld %lu %lx", (long)v, (unsigned long)v,
		     (unsigned long)v);
		SAME(size, "%lld %llu %llx%%", (long long)v,
		     (unsigned long long)v, (unsigned long long)v);
		SAME(size, "%zu,%zd,%zx", (size_t)v, (ssize_t)v, (size_t)v);
		SAME(size, "a%sb%cc%s", word, 'a' + (int)(v % 26), word);
		SAME(size, "%p", (void *)(uintptr_t)(v | 1));
	}
}

static void numbers(void **unused)
{
	char text[64];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));

	(void)unused;
	vs_fmt_u64(&f, UINT64_MAX);
	vs_fmt_char(&f, ' ');
	vs_fmt_i64(&f, INT64_MIN);
	vs_fmt_char(&f, ' ');
	vs_fmt_hex(&f, 0x1f);
	assert_string_equal(text,
			    "18446744073709551615 -9223372036854775808 0x1f");
	f = vs_fmt_start(text, sizeof(text));
	vs_fmt_f(&f, "%p %s", (void *)NULL, (char *)NULL);
	assert_string_equal(text, "0x0 (null)");
}

static void unknown_conversions_stand(void **unused)
{
	static const char *const formats[] = {"a %5d b", "%f", "%hd", "%lls",
					      "100%",	 "%",  "%-x", "% d"};
	char text[64];

	(void)unused;
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		struct vs_fmt f = vs_fmt_start(text, sizeof(text));
		void (*put)(struct vs_fmt *, const char *, ...) = vs_fmt_f;

		/* through a pointer: the compiler would object */
		put(&f, formats[i], 1, 2);
		assert_string_equal(text, formats[i]);
	}
}

static void bytes_for_people(void **unused)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} rows[] = {
		{0, "0 B"},
		{512, "512 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{(1 << 20) - 52, "1023.9 KiB"},
		{(1 << 20) - 51, "1.0 MiB"}, /* 1023.95 is 1024.0 */
		{1 << 20, "1.0 MiB"},
		{12897485, "12.3 MiB"},
		{64ull << 30, "64.0 GiB"},
		{1ull << 40, "1.0 TiB"},
		{1ull << 50, "1.0 PiB"},
		{1ull << 60, "1.0 EiB"},
		{UINT64_MAX, "16.0 EiB"},
	};
	char text[32];

	(void)unused;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct vs_fmt f = vs_fmt_start(text, sizeof(text));

		vs_fmt_bytes(&f, rows[i].bytes);
		assert_string_equal(text, rows[i].text);
	}
}

static void times_for_people(void **unused)
{
	static const struct {
		uint64_t ns;
		const char *text;
	} rows[] = {
		{0, "0 ns"},
		{812, "812 ns"},
		{999, "999 ns"},
		{1000, "1.0 us"},
		{1249, "1.2 us"},
		{1250, "1.3 us"},
		{999949, "999.9 us"},
		{999950, "1.0 ms"},
		{3400000, "3.4 ms"},
		{999950000, "1.0 s"},
		{5600000000, "5.6 s"},
		{86400000000000, "86400.0 s"},
		{UINT64_MAX, "18446744073.7 s"},
	};
	char text[32];

	(void)unused;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct vs_fmt f = vs_fmt_start(text, sizeof(text));

		vs_fmt_ns(&f, rows[i].ns);
		assert_string_equal(text, rows[i].text);
	}
}

static void json_strings(void **unused)
{
	static const struct {
		const char *raw, *json;
	} rows[] = {
		{"plain", "plain"},
		{"", ""},
		{"a\"b\\c/", "a\\\"b\\\\c/"},
		{"\n\t\x01\x1f\x7f", "\\u000a\\u0009\\u0001\\u001f\x7f"},
		{"h\xc3\xa4t", "h\xc3\xa4t"},		  /* two bytes */
		{"\xe2\x82\xac", "\xe2\x82\xac"},	  /* three */
		{"\xf0\x9f\x8d\x8e", "\xf0\x9f\x8d\x8e"}, /* four */
		{"\xe4", "\\ufffd"},			  /* Latin-1 */
		{"\xc3", "\\ufffd"},			  /* cut short */
		{"\xc3(", "\\ufffd("},
		{"\xe2\x82", "\\ufffd\\ufffd"},
		{"\xc0\xaf", "\\ufffd\\ufffd"}, /* overlong */
		{"\xe0\x80\x80", "\\ufffd\\ufffd\\ufffd"},
		{"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"}, /* surrogate */
		{"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},
		{"\xff", "\\ufffd"},
	};
	char text[64];

	(void)unused;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct vs_fmt f = vs_fmt_start(text, sizeof(text));

		vs_fmt_json(&f, rows[i].raw);
		assert_string_equal(text, rows[i].json);
	}
}

static void one_line(void **unused)
{
	char text[64];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));

	(void)unused;
	vs_fmt_line(&f, "a\n\r\t\x01\x1f \x7f~\\\xc3\xa4\xff");
	vs_fmt_line(&f, "");
	assert_string_equal(text, "a\\x0a\\x0d\\x09\\x01\\x1f \\x7f~\\"
				  "\xc3\xa4\xff");
	f = vs_fmt_start(text, 4);
	vs_fmt_line(&f, "ab\n");
	assert_string_equal(text, "ab\\");
}

static void cut_and_pad(void **unused)
{
	char text[8];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));

	(void)unused;
	vs_fmt_str(&f, "ab");
	vs_fmt_pad(&f, 4);
	assert_string_equal(text, "ab  ");
	vs_fmt_pad(&f, 3);
	assert_string_equal(text, "ab  ");
	vs_fmt_pad(&f, 100);
	assert_string_equal(text, "ab     ");
	vs_fmt_str(&f, "more");
	vs_fmt_char(&f, 'c');
	assert_string_equal(text, "ab     ");
	assert_int_equal(f.len, 7);
	f = vs_fmt_start(text, 1);
	vs_fmt_u64(&f, 12);
	assert_string_equal(text, "");
}

static void *read_slowly(void *arg)
{
	int fd = *(int *)arg;
	char part[4096];
	const struct timespec wait = {.tv_nsec = 200000};
	size_t sum = 0;
	ssize_t n;

	while ((n = read(fd, part, sizeof(part))) > 0) {
		sum += (size_t)n;
		nanosleep(&wait, NULL);
	}
	return (void *)sum;
}

static void nothing(int number)
{
	(void)number;
}

/* A full pipe, blocking or not, and signals in between: all bytes arrive. */
static void writes_all(void **unused)
{
	static char text[1 << 20];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));
	struct sigaction action = {.sa_handler = nothing};

	(void)unused;
	vs_fmt_pad(&f, sizeof(text) - 1);
	sigaction(SIGALRM, &action, NULL);
	for (int flags = 0; flags <= O_NONBLOCK; flags += O_NONBLOCK) {
		struct itimerval every = {{0, 2000}, {0, 2000}};
		struct itimerval never = {0};
		pthread_t reader;
		sigset_t alarm_only;
		int ends[2];
		void *sum;

		assert_int_equal(pipe2(ends, 0), 0);
		fcntl(ends[1], F_SETFL, flags);
		sigemptyset(&alarm_only);
		sigaddset(&alarm_only, SIGALRM);
		pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
		pthread_create(&reader, NULL, read_slowly, &ends[0]);
		pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
		setitimer(ITIMER_REAL, &every, NULL);
		errno = 77;
		assert_true(vs_fmt_write(&f, ends[1]));
		assert_int_equal(errno, 77);
		setitimer(ITIMER_REAL, &never, NULL);
		close(ends[1]);
		pthread_join(reader, &sum);
		close(ends[0]);
		assert_int_equal((size_t)sum, f.len);
	}
}

/* A write that fails with a signal: nobody gets it, and none is lost. */
static void fail_to_write(int fd, int number)
{
	char text[] = "text";
	struct vs_fmt f = {.text = text, .size = sizeof(text), .len = 4};
	sigset_t set;

	CHECK(!vs_fmt_write(&f, fd));
	sigpending(&set);
	CHECK(!sigismember(&set, number));
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	CHECK(!sigismember(&set, number));
	/* one that was waiting before is not ours to take */
	sigemptyset(&set);
	sigaddset(&set, number);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	raise(number);
	CHECK(!vs_fmt_write(&f, fd));
	sigpending(&set);
	CHECK(sigismember(&set, number));
	CHECK(!vs_fmt_write(&f, -1));
}

static void write_to_nobody(void *unused)
{
	int ends[2];

	(void)unused;
	CHECK(pipe(ends) == 0);
	close(ends[0]);
	fail_to_write(ends[1], SIGPIPE);
}

static void write_past_the_limit(void *unused)
{
	const struct rlimit none = {0, 0};
	FILE *file = tmpfile();

	(void)unused;
	CHECK(file);
	CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
	fail_to_write(fileno(file), SIGXFSZ);
}

static void raises_no_signal(void **unused)
{
	static struct child c;

	(void)unused;
	child_run(&c, NULL, write_to_nobody, NULL);
	assert_child_ok(&c);
	child_run(&c, NULL, write_past_the_limit, NULL);
	assert_child_ok(&c);
}

/* A full pipe that nobody reads must not hold the program for long. */
static void gives_up_on_a_full_pipe(void **unused)
{
	static char text[1 << 20];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));
	struct timespec from, to;
	int ends[2];

	(void)unused;
	vs_fmt_pad(&f, sizeof(text) - 1);
	assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
	clock_gettime(CLOCK_MONOTONIC, &from);
	assert_false(vs_fmt_write(&f, ends[1]));
	clock_gettime(CLOCK_MONOTONIC, &to);
	assert_true(to.tv_sec - from.tv_sec < 3);
	close(ends[0]);
	close(ends[1]);
}

/* A pipe or terminal is stderr from now on; ends[0] is who reads it. */
static void open_stderr(int ends[2], bool is_terminal)
{
	if (is_terminal) {
		ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
		CHECK(grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
		ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
		CHECK(ends[1] >= 0);
	} else {
		CHECK(pipe(ends) == 0);
	}
	CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
}

/* Many short lines and one long: what there is room for, then none. */
static void write_to_a_full_stderr(void *is_terminal)
{
	static char text[1 << 20];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));
	int ends[2], n = 0;

	/* were it held, this ends it */
	signal(SIGALRM, SIG_DFL);
	alarm(30);
	open_stderr(ends, *(bool *)is_terminal);
	vs_fmt_pad(&f, 99);
	vs_fmt_char(&f, '\n');
	while (vs_fmt_write(&f, STDERR_FILENO))
		n++;
	CHECK(n >= 100);
	vs_fmt_pad(&f, sizeof(text) - 1);
	errno = EPIPE;
	CHECK(!vs_fmt_write(&f, STDERR_FILENO));
	CHECK(errno == EPIPE);
}

/* In a child each, which is told whether its stderr is to be a terminal. */
static void with_both(void (*write_there)(void *is_terminal))
{
	static struct child c;

	for (int i = 0; i < 2; i++) {
		bool is_terminal = i;

		child_run(&c, NULL, write_there, &is_terminal);
		assert_child_ok(&c);
	}
}

/* Nor may the program's own stderr, which is none of ours to change. */
static void gives_up_on_a_full_stderr(void **unused)
{
	(void)unused;
	with_both(write_to_a_full_stderr);
}

/* poll() refuses then, and a terminal cannot be opened again. */
static void write_without_descriptors(void *is_terminal)
{
	const struct rlimit none = {0, 0};
	char text[16], got[16];
	struct vs_fmt f = vs_fmt_start(text, sizeof(text));
	int ends[2];

	open_stderr(ends, *(bool *)is_terminal);
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	vs_fmt_str(&f, "a line");
	CHECK(vs_fmt_write(&f, STDERR_FILENO));
	CHECK(read(ends[0], got, sizeof(got)) == 6);
}

static void writes_without_descriptors(void **unused)
{
	(void)unused;
	with_both(write_without_descriptors);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_as_printf),
		cmocka_unit_test(numbers),
		cmocka_unit_test(unknown_conversions_stand),
		cmocka_unit_test(bytes_for_people),
		cmocka_unit_test(times_for_people),
		cmocka_unit_test(json_strings),
		cmocka_unit_test(one_line),
		cmocka_unit_test(cut_and_pad),
		cmocka_unit_test(writes_all),
		cmocka_unit_test(raises_no_signal),
		cmocka_unit_test(gives_up_on_a_full_pipe),
		cmocka_unit_test(gives_up_on_a_full_stderr),
		cmocka_unit_test(writes_without_descriptors),
	};

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
	print_message("seed %llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
