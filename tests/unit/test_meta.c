/* SPDX-License-Identifier: MIT
 *
 * meta: Note [Huge pages] of base/meta.h.
 */
#include "base/meta.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "child.h"

#define MiB ((size_t)1 << 20)
#define HUGE_PAGE (2 * MiB)

/* A piece that begins one of those that are taken from mmap at a time. */
static char *first_of_a_step(void)
{
	/* two to each, at most one of them begins in what was begun before */
	for (int i = 0; i < 4; i++) {
		char *p = vs_meta_alloc(MiB);

		assert_non_null(p);
		if ((uintptr_t)p % HUGE_PAGE == 0)
			return p;
	}
	fail_msg("none of four pieces of a half begins a huge page");
	return NULL;
}

/* Of the mapping that `p` lies in; false where the kernel tells no flags. */
static bool read_flags(const char *p, char *flags, size_t size)
{
	FILE *maps = fopen("/proc/self/smaps", "re");
	bool is_within = false, is_found = false;
	uintptr_t from, to;
	char line[512];

	if (!maps)
		return false;
	while (!is_found && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			is_within = from <= (uintptr_t)p && (uintptr_t)p < to;
		else if (is_within && strncmp(line, "VmFlags:", 8) == 0)
			is_found = snprintf(flags, size, "%s", line + 8) > 0;
	}
	fclose(maps);
	return is_found;
}

static void test_structures_lie_on_huge_pages(void **state)
{
	char *p = first_of_a_step(), flags[256];

	(void)state;
	if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0 ||
	    !read_flags(p, flags, sizeof(flags)))
		skip();
	/* asked for; whether there are any is the system's to say */
	assert_non_null(strstr(flags, " hg"));
}

/* Or its pages would all be there after one touch; nor where all else does. */
static void test_tables_do_not(void **state)
{
	char *p = vs_meta_table(64 * MiB), flags[256];

	(void)state;
	assert_non_null(p);
	if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0 ||
	    !read_flags(p, flags, sizeof(flags)))
		skip();
	assert_null(strstr(flags, " hg"));
	assert_non_null(strstr(flags, " nh"));
}

static void test_tables_are_not_dumped(void **state)
{
	char *p = vs_meta_table(64 * MiB), flags[256];

	(void)state;
	assert_non_null(p);
	if (!read_flags(p, flags, sizeof(flags)))
		skip();
	assert_non_null(strstr(flags, " dd"));
}

/* Both halves of one are there to be written, and nothing beside them is. */
static void test_a_step_is_whole(void **state)
{
	char *p = first_of_a_step(), *q = vs_meta_alloc(MiB);

	(void)state;
	assert_ptr_equal(q, p + MiB);
	memset(p, 1, HUGE_PAGE);
	assert_int_equal(q[MiB - 1], 1);
	vs_meta_free(p, MiB);
	vs_meta_free(q, MiB);
	/* the last one given back comes first, and is zeroed */
	assert_ptr_equal(vs_meta_alloc(MiB), q);
	assert_int_equal(q[0] | q[MiB - 1], 0);
}

#ifndef IS_SANITIZED
/* No more than so many bytes of address space from now on. */
static void leave_room(size_t bytes)
{
	FILE *statm = fopen("/proc/self/statm", "re");
	struct rlimit limit;
	unsigned long pages;

	CHECK(statm && fscanf(statm, "%lu", &pages) == 1);
	fclose(statm);
	limit.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + bytes;
	limit.rlim_max = RLIM_INFINITY;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* The last step, so that the next piece begins another. */
static void use_up(void)
{
	char *p;

	do {
		p = vs_meta_alloc(MiB);
		CHECK(p);
	} while ((uintptr_t)p % HUGE_PAGE != MiB);
}

static void take_without_room(void *is_prepared)
{
	use_up();
	if (*(bool *)is_prepared)
		vs_meta_prepare();
	leave_room(0);
	CHECK((vs_meta_alloc(MiB) != NULL) == *(bool *)is_prepared);
}

static void in_child(void (*fn)(void *arg), void *arg)
{
	static struct child c;

	if (is_on_valgrind())
		skip(); /* needs address space itself */
	child_run(&c, NULL, fn, arg);
	assert_child_ok(&c);
	assert_string_equal(c.err, "");
}

static void test_the_next_step_is_taken_ahead(void **state)
{
	bool is_prepared = true;

	(void)state;
	in_child(take_without_room, &is_prepared);
	is_prepared = false;
	in_child(take_without_room, &is_prepared);
}

/* Not where there is much left: who has few structures needs no more. */
static void prepare_early(void *unused)
{
	char *p;

	(void)unused;
	use_up();
	CHECK(vs_meta_alloc(64));
	vs_meta_prepare();
	leave_room(0);
	CHECK((p = vs_meta_alloc(MiB)) && !vs_meta_alloc(MiB));
}

static void test_but_not_early(void **state)
{
	(void)state;
	in_child(prepare_early, NULL);
}

/* To align one takes twice the room, which may not be there. */
static void take_with_little_room(void *unused)
{
	(void)unused;
	use_up();
	leave_room(5 * MiB / 2);
	CHECK(vs_meta_alloc(MiB) && vs_meta_alloc(MiB));
	CHECK(!vs_meta_alloc(MiB));
}

static void test_a_step_needs_no_more_than_its_size(void **state)
{
	(void)state;
	in_child(take_with_little_room, NULL);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_structures_lie_on_huge_pages),
		cmocka_unit_test(test_tables_do_not),
		cmocka_unit_test(test_tables_are_not_dumped),
		cmocka_unit_test(test_a_step_is_whole),
#ifndef IS_SANITIZED
		cmocka_unit_test(test_the_next_step_is_taken_ahead),
		cmocka_unit_test(test_but_not_early),
		cmocka_unit_test(test_a_step_needs_no_more_than_its_size),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
