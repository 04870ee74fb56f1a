/* SPDX-License-Identifier: MIT
 *
 * knobdoc: prints knobs.def and stats.def for documents and scripts, so that a
 * name, a default and its explanation stand once, in the table.
 *   knobdoc man FILE.in   FILE.in with the lines @KNOBS@ and @STATS@ replaced
 *   knobdoc markdown      the table of knobs as in README.md
 *   knobdoc names         "VMMSHIM_DECAY_MS" a line
 *   knobdoc stats         "reserved" a line
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/knob.h"

struct knob {
	const char *variable, *type, *fallback, *help, *words;
};

/* The words of a CHOICE, else what its type allows. */
#define WORDS_SIZE "size"
#define WORDS_MS "milliseconds"
#define WORDS_BOOL "0|1"
#define WORDS_SIGNAL "signal|none"
#define WORDS_LEVEL "none|error|warn|info|debug"
#define WORDS_TEXT "text"
#define WORDS_CHOICE(words) VS_WORDS_##words

static const struct knob knobs[] = {
#define KNOB(field, name, type, fallback, min, max, help)                      \
	{VS_KNOB_VARIABLE(name), #type, fallback, help, WORDS_##type},
#include "knobs.def"
#undef KNOB
};

static const struct {
	const char *name, *kind, *unit, *help;
} stats[] = {
#define STAT(name, kind, unit, help) {#name, #kind, #unit, help},
#include "stats.def"
#undef STAT
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Roff: a leading dot or quote would be a request, a backslash an escape. */
static void roff(const char *s)
{
	if (*s == '.' || *s == '\'')
		fputs("\\&", stdout);
	for (; *s; s++)
		if (*s == '\\')
			fputs("\\e", stdout);
		else if (*s == '-')
			fputs("\\-", stdout);
		else
			putchar(*s);
}

static void man_knobs(void)
{
	for (size_t i = 0; i < COUNT(knobs); i++) {
		const struct knob *k = &knobs[i];

		fputs(".TP\n\\fB", stdout);
		roff(k->variable);
		fputs("\\fR=\\fI", stdout);
		roff(k->words);
		printf("\\fR\n");
		roff(k->help);
		printf(".\n");
		if (*k->fallback) {
			fputs("Default: \\fB", stdout);
			roff(k->fallback);
			printf("\\fR.\n");
		}
	}
}

static void man_stats(void)
{
	for (size_t i = 0; i < COUNT(stats); i++) {
		int gauge = strcmp(stats[i].kind, "GAUGE") == 0;

		fputs(".TP\n.B ", stdout);
		roff(stats[i].name);
		printf("\n");
		roff(stats[i].help);
		if (strcmp(stats[i].unit, "BYTES") == 0)
			fputs(gauge ? " (bytes, with high\\-water mark)"
				    : " (bytes)",
			      stdout);
		else if (strcmp(stats[i].unit, "NS") == 0)
			fputs(" (nanoseconds)", stdout);
		else if (gauge)
			fputs(" (with high\\-water mark)", stdout);
		printf(".\n");
	}
}

/* False, and told why, if there is no such file, or it cannot be read. */
static bool man(const char *path)
{
	char line[4096];
	FILE *in = fopen(path, "r");
	bool is_read;

	if (!in) {
		perror(path);
		return false;
	}
	while (fgets(line, sizeof(line), in)) {
		if (strcmp(line, "@KNOBS@\n") == 0)
			man_knobs();
		else if (strcmp(line, "@STATS@\n") == 0)
			man_stats();
		else
			fputs(line, stdout);
	}
	is_read = !ferror(in);
	if (!is_read)
		perror(path);
	fclose(in);
	return is_read;
}

static void markdown(void)
{
	printf("| variable | default | values | what it does |\n"
	       "| --- | --- | --- | --- |\n");
	for (size_t i = 0; i < COUNT(knobs); i++) {
		printf("| `%s` | %s%s%s | ", knobs[i].variable,
		       *knobs[i].fallback ? "`" : "",
		       *knobs[i].fallback ? knobs[i].fallback : "-",
		       *knobs[i].fallback ? "`" : "");
		for (const char *s = knobs[i].words; *s; s++)
			printf(*s == '|' ? ", " : "%c", *s);
		printf(" | %s |\n", knobs[i].help);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "man") == 0 && argc == 3) {
		if (!man(argv[2]))
			return 1;
	} else if (strcmp(what, "markdown") == 0)
		markdown();
	else if (strcmp(what, "names") == 0)
		for (size_t i = 0; i < COUNT(knobs); i++)
			printf("%s\n", knobs[i].variable);
	else if (strcmp(what, "stats") == 0)
		for (size_t i = 0; i < COUNT(stats); i++)
			printf("%s\n", stats[i].name);
	else {
		fprintf(stderr, "usage: knobdoc man FILE.in | markdown | "
				"names | stats\n");
		return 2;
	}
	/* a page that was cut off must not be installed */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		perror("knobdoc: standard output");
		return 1;
	}
	return 0;
}
