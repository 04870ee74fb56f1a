/* SPDX-License-Identifier: MIT
 *
 * trace_test: what the tests of the trace share. A file in a folder of their
 * own, what a child wrote there, and the child's first steps.
 */
#ifndef VS_TESTS_TRACE_TEST_H
#define VS_TESTS_TRACE_TEST_H

#include "report/trace.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/knob.h"
#include "child.h"

#define MANY 50000 /* more than a few rings hold */

static struct child c;
static char folder[] = "/tmp/vmmshim-trace.XXXXXX";
static char path[256], setting[300];
static const char *environment[] = {setting, NULL};

struct line {
	char kind;
	uint64_t id, size, us;
	int thread;
};

static struct line *lines;
static size_t n_lines;

/* The file, each line checked for its form. */
static inline void load(void)
{
	FILE *file = fopen(path, "r");
	char text[128], again[128];

	assert_non_null(file);
	free(lines);
	lines = calloc(20 * MANY, sizeof(*lines));
	for (n_lines = 0; fgets(text, sizeof(text), file); n_lines++) {
		struct line *l = &lines[n_lines];

		assert_true(n_lines < 20 * MANY);
		l->kind = text[0];
		if (l->kind == 'a') {
			sscanf(text, "a %" SCNu64 " %" SCNu64 " %" SCNu64 " %d",
			       &l->id, &l->size, &l->us, &l->thread);
			sprintf(again,
				"a %" PRIu64 " %" PRIu64 " %" PRIu64 " %d\n",
				l->id, l->size, l->us, l->thread);
		} else {
			sscanf(text, "f %" SCNu64 " %" SCNu64 " %d", &l->id,
			       &l->us, &l->thread);
			sprintf(again, "f %" PRIu64 " %" PRIu64 " %d\n", l->id,
				l->us, l->thread);
		}
		assert_string_equal(text, again);
	}
	fclose(file);
}

static inline void start(void)
{
	vs_knob_init();
	CHECK(!vs_trace_is_on);
	vs_trace_init();
	CHECK(vs_trace_is_on);
}

/* For a child: there is no trace. */
static inline void off(void *unused)
{
	(void)unused;
	vs_knob_init();
	vs_trace_init();
	CHECK(!vs_trace_is_on);
	vs_trace_alloc(1, 1);
	vs_trace_free(1);
	vs_trace_flush();
	vs_trace_forked();
	exit(0);
}

static inline int make_folder(void **unused)
{
	(void)unused;
	if (!mkdtemp(folder))
		return -1;
	snprintf(path, sizeof(path), "%s/trace", folder);
	snprintf(setting, sizeof(setting), "VMMSHIM_TRACE=%s", path);
	return 0;
}

static inline int remove_folder(void **unused)
{
	(void)unused;
	free(lines);
	unlink(path);
	return rmdir(folder);
}

#endif
