/* SPDX-License-Identifier: MIT
 *
 * stat: the walker shows every row of stats.def, each with its own numbers.
 */
#include "base/stat.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct {
	const char *name, *kind, *unit, *help;
} expected[] = {
#define STAT(name, kind, unit, help) {#name, #kind, #unit, help},
#include "stats.def"
#undef STAT
};

#define N_ROWS (sizeof(expected) / sizeof(expected[0]))

static void every_row(void **unused)
{
	struct vs_stats stats;
	uint64_t at = 0;
	size_t i;

	(void)unused;
	/* a number of its own in each field, in the order of the table */
	for (i = 0; i < sizeof(stats) / sizeof(uint64_t); i++)
		((uint64_t *)&stats)[i] = i + 1;
	for (i = 0; i < N_ROWS; i++) {
		struct vs_stat_row row;

		assert_true(vs_stat_row(&stats, i, &row));
		assert_string_equal(row.name, expected[i].name);
		assert_string_equal(row.help, expected[i].help);
		assert_int_equal(row.is_gauge,
				 !strcmp(expected[i].kind, "GAUGE"));
		assert_int_equal(row.is_bytes,
				 !strcmp(expected[i].unit, "BYTES"));
		assert_int_equal(row.is_ns, !strcmp(expected[i].unit, "NS"));
		assert_int_equal(row.value, ++at);
		assert_int_equal(row.high, row.is_gauge ? ++at : 0);
	}
	assert_int_equal(at, sizeof(stats) / sizeof(uint64_t));
}

static void ends(void **unused)
{
	struct vs_stats stats = {0};
	struct vs_stat_row row = {.name = "untouched"};

	(void)unused;
	assert_false(vs_stat_row(&stats, N_ROWS, &row));
	assert_false(vs_stat_row(&stats, SIZE_MAX, &row));
	assert_string_equal(row.name, "untouched");
}

static void gauges_keep_their_high(void **unused)
{
	struct vs_stats stats = {0};

	(void)unused;
	vs_stat_set(&stats, live, 10);
	vs_stat_set(&stats, live, 30);
	vs_stat_set(&stats, live, 20);
	assert_int_equal(vs_stat_get(&stats, live), 20);
	assert_int_equal(vs_stat_get(&stats, live_high), 30);
	vs_stat_add(&stats, markers, 2);
	vs_stat_add(&stats, markers, 3);
	assert_int_equal(vs_stat_get(&stats, markers), 5);
	assert_int_equal(vs_stat_get(&stats, polls), 0);
}

/* Two writers at once: what one has lifted the other never lowers. */
enum { TURNS = 10000000 };
static struct vs_stats shared;
static _Atomic uint64_t next_level;
static pthread_barrier_t both;

static void *lift(void *unused)
{
	uintptr_t n_lowered = 0;
	uint64_t was = 0;

	(void)unused;
	pthread_barrier_wait(&both);
	for (int i = 0; i < TURNS; i++) {
		n_lowered += vs_stat_get(&shared, live_high) < was;
		was = ++next_level;
		vs_stat_set_shared(&shared, live, was);
	}
	return (void *)n_lowered;
}

static void nobody_lowers_a_mark(void **unused)
{
	void *by_me, *by_other;
	pthread_t other;

	(void)unused;
	pthread_barrier_init(&both, NULL, 2);
	assert_int_equal(pthread_create(&other, NULL, lift, NULL), 0);
	by_me = lift(NULL);
	pthread_join(other, &by_other);
	assert_null(by_me);
	assert_null(by_other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row),
		cmocka_unit_test(ends),
		cmocka_unit_test(gauges_keep_their_high),
		cmocka_unit_test(nobody_lowers_a_mark),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
