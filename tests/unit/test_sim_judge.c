/* SPDX-License-Identifier: MIT */
/* The judge: each report, and next to it the same done right. */
#include "../sim/sim_test.h"

static struct kernels k;
static CUcontext ctx;
static CUstream a, b;

static int fresh(void **state)
{
	(void)state;
	ctx = boot("");
	load_kernels(&k);
	a = new_stream(CU_STREAM_NON_BLOCKING);
	b = new_stream(CU_STREAM_NON_BLOCKING);
	return 0;
}

/* ---- memory taken away ------------------------------------------------ */

static void unmap_under_work_is_reported(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	char text[256];

	(void)state;
	OK(slow_fill(&k, a, 50, p, 1, 1));
	OK(cuMemUnmap(p, 2 * MIB));
	assert_int_equal(sim_violations_of(SIM_V_BUSY), 1);
	assert_true(sim_violation_text(text, sizeof(text)) > 0);
	assert_non_null(strstr(text, "vs_sleep"));
	/* and the work dies as on the hardware */
	GIVES(cuStreamSynchronize(a), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(sim_violations_of(SIM_V_ILLEGAL), 1);
	GIVES(cuStreamSynchronize(b), CUDA_ERROR_ILLEGAL_ADDRESS);
	GIVES(cuMemAlloc(&p, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
	sim_violations_clear();
}

static void unmap_by_luck_is_reported(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	struct sim_books books;

	(void)state;
	OK(fill(&k, a, p, 1, 1));
	do
		sim_books(0, &books);
	while (books.n_pending);
	OK(cuMemUnmap(p, 2 * MIB));
	expect_violation(SIM_V_UNSEEN);
}

static void unmap_after_a_wait_is_fine(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);

	(void)state;
	OK(fill(&k, a, p, 1, 1));
	OK(cuStreamSynchronize(a));
	OK(cuMemUnmap(p, 2 * MIB));
}

/* The addresses may be those of host memory next, say. */
static void a_free_in_stream_order_needs_no_wait(void **state)
{
	struct sim_books books;
	CUdeviceptr p;

	(void)state;
	OK(cuMemAllocAsync(&p, 4 * MIB, a));
	OK(fill(&k, a, p, 1, 1));
	OK(cuMemFreeAsync(p, a));
	do
		sim_books(0, &books);
	while (books.n_pending);
	sim_note_alloc(p, 4 * MIB);
	sim_note_free(p);
}

static void unmap_beside_work_is_fine(void **state)
{
	CUdeviceptr p = new_space(4 * MIB);
	CUmemGenericAllocationHandle h = new_handle(0, 2 * MIB);
	uint32_t *flag = new_flag();

	(void)state;
	OK(cuMemMap(p, 2 * MIB, 0, h, 0));
	OK(cuMemMap(p + 2 * MIB, 2 * MIB, 0, h, 0));
	OK(grant(p, 4 * MIB, 0));
	OK(spin(&k, a, flag));
	OK(fill(&k, a, p, 1, 1));
	OK(cuMemUnmap(p + 2 * MIB, 2 * MIB));
	raise_flag(flag);
	OK(cuCtxSynchronize());
	OK(cuMemUnmap(p, 2 * MIB));
}

/* cuMemFree does not wait for a peer's kernel (two H200). */
static void free_under_a_peers_work_is_reported(void **state)
{
	CUcontext ctx1;
	CUstream s1;
	struct kernels k1;
	CUdeviceptr p;

	(void)state;
	ctx = boot("SIM_DEVICES=2");
	p = new_legacy(4 * MIB);
	ctx1 = use_device(1);
	load_kernels(&k1);
	s1 = new_stream(CU_STREAM_NON_BLOCKING);
	OK(cuCtxEnablePeerAccess(ctx, 0));
	OK(slow_fill(&k1, s1, 50, p, 1, 1));
	OK(cuCtxSetCurrent(ctx));
	OK(cuMemFree(p));
	assert_int_equal(sim_violations_of(SIM_V_BUSY), 1);
	OK(cuCtxSetCurrent(ctx1));
	GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	sim_violations_clear();
}

/* But for copies and sets (two H200). */
static void free_waits_for_a_peers_copy(void **state)
{
	CUdeviceptr p, q;
	struct kernels k1;
	CUcontext ctx1;
	CUstream s1;

	(void)state;
	ctx = boot("SIM_DEVICES=2");
	p = new_legacy(4 * MIB);
	OK(cuMemsetD32(p, 7, 1));
	OK(cuCtxSynchronize());
	ctx1 = use_device(1);
	load_kernels(&k1);
	s1 = new_stream(CU_STREAM_NON_BLOCKING);
	q = new_legacy(4 * MIB);
	OK(cuCtxEnablePeerAccess(ctx, 0));
	OK(slow_fill(&k1, s1, 50, q, 1, 1));
	OK(cuMemcpyDtoDAsync(q, p, 4 * MIB, s1));
	OK(cuCtxSetCurrent(ctx));
	OK(cuMemFree(p));
	OK(cuCtxSetCurrent(ctx1));
	assert_int_equal(read_word(q), 7);
}

/* ---- illegal work ----------------------------------------------------- */

static void touches_of_nothing_break_the_context(void **state)
{
	CUdeviceptr p = new_space(2 * MIB);
	size_t free_bytes, total;

	(void)state;
	OK(fill(&k, a, p, 1, 1));
	GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
	GIVES(cuMemGetInfo(&free_bytes, &total), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void touches_past_the_end_are_reported(void **state)
{
	CUdeviceptr p = new_legacy(100);

	(void)state;
	OK(fill(&k, a, p, 1, 26));
	GIVES(cuStreamSynchronize(a), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
}

static void host_memory_must_be_page_locked(void **state)
{
	static uint32_t plain;

	(void)state;
	OK(fill(&k, a, (CUdeviceptr)&plain, 1, 1));
	GIVES(cuStreamSynchronize(a), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
}

/* ---- hand-out --------------------------------------------------------- */

static void reuse_of_unseen_memory_is_reported(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);

	(void)state;
	sim_note_alloc(p, 1000);
	OK(fill(&k, a, p, 1, 1));
	sim_note_free(p);
	sim_note_alloc(p, 1000);
	expect_violation(SIM_V_HANDOUT);
	OK(cuCtxSynchronize());
}

static void reuse_after(CUresult (*see)(CUevent), bool whole_context)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	CUevent e = new_event();

	sim_note_alloc(p, 1000);
	OK(fill(&k, a, p, 1, 1));
	OK(whole_context ? cuCtxRecordEvent(ctx, e) : cuEventRecord(e, a));
	while (see(e) == CUDA_ERROR_NOT_READY)
		;
	sim_note_free(p);
	sim_note_alloc(p, 1000);
	expect_none();
	sim_note_free(p);
}

static void reuse_after_an_event_is_fine(void **state)
{
	(void)state;
	reuse_after(cuEventSynchronize, false);
	reuse_after(cuEventQuery, false);
	reuse_after(cuEventSynchronize, true);
	reuse_after(cuEventQuery, true);
}

/* An event covers what its stream was ordered behind, too. */
static void seeing_is_transitive(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	CUevent e = new_event();

	(void)state;
	OK(fill(&k, a, p, 1, 1));
	OK(cuEventRecord(e, a));
	OK(cuStreamWaitEvent(b, e, 0));
	OK(cuStreamSynchronize(b));
	sim_note_alloc(p, 1000);
	expect_none();
}

/* An event recorded too early covers too little. */
static void an_early_marker_is_not_enough(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	CUevent e = new_event();

	(void)state;
	OK(cuCtxRecordEvent(ctx, e));
	OK(fill(&k, a, p, 1, 1));
	OK(cuEventSynchronize(e));
	sim_note_alloc(p, 1000);
	expect_violation(SIM_V_HANDOUT);
}

/* Nor does an event of one stream cover another. */
static void another_streams_marker_is_not_enough(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);

	(void)state;
	OK(fill(&k, a, p, 1, 1));
	OK(cuStreamSynchronize(b));
	sim_note_alloc(p, 1000);
	expect_violation(SIM_V_HANDOUT);
}

static void copies_and_sets_count_too(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB), q = new_mapping(0, 2 * MIB);

	(void)state;
	OK(cuMemsetD8Async(p, 1, 4, a));
	sim_note_alloc(p, 1000);
	expect_violation(SIM_V_HANDOUT);
	OK(cuStreamSynchronize(a));
	OK(cuMemcpyDtoDAsync(q, p, 4, a));
	sim_note_alloc(q, 1000);
	expect_violation(SIM_V_HANDOUT);
	OK(cuStreamSynchronize(a));
}

static void large_ranges_are_found(void **state)
{
	CUdeviceptr p = new_mapping(0, 256 * MIB);

	(void)state;
	OK(cuMemsetD8Async(p, 1, 256 * MIB, a));
	sim_note_alloc(p + 255 * MIB, 1000);
	expect_violation(SIM_V_HANDOUT);
	OK(cuStreamSynchronize(a));
	OK(cuMemsetD8Async(p + 100 * MIB, 1, 1, a));
	sim_note_alloc(p, 200 * MIB);
	expect_violation(SIM_V_HANDOUT);
	OK(cuStreamSynchronize(a));
}

static void graphs_touch_when_launched(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	CUgraphExec exec;
	CUgraph graph;

	(void)state;
	OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(fill(&k, a, p, 1, 1));
	OK(cuStreamEndCapture(a, &graph));
	sim_note_alloc(p, 1000);
	expect_none();
	sim_note_free(p);
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphLaunch(exec, b));
	sim_note_alloc(p, 1000);
	expect_violation(SIM_V_HANDOUT);
	OK(cuCtxSynchronize());
}

static void overlaps_are_reported(void **state)
{
	(void)state;
	sim_note_alloc(0x10000, 0x1000);
	sim_note_alloc(0x10800, 0x100);
	expect_violation(SIM_V_OVERLAP);
	sim_note_alloc(0x11000, 0x100);
	sim_note_free(0x10800);
	expect_violation(SIM_V_RULE);
	sim_note_free(0x11000);
	sim_note_free(0x10000);
	sim_note_free(0);
	expect_none();
}

/* ---- ordered mode ----------------------------------------------------- */

static CUdeviceptr reuse_at_once(CUstream old)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);

	sim_judge_mode(SIM_JUDGE_ORDERED);
	sim_note_alloc(p, 1000);
	OK(slow_fill(&k, old, 10, p, 1, 1));
	sim_note_free(p);
	sim_note_alloc(p, 1000);
	expect_none();
	return p;
}

static void ordered_reports_unordered_work(void **state)
{
	CUdeviceptr p = reuse_at_once(a);

	(void)state;
	OK(fill(&k, b, p, 2, 1));
	expect_violation(SIM_V_HANDOUT);
}

static void ordered_accepts_the_same_stream(void **state)
{
	CUdeviceptr p = reuse_at_once(a);

	(void)state;
	OK(fill(&k, a, p, 2, 1));
}

static void ordered_accepts_a_context_wait(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	CUevent e = new_event();

	(void)state;
	sim_judge_mode(SIM_JUDGE_ORDERED);
	sim_note_alloc(p, 1000);
	OK(slow_fill(&k, a, 10, p, 1, 1));
	sim_note_free(p);
	OK(cuCtxRecordEvent(ctx, e));
	OK(cuCtxWaitEvent(ctx, e));
	sim_note_alloc(p, 1000);
	OK(fill(&k, b, p, 2, 1));
	OK(cuCtxSynchronize());
	assert_int_equal(read_word(p), 2);
}

/* ---- books ------------------------------------------------------------ */

static void books_count_everything(void **state)
{
	struct sim_books before, after;
	CUdeviceptr p, q;
	CUevent e;

	(void)state;
	sim_books(0, &before);
	p = new_legacy(3 * MIB);
	q = new_mapping(0, 4 * MIB);
	e = new_event();
	sim_books(0, &after);
	assert_int_equal(after.n_legacy - before.n_legacy, 1);
	assert_int_equal(after.legacy_bytes - before.legacy_bytes, 3 * MIB);
	assert_int_equal(after.n_mappings, 1);
	assert_int_equal(after.mapped_bytes, 4 * MIB);
	assert_int_equal(after.n_reservations, 1);
	assert_int_equal(after.n_handles, 0);
	assert_int_equal(after.n_physical, 1);
	assert_int_equal(after.n_events - before.n_events, 1);
	assert_int_equal(after.physical - before.physical, 8 * MIB);
	OK(cuMemFree(p));
	OK(cuMemUnmap(q, 4 * MIB));
	OK(cuMemAddressFree(q, 4 * MIB));
	OK(cuEventDestroy(e));
	sim_books(0, &after);
	assert_int_equal(after.peak_physical, before.physical + 8 * MIB);
	assert_int_equal(after.n_streams, 2);
	after.peak_physical = before.peak_physical;
	assert_memory_equal(&before, &after, sizeof(before));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(unmap_under_work_is_reported),
		SIM_TEST(unmap_by_luck_is_reported),
		SIM_TEST(unmap_after_a_wait_is_fine),
		SIM_TEST(a_free_in_stream_order_needs_no_wait),
		SIM_TEST(unmap_beside_work_is_fine),
		SIM_TEST(free_under_a_peers_work_is_reported),
		SIM_TEST(free_waits_for_a_peers_copy),
		SIM_TEST(touches_of_nothing_break_the_context),
		SIM_TEST(touches_past_the_end_are_reported),
		SIM_TEST(host_memory_must_be_page_locked),
		SIM_TEST(reuse_of_unseen_memory_is_reported),
		SIM_TEST(reuse_after_an_event_is_fine),
		SIM_TEST(seeing_is_transitive),
		SIM_TEST(an_early_marker_is_not_enough),
		SIM_TEST(another_streams_marker_is_not_enough),
		SIM_TEST(copies_and_sets_count_too),
		SIM_TEST(large_ranges_are_found),
		SIM_TEST(graphs_touch_when_launched),
		SIM_TEST(overlaps_are_reported),
		SIM_TEST(ordered_reports_unordered_work),
		SIM_TEST(ordered_accepts_the_same_stream),
		SIM_TEST(ordered_accepts_a_context_wait),
		SIM_TEST(books_count_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
