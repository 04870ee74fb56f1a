/* SPDX-License-Identifier: MIT
 *
 * torture [--settled | --abroad] [FUNCTION [N [CODE]]]
 *
 * Fails the first, second, third ... call of every driver function that the
 * shim knows, one process each, until a run sees no failure. In each run a
 * small program allocates, launches, captures, frees and ends; every call must
 * answer success, the injected code or out of memory. Then, with no failure
 * left, calls must work again, the data must be right, the judge silent, and
 * after the context's end the driver's books must be empty.
 *
 * `--settled`: the failures come when the program has long given all its work
 * in one stream, and while that is slow, since policy stream has later work
 * wait there alone. Those that are no want of memory are for ever; of functions
 * that are called often the first calls will do.
 *
 * `--abroad`: a second device copies and sets what is freed behind that, and
 * launches a graph; of functions that are called often the first calls will do.
 *
 * The list of functions is api.def itself. Run under the preload, on the
 * simulated driver.
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../e2e/victim.h"
#include "../sim/kernels_ptx.h"
#include "../sim/sim.h"

static const char *const functions[] = {
#define API(symbol, base, since, flags) #symbol,
#define USE(symbol, base, since, flags) #symbol,
#include "api.def"
};

/* What the injected failure answers: one of memory, one of anything else. */
static const int codes[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};

enum { N_SMALL = 60, N_LARGE = 8, MOST_FAILURES = 400 };
/* Those that the other two do with. */
enum { MOST_SETTLED = 20, MOST_ABROAD = 8 };
/* Pieces of work (base/stream.h wants a thousand), and how long one takes. */
enum { SETTLED = 1100, LAG_US = 50 };
/* Bytes that the other device copies and sets, and how often it does. */
enum { COPIED = 2 * MiB, SET = 512, N_ABROAD = 6 };

static int injected; /* the code of this run */
static int n_bad;
static bool is_settled, is_abroad;
static _Atomic unsigned long *n_waits; /* of the device, in all runs */

static bool works(CUresult r, const char *call, int line)
{
	if (r == CUDA_SUCCESS)
		return true;
	if ((int)r != injected && r != CUDA_ERROR_OUT_OF_MEMORY) {
		printf("line %d: %s answered %d\n", line, call, (int)r);
		n_bad++;
	}
	return false;
}
#define WORKS(call) works((call), #call, __LINE__)

struct program {
	CUcontext ctx, peer; /* of the other device */
	CUstream stream, other, abroad;
	CUfunction fill;
	CUgraphExec there; /* sets this: */
	CUdeviceptr theirs;
	CUdeviceptr small[N_SMALL], large[N_LARGE], pitched;
};

static void fill(struct program *p, CUdeviceptr at, uint32_t value,
		 uint64_t n_words)
{
	void *arguments[] = {&at, &value, &n_words};

	if (at && p->fill && p->stream)
		(void)WORKS(cuLaunchKernel(p->fill, 1, 1, 1, 32, 1, 1, 0,
					   p->stream, arguments, NULL));
}

/* The judge is told of what is handed out, and of what is freed. */
static void take(struct program *p, CUdeviceptr *q, size_t size)
{
	CUdeviceptr got;

	if (*q || !WORKS(cuMemAlloc(&got, size)))
		return;
	*q = got;
	sim_note_alloc(got, size);
	fill(p, got, (uint32_t)size, 128);
}

static void take_all(struct program *p)
{
	CUdeviceptr q;
	size_t pitch;

	for (int i = 0; i < N_SMALL; i++)
		take(p, &p->small[i], 512u << i % 12);
	for (int i = 0; i < N_LARGE; i++)
		take(p, &p->large[i], (2 + i * 5) * MiB);
	if (!p->pitched && WORKS(cuMemAllocPitch(&q, &pitch, 1000, 10, 4))) {
		p->pitched = q;
		sim_note_alloc(q, 10 * 1000);
	}
}

static void give(CUdeviceptr *p)
{
	if (!*p || !WORKS(cuMemFree(*p)))
		return;
	sim_note_free(*p);
	*p = 0;
}

static void give_all(struct program *p, int step)
{
	for (int i = 0; i < N_SMALL; i += step)
		give(&p->small[i]);
	for (int i = 0; i < N_LARGE; i += step)
		give(&p->large[i]);
	give(&p->pitched);
}

static void capture(struct program *p)
{
	CUgraph graph = NULL;
	CUdeviceptr q = 0;

	if (!p->stream || !WORKS(cuStreamBeginCapture(
				  p->stream, CU_STREAM_CAPTURE_MODE_RELAXED)))
		return;
	if (WORKS(cuMemAlloc(&q, 3 * MiB))) {
		sim_note_alloc(q, 3 * MiB);
		give(&q);
	}
	if (WORKS(cuStreamEndCapture(p->stream, &graph)))
		(void)WORKS(cuGraphDestroy(graph));
	else if (WORKS(cuStreamDestroy(p->stream)))
		p->stream = NULL;
}

/*
 * What was freed behind work of the one stream is used in another at once. With
 * the host ahead of that work, only a wait on the device keeps them apart.
 */
static void cross(struct program *p)
{
	CUstream stream = p->stream;

	give_all(p, 2);
	p->stream = NULL; /* no work meanwhile */
	take_all(p);
	p->stream = p->other;
	for (int i = 0; i < N_SMALL; i += 2)
		fill(p, p->small[i], 1, 128);
	for (int i = 0; i < N_LARGE; i += 2)
		fill(p, p->large[i], 1, 128);
	p->stream = stream;
}

/* See `--settled`. */
static void settle_in(struct program *p)
{
	CUdeviceptr q = 0;

	TRY(cuStreamCreate(&p->other, CU_STREAM_NON_BLOCKING));
	take(p, &q, MiB);
	for (int i = 0; i < SETTLED; i++)
		fill(p, q, 1, 32);
	give(&q);
	TRY(cuStreamSynchronize(p->stream));
	sim_set_lag_us(LAG_US);
}

/* Of two tries one is not made to fail. */
static void turn_to(CUcontext ctx)
{
	if (!WORKS(cuCtxSetCurrent(ctx)))
		TRY(cuCtxSetCurrent(ctx));
}

static void make_graph(struct program *p)
{
	CUDA_MEMSET_NODE_PARAMS set = {
		.dst = p->theirs, .elementSize = 1, .width = SET, .height = 1};
	CUgraph graph;
	CUgraphNode node;

	if (!WORKS(cuGraphCreate(&graph, 0)))
		return;
	if (WORKS(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, p->peer)))
		(void)WORKS(cuGraphInstantiate(&p->there, graph, 0));
	(void)WORKS(cuGraphDestroy(graph));
}

static void start_abroad(struct program *p)
{
	CUdevice device;

	if (!WORKS(cuDeviceGet(&device, 1)) ||
	    !WORKS(cuDevicePrimaryCtxRetain(&p->peer, device)))
		return;
	turn_to(p->peer);
	(void)WORKS(cuCtxEnablePeerAccess(p->ctx, 0));
	if (!WORKS(cuStreamCreate(&p->abroad, CU_STREAM_NON_BLOCKING)))
		p->abroad = NULL;
	if (WORKS(cuMemAlloc(&p->theirs, COPIED))) {
		sim_note_alloc(p->theirs, COPIED);
		make_graph(p);
	}
	turn_to(p->ctx);
}

/* Those that may not reach the memory, as peer access failed, are refused. */
static void works_or_may_not(CUresult r, const char *call)
{
	if (r != CUDA_ERROR_INVALID_VALUE)
		(void)works(r, call, __LINE__);
}

static void copy_abroad(struct program *p)
{
	if (!p->abroad || !p->theirs)
		return;
	sim_set_lag_us(LAG_US);
	turn_to(p->peer);
	for (int i = 0; i < N_LARGE; i++) {
		if (p->large[i])
			works_or_may_not(cuMemcpyDtoDAsync(p->theirs,
							   p->large[i], COPIED,
							   p->abroad),
					 "copy");
	}
	for (int i = 0; i < N_SMALL; i++) {
		if (p->small[i])
			works_or_may_not(
				cuMemsetD8Async(p->small[i], 1, SET, p->abroad),
				"set");
	}
	if (p->there)
		(void)WORKS(cuGraphLaunch(p->there, p->abroad));
	turn_to(p->ctx);
}

static bool start(struct program *p)
{
	CUmodule module;
	CUdevice device;

	if (!WORKS(cuInit(0)) || !WORKS(cuDeviceGet(&device, 0)) ||
	    !WORKS(cuDevicePrimaryCtxRetain(&p->ctx, device)))
		return false;
	if (!WORKS(cuCtxSetCurrent(p->ctx)))
		return true;
	if (!WORKS(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING)))
		p->stream = NULL;
	if (WORKS(cuModuleLoadData(&module, vs_kernels_ptx)))
		(void)WORKS(cuModuleGetFunction(&p->fill, module, "vs_fill"));
	return true;
}

static void act(struct program *p)
{
	size_t free_bytes, total;
	uint64_t (*trim)(void);

	if (is_abroad)
		start_abroad(p);
	take_all(p);
	for (int i = 0; is_abroad && i < N_ABROAD; i++) {
		copy_abroad(p);
		give_all(p, 1 + i % 2);
		take_all(p);
	}
	give_all(p, 2);
	take_all(p);
	capture(p);
	(void)WORKS(cuMemGetInfo(&free_bytes, &total));
	give_all(p, 3);
	(void)WORKS(cuCtxSynchronize());
	take_all(p);
	if (is_settled)
		cross(p);
	*(void **)&trim = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	give_all(p, 2);
	(void)WORKS(cuCtxSynchronize());
	if (trim)
		trim();
}

/* No failure is left: a correct program must work from here on. */
static void recover(struct program *p)
{
	static unsigned char data[3 * MiB], back[sizeof(data)];
	CUdeviceptr q[4];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 7);
	for (int i = 0; i < 4; i++) {
		TRY(cuMemAlloc(&q[i], sizeof(data)));
		TRY(cuMemcpyHtoD(q[i], data, sizeof(data)));
	}
	for (int i = 0; i < 4; i++) {
		TRY(cuMemcpyDtoH(back, q[i], sizeof(back)));
		CHECK(memcmp(data, back, sizeof(back)) == 0);
		TRY(cuMemFree(q[i]));
	}
	injected = CUDA_SUCCESS;
	give_all(p, 1);
	TRY(cuCtxSynchronize());
}

static void reset(int ordinal)
{
	CUdevice device;

	TRY(cuDeviceGet(&device, ordinal));
	TRY(cuDevicePrimaryCtxReset(device));
}

static void end_abroad(struct program *p)
{
	TRY(cuCtxSetCurrent(p->peer));
	TRY(cuCtxSynchronize());
	TRY(cuCtxSetCurrent(NULL));
	reset(1);
}

/* One run; its exit status: 0 no failure was met, 3 one was, else wrong. */
static int run(const char *function, unsigned long n, int code)
{
	struct program p = {0};
	struct sim_books books;
	unsigned long n_failures;
	CUdevice device;

	injected = code;
	if (is_settled) {
		CHECK(start(&p));
		settle_in(&p);
	}
	if (is_settled && code != CUDA_ERROR_OUT_OF_MEMORY)
		sim_fail_many(function, n, 0, code);
	else
		sim_fail(function, n, code);
	if (is_settled || start(&p))
		act(&p);
	n_failures = sim_failures();
	*n_waits += sim_calls("cuCtxWaitEvent");
	sim_fail_clear();
	if (!p.ctx) {
		TRY(cuInit(0));
		TRY(cuDeviceGet(&device, 0));
		TRY(cuDevicePrimaryCtxRetain(&p.ctx, device));
	}
	TRY(cuCtxSetCurrent(p.ctx));
	recover(&p);
	if (p.peer)
		end_abroad(&p);
	TRY(cuCtxSetCurrent(NULL));
	reset(0);
	sim_books(-1, &books);
	CHECK(books.vmm_bytes == 0);
	CHECK(books.n_mappings == 0);
	CHECK(books.n_handles == 0);
	CHECK(sim_violations() == 0);
	CHECK(sim_captures() == 0);
	CHECK(n_bad == 0);
	fflush(stdout);
	return n_failures ? 3 : 0;
}

/* -1 when the run went wrong, else whether it met a failure. */
static int run_apart(const char *function, unsigned long n, int code)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(run(function, n, code));
	CHECK(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) &&
	    (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3))
		return WEXITSTATUS(status) == 3;
	printf("torture: %s call %lu code %d: status %#x\n", function, n, code,
	       status);
	return -1;
}

/* All runs of one function; returns how many went wrong. */
static unsigned long run_all(const char *function, unsigned long *n_runs)
{
	unsigned long most = is_settled	 ? MOST_SETTLED
			     : is_abroad ? MOST_ABROAD
					 : MOST_FAILURES;
	unsigned long n_wrong = 0;
	bool is_called = true;

	for (size_t c = 0; is_called && c < 2; c++) {
		int met = 1;

		for (unsigned long n = 1; met && n <= most; n++) {
			met = run_apart(function, n, codes[c]);
			++*n_runs;
			if (n == 1)
				is_called = met;
			if (met < 0)
				n_wrong++;
		}
	}
	return n_wrong;
}

int main(int argc, char **argv)
{
	unsigned long n_runs = 0, n_wrong = 0;

	is_settled = argc > 1 && !strcmp(argv[1], "--settled");
	is_abroad = argc > 1 && !strcmp(argv[1], "--abroad");
	if (is_settled || is_abroad) {
		argc--;
		argv++;
	}
	n_waits = mmap(NULL, sizeof(*n_waits), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(n_waits != MAP_FAILED);
	if (argc > 2)
		return run(argv[1], strtoul(argv[2], NULL, 0),
			   argc > 3 ? atoi(argv[3]) : codes[0]);
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		/* else the thread stays in the other context; no driver fails
		 */
		if (is_abroad && !strcmp(functions[i], "cuCtxPopCurrent_v2"))
			continue;
		if (argc == 1 || !strcmp(argv[1], functions[i]))
			n_wrong += run_all(functions[i], &n_runs);
	}
	if (is_settled && argc == 1 && *n_waits == 0) {
		printf("torture: no work was made to wait\n");
		n_wrong++;
	}
	printf("torture: %lu runs, %lu wrong\n", n_runs, n_wrong);
	return n_wrong > 0;
}
