/* SPDX-License-Identifier: MIT
 *
 * trace: files that cannot be used, or not any more, and their names.
 */
#include "trace_test.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

static void try_init(void *unused)
{
	(void)unused;
	off(NULL);
}

static void unusable_files(void **unused)
{
	static char other[512];
	const char *of_other[] = {other, NULL};
	char expected[1024];
	int fd;

	(void)unused;
	snprintf(other, sizeof(other), "VMMSHIM_TRACE=%s/no/file", folder);
	snprintf(expected, sizeof(expected),
		 "vmmshim warn: VMMSHIM_TRACE: cannot write %s/no/file "
		 "(no such folder), no trace\n",
		 folder);
	child_run(&c, of_other, try_init, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c), expected);

	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(write(fd, "theirs\n", 7), 7);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	snprintf(expected, sizeof(expected),
		 "vmmshim warn: VMMSHIM_TRACE: another process writes %s "
		 "(%%p in the name keeps them apart), no trace\n",
		 path);
	child_run(&c, environment, try_init, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c), expected);
	assert_int_equal(lseek(fd, 0, SEEK_END), 7);
	close(fd);
}

static void full_disk(void *unused)
{
	(void)unused;
	start();
	for (uint64_t i = 0; i < MANY; i++)
		vs_trace_alloc(i, 1);
	exit(0);
}

static void writing_fails(void **unused)
{
	const char *full[] = {"VMMSHIM_TRACE=/dev/full", NULL};

	(void)unused;
	child_run(&c, full, full_disk, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c),
			    "vmmshim warn: VMMSHIM_TRACE: the trace ends here "
			    "(writing failed)\n");
}

/* A daemon closes all descriptors; the next file gets the number. */
static void close_all(void *name)
{
	int fd, status;
	pid_t pid;

	start();
	vs_trace_alloc(1, 1);
	vs_trace_flush();
	for (fd = 3; fd < 100; fd++)
		close(fd);
	fd = open(name, O_RDWR | O_CREAT, 0600);
	CHECK(fd == 3);
	/* a child keeps it */
	pid = fork();
	if (pid == 0) {
		vs_trace_forked();
		_exit(fcntl(fd, F_GETFD) < 0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	vs_trace_alloc(2, 1);
	vs_trace_flush();
	vs_trace_alloc(3, 1);
	vs_trace_flush();
	CHECK(lseek(fd, 0, SEEK_END) == 0);
	exit(0);
}

static void closed_by_the_program(void **unused)
{
	char name[300];

	(void)unused;
	snprintf(name, sizeof(name), "%s/theirs", folder);
	child_run(&c, environment, close_all, name);
	unlink(name);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c),
			    "vmmshim warn: VMMSHIM_TRACE: the trace ends here "
			    "(the program closed its file)\n");
	load();
	assert_int_equal(n_lines, 1);
}

static void one_record(void *unused)
{
	(void)unused;
	start();
	vs_trace_alloc(1, 4096);
	exit(0);
}

static void patterns(void **unused)
{
	char other[512], name[512];
	const char *of_other[] = {other, "RANK=5", NULL};

	(void)unused;
	snprintf(other, sizeof(other), "VMMSHIM_TRACE=%s/t%%r", folder);
	snprintf(name, sizeof(name), "%s/t5", folder);
	child_run(&c, of_other, one_record, NULL);
	assert_child_ok(&c);
	assert_int_equal(unlink(name), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unusable_files),
		cmocka_unit_test(writing_fails),
		cmocka_unit_test(closed_by_the_program),
		cmocka_unit_test(patterns),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
