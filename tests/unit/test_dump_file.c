/* SPDX-License-Identifier: MIT
 *
 * dump: the file that statistics are appended to, its name, and what becomes
 * of them where it cannot be written.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"
#include "report/dump.h"
#include "report/path.h"

static struct child c;
static char folder[] = "/tmp/vmmshim-dump.XXXXXX";

static void read_file(const char *name, char *text, size_t size)
{
	FILE *file = fopen(name, "r");

	assert_non_null(file);
	text[fread(text, 1, size - 1, file)] = '\0';
	fclose(file);
}

static void dump_twice(void *unused)
{
	(void)unused;
	vs_dump_init();
	errno = 77;
	vs_dump_write("program");
	CHECK(errno == 77);
	CHECK(chdir("/") == 0);
	vs_dump_write("program");
	/* no descriptor stays open */
	CHECK(open("/dev/null", O_RDONLY) == 3);
	dprintf(STDERR_FILENO, "%d", (int)getpid());
}

static void file_patterns(void **unused)
{
	char setting[512], name[512], host[HOST_NAME_MAX + 1], content[4096];
	const char *environment[] = {setting, "SLURM_PROCID=12", NULL};

	(void)unused;
	assert_int_equal(gethostname(host, sizeof(host)), 0);
	snprintf(setting, sizeof(setting),
		 "VMMSHIM_STATS_FILE=%s/a%%%%-%%p-%%h-%%r-%%x%%", folder);
	child_run(&c, environment, dump_twice, NULL);
	assert_child_ok(&c);
	snprintf(name, sizeof(name), "%s/a%%-%d-%s-12-%%x%%", folder,
		 atoi(c.err), host);
	read_file(name, content, sizeof(content));
	unlink(name);
	/* appended */
	assert_non_null(strstr(strstr(content, "no device has a pool yet\n"),
			       "libvmmshim"));
}

/* What is cut off would be another file. */
static void too_long_a_name(void **unused)
{
	char out[8] = "";

	(void)unused;
	assert_true(vs_path_expand("/a/%%/b", out, sizeof(out)));
	assert_string_equal(out, "/a/%/b");
	assert_false(vs_path_expand("/a/%%/bcd", out, sizeof(out)));
	assert_string_equal(out, "");
	assert_false(vs_path_expand("/a/b/c/d/e", out, sizeof(out)));
}

/* What the child wrote behind the one line that warns of the file. */
static const char *behind_warning(const char *name, const char *why)
{
	char expected[1024];

	snprintf(expected, sizeof(expected),
		 "vmmshim warn: VMMSHIM_STATS_FILE: cannot write %s (%s), "
		 "statistics go to stderr\n",
		 name, why);
	assert_memory_equal(child_text(&c), expected, strlen(expected));
	return c.err + strlen(expected);
}

static void unwritable(void **unused)
{
	char setting[512], name[256];
	const char *environment[] = {setting, NULL};
	const char *rest;

	(void)unused;
	snprintf(name, sizeof(name), "%s/no/file", folder);
	snprintf(setting, sizeof(setting), "VMMSHIM_STATS_FILE=%s", name);
	child_run(&c, environment, dump_twice, NULL);
	assert_child_ok(&c);
	rest = behind_warning(name, "no such folder");
	/* warned once, dumped twice */
	assert_null(strstr(rest, "warn"));
	rest = strstr(rest, "no device has a pool yet\n");
	assert_non_null(rest);
	assert_non_null(strstr(rest + 1, "no device has a pool yet\n"));
}

static void dump_small_files(void *unused)
{
	const struct rlimit small = {.rlim_cur = 100, .rlim_max = 100};

	(void)unused;
	CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
	dump_twice(NULL);
}

/* A file whose limit ends: a part of a dump, then a whole one; and once more.
 */
static void dump_short_and_whole(void *unused)
{
	struct rlimit limit;

	(void)unused;
	CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
	vs_dump_init();
	for (int i = 0; i < 4; i++) {
		limit.rlim_cur = i ? limit.rlim_max : 100;
		CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
		vs_dump_write("program");
	}
}

/* What a child that is fine leaves in a file; `setting`: one more, or NULL. */
static void dump_to_file(void (*run)(void *), const char *setting,
			 char *content, size_t size)
{
	char name[256], file[512];
	const char *environment[] = {file, setting, NULL};

	snprintf(name, sizeof(name), "%s/file", folder);
	snprintf(file, sizeof(file), "VMMSHIM_STATS_FILE=%s", name);
	child_run(&c, environment, run, NULL);
	assert_child_ok(&c);
	read_file(name, content, size);
	unlink(name);
}

static void after_a_torn_one(void **unused)
{
	static char content[64 * 1024];
	char *line = content;

	(void)unused;
	dump_to_file(dump_short_and_whole, "VMMSHIM_STATS_FORMAT=json", content,
		     sizeof(content));
	/* what did not fit, three whole lines, and no empty ones */
	line = strchr(line, '\n');
	assert_non_null(line);
	assert_int_equal(line - content, 100);
	for (int i = 0; i < 3; i++) {
		assert_memory_equal(line, "\n{\"version\":", 12);
		line = strchr(line + 1, '\n');
		assert_non_null(line);
		assert_memory_equal(line - 2, "}}", 2);
	}
	assert_string_equal(line, "\n");
}

/* A file that can be opened but not written, as on a full disk. */
static void full_disk(void **unused)
{
	static const char *const formats[] = {"text", "json"};
	char name[256], file[512], format[64], start[200];
	const char *environment[] = {file, format, NULL};

	(void)unused;
	snprintf(name, sizeof(name), "%s/small", folder);
	for (int i = 0; i < 4; i++) {
		bool is_small = i / 2, is_text = i % 2 == 0;
		const char *path = is_small ? name : "/dev/full", *rest;

		snprintf(file, sizeof(file), "VMMSHIM_STATS_FILE=%s", path);
		snprintf(format, sizeof(format), "VMMSHIM_STATS_FORMAT=%s",
			 formats[i % 2]);
		child_run(&c, environment,
			  is_small ? dump_small_files : dump_twice, NULL);
		assert_child_ok(&c);
		rest = behind_warning(path, "writing failed");
		/* warned once, dumped twice, all of it */
		assert_null(strstr(rest, " warn: "));
		for (int n = 0; n < 2; n++) {
			rest = strstr(rest, is_text ? " stats: libvmmshim "
						    : "{\"version\":");
			assert_non_null(rest);
			rest = strstr(rest, is_text ? "no device has a pool yet"
						    : "}}\n");
			assert_non_null(rest);
		}
		if (!is_small)
			continue;
		/* no more was tried than what did not fit */
		read_file(name, start, sizeof(start));
		assert_int_equal(strlen(start), 100);
		unlink(name);
	}
}

/* A pipe without a reader must not hold the handler. */
static void pipe_without_reader(void **unused)
{
	char setting[512], name[256];
	const char *environment[] = {setting, NULL};

	(void)unused;
	snprintf(name, sizeof(name), "%s/pipe", folder);
	assert_int_equal(mkfifo(name, 0600), 0);
	snprintf(setting, sizeof(setting), "VMMSHIM_STATS_FILE=%s", name);
	child_run(&c, environment, dump_twice, NULL);
	unlink(name);
	assert_child_ok(&c);
	assert_non_null(strstr(c.err, "(nobody reads the pipe)"));
	assert_non_null(strstr(c.err, "no device has a pool yet\n"));
}

static void dump_closed(void *unused)
{
	(void)unused;
	close(STDERR_FILENO);
	vs_dump_init();
	vs_dump_write("program");
	vs_dump_write("program");
	/* its file took the free descriptor 2, and gave it back */
	if (open("/dev/null", O_RDONLY) != STDERR_FILENO)
		_exit(98);
}

static void file_without_stderr(void **unused)
{
	char content[4096];

	(void)unused;
	dump_to_file(dump_closed, NULL, content, sizeof(content));
	assert_non_null(strstr(content, "no device has a pool yet\n"));
}

static void go_and_dump(void *unused)
{
	(void)unused;
	if (chdir(folder) != 0)
		_exit(98);
	vs_dump_init();
	if (chdir("/") != 0)
		_exit(98);
	vs_dump_write("program");
}

/* The name is that of the folder where the program began. */
static void file_of_a_daemon(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_FILE=vmmshim-relative",
				     NULL};
	char name[256], content[4096];

	(void)unused;
	snprintf(name, sizeof(name), "%s/vmmshim-relative", folder);
	child_run(&c, environment, go_and_dump, NULL);
	unlink("/vmmshim-relative");
	assert_child_ok(&c);
	read_file(name, content, sizeof(content));
	unlink(name);
	assert_non_null(strstr(content, "no device has a pool yet\n"));
}

static void rename_and_dump(void *unused)
{
	(void)unused;
	if (mkdir("vmmshim-before", 0700) != 0 || chdir("vmmshim-before") != 0)
		_exit(98);
	vs_dump_init();
	if (rename("../vmmshim-before", "../vmmshim-after") != 0)
		_exit(98);
	vs_dump_write("program");
	if (unlink("vmmshim-relative") != 0 || rmdir("../vmmshim-after") != 0)
		_exit(97);
}

static void file_of_a_folder_with_a_new_name(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_FILE=vmmshim-relative",
				     NULL};

	(void)unused;
	child_run(&c, environment, rename_and_dump, NULL);
	assert_child_ok(&c);
	assert_int_equal(c.len, 0);
}

static int make_folder(void **unused)
{
	(void)unused;
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
	(void)unused;
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file_patterns),
		cmocka_unit_test(too_long_a_name),
		cmocka_unit_test(unwritable),
		cmocka_unit_test(full_disk),
		cmocka_unit_test(after_a_torn_one),
		cmocka_unit_test(pipe_without_reader),
		cmocka_unit_test(file_without_stderr),
		cmocka_unit_test(file_of_a_daemon),
		cmocka_unit_test(file_of_a_folder_with_a_new_name),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
