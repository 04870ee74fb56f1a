/* SPDX-License-Identifier: MIT
 *
 * knob: for each row of knobs.def what is taken, what is refused with which
 * words, and the values at the edges.
 */
#include "base/knob.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "child.h"

static struct child c;

#define K(n) ((uint64_t)(n) << 10)
#define M(n) ((uint64_t)(n) << 20)
#define G(n) ((uint64_t)(n) << 30)
#define T(n) ((uint64_t)(n) << 40)
#define PERCENT (1ull << 63) /* of a SIZE: the value is a share */
#define BAD UINT64_MAX

/* A value of a knob as a number; a text as its length. */
static const struct row {
	const char *variable, *text;
	uint64_t value; /* BAD: refused */
} rows[] = {
	{"VMMSHIM", "pool", VS_MODE_POOL},
	{"VMMSHIM", "sync", VS_MODE_SYNC},
	{"VMMSHIM", "OFF", VS_MODE_OFF},
	{"VMMSHIM", "on", BAD},
	{"VMMSHIM", "poo", BAD},
	{"VMMSHIM", "pool|sync", BAD},
	{"VMMSHIM", "pool ", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "0", 0},
	{"VMMSHIM_RELEASE_THRESHOLD", "4096", 4096},
	{"VMMSHIM_RELEASE_THRESHOLD", "4096B", 4096},
	{"VMMSHIM_RELEASE_THRESHOLD", "3k", K(3)},
	{"VMMSHIM_RELEASE_THRESHOLD", "3KB", K(3)},
	{"VMMSHIM_RELEASE_THRESHOLD", "3KiB", K(3)},
	{"VMMSHIM_RELEASE_THRESHOLD", "64M", M(64)},
	{"VMMSHIM_RELEASE_THRESHOLD", "64MiB", M(64)},
	{"VMMSHIM_RELEASE_THRESHOLD", "64 mib", M(64)},
	{"VMMSHIM_RELEASE_THRESHOLD", "1.5G", G(1) + M(512)},
	{"VMMSHIM_RELEASE_THRESHOLD", "0.25t", G(256)},
	{"VMMSHIM_RELEASE_THRESHOLD", "2TB", T(2)},
	{"VMMSHIM_RELEASE_THRESHOLD", "00016M", M(16)},
	{"VMMSHIM_RELEASE_THRESHOLD", "0.999999999999M", 1048574},
	{"VMMSHIM_RELEASE_THRESHOLD", "0%", PERCENT},
	{"VMMSHIM_RELEASE_THRESHOLD", "100%", PERCENT + 100},
	{"VMMSHIM_RELEASE_THRESHOLD", "18446744073709551614", UINT64_MAX - 1},
	{"VMMSHIM_RELEASE_THRESHOLD", "16777215T", T(16777215)},
	{"VMMSHIM_RELEASE_THRESHOLD", "16777216T", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "18446744073709551616", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "99999999999999999999999G", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "101%", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "12.5%", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "%", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "-1", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "-1%", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "+1", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1.5", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1.G", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", ".5G", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1.5.2G", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "G", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1Gi", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1GBB", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1iB", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1P", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "0x10", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1e9", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", "1G 2G", BAD},
	{"VMMSHIM_RELEASE_THRESHOLD", " 1G", BAD},
	{"VMMSHIM_DECAY_MS", "0", 0},
	{"VMMSHIM_DECAY_MS", "250", 250},
	{"VMMSHIM_DECAY_MS", "86400000", 86400000},
	{"VMMSHIM_DECAY_MS", "86400001", BAD},
	{"VMMSHIM_DECAY_MS", "-1", BAD},
	{"VMMSHIM_DECAY_MS", "1s", BAD},
	{"VMMSHIM_DECAY_MS", "1.5", BAD},
	{"VMMSHIM_DECAY_MS", "18446744073709551616", BAD},
	{"VMMSHIM_CHUNK_SIZE", "2M", M(2)},
	{"VMMSHIM_CHUNK_SIZE", "1T", T(1)},
	{"VMMSHIM_CHUNK_SIZE", "1099511627777", BAD},
	{"VMMSHIM_CHUNK_SIZE", "2T", BAD},
	{"VMMSHIM_CHUNK_SIZE", "1%", PERCENT + 1},
	{"VMMSHIM_MEMORY_LIMIT", "80%", PERCENT + 80},
	{"VMMSHIM_MEMORY_LIMIT", "10G", G(10)},
	{"VMMSHIM_MEMORY_LIMIT", "all", BAD},
	{"VMMSHIM_REUSE", "complete", VS_REUSE_COMPLETE},
	{"VMMSHIM_REUSE", "auto", VS_REUSE_AUTO},
	{"VMMSHIM_REUSE", "Ordered", VS_REUSE_ORDERED},
	{"VMMSHIM_REUSE", "1", BAD},
	{"VMMSHIM_PENDING_LIMIT", "1G", G(1)},
	{"VMMSHIM_PENDING_LIMIT", "x", BAD},
	{"VMMSHIM_NEIGHBOURS", "on", 1},
	{"VMMSHIM_NEIGHBOURS", "0", 0},
	{"VMMSHIM_NEIGHBOURS", "all", BAD},
	{"VMMSHIM_CONTIGUOUS", "1", 1},
	{"VMMSHIM_CONTIGUOUS", "yes", 1},
	{"VMMSHIM_CONTIGUOUS", "on", 1},
	{"VMMSHIM_CONTIGUOUS", "true", 1},
	{"VMMSHIM_CONTIGUOUS", "0", 0},
	{"VMMSHIM_CONTIGUOUS", "No", 0},
	{"VMMSHIM_CONTIGUOUS", "off", 0},
	{"VMMSHIM_CONTIGUOUS", "false", 0},
	{"VMMSHIM_CONTIGUOUS", "2", BAD},
	{"VMMSHIM_CONTIGUOUS", "y", BAD},
	{"VMMSHIM_CONTIGUOUS", "|", BAD},
	{"VMMSHIM_ZERO", "always", VS_ZERO_ALWAYS},
	{"VMMSHIM_ZERO", "never", VS_ZERO_NEVER},
	{"VMMSHIM_ZERO", "1", BAD},
	{"VMMSHIM_JUNK", "1", 1},
	{"VMMSHIM_JUNK", "0xa5", BAD},
	{"VMMSHIM_GUARD", "1", 1},
	{"VMMSHIM_GUARD", "2", BAD},
	{"VMMSHIM_IPC", "emulate", VS_IPC_EMULATE},
	{"VMMSHIM_IPC", "native", VS_IPC_NATIVE},
	{"VMMSHIM_IPC", "off", BAD},
	{"VMMSHIM_STATS_SIGNAL", "USR2", SIGUSR2},
	{"VMMSHIM_STATS_SIGNAL", "SIGUSR2", SIGUSR2},
	{"VMMSHIM_STATS_SIGNAL", "sigwinch", SIGWINCH},
	{"VMMSHIM_STATS_SIGNAL", "10", 10},
	{"VMMSHIM_STATS_SIGNAL", "64", 64},
	{"VMMSHIM_STATS_SIGNAL", "34", 34},
	{"VMMSHIM_STATS_SIGNAL", "none", 0},
	{"VMMSHIM_STATS_SIGNAL", "0", 0},
	{"VMMSHIM_STATS_SIGNAL", "RTMIN", 34},
	{"VMMSHIM_STATS_SIGNAL", "SIGRTMIN+30", 64},
	{"VMMSHIM_STATS_SIGNAL", "rtmax", 64},
	{"VMMSHIM_STATS_SIGNAL", "RTMAX-30", 34},
	{"VMMSHIM_STATS_SIGNAL", "RTMIN+31", BAD},
	{"VMMSHIM_STATS_SIGNAL", "RTMAX-31", BAD},
	{"VMMSHIM_STATS_SIGNAL", "RTMIN-1", BAD},
	{"VMMSHIM_STATS_SIGNAL", "RTMIN+", BAD},
	{"VMMSHIM_STATS_SIGNAL", "RTMINX", BAD},
	{"VMMSHIM_STATS_SIGNAL", "65", BAD},
	{"VMMSHIM_STATS_SIGNAL", "-1", BAD},
	{"VMMSHIM_STATS_SIGNAL", "32", BAD}, /* libc's own */
	{"VMMSHIM_STATS_SIGNAL", "9", BAD},  /* cannot be caught */
	{"VMMSHIM_STATS_SIGNAL", "KILL", BAD},
	{"VMMSHIM_STATS_SIGNAL", "SIGSTOP", BAD},
	{"VMMSHIM_STATS_SIGNAL", "SEGV", BAD}, /* a handler would spin */
	{"VMMSHIM_STATS_SIGNAL", "USR", BAD},
	{"VMMSHIM_STATS_SIGNAL", "USR12", BAD},
	{"VMMSHIM_STATS_SIGNAL", "SIG", BAD},
	{"VMMSHIM_TRIM_SIGNAL", "HUP", SIGHUP},
	{"VMMSHIM_TRIM_SIGNAL", "what", BAD},
	{"VMMSHIM_STATS_FILE", "/tmp/a b", 8},
	{"VMMSHIM_STATS_FORMAT", "text", VS_FORMAT_TEXT},
	{"VMMSHIM_STATS_FORMAT", "json", VS_FORMAT_JSON},
	{"VMMSHIM_STATS_FORMAT", "xml", BAD},
	{"VMMSHIM_STATS_AT_EXIT", "1", 1},
	{"VMMSHIM_STATS_AT_EXIT", "exit", BAD},
	{"VMMSHIM_TRACE", "t.%p", 4},
	{"VMMSHIM_LOG", "none", VS_LOG_NONE},
	{"VMMSHIM_LOG", "error", VS_LOG_ERROR},
	{"VMMSHIM_LOG", "debug", VS_LOG_DEBUG},
	{"VMMSHIM_LOG", "verbose", BAD},
	{"VMMSHIM_EXCLUDE", "nvidia-smi,cuda*", 16},
	{"VMMSHIM_ONLY", "python3", 7},
	{"VMMSHIM_HELP", "1", 1},
	{"VMMSHIM_HELP", "me", BAD},
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static uint64_t of_size(struct vs_size v)
{
	return v.is_percent ? PERCENT + v.value : v.value;
}

static uint64_t of_text(const char *v)
{
	return strlen(v);
}

static uint64_t of_number(uint64_t v)
{
	return v;
}

#define NUMBER(v)                                                              \
	_Generic((v), struct vs_size: of_size, const char *: of_text,          \
		 default: of_number)(v)

/* The field of a variable as a number, and its place in the table. */
static uint64_t field_of(const char *variable, size_t *i_out)
{
	size_t i = 0;

#define KNOB(field, name, type, def, min, max, help)                           \
	if (!strcmp(variable,                                                  \
		    sizeof(name) == 1 ? "VMMSHIM" : "VMMSHIM_" name)) {        \
		*i_out = i;                                                    \
		return NUMBER(vs_knobs.field);                                 \
	}                                                                      \
	i++;
#include "knobs.def"
#undef KNOB
	CHECK(!"no such variable");
	return 0;
}

static void one_value(void *arg)
{
	const struct row *row = arg;
	struct vs_knob_row got;
	uint64_t value;
	size_t i;

	vs_knob_init();
	vs_knob_init();
	value = field_of(row->variable, &i);
	CHECK(vs_knob_row(i, &got));
	CHECK(!strcmp(got.variable, row->variable));
	if (row->value == BAD) {
		CHECK(got.source == VS_FROM_REJECTED);
		CHECK(!strcmp(got.value, got.fallback));
	} else {
		CHECK(got.source == VS_FROM_ENV);
		CHECK(!strcmp(got.value, row->text));
		CHECK(value == row->value);
	}
	CHECK(vs_knobs.release_threshold.is_given ==
	      (row->value != BAD &&
	       !strcmp(row->variable, "VMMSHIM_RELEASE_THRESHOLD")));
}

/*
 * The table as a child sees it: here the environment must stay unread, since
 * children inherit what was read. Help texts are left out.
 */
static struct vs_knob_row table[64];
static size_t n_table;

static void print_table(void *unused)
{
	struct vs_knob_row row;

	(void)unused;
	for (size_t i = 0; vs_knob_row(i, &row); i++) {
		CHECK(*row.help);
		dprintf(STDERR_FILENO, "%s\t%s\t%s\n", row.variable,
			row.fallback, row.allowed);
	}
}

static int read_table(void **unused)
{
	static char text[sizeof(c.err)];
	char *rest = text;
	char *line;

	(void)unused;
	child_run(&c, NULL, print_table, NULL);
	if (c.exit_code)
		return -1;
	memcpy(text, c.err, c.len);
	while ((line = strsep(&rest, "\n")) && *line) {
		struct vs_knob_row *row = &table[n_table++];

		row->variable = strsep(&line, "\t");
		row->fallback = strsep(&line, "\t");
		row->allowed = line;
	}
	return 0;
}

static void describe(const char *variable, struct vs_knob_row *row)
{
	for (size_t i = 0; i < n_table; i++)
		if (!strcmp(table[i].variable, variable)) {
			*row = table[i];
			return;
		}
	fail_msg("no variable %s", variable);
}

static void takes_and_refuses(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < N_ROWS; i++) {
		char setting[256], expected[512] = "";
		const char *environment[] = {setting, NULL};
		struct vs_knob_row row;

		describe(rows[i].variable, &row);
		snprintf(setting, sizeof(setting), "%s=%s", rows[i].variable,
			 rows[i].text);
		if (rows[i].value == BAD)
			snprintf(expected, sizeof(expected),
				 "vmmshim warn: %s: \"%s\" is not allowed "
				 "(%s); using \"%s\"\n",
				 rows[i].variable, rows[i].text, row.allowed,
				 row.fallback);
		child_run(&c, environment, one_value, (void *)&rows[i]);
		if (c.exit_code)
			print_error("%s\n", setting);
		assert_child_ok(&c);
		assert_string_equal(child_text(&c), expected);
	}
}

/* Every row of the table has a good value above and, but for texts, a bad. */
static void covers_the_table(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < n_table; i++) {
		int n_good = 0, n_bad = !strcmp(table[i].allowed, "text");

		for (size_t j = 0; j < N_ROWS; j++) {
			if (strcmp(rows[j].variable, table[i].variable))
				continue;
			n_good += rows[j].value != BAD;
			n_bad += rows[j].value == BAD;
		}
		if (!n_good || !n_bad)
			print_error("%s\n", table[i].variable);
		assert_true(n_good && n_bad);
	}
}

static void init(void *unused)
{
	struct vs_knob_row row;

	(void)unused;
	vs_knob_init();
	vs_knob_init();
	CHECK(!vs_knob_row(1000, &row));
}

static void exact_words(void **unused)
{
	const char *environment[] = {"VMMSHIM_DECAY_MS=soon",
				     "VMMSHIM_CHUNK_SIZE=2T",
				     "VMMSHIM_REUSE=never", NULL};

	(void)unused;
	child_run(&c, environment, init, NULL);
	assert_child_ok(&c);
	assert_string_equal(
		child_text(&c),
		"vmmshim warn: VMMSHIM_DECAY_MS: \"soon\" is not allowed "
		"(0..86400000); using \"3000\"\n"
		"vmmshim warn: VMMSHIM_CHUNK_SIZE: \"2T\" is not allowed "
		"(0..1T or %); using \"0\"\n"
		"vmmshim warn: VMMSHIM_REUSE: \"never\" is not allowed "
		"(complete|auto|stream|ordered); using \"auto\"\n");
}

static void all_defaults(void *unused)
{
	struct vs_knob_row row;

	(void)unused;
	vs_knob_init();
	for (size_t i = 0; vs_knob_row(i, &row); i++) {
		CHECK(row.source == VS_FROM_DEFAULT);
		CHECK(!strcmp(row.value, row.fallback));
	}
	CHECK(vs_knobs.mode == VS_MODE_POOL);
	CHECK(vs_knobs.release_threshold.value == M(64));
	CHECK(!vs_knobs.release_threshold.is_given);
	CHECK(vs_knobs.decay_ms == 3000);
	CHECK(vs_knobs.stats_signal == SIGUSR1);
	CHECK(vs_knobs.trim_signal == SIGUSR2);
	CHECK(vs_knobs.stats_file && !*vs_knobs.stats_file);
	CHECK(vs_knobs.log == VS_LOG_WARN && vs_log_level == VS_LOG_WARN);
	CHECK(!vs_knobs.help && !vs_knobs.junk);
}

static void defaults(void **unused)
{
	/* empty is unset */
	const char *empty[] = {
		"VMMSHIM=", "VMMSHIM_DECAY_MS=", "VMMSHIM_STATS_FILE=",
		"VMMSHIM_NONSENSE=", NULL};

	(void)unused;
	child_run(&c, NULL, all_defaults, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
	child_run(&c, empty, all_defaults, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

/* The default of each row goes through the parser like a user's text. */
static void every_default_is_allowed(void **unused)
{
	(void)unused;
	for (size_t i = 0; i < n_table; i++) {
		char setting[256];
		const char *environment[] = {setting, NULL};

		snprintf(setting, sizeof(setting), "%s=%s", table[i].variable,
			 table[i].fallback);
		child_run(&c, environment, init, NULL);
		assert_child_ok(&c);
		assert_string_equal(c.err, "");
	}
}

static void allowed_texts(void **unused)
{
	static const char *const pairs[][2] = {
		{"VMMSHIM", "pool|sync|off"},
		{"VMMSHIM_RELEASE_THRESHOLD", "size or %"},
		{"VMMSHIM_CHUNK_SIZE", "0..1T or %"},
		{"VMMSHIM_DECAY_MS", "0..86400000"},
		{"VMMSHIM_STATS_SIGNAL", "signal or none"},
		{"VMMSHIM_LOG", "none|error|warn|info|debug"},
		{"VMMSHIM_TRACE", "text"},
	};
	struct vs_knob_row row;

	(void)unused;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		describe(pairs[i][0], &row);
		assert_string_equal(row.allowed, pairs[i][1]);
	}
}

static void shares(void **unused)
{
	struct vs_size half = {.value = 50, .is_percent = true};
	struct vs_size odd = {.value = 70, .is_percent = true};
	struct vs_size all = {.value = 100, .is_percent = true};
	struct vs_size none = {.is_percent = true}, fixed = {.value = 4096};

	(void)unused;
	assert_int_equal(vs_size_bytes(half, 1000), 500);
	assert_int_equal(vs_size_bytes(fixed, 1000), 4096);
	/* to the byte, also where the product would not fit */
	assert_int_equal(vs_size_bytes(half, UINT64_MAX), UINT64_MAX / 2);
	assert_int_equal(vs_size_bytes(odd, G(80) + 99), G(56) + 69);
	for (uint64_t total = G(8); total < G(8) + 200; total++)
		assert_int_equal(vs_size_bytes(all, total), total);
	assert_int_equal(vs_size_bytes(all, UINT64_MAX), UINT64_MAX);
	assert_int_equal(vs_size_bytes(none, UINT64_MAX), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_and_refuses),
		cmocka_unit_test(covers_the_table),
		cmocka_unit_test(exact_words),
		cmocka_unit_test(defaults),
		cmocka_unit_test(every_default_is_allowed),
		cmocka_unit_test(allowed_texts),
		cmocka_unit_test(shares),
	};

	return cmocka_run_group_tests(tests, read_table, NULL);
}
