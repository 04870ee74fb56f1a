/* SPDX-License-Identifier: MIT
 *
 * log: one line a call, levels, the cap, hostile arguments.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"

static struct child c;

static void every_level(void *level)
{
	vs_log_level = *(int *)level;
	errno = 77;
	vs_error("broken %s", "thing");
	vs_warn("odd %d", -1);
	vs_info("%zu bytes", (size_t)5);
	vs_debug("at 0x%lx", 16ul);
	vs_log(VS_LOG_NONE, "never");
	CHECK(errno == 77);
}

static void levels(void **unused)
{
	static const char all[] = "vmmshim error: broken thing\n"
				  "vmmshim warn: odd -1\n"
				  "vmmshim info: 5 bytes\n"
				  "vmmshim debug: at 0x10\n";

	(void)unused;
	for (int level = VS_LOG_NONE; level <= VS_LOG_DEBUG; level++) {
		const char *end = all;

		for (int i = 0; i < level; i++)
			end = strchr(end, '\n') + 1;
		child_run(&c, NULL, every_level, &level);
		assert_child_ok(&c);
		assert_int_equal(strlen(child_text(&c)), end - all);
		assert_memory_equal(c.err, all, (size_t)(end - all));
	}
}

static void one(void *unused)
{
	(void)unused;
	vs_warn("x");
	dprintf(STDERR_FILENO, "%d\n", (int)getpid());
}

static void names_the_process(void **unused)
{
	char expected[64];
	int pid;

	(void)unused;
	child_run(&c, NULL, one, NULL);
	assert_int_equal(sscanf(strchr(c.err, '\n'), "%d", &pid), 1);
	snprintf(expected, sizeof(expected), "vmmshim[%d] warn: x\n%d\n", pid,
		 pid);
	assert_string_equal(c.err, expected);
}

static void hostile(void *unused)
{
	static char longest[5000];

	(void)unused;
	memset(longest, 'x', sizeof(longest) - 1);
	vs_warn("a\nb\tc\x1b[31m %s", "d\r\n");
	vs_warn("%s", longest);
}

static void stays_one_line(void **unused)
{
	const char *second;

	(void)unused;
	child_run(&c, NULL, hostile, NULL);
	child_text(&c);
	second = strchr(c.err, '\n') + 1;
	assert_memory_equal(c.err, "vmmshim warn: a?b?c?[31m d??\n",
			    (size_t)(second - c.err));
	assert_ptr_equal(strchr(second, '\n'), c.err + c.len - 1);
	assert_true(strlen(second) > 900 && strlen(second) <= 1024);
}

static void too_many(void *unused)
{
	(void)unused;
	vs_log_level = VS_LOG_DEBUG;
	for (int i = 0; i < VS_LOG_MAX + 50; i++) {
		vs_warn("w");
		vs_debug("d");
	}
	vs_error("e");
}

static int count(const char *text, const char *part)
{
	int n = 0;

	while ((text = strstr(text, part))) {
		n++;
		text += strlen(part);
	}
	return n;
}

static void caps_each_level(void **unused)
{
	(void)unused;
	child_run(&c, NULL, too_many, NULL);
	child_text(&c);
	assert_int_equal(count(c.err, "vmmshim warn: w\n"), VS_LOG_MAX);
	assert_int_equal(count(c.err, "vmmshim warn: 1000 lines of this level "
				      "written, more are not\n"),
			 1);
	assert_int_equal(count(c.err, "vmmshim warn: "), VS_LOG_MAX + 1);
	assert_int_equal(count(c.err, "vmmshim debug: d\n"), VS_LOG_MAX + 50);
	assert_int_equal(count(c.err, "vmmshim error: e\n"), 1);
}

/* One line into each kind of thing that descriptor 2 may become. */
static void replaced(void *unused)
{
	char name[] = "/tmp/vmmshim-test-XXXXXX", got[64] = "";
	int pair[2], ends[2], file = mkstemp(name); /* to read and write */
	int saved = dup(STDERR_FILENO);
	int log_file = open(name, O_RDWR | O_APPEND);

	(void)unused;
	CHECK(file >= 0 && log_file >= 0 && unlink(name) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(pipe(ends) == 0);
	vs_log_note_stderr();
	vs_warn("stderr");
	dup2(file, STDERR_FILENO);
	vs_warn("a database");
	dup2(pair[0], STDERR_FILENO);
	vs_warn("a connection");
	close(STDERR_FILENO);
	vs_warn("closed");
	CHECK(lseek(file, 0, SEEK_END) == 0);
	CHECK(recv(pair[1], got, sizeof(got), MSG_DONTWAIT) < 0);
	dup2(ends[1], STDERR_FILENO);
	vs_warn("a pipe");
	CHECK(read(ends[0], got, sizeof(got) - 1) > 0);
	CHECK(strstr(got, "warn: a pipe\n"));
	dup2(log_file, STDERR_FILENO);
	vs_warn("a log");
	CHECK(lseek(file, 0, SEEK_END) > 0);
	/* such a file, or socket, may be stderr from the beginning */
	dup2(pair[0], STDERR_FILENO);
	vs_log_note_stderr();
	vs_warn("a journal");
	CHECK(recv(pair[1], got, sizeof(got), MSG_DONTWAIT) > 0);
	dup2(saved, STDERR_FILENO);
}

static void writes_to_stderr_only(void **unused)
{
	(void)unused;
	child_run(&c, NULL, replaced, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c), "vmmshim warn: stderr\n");
}

/* The program was started without a descriptor 2. */
static void closed_first(void *unused)
{
	char name[] = "/tmp/vmmshim-test-XXXXXX";
	int file = mkstemp(name), saved = dup(STDERR_FILENO), ends[2];
	int output = open(name, O_WRONLY);
	int log_file = open(name, O_WRONLY | O_APPEND);
	int terminal = posix_openpt(O_RDWR | O_NOCTTY), side;
	char got[64] = "";

	(void)unused;
	CHECK(file >= 0 && output >= 0 && log_file >= 0 && unlink(name) == 0);
	CHECK(pipe(ends) == 0);
	close(STDERR_FILENO);
	vs_log_note_stderr();
	vs_warn("nowhere");
	dup2(output, STDERR_FILENO);
	vs_warn("its output");
	dup2(file, STDERR_FILENO);
	vs_warn("a database");
	dup2(ends[1], STDERR_FILENO);
	vs_warn("a worker");
	CHECK(lseek(file, 0, SEEK_END) == 0);
	CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	CHECK(read(ends[0], got, sizeof(got)) < 0);
	dup2(log_file, STDERR_FILENO);
	vs_warn("a log");
	CHECK(lseek(file, 0, SEEK_END) > 0);
	/* some build machines have none */
	if (terminal >= 0 && grantpt(terminal) == 0 &&
	    unlockpt(terminal) == 0 &&
	    (side = open(ptsname(terminal), O_RDWR | O_NOCTTY)) >= 0) {
		dup2(side, STDERR_FILENO);
		vs_warn("a terminal");
		CHECK(read(terminal, got, sizeof(got) - 1) > 0);
		CHECK(strstr(got, "warn: a terminal"));
	}
	dup2(saved, STDERR_FILENO);
}

static void writes_to_no_file_of_the_program(void **unused)
{
	(void)unused;
	child_run(&c, NULL, closed_first, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(levels),
		cmocka_unit_test(names_the_process),
		cmocka_unit_test(stays_one_line),
		cmocka_unit_test(caps_each_level),
		cmocka_unit_test(writes_to_stderr_only),
		cmocka_unit_test(writes_to_no_file_of_the_program),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
