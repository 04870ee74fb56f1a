/* SPDX-License-Identifier: MIT
 *
 * Note [Two feeders] of base/stream.h, and policy auto, on the counting driver:
 * which programs give all their work in one stream, and which machines allow
 * that to be made use of.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/modules.h"
#include "stream_test.h"

static void test_not_with_two_streams(void **state)
{
	(void)state;
	settle_in(ONE);
	for (int i = 0; i < 10 * VS_STREAM_ENOUGH; i++)
		work_in(i % 500 ? ONE : TWO);
	free_before_work();
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static void *work_in_two(void *unused)
{
	vs_stream_given(TWO, false);
	return unused;
}

static void *work_in_one_and_two(void *unused)
{
	vs_stream_given(ONE, false);
	vs_stream_given(TWO, false);
	vs_stream_given(ONE, false);
	return unused;
}

/* As a library does that begins, in whatever thread; Note [Two feeders]. */
static void test_a_second_in_passing_is_forgiven(void **state)
{
	(void)state;
	much_work_in(ONE);
	work_in(TWO);
	work_in(ONE);
	in_a_thread(work_in_one_and_two, NULL);
	assert_false(vs_stream_is_single());
	settle_in(ONE);
	free_before_work();
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
}

/* Not even 10,000 pieces of work later. */
static void test_one_of_another_thread_never_is(void **state)
{
	(void)state;
	in_a_thread(work_in_two, NULL);
	for (int i = 0; i < 10; i++)
		settle_in(ONE);
	free_before_work();
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
}

static void *work_in_one(void *unused)
{
	vs_stream_given(ONE, false);
	return unused;
}

/* One that comes has worked nowhere, be it that one that went did. */
static void test_nor_one_of_a_thread_that_follows_another(void **state)
{
	(void)state;
	in_a_thread(work_in_one, NULL);
	in_a_thread(work_in_two, NULL);
	assert_true(vs_stream_is_given_up());
}

static void work_in_two_for_good(void)
{
	much_work_in(TWO);
	assert_false(vs_stream_is_single());
}

/* Both gave it work, and one of them never any to the other. */
static void test_nor_one_that_two_threads_left_behind(void **state)
{
	(void)state;
	in_a_thread(work_in_one, NULL);
	work_in_two_for_good();
	/* but that one itself can be the only one */
	much_work_in(ONE);
	assert_true(vs_stream_is_single());
}

static void test_nor_two_of_two_threads(void **state)
{
	(void)state;
	in_a_thread(work_in_one, NULL);
	work_in(TWO);
	in_a_thread(work_in_two, NULL);
	work_in_two_for_good();
	much_work_in(ONE);
	assert_false(vs_stream_is_single());
}

/* It would be the second time that it does so. */
static void test_nor_one_that_comes_after_an_order(void **state)
{
	(void)state;
	settle_in(ONE);
	free_before_work();
	assert_false(waits_for_it());
	assert_int_equal(fake.orders, 1);
	work_in(TWO);
	fake.lag_ns = 0;
	for (int i = 0; i < 10; i++)
		settle_in(ONE);
	assert_false(vs_stream_is_single());
}

static void test_nor_who_changes_it_for_ever(void **state)
{
	unsigned changes;

	(void)state;
	for (int i = 0; i <= VS_STREAM_MOST_CHANGES; i++)
		vs_stream_given(i % 2 ? ONE : TWO, false);
	changes = atomic_load(&vs_stream.changes);
	for (int i = 0; i < 10; i++)
		much_work_in(ONE);
	assert_false(vs_stream_is_single());
	vs_stream_given(TWO, false);
	assert_int_equal(atomic_load(&vs_stream.changes), changes);
}

static CUresult(CUDAAPI *wait_in)(CUcontext, CUevent);

static CUresult CUDAAPI a_second_comes_first(CUcontext ctx, CUevent event)
{
	vs_stream_given(TWO, false);
	return wait_in(ctx, event);
}

/* Another thread's, whose work need not wait: what is handed out must. */
static void test_not_when_one_comes_at_that_very_moment(void **state)
{
	(void)state;
	settle_in(ONE);
	wait_in = vs_real.cuCtxWaitEvent;
	vs_real.cuCtxWaitEvent = a_second_comes_first;
	free_before_work();
	assert_true(waits_for_it());
	vs_real.cuCtxWaitEvent = wait_in;
	assert_int_equal(fake.orders, 1);
	assert_int_equal(vs_stat_get(stats(), orders), 0);
}

/* Which thread gives it work, and what waits for that, is not known yet. */
static void test_not_soon_after_a_stream_is_made(void **state)
{
	(void)state;
	settle_in(ONE);
	vs_stream_made();
	free_before_work();
	assert_true(waits_for_it());
	assert_int_equal(fake.orders, 0);
	/* it is no second one yet */
	much_work_in(ONE);
	assert_true(vs_stream_is_single());
}

/* NULL may be a stream of each thread's own, or one for all. */
static void test_the_null_stream_of_all(void **state)
{
	(void)state;
	forget_streams();
	much_work_in(NULL);
	vs_stream_given(CU_STREAM_LEGACY, true);
	assert_true(vs_stream_is_single());
}

static void test_no_stream_of_a_thread(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		forget_streams();
		much_work_in(ONE);
		assert_true(vs_stream_is_single());
		vs_stream_given(i ? NULL : CU_STREAM_PER_THREAD, i);
		much_work_in(ONE);
		/* nor is it because one was made */
		vs_stream_made();
		much_work_in(ONE);
		assert_false(vs_stream_is_single());
	}
}

/* Many threads in one stream would write one line for ever. */
static void test_nor_who_makes_them_for_ever(void **state)
{
	(void)state;
	for (int i = 0; i <= VS_STREAM_MOST_CHANGES; i++)
		vs_stream_made();
	much_work_in(ONE);
	assert_false(vs_stream_is_single());
}

/* A server, two for each request, for days. */
static void test_but_who_makes_them_now_and_then(void **state)
{
	(void)state;
	for (int i = 0; i <= VS_STREAM_MOST_CHANGES; i++) {
		vs_stream_made();
		vs_stream_made();
		much_work_in(ONE);
	}
	assert_true(vs_stream_is_single());
}

/* ---- auto ------------------------------------------------------------- */

/* Whether the pool of a machine with these modules may order. */
static bool orders_beside(const char *modules)
{
	char path[] = "/tmp/test_stream.XXXXXX";
	int fd = mkstemp(path);
	size_t n = strlen(modules);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, modules, n), (ssize_t)n);
	close(fd);
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_AUTO;
	vs_modules_path = path;
	take(MiB);
	unlink(path);
	vs_modules_path = "/dev/null";
	return vs_pool_of(0)->fence.may_order;
}

#define NVIDIA(users)                                                          \
	"nvidia_uvm 1 4 - Live 0x0 (O)\n"                                      \
	"nvidia 14299136 99 " users " Live 0x0 (O)\n"                          \
	"nvme_core 8192 3 nvme, Live 0x0\n"

static void test_where_no_other_driver_is(void **state)
{
	(void)state;
	assert_true(orders_beside(NVIDIA("nvidia_uvm,nvidia_modeset,")));
	assert_true(orders_beside(NVIDIA("nvidia_uvm,[permanent],")));
	assert_true(orders_beside(NVIDIA("-")));
	/* a kernel that does not tell who uses a module */
	assert_true(orders_beside("nvidia_uvm 1830912 - - Live 0x0 (O)\n"
				  "nvidia 14299136 - - Live 0x0 (O)\n"));
}

static void test_where_one_is(void **state)
{
	char line[2000];

	(void)state;
	assert_false(orders_beside(NVIDIA("nvidia_peermem,nvidia_uvm,")));
	assert_false(orders_beside(NVIDIA("nvidia_uvm,capture_card,")));
	assert_false(
		orders_beside(NVIDIA("nvidia_uvm,") "efa 1 0 - Live 0x0\n"));
	assert_false(orders_beside(
		NVIDIA("nvidia_uvm,") "ib_uverbs 1 0 - Live 0x0\n"));
	assert_false(orders_beside(
		NVIDIA("nvidia_uvm,") "efa_nv_peermem 1 0 - Live 0x0\n"));
	assert_false(orders_beside(NVIDIA("nvidia_uvm,") "nvidia_fs 1 0 - Live "
							 "0x0 (O)\n"));
	assert_false(orders_beside("ib_core 1 - - Live 0x0\n"
				   "nvidia 14299136 - - Live 0x0 (O)\n"));
	/* none that is known */
	assert_false(orders_beside(""));
	assert_false(orders_beside("nvme_core 8192 3 nvme, Live 0x0\n"));
	assert_false(orders_beside("nvidia\n"));
	assert_false(orders_beside("nvidia 14299136\n"));
	/* more users than there is room for */
	memset(line, 'x', sizeof(line));
	snprintf(line, sizeof(line), "nvidia 1 2 %0*d Live 0x0\n", 1000, 1);
	assert_false(orders_beside(line));
}

static void test_no_such_list(void **state)
{
	(void)state;
	fresh_driver((uint64_t)16 << 30);
	vs_knobs.reuse = VS_REUSE_AUTO;
	vs_modules_path = "/nonexistent";
	take(MiB);
	vs_modules_path = "/dev/null";
	assert_false(vs_pool_of(0)->fence.may_order);
}

int main(void)
{
#define T(name, setup) cmocka_unit_test_setup(test_##name, setup)
	const struct CMUnitTest tests[] = {
		T(not_with_two_streams, fresh),
		T(a_second_in_passing_is_forgiven, fresh),
		T(one_of_another_thread_never_is, fresh),
		T(nor_one_of_a_thread_that_follows_another, fresh),
		T(nor_one_that_two_threads_left_behind, fresh),
		T(nor_two_of_two_threads, fresh),
		T(nor_one_that_comes_after_an_order, fresh),
		T(nor_who_changes_it_for_ever, fresh),
		T(not_when_one_comes_at_that_very_moment, fresh),
		T(not_soon_after_a_stream_is_made, fresh),
		T(the_null_stream_of_all, fresh),
		T(no_stream_of_a_thread, fresh),
		T(nor_who_makes_them_for_ever, fresh),
		T(but_who_makes_them_now_and_then, fresh),
		cmocka_unit_test(test_where_no_other_driver_is),
		cmocka_unit_test(test_where_one_is),
		cmocka_unit_test(test_no_such_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
