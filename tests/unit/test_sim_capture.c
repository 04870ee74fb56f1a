/* SPDX-License-Identifier: MIT */
/*
 * Captures: every cell of a table seen on an H200.  A cell is a call, made by
 * the capturing thread or another, under a capture of some mode, with the
 * calling thread's own mode left alone or relaxed.
 */
#include "../sim/sim_test.h"

#include <pthread.h>

static struct kernels k;
static CUcontext ctx, ctx1;
static CUevent event, event1;
static CUstream idle_stream, captured;
static CUdeviceptr spare;

static int fresh(void **state)
{
	(void)state;
	boot("SIM_DEVICES=2");
	ctx1 = use_device(1);
	event1 = new_event();
	ctx = use_device(0);
	load_kernels(&k);
	event = new_event();
	idle_stream = new_stream(CU_STREAM_NON_BLOCKING);
	captured = new_stream(CU_STREAM_NON_BLOCKING);
	spare = new_legacy(4);
	return 0;
}

/* ---- the calls -------------------------------------------------------- */

static CUresult call_alloc(void)
{
	CUdeviceptr p;

	return cuMemAlloc(&p, 4);
}

static CUresult call_free(void)
{
	CUdeviceptr p = spare;
	CUresult result = cuMemFree(p);

	if (result == CUDA_SUCCESS)
		spare = 0;
	return result;
}

static CUresult call_event_query(void)
{
	return cuEventQuery(event);
}

static CUresult call_event_sync(void)
{
	return cuEventSynchronize(event);
}

static CUresult call_stream_query(void)
{
	return cuStreamQuery(idle_stream);
}

static CUresult call_ctx_record(void)
{
	return cuCtxRecordEvent(ctx, event);
}

static CUresult call_ctx_wait(void)
{
	return cuCtxWaitEvent(ctx, event);
}

static CUresult call_ctx_record_other(void)
{
	return cuCtxRecordEvent(ctx1, event1);
}

static CUresult call_ctx_sync(void)
{
	return cuCtxSynchronize();
}

static CUresult call_vmm(void)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	CUmemGenericAllocationHandle h;

	OK(cuMemRetainAllocationHandle(&h, (void *)p));
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemRelease(h));
	return cuMemAddressFree(p, 2 * MIB);
}

static CUresult call_event_create(void)
{
	CUevent e;

	OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	return cuEventDestroy(e);
}

static CUresult call_event_record(void)
{
	return cuEventRecord(event, idle_stream);
}

static CUresult call_get_info(void)
{
	size_t a, b;

	return cuMemGetInfo(&a, &b);
}

static CUresult call_is_capturing(void)
{
	CUstreamCaptureStatus status;

	return cuStreamIsCapturing(idle_stream, &status);
}

/* ---- the table -------------------------------------------------------- */

enum {
	FINE,
	KILLS,
	OPEN, /* not measured: either will do */
};

/*
 * Columns: same thread under global or thread-local, under relaxed; another
 * thread under global, under thread-local or relaxed.
 */
static const struct row {
	const char *name;
	CUresult (*call)(void);
	int same, same_relaxed, other_global, other_rest;
	/* does the caller's own relaxed mode save it? */
	int when_relaxed;
} rows[] = {
	{"alloc", call_alloc, KILLS, FINE, KILLS, FINE, FINE},
	{"free", call_free, KILLS, FINE, KILLS, FINE, FINE},
	{"event query", call_event_query, KILLS, FINE, KILLS, FINE, FINE},
	{"event sync", call_event_sync, KILLS, FINE, KILLS, FINE, FINE},
	{"stream query", call_stream_query, KILLS, FINE, KILLS, FINE, FINE},
	{"ctx record", call_ctx_record, KILLS, KILLS, KILLS, KILLS, KILLS},
	{"ctx wait", call_ctx_wait, KILLS, KILLS, KILLS, KILLS, KILLS},
	{"ctx record, other device", call_ctx_record_other, OPEN, OPEN, FINE,
	 FINE, FINE},
	{"ctx sync", call_ctx_sync, KILLS, KILLS, OPEN, OPEN, OPEN},
	{"vmm", call_vmm, FINE, FINE, FINE, FINE, FINE},
	{"event create", call_event_create, FINE, FINE, FINE, FINE, FINE},
	{"event record", call_event_record, FINE, FINE, FINE, FINE, FINE},
	{"get info", call_get_info, FINE, FINE, FINE, FINE, FINE},
	{"is capturing", call_is_capturing, FINE, FINE, FINE, FINE, FINE},
};

struct cell {
	const struct row *row;
	bool relaxed; /* the calling thread's own mode */
	CUresult result;
};

static void make_call(struct cell *cell)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (cell->relaxed)
		OK(cuThreadExchangeStreamCaptureMode(&mode));
	cell->result = cell->row->call();
	if (cell->relaxed)
		OK(cuThreadExchangeStreamCaptureMode(&mode));
}

static void *in_other_thread(void *arg)
{
	OK(cuCtxSetCurrent(ctx));
	make_call(arg);
	return NULL;
}

static void check_cell(const struct row *row, CUstreamCaptureMode mode,
		       bool other_thread, bool relaxed, int wanted)
{
	struct cell cell = {row, relaxed, CUDA_SUCCESS};
	CUstreamCaptureStatus status;
	CUgraph graph;
	pthread_t thread;
	CUresult end;

	if (!spare)
		spare = new_legacy(4);
	OK(cuEventRecord(event, idle_stream));
	OK(cuStreamBeginCapture(captured, mode));
	if (other_thread) {
		pthread_create(&thread, NULL, in_other_thread, &cell);
		pthread_join(thread, NULL);
	} else {
		make_call(&cell);
	}
	OK(cuStreamIsCapturing(captured, &status));
	end = cuStreamEndCapture(captured, &graph);
	if (wanted == OPEN)
		return;
	if ((cell.result != CUDA_SUCCESS) != (wanted == KILLS) ||
	    (end != CUDA_SUCCESS) != (wanted == KILLS))
		fail_msg("%s, mode %d, other thread %d, relaxed %d: call %d, "
			 "end %d",
			 row->name, (int)mode, other_thread, relaxed,
			 (int)cell.result, (int)end);
	if (wanted == KILLS) {
		GIVES(cell.result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		GIVES(end, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
		assert_null(graph);
	} else {
		OK(cuGraphDestroy(graph));
	}
}

static void every_cell_of_the_table(void **state)
{
	const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
	const CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
	const CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	unsigned i;

	(void)state;
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *r = &rows[i];

		check_cell(r, global, false, false, r->same);
		check_cell(r, local, false, false, r->same);
		check_cell(r, relaxed, false, false, r->same_relaxed);
		check_cell(r, global, true, false, r->other_global);
		check_cell(r, local, true, false, r->other_rest);
		check_cell(r, relaxed, true, false, r->other_rest);
		check_cell(r, global, false, true, r->when_relaxed);
		check_cell(r, local, false, true, r->when_relaxed);
		check_cell(r, global, true, true, r->when_relaxed);
		check_cell(r, local, true, true, r->when_relaxed);
	}
}

static void *leave_a_capture(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(ctx));
	OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD,
				CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	return NULL;
}

/* A thread ends: so does a capture of its own stream, but no other. */
static void captures_of_a_thread_that_ends(void **state)
{
	CUgraph graph;
	pthread_t thread;

	(void)state;
	pthread_create(&thread, NULL, leave_a_capture, NULL);
	pthread_join(thread, NULL);
	assert_int_equal(sim_captures(), 1);
	OK(cuStreamEndCapture(captured, &graph));
	OK(cuGraphDestroy(graph));
	OK(cuCtxRecordEvent(ctx, event));
}

/* ---- graphs ----------------------------------------------------------- */

static void graphs_replay(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	uint32_t one = 1;
	uint64_t n = 1;
	void *add[] = {&p, &one, &n};
	CUgraphExec exec;
	CUgraph graph;
	size_t nodes = 0;
	unsigned i;

	(void)state;
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(launch(k.add, captured, add));
	OK(cuMemcpyDtoDAsync(q, p, 4, captured));
	OK(cuMemsetD32Async(p + 0, 7, 0, captured));
	OK(cuStreamEndCapture(captured, &graph));
	OK(cuGraphGetNodes(graph, NULL, &nodes));
	assert_int_equal(nodes, 2);
	OK(cuStreamSynchronize(captured));
	assert_int_equal(read_word(p), 0);
	OK(cuGraphInstantiate(&exec, graph, 0));
	OK(cuGraphDestroy(graph));
	for (i = 0; i < 3; i++)
		OK(cuGraphLaunch(exec, captured));
	OK(cuStreamSynchronize(captured));
	assert_int_equal(read_word(q), 3);
	OK(cuGraphExecDestroy(exec));
	GIVES(cuGraphLaunch(exec, captured), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_STALE);
}

static void captures_fork_and_join(void **state)
{
	CUstream side = new_stream(CU_STREAM_NON_BLOCKING);
	CUstreamCaptureStatus status;
	CUgraph graph;
	CUevent back = new_event();

	(void)state;
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(event, captured));
	OK(cuStreamWaitEvent(side, event, 0));
	OK(cuStreamIsCapturing(side, &status));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(fill(&k, side, spare, 1, 1));
	OK(cuEventRecord(back, side));
	OK(cuStreamWaitEvent(captured, back, 0));
	OK(cuStreamEndCapture(captured, &graph));
	OK(cuStreamIsCapturing(side, &status));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
	/* an event last recorded in a capture says nothing any more */
	GIVES(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
}

static void captures_must_be_joined(void **state)
{
	CUgraph graph;

	(void)state;
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(event, captured));
	OK(cuStreamWaitEvent(idle_stream, event, 0));
	OK(fill(&k, idle_stream, spare, 1, 1));
	GIVES(cuStreamEndCapture(captured, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

static void captures_end_where_they_began(void **state)
{
	CUgraph graph;

	(void)state;
	GIVES(cuStreamEndCapture(captured, &graph), CUDA_ERROR_ILLEGAL_STATE);
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(event, captured));
	OK(cuStreamWaitEvent(idle_stream, event, 0));
	GIVES(cuStreamEndCapture(idle_stream, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	GIVES(cuStreamEndCapture(captured, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void *end_elsewhere(void *arg)
{
	CUgraph graph;

	cuCtxSetCurrent(ctx);
	*(CUresult *)arg = cuStreamEndCapture(captured, &graph);
	return NULL;
}

static void captures_end_in_their_thread(void **state)
{
	pthread_t thread;
	CUresult result;
	CUgraph graph;

	(void)state;
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
	pthread_create(&thread, NULL, end_elsewhere, &result);
	pthread_join(thread, NULL);
	GIVES(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	GIVES(cuStreamEndCapture(captured, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	pthread_create(&thread, NULL, end_elsewhere, &result);
	pthread_join(thread, NULL);
	OK(result);
}

static void waits_stay_inside_a_capture(void **state)
{
	CUgraph graph;

	(void)state;
	OK(cuEventRecord(event, idle_stream));
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(cuStreamWaitEvent(captured, event, 0),
	      CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	GIVES(cuStreamEndCapture(captured, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void the_legacy_stream_is_barred(void **state)
{
	CUstream blocking = new_stream(CU_STREAM_DEFAULT);
	CUstreamCaptureStatus status;
	CUgraph graph;

	(void)state;
	OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(cuStreamIsCapturing(NULL, &status),
	      CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	GIVES(fill(&k, NULL, spare, 1, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	GIVES(cuStreamEndCapture(blocking, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* a non-blocking stream does not bar it */
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(fill(&k, NULL, spare, 1, 1));
	OK(cuStreamEndCapture(captured, &graph));
}

static void a_capturing_stream_cannot_be_asked(void **state)
{
	CUgraph graph;

	(void)state;
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	assert_int_equal(sim_captures(), 1);
	GIVES(cuStreamQuery(captured), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(sim_captures_killed(), 1);
	GIVES(cuStreamEndCapture(captured, &graph),
	      CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	assert_int_equal(sim_captures(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(every_cell_of_the_table),
		SIM_TEST(captures_of_a_thread_that_ends),
		SIM_TEST(graphs_replay),
		SIM_TEST(captures_fork_and_join),
		SIM_TEST(captures_must_be_joined),
		SIM_TEST(captures_end_where_they_began),
		SIM_TEST(captures_end_in_their_thread),
		SIM_TEST(waits_stay_inside_a_capture),
		SIM_TEST(the_legacy_stream_is_barred),
		SIM_TEST(a_capturing_stream_cannot_be_asked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
