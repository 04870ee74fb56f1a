/* SPDX-License-Identifier: MIT
 *
 * chaos [--seconds N] [--seed S] [--live MIB] [--max-bits B] [--hold]
 *       [--strict MIB] [--no-graph] [--bold]
 *
 * Threads capture streams in all modes and by all forms of begin, fork and
 * join captures, hold two at a time, instantiate and launch, while they and
 * others allocate and free all sizes; --live is how much each of the others
 * keeps at most. Not one capture may be lost, each replay must give the same
 * bytes, and the simulator's judge must be silent.
 *
 * As a correct program does, a thread that makes unsafe calls while captures
 * are open says so first (cuThreadExchangeStreamCaptureMode).
 *
 * With --bold the others say nothing, though, which under the shim harms none.
 *
 * With --hold one capture is open all the time. With --strict running out of
 * memory is wrong, and so is holding more than this much.
 *
 * A plain program of the driver API (chaos.test runs it under the preload);
 * --no-graph leaves out begin-to-graph, which a driver before 12.3 has not.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "../e2e/victim_link.h"
#include "../sim/sim.h"

enum { N_CAPTURERS = 3, N_TAKERS = 3, MAX_LIVE = 128, PITCHED = 8 };

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream);
CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream, CUgraph *);
/* cuda.h makes the first name the second one's */
#undef cuStreamBeginCapture
CUresult CUDAAPI cuStreamBeginCapture(CUstream);
CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
					    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
					    CU_STREAM_CAPTURE_MODE_RELAXED};

static CUcontext ctx;
static bool has_to_graph = true, has_hold, is_bold;
static unsigned taker_bits = 23;
static unsigned long strict;
static size_t live_max = 24 * MiB;
static atomic_bool is_done;
static atomic_ulong n_captures, n_lost, n_wrong, n_allocs, n_failed;

struct block {
	CUdeviceptr p;
	size_t size;
};

/* False: out of memory, which may be. */
static bool take(struct block *b, size_t size)
{
	size_t pitch;
	CUresult r = size % PITCHED
			     ? cuMemAlloc(&b->p, size)
			     : cuMemAllocPitch(&b->p, &pitch, size, 1, 4);

	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		n_failed++;
		b->p = 0;
		return false;
	}
	TRY(r);
	n_allocs++;
	b->size = size;
	sim_client_note_alloc((void *)(uintptr_t)b->p, size);
	return true;
}

static void drop(struct block *b)
{
	if (b->p)
		victim_free(b->p);
	b->p = 0;
}

/* ---- threads that only allocate --------------------------------------- */

static void *taker(void *arg)
{
	uint64_t random = (uintptr_t)arg;
	CUstreamCaptureMode mode = modes[1 + random % 2];
	struct block live[MAX_LIVE] = {0};
	size_t held = 0;
	CUstream stream;

	TRY(cuCtxSetCurrent(ctx));
	if (!is_bold)
		TRY(cuThreadExchangeStreamCaptureMode(&mode));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	while (!is_done) {
		struct block *b = &live[victim_random(&random) % MAX_LIVE];
		size_t size = victim_size(&random, taker_bits);

		if (b->p) {
			held -= b->size;
			drop(b);
		} else if (held + size <= live_max && take(b, size)) {
			held += size;
			TRY(cuMemsetD8Async(b->p, 1, size, stream));
		}
	}
	for (int i = 0; i < MAX_LIVE; i++)
		drop(&live[i]);
	mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	TRY(cuStreamSynchronize(stream));
	TRY(cuStreamDestroy(stream));
	return NULL;
}

/* ---- threads that capture ---------------------------------------------- */

struct capturer {
	uint64_t random;
	CUstream stream, side, other;
	CUevent begun, joined;
	struct block extra[8];
};

/* Unsafe calls in the middle of captures, announced. */
static void churn(struct capturer *c)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	for (int i = 0; i < 6; i++) {
		struct block *b = &c->extra[victim_random(&c->random) % 8];

		if (b->p)
			drop(b);
		else
			take(b, victim_size(&c->random, 21));
	}
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
}

/* Returns the graph to capture into, or NULL where there is none yet. */
static CUgraph begin(struct capturer *c, CUstream stream,
		     CUstreamCaptureMode mode, unsigned form)
{
	CUgraph graph = NULL;

	(void)c;
	switch (form) {
	case 0:
		TRY(cuStreamBeginCapture(stream)); /* global */
		break;
	case 1:
		TRY(cuStreamBeginCapture_ptsz(stream));
		break;
	case 2:
		TRY(cuStreamBeginCapture_v2_ptsz(stream, mode));
		break;
	case 3:
		if (has_to_graph) {
			TRY(cuGraphCreate(&graph, 0));
			TRY(cuStreamBeginCaptureToGraph(stream, graph, NULL,
							NULL, 0, mode));
			break;
		}
		/* fall through */
	default:
		TRY(cuStreamBeginCapture_v2(stream, mode));
		break;
	}
	return graph;
}

static CUgraph end(CUstream stream, unsigned form)
{
	CUgraph graph = NULL;
	CUresult r;

	r = form == 1 || form == 2 ? cuStreamEndCapture_ptsz(stream, &graph)
				   : cuStreamEndCapture(stream, &graph);
	n_captures++;
	if (r != CUDA_SUCCESS) {
		n_lost++;
		return NULL;
	}
	return graph;
}

/* A capture of nothing much on another stream while the first is open. */
static void nested(struct capturer *c, CUdeviceptr p)
{
	unsigned form = victim_random(&c->random) % 6;
	CUgraph graph;

	begin(c, c->other, modes[victim_random(&c->random) % 3], form);
	TRY(cuMemsetD8Async(p, 3, 512, c->other));
	churn(c);
	graph = end(c->other, form);
	if (graph)
		TRY(cuGraphDestroy(graph));
}

static void record(struct capturer *c, struct block *a, struct block *b,
		   int value)
{
	size_t half = b->size / 2;

	TRY(cuMemsetD8Async(a->p, (unsigned char)value, a->size, c->stream));
	churn(c);
	TRY(cuMemcpyDtoDAsync(b->p, a->p, a->size, c->stream));
	TRY(cuEventRecord(c->begun, c->stream));
	TRY(cuStreamWaitEvent(c->side, c->begun, 0));
	TRY(cuMemsetD8Async(b->p, (unsigned char)(value + 1), half, c->side));
	if (victim_random(&c->random) % 4 == 0)
		nested(c, a->p);
	churn(c);
	TRY(cuEventRecord(c->joined, c->side));
	TRY(cuStreamWaitEvent(c->stream, c->joined, 0));
}

static bool is_right(const unsigned char *host, size_t size, int value)
{
	size_t wrong = 0;

	for (size_t i = 0; i < size; i++)
		wrong += host[i] !=
			 (unsigned char)(i < size / 2 ? value + 1 : value);
	return wrong == 0;
}

static void replay(struct capturer *c, CUgraph graph, struct block *b,
		   int value)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	unsigned char *host = malloc(b->size);
	CUgraphExec exec;

	CHECK(host);
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	TRY(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 2; i++) {
		TRY(cuMemsetD8Async(b->p, 0xee, b->size, c->stream));
		TRY(cuGraphLaunch(exec, c->stream));
		churn(c);
		TRY(cuMemcpyDtoHAsync(host, b->p, b->size, c->stream));
		TRY(cuStreamSynchronize(c->stream));
		if (!is_right(host, b->size, value))
			n_wrong++;
	}
	/* the program may free what a launch still uses: a free waits */
	TRY(cuGraphLaunch(exec, c->stream));
	TRY(cuGraphExecDestroy(exec));
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	free(host);
}

static void one_round(struct capturer *c)
{
	CUstreamCaptureMode mode = modes[victim_random(&c->random) % 3];
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	unsigned form = victim_random(&c->random) % 6;
	size_t size = victim_size(&c->random, 21) + 4 * KiB;
	int value = (int)(victim_random(&c->random) % 100);
	struct block a = {0}, b = {0};
	CUgraph graph;

	TRY(cuThreadExchangeStreamCaptureMode(&relaxed));
	if (take(&a, size) && take(&b, size)) {
		TRY(cuThreadExchangeStreamCaptureMode(&relaxed));
		begin(c, c->stream, mode, form);
		record(c, &a, &b, value);
		graph = end(c->stream, form);
		if (graph) {
			replay(c, graph, &b, value);
			TRY(cuGraphDestroy(graph));
		}
		relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
		TRY(cuThreadExchangeStreamCaptureMode(&relaxed));
	}
	drop(&a);
	drop(&b);
	TRY(cuThreadExchangeStreamCaptureMode(&relaxed));
}

static void *capturer(void *arg)
{
	struct capturer c = {.random = (uintptr_t)arg};
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamCreate(&c.stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&c.side, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&c.other, CU_STREAM_NON_BLOCKING));
	TRY(cuEventCreate(&c.begun, CU_EVENT_DISABLE_TIMING));
	TRY(cuEventCreate(&c.joined, CU_EVENT_DISABLE_TIMING));
	while (!is_done)
		one_round(&c);
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	for (int i = 0; i < 8; i++)
		drop(&c.extra[i]);
	return NULL;
}

/* Most device memory that was ever in use, in MiB; 0 without the simulator. */
static unsigned long peak(void)
{
	static void *cache;
	void (*look)(int, struct sim_books *);
	struct sim_books books = {0};

	*(void **)&look = sim_client_find(&cache, "sim_books");
	if (look)
		look(-1, &books);
	return (unsigned long)(books.peak_physical / MiB);
}

/* -1 without the simulator. */
static long killed(void)
{
	static void *cache;
	unsigned long (*count)(void);

	*(void **)&count = sim_client_find(&cache, "sim_captures_killed");
	return count ? (long)count() : -1;
}

static int seconds = 3;
static uint64_t seed;

static bool read_options(int argc, char **argv)
{
	seed = (uint64_t)time(NULL) % 1000000;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--no-graph"))
			has_to_graph = false;
		else if (!strcmp(argv[i], "--hold"))
			has_hold = true;
		else if (!strcmp(argv[i], "--bold"))
			is_bold = true;
		else if (i + 1 == argc)
			return false;
		else if (!strcmp(argv[i], "--seconds"))
			seconds = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--max-bits"))
			taker_bits = (unsigned)atoi(argv[++i]);
		else if (!strcmp(argv[i], "--strict"))
			strict = strtoul(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--live"))
			live_max = strtoull(argv[++i], NULL, 0) * MiB;
		else
			return false;
	}
	return true;
}

static void run(void)
{
	pthread_t threads[N_CAPTURERS + N_TAKERS];
	struct timespec pause = {.tv_sec = seconds};
	CUstream held = NULL;
	CUgraph graph;

	ctx = victim_start(0);
	if (has_hold) {
		TRY(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
		TRY(cuStreamBeginCapture_v2(held,
					    CU_STREAM_CAPTURE_MODE_RELAXED));
	}
	for (int i = 0; i < N_CAPTURERS + N_TAKERS; i++) {
		uintptr_t start = seed * 1009 + (unsigned)i;

		CHECK(pthread_create(&threads[i], NULL,
				     i < N_CAPTURERS ? capturer : taker,
				     (void *)start) == 0);
	}
	nanosleep(&pause, NULL);
	is_done = true;
	for (int i = 0; i < N_CAPTURERS + N_TAKERS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	if (has_hold && cuStreamEndCapture(held, &graph) != CUDA_SUCCESS)
		n_lost++;
}

int main(int argc, char **argv)
{
	long violations;

	if (!read_options(argc, argv))
		return 2;
	printf("chaos seed %" PRIu64 ": ", seed);
	fflush(stdout);
	run();
	violations = sim_client_violations();
	printf("%lu captures, %lu allocations, %lu MiB, %lu out of memory; "
	       "%lu lost, %ld killed, %lu wrong, %ld violations\n",
	       n_captures, n_allocs, peak(), n_failed, n_lost, killed(),
	       n_wrong, violations);
	if (strict && (n_failed || peak() > strict))
		return 1;
	return n_lost || n_wrong || violations > 0 || killed() > 0 ||
	       n_captures == 0;
}
