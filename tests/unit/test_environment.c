/* SPDX-License-Identifier: MIT
 *
 * knob: the environment around the values: names that are no knobs, texts that
 * change or are too long, program lists, ranks, the wish for help.
 */
#include "base/knob.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"

static struct child c;
static bool is_set_user_id;

/* Instead of the C library's, which knob asks. */
unsigned long __getauxval(unsigned long type);
unsigned long __getauxval(unsigned long type)
{
	return type == AT_SECURE ? is_set_user_id : getauxval(type);
}

static void init(void *unused)
{
	(void)unused;
	vs_knob_init();
}

static void unknown_names(void **unused)
{
	static const char *const pairs[][2] = {
		{"VMMSHIM_CHUNKSIZE", "VMMSHIM_CHUNK_SIZE"},
		{"VMMSHIM_CHUNK", "VMMSHIM_CHUNK_SIZE"},
		{"VMMSHIM_decay_ms", "VMMSHIM_DECAY_MS"},
		{"VMMSHIM_RELEASE_TRESHOLD", "VMMSHIM_RELEASE_THRESHOLD"},
		{"VMMSHIM_THRESHOLD", "VMMSHIM_RELEASE_THRESHOLD"},
		{"VMMSHIM_STAT_FILE", "VMMSHIM_STATS_FILE"},
		{"VMMSHIM_LGO", "VMMSHIM_LOG"},
		{"VMMSHIM_MODE", "VMMSHIM"},
		{"VMMSHIM_TRACEFILE", "VMMSHIM_TRACE"},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		char setting[128], expected[256];
		const char *environment[] = {setting, NULL};

		snprintf(setting, sizeof(setting), "%s=1", pairs[i][0]);
		snprintf(expected, sizeof(expected),
			 "vmmshim warn: %s: no such knob; the nearest is %s\n",
			 pairs[i][0], pairs[i][1]);
		child_run(&c, environment, init, NULL);
		assert_child_ok(&c);
		assert_string_equal(child_text(&c), expected);
	}
}

static void others_are_not_ours(void **unused)
{
	const char *environment[] = {"VMMSHIMX=1", "VMMSHI_LOG=1",
				     "XVMMSHIM_LOG=1", NULL};

	(void)unused;
	child_run(&c, environment, init, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void log_level_comes_first(void **unused)
{
	const char *environment[] = {"VMMSHIM_DECAY_MS=x", "VMMSHIM_FOO=1",
				     "VMMSHIM_LOG=error", NULL};

	(void)unused;
	child_run(&c, environment, init, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void long_texts(void **unused)
{
	static char setting[40000], name[300];
	const char *environment[] = {setting, NULL};

	(void)unused;
	snprintf(setting, sizeof(setting), "VMMSHIM_STATS_FILE=");
	memset(setting + strlen(setting), 'x', 30000);
	child_run(&c, environment, init, NULL);
	assert_child_ok(&c);
	assert_string_equal(
		child_text(&c),
		"vmmshim warn: VMMSHIM_STATS_FILE: "
		"\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
		"xxxxxx...\" is not allowed (too long); using \"\"\n");
	/* a name of any length only has its beginning shown */
	snprintf(name, sizeof(name), "VMMSHIM_%0200d=1", 0);
	environment[0] = name;
	child_run(&c, environment, init, NULL);
	assert_child_ok(&c);
	assert_non_null(strstr(c.err, "no such knob; the nearest is VMMSHIM_"));
}

/* 16,384 bytes are for all texts together. */
#define TOO_LONG 16384

static void short_ones(void *unused)
{
	(void)unused;
	vs_knob_init();
	CHECK(vs_knobs.reuse == VS_REUSE_ORDERED);
	CHECK(vs_knobs.guard && vs_knobs.help);
	CHECK(!strcmp(vs_knobs.stats_file, "f"));
	CHECK(!*vs_knobs.only);
}

/* A long value, be it refused, leaves the other knobs their room. */
static void long_values(void **unused)
{
	static char refused[TOO_LONG] = "VMMSHIM_DECAY_MS=";
	static char kept[TOO_LONG] = "VMMSHIM_EXCLUDE=";
	static char too_long[TOO_LONG + 32] = "VMMSHIM_ONLY=";
	const char *environment[] = {refused,
				     kept,
				     too_long,
				     "VMMSHIM_REUSE=ordered",
				     "VMMSHIM_GUARD=1",
				     "VMMSHIM_HELP=1",
				     "VMMSHIM_STATS_FILE=f",
				     NULL};
	char shown[65] = "", expected[512];

	(void)unused;
	memset(shown, 'x', sizeof(shown) - 1);
	memset(refused + strlen(refused), 'x',
	       sizeof(refused) - 1 - strlen(refused));
	memset(kept + strlen(kept), 'x', sizeof(kept) - 64 - strlen(kept));
	memset(too_long + strlen(too_long), 'x',
	       sizeof(too_long) - 1 - strlen(too_long));
	snprintf(expected, sizeof(expected),
		 "vmmshim warn: VMMSHIM_DECAY_MS: \"%s...\" is not allowed "
		 "(0..86400000); using \"3000\"\n"
		 "vmmshim warn: VMMSHIM_ONLY: \"%s...\" is not allowed "
		 "(too long); using \"\"\n",
		 shown, shown);
	child_run(&c, environment, short_ones, NULL);
	assert_child_ok(&c);
	assert_string_equal(child_text(&c), expected);
}

/* The program overwrites its environment after the knobs were read. */
static void environment_changes(void *unused)
{
	struct vs_knob_row row;
	char *text = getenv("VMMSHIM_STATS_FILE");

	(void)unused;
	vs_knob_init();
	memset(text, '?', strlen(text));
	memset(getenv("VMMSHIM_DECAY_MS"), '?', 3);
	setenv("VMMSHIM_DECAY_MS", "7", 1);
	vs_knob_init();
	CHECK(!strcmp(vs_knobs.stats_file, "/tmp/stats"));
	CHECK(vs_knobs.decay_ms == 100);
	for (size_t i = 0; vs_knob_row(i, &row); i++) {
		if (!strcmp(row.variable, "VMMSHIM_DECAY_MS"))
			CHECK(!strcmp(row.value, "100"));
		if (!strcmp(row.variable, "VMMSHIM_STATS_FILE"))
			CHECK(!strcmp(row.value, "/tmp/stats"));
	}
}

static void keeps_copies(void **unused)
{
	const char *environment[] = {"VMMSHIM_STATS_FILE=/tmp/stats",
				     "VMMSHIM_DECAY_MS=100", NULL};

	(void)unused;
	child_run(&c, environment, environment_changes, NULL);
	assert_child_ok(&c);
}

static void programs(void **unused)
{
	static const struct {
		const char *exclude, *only, *file, *name;
		bool is_served;
	} cases[] = {
		{"", "", "python3", "python3", true},
		{NULL, NULL, "python3", "python3", true},
		{"nvidia-smi", "", "nvidia-smi", "nvidia-smi", false},
		{"nvidia-smi", "", "nvidia-smi2", "nvidia-smi2", true},
		{"nvidia-smi", "", "nvidia", "nvidia", true},
		{"a, nvidia-smi ,b", "", "nvidia-smi", "nvidia-smi", false},
		{"a,,b", "", "", "", true},
		{"python*", "", "python3.11", "python3.11", false},
		{"python*", "", "python", "python", false},
		{"python*", "", "pytho", "pytho", true},
		{"*", "", "anything", "anything", false},
		{"", "train", "train", "train", true},
		{"", "train", "other", "other", false},
		{"", "train,eval*", "eval2", "eval2", true},
		{"train", "train", "train", "train", false},
		{",", "", "train", "train", true},
		{"", ",", "train", "train", false},
		/* a link to the file, as Debian's python3 */
		{"python3", "", "python3.11", "python3", false},
		{"python3.11", "", "python3.11", "python3", false},
		{"", "python3", "python3.11", "python3", true},
		{"", "python3.11", "python3.11", "python3", true},
		{"", "python", "python3.11", "python3", false},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		vs_knobs.exclude = cases[i].exclude;
		vs_knobs.only = cases[i].only;
		assert_int_equal(
			vs_knob_serves_program(cases[i].file, cases[i].name),
			cases[i].is_served);
	}
	vs_knobs.exclude = "";
	vs_knobs.only = "";
}

static void rank_is(void *expected)
{
	vs_knob_init();
	CHECK(!strcmp(vs_knob_rank(), expected));
}

static void ranks(void **unused)
{
	static const struct {
		const char *environment[3];
		const char *rank;
	} cases[] = {
		{{NULL}, "0"},
		{{"RANK=3", NULL}, "3"},
		{{"OMPI_COMM_WORLD_RANK=4", "SLURM_PROCID=9", NULL}, "4"},
		{{"PMI_RANK=5", NULL}, "5"},
		{{"SLURM_PROCID=6", NULL}, "6"},
		{{"RANK=../../etc", "PMI_RANK=7", NULL}, "7"},
		{{"RANK=", NULL}, "0"},
		{{"RANK=99999999999", NULL}, "0"},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		child_run(&c, cases[i].environment, rank_is,
			  (void *)cases[i].rank);
		assert_child_ok(&c);
	}
}

static void helpful(void *is_wanted)
{
	CHECK(vs_knob_wants_help() == *(bool *)is_wanted);
}

static void help(void **unused)
{
	const char *yes[] = {"VMMSHIM_HELP=1", NULL};
	const char *no[] = {"VMMSHIM_HELP=0", "VMMSHIM_DECAY_MS=7", NULL};
	/* the rest is not even looked at */
	const char *unset[] = {"VMMSHIM_DECAY_MS=bad", NULL};
	bool is_wanted = true;

	(void)unused;
	child_run(&c, yes, helpful, &is_wanted);
	assert_child_ok(&c);
	is_wanted = false;
	child_run(&c, no, helpful, &is_wanted);
	assert_child_ok(&c);
	child_run(&c, unset, helpful, &is_wanted);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void without_its_environment(void *unused)
{
	struct vs_knob_row row;

	(void)unused;
	is_set_user_id = true;
	CHECK(!vs_knob_wants_help());
	vs_knob_init();
	CHECK(vs_knobs.mode == VS_MODE_OFF);
	CHECK(!strcmp(vs_knobs.trace, ""));
	CHECK(!strcmp(vs_knobs.stats_file, ""));
	CHECK(!vs_knobs.stats_at_exit);
	for (size_t i = 0; vs_knob_row(i, &row); i++)
		CHECK(row.source == VS_FROM_DEFAULT);
	CHECK(!strcmp(vs_knob_rank(), "0"));
}

/* Who starts it must not have its owner write files. */
static void set_user_id(void **unused)
{
	const char *environment[] = {"VMMSHIM=pool",
				     "VMMSHIM_TRACE=/tmp/trace",
				     "VMMSHIM_STATS_FILE=/etc",
				     "VMMSHIM_STATS_AT_EXIT=1",
				     "VMMSHIM_HELP=1",
				     "VMMSHIM_FOO=1",
				     "VMMSHIM_DECAY_MS=x",
				     NULL};

	(void)unused;
	child_run(&c, environment, without_its_environment, NULL);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unknown_names),
		cmocka_unit_test(others_are_not_ours),
		cmocka_unit_test(log_level_comes_first),
		cmocka_unit_test(long_texts),
		cmocka_unit_test(long_values),
		cmocka_unit_test(keeps_copies),
		cmocka_unit_test(programs),
		cmocka_unit_test(ranks),
		cmocka_unit_test(help),
		cmocka_unit_test(set_user_id),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
