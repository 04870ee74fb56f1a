/* SPDX-License-Identifier: MIT */
/* The simulator's own controls: failures, counts, cost, clock, reset. */
#include "../sim/sim_test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- failures --------------------------------------------------------- */

static void the_nth_call_fails(void **state)
{
	CUdeviceptr p;

	(void)state;
	boot("");
	assert_int_equal(sim_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY),
			 0);
	OK(cuMemAlloc(&p, 4));
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc(&p, 4));
	assert_int_equal(sim_failures(), 1);
	/* a base name means all its versions, a symbol only itself */
	sim_fail_many("cuMemAlloc_v2", 1, 0, CUDA_ERROR_UNKNOWN);
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_UNKNOWN);
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_UNKNOWN);
	sim_fail_clear();
	OK(cuMemAlloc(&p, 4));
	assert_int_equal(sim_fail("cuNothing", 1, 1), -1);
}

static void a_failed_call_does_nothing(void **state)
{
	struct sim_books before, after;
	CUmemAllocationProp prop = prop_of(0);
	CUmemGenericAllocationHandle h;

	(void)state;
	boot("");
	sim_books(-1, &before);
	sim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	sim_books(-1, &after);
	assert_memory_equal(&before, &after, sizeof(before));
}

static unsigned count_random(unsigned seed)
{
	unsigned i, n = 0;
	CUdeviceptr p;

	sim_fail_clear();
	sim_fail_random("cuMemAlloc", 0.25, seed, CUDA_ERROR_OUT_OF_MEMORY);
	for (i = 0; i < 400; i++) {
		if (cuMemAlloc(&p, 4) == CUDA_SUCCESS)
			OK(cuMemFree(p));
		else
			n++;
	}
	return n;
}

static void random_failures_repeat(void **state)
{
	unsigned n;

	(void)state;
	boot("");
	n = count_random(1);
	assert_in_range(n, 60, 140);
	assert_int_equal(count_random(1), n);
}

static void failures_come_from_the_environment(void **state)
{
	CUdeviceptr p;

	(void)state;
	boot("SIM_FAIL=cuMemAlloc:2:2:2,cuMemFree:1:1");
	OK(cuMemAlloc(&p, 4));
	GIVES(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(p));
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cuMemAlloc(&p, 4), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAlloc(&p, 4));
}

static void calls_are_counted(void **state)
{
	CUdeviceptr p;

	(void)state;
	boot("");
	sim_calls_clear();
	OK(cuMemAlloc(&p, 4));
	GIVES(cuMemAlloc(NULL, 4), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(sim_calls("cuMemAlloc"), 2);
	assert_int_equal(sim_calls("cuMemAlloc_v2"), 2);
	assert_int_equal(sim_calls("cuMemFree"), 0);
	assert_int_equal(sim_calls("*"), 2);
}

/* ---- cost -------------------------------------------------------------- */

static double cost_of_handle(size_t size)
{
	CUdeviceptr p;

	sim_cost_reset();
	p = new_mapping(0, size);
	OK(cuMemUnmap(p, size));
	OK(cuMemAddressFree(p, size));
	return sim_cost_vmm_us();
}

static void costs_follow_the_table(void **state)
{
	CUdeviceptr p;
	double us;

	(void)state;
	boot("SIM_BACKING=none SIM_MEMORY=64G");
	/* 9 + 0.4 + 0.6 + 19 + 13 + 9 + 0.4 (an H200) */
	us = cost_of_handle(2 * MIB);
	assert_true(us > 51 && us < 52);
	us = cost_of_handle(GIB);
	assert_true(us > 370 && us < 380);
	sim_cost_reset();
	p = new_legacy(GIB);
	assert_true(sim_cost_us() > 72 && sim_cost_us() < 74);
	OK(cuMemFree(p));
	assert_true(sim_cost_us() > 361 && sim_cost_us() < 363);
	assert_true(sim_cost_vmm_us() <= 0);
}

/* 256 MiB from 128 handles: 4.4 ms without the release (an H200). */
static void many_handles_cost_what_was_measured(void **state)
{
	CUmemGenericAllocationHandle h[128];
	CUdeviceptr p;
	unsigned i;

	(void)state;
	boot("SIM_BACKING=none");
	p = new_space(256 * MIB);
	sim_cost_reset();
	for (i = 0; i < 128; i++) {
		h[i] = new_handle(0, 2 * MIB);
		OK(cuMemMap(p + i * 2 * MIB, 2 * MIB, 0, h[i], 0));
	}
	OK(grant(p, 256 * MIB, 0));
	assert_true(sim_cost_vmm_us() > 3500 && sim_cost_vmm_us() < 5000);
}

static void costs_can_be_slept(void **state)
{
	struct timespec start, end;

	(void)state;
	boot("SIM_BACKING=none SIM_MEMORY=64G SIM_COST=sleep");
	clock_gettime(CLOCK_MONOTONIC, &start);
	assert_true(cost_of_handle(16 * GIB) > 5000);
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_true((end.tv_sec - start.tv_sec) * 1000000 +
			    (end.tv_nsec - start.tv_nsec) / 1000 >=
		    5000);
}

/* ---- clock ------------------------------------------------------------- */

static void time_stands_still_by_hand(void **state)
{
	struct kernels k;
	CUstream a, b;
	CUdeviceptr p;
	CUevent e;

	(void)state;
	boot("SIM_CLOCK=manual");
	load_kernels(&k);
	a = new_stream(CU_STREAM_NON_BLOCKING);
	b = new_stream(CU_STREAM_NON_BLOCKING);
	p = new_legacy(8);
	e = new_event();
	OK(slow_fill(&k, a, 10, p, 1, 1));
	OK(cuEventRecord(e, a));
	OK(slow_fill(&k, b, 20, p + 4, 2, 1));
	GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	sim_advance(9999999);
	GIVES(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	assert_int_equal(sim_advance(1), 10000000);
	OK(cuEventQuery(e));
	GIVES(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
	OK(cuStreamSynchronize(b));
	assert_int_equal(sim_now(), 20000000);
}

static void order_holds_by_hand(void **state)
{
	struct kernels k;
	CUstream a, b;
	CUdeviceptr p;
	CUevent e;

	(void)state;
	boot("SIM_CLOCK=manual");
	load_kernels(&k);
	a = new_stream(CU_STREAM_NON_BLOCKING);
	b = new_stream(CU_STREAM_NON_BLOCKING);
	p = new_legacy(4);
	e = new_event();
	OK(slow_fill(&k, a, 10, p, 1, 1));
	OK(cuEventRecord(e, a));
	OK(cuStreamWaitEvent(b, e, 0));
	OK(fill(&k, b, p, 2, 1));
	sim_advance(5000000);
	GIVES(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
	sim_advance(6000000);
	OK(cuStreamQuery(b));
	assert_int_equal(read_word(p), 2);
}

/* ---- the rest ---------------------------------------------------------- */

static void reset_forgets_everything(void **state)
{
	struct sim_books books;
	struct kernels k;
	uint32_t *flag;
	CUstream s;

	(void)state;
	boot("SIM_DEVICES=2");
	load_kernels(&k);
	s = new_stream(CU_STREAM_NON_BLOCKING);
	flag = new_flag();
	new_mapping(1, 2 * MIB);
	new_legacy(4);
	sim_note_alloc(4096, 4096);
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(spin(&k, NULL, flag));
	boot("");
	sim_books(-1, &books);
	assert_int_equal(books.physical, 0);
	assert_int_equal(books.n_pending, 0);
	assert_int_equal(books.n_streams, 0);
	assert_int_equal(books.n_reservations, 0);
	assert_int_equal(books.n_notes, 0);
	assert_int_equal(books.n_host, 0);
	assert_int_equal(books.n_contexts, 1);
	assert_int_equal(sim_captures(), 0);
}

static void reports_can_be_read_by_scripts(void **state)
{
	char name[] = "/tmp/sim-report-XXXXXX", text[16384];
	int fd = mkstemp(name);
	size_t n;
	FILE *file;

	(void)state;
	assert_true(fd >= 0);
	boot("");
	new_legacy(3 * MIB);
	sim_report(name);
	file = fdopen(fd, "r");
	n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	unlink(name);
	text[n] = '\0';
	assert_non_null(strstr(text, "violations 0\n"));
	assert_non_null(strstr(text, "legacy.bytes 3145728\n"));
	assert_non_null(strstr(text, "calls.cuMemAlloc_v2 "));
}

/* Runs body in a child; its wait status. */
static int status_of(void (*body)(void))
{
	int status = -1;
	pid_t pid;

	start_with("");
	pid = fork();
	if (pid == 0) {
		body();
		exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void break_a_rule(void)
{
	CUdeviceptr p;

	setenv("SIM_JUDGE", "abort", 1);
	boot("");
	sim_violations_quiet(true);
	cuMemFree(4711); /* never aborts */
	cuMemAddressReserve(&p, 1, 0, 0, 0);
}

static void the_judge_may_abort(void **state)
{
	int status = status_of(break_a_rule);

	(void)state;
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}

static char report_name[] = "/tmp/sim-exit-XXXXXX";

static void end_with_a_report(void)
{
	setenv("SIM_REPORT", report_name, 1);
	boot("");
	new_mapping(0, 2 * MIB);
}

static void a_report_comes_at_exit(void **state)
{
	int fd = mkstemp(report_name);
	char text[16384];
	ssize_t n;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(status_of(end_with_a_report), 0);
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	unlink(report_name);
	assert_true(n > 0);
	text[n] = '\0';
	assert_non_null(strstr(text, "mapped.bytes 2097152\n"));
}

#define CONTROL_TEST(f) cmocka_unit_test_setup_teardown(f, NULL, clean)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CONTROL_TEST(the_nth_call_fails),
		CONTROL_TEST(a_failed_call_does_nothing),
		CONTROL_TEST(random_failures_repeat),
		CONTROL_TEST(failures_come_from_the_environment),
		CONTROL_TEST(calls_are_counted),
		CONTROL_TEST(costs_follow_the_table),
		CONTROL_TEST(many_handles_cost_what_was_measured),
		CONTROL_TEST(costs_can_be_slept),
		CONTROL_TEST(time_stands_still_by_hand),
		CONTROL_TEST(order_holds_by_hand),
		CONTROL_TEST(reset_forgets_everything),
		CONTROL_TEST(reports_can_be_read_by_scripts),
		CONTROL_TEST(the_judge_may_abort),
		CONTROL_TEST(a_report_comes_at_exit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
