/* SPDX-License-Identifier: MIT
 *
 * vmmshim-run [--KNOB[=VALUE]]... [--] PROGRAM [ARG]...
 * Runs a program under libvmmshim: sets the variables of the knobs that are
 * given and LD_PRELOAD, and no others. A shell would drop those that it has no
 * name for (exported functions) and set some of its own. See vmmshim-run(1) and
 * vmmshim(7).
 */
#include "config.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/knob.h"

enum { UNWRITTEN = 1, MISUSED = 2, NOT_RUNNABLE = 126, NOT_FOUND = 127 };

static const struct knob {
	const char *field, *variable, *type;
} knobs[] = {
#define KNOB(field, name, type, fallback, min, max, help)                      \
	{#field, VS_KNOB_VARIABLE(name), #type},
#include "knobs.def"
#undef KNOB
};

enum { N_KNOBS = sizeof(knobs) / sizeof(knobs[0]), NAME_BYTES = 80 };

static __attribute__((format(printf, 1, 2), noreturn)) void
fail(const char *format, ...)
{
	va_list args;

	fputs("vmmshim-run: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(MISUSED);
}

/* "--decay-ms" of decay_ms. */
static void option_of(const struct knob *k, char option[NAME_BYTES])
{
	snprintf(option, NAME_BYTES, "--%s", k->field);
	for (char *s = option; *s; s++)
		if (*s == '_')
			*s = '-';
}

/* It needs no value. */
static bool is_bare(const struct knob *k)
{
	return strcmp(k->type, "BOOL") == 0;
}

static void usage(FILE *to)
{
	fprintf(to,
		"usage: vmmshim-run [--KNOB=VALUE]... [--] PROGRAM [ARG]...\n"
		"knobs (vmmshim(7) explains them):\n");
	for (int i = 0; i < N_KNOBS; i++) {
		const char *value = is_bare(&knobs[i]) ? "[=VALUE]" : "=VALUE";
		char option[NAME_BYTES];

		option_of(&knobs[i], option);
		fprintf(to, "  %s%s (%s)\n", option, value, knobs[i].variable);
	}
}

/* The exit status when all that was to be said is. */
static int written(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fprintf(stderr, "vmmshim-run: standard output: %s\n", strerror(errno));
	return UNWRITTEN;
}

static const struct knob *find_knob(const char *word, size_t length)
{
	char option[NAME_BYTES];

	for (int i = 0; i < N_KNOBS; i++) {
		option_of(&knobs[i], option);
		if (strlen(option) == length &&
		    memcmp(option, word, length) == 0)
			return &knobs[i];
	}
	return NULL;
}

/* Sets the variable that a word like --decay-ms=5 stands for. */
static void set_knob(const char *word)
{
	size_t length = strcspn(word, "=");
	const struct knob *k = find_knob(word, length);

	if (!k)
		fail("no option %.*s; --help lists them", (int)length, word);
	if (!word[length] && !is_bare(k))
		fail("%s needs a value: %s=VALUE", word, word);
	if (setenv(k->variable, word[length] ? word + length + 1 : "1", 1))
		fail("%s: %s", word, strerror(errno));
}

/* In the build tree the library lies beside this program, in .libs. */
static bool is_beside(const char *self, char path[PATH_MAX])
{
	static const char built[] = ".libs/libvmmshim.so";
	char *slash;

	if (!self || !realpath(self, path))
		return false;
	slash = strrchr(path, '/');
	if ((size_t)(slash + 1 - path) + sizeof(built) > PATH_MAX)
		return false;
	memcpy(slash + 1, built, sizeof(built));
	return access(path, R_OK) == 0;
}

/*
 * This program's file. AT_EXECFN is a script that names it in its first line,
 * and what lies beside that another user may have put there. But where the
 * loader was started by name, and so has no loader, it is set to this.
 */
static const char *own_file(void)
{
	return getauxval(AT_BASE) ? "/proc/self/exe"
				  : (const char *)getauxval(AT_EXECFN);
}

static void find_library(char path[PATH_MAX])
{
	if (is_beside(own_file(), path))
		return;
	snprintf(path, PATH_MAX, "%s/libvmmshim.so", LIBDIR);
	if (access(path, R_OK) != 0)
		fail("no %s", path);
}

/* Before what is preloaded already. */
static void preload(void)
{
	const char *others = getenv("LD_PRELOAD");
	char path[PATH_MAX], *all = path;

	find_library(path);
	if (strpbrk(path, " :"))
		fail("the loader cannot preload a path with a space or colon: "
		     "%s",
		     path);
	if (others && *others && asprintf(&all, "%s:%s", path, others) < 0)
		fail("out of memory");
	if (setenv("LD_PRELOAD", all, 1))
		fail("LD_PRELOAD: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	int i = 1, why;

	for (; i < argc && argv[i][0] == '-'; i++) {
		if (strcmp(argv[i], "--") == 0) {
			i++;
			break;
		}
		if (strcmp(argv[i], "--help") == 0 && i + 1 == argc) {
			usage(stdout);
			return written();
		}
		if (strcmp(argv[i], "--version") == 0) {
			puts("vmmshim-run " PACKAGE_VERSION);
			return written();
		}
		set_knob(argv[i]);
	}
	if (i == argc) {
		usage(stderr);
		return MISUSED;
	}
	preload();
	execvp(argv[i], argv + i);
	why = errno;
	fprintf(stderr, "vmmshim-run: %s: %s\n", argv[i], strerror(why));
	return why == ENOENT ? NOT_FOUND : NOT_RUNNABLE;
}
