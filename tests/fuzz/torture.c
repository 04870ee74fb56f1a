/* SPDX-License-Identifier: MIT
 *
 * torture [FUNCTION [N]]
 *
 * Fails the first, second, third ... call of every driver function that the
 * shim knows, one process each, until a run sees no failure. In each run a
 * small program allocates, launches, captures, frees and ends; every call must
 * answer success, the injected code or out of memory. Then, with no failure
 * left, calls must work again, the data must be right, the judge silent, and
 * after the context's end the driver's books must be empty.
 *
 * The list of functions is api.def itself. Run under the preload, on the
 * simulated driver.
 */
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

static int injected; /* the code of this run */
static int n_bad;

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
	CUcontext ctx;
	CUstream stream;
	CUfunction fill;
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

static void take_all(struct program *p)
{
	size_t pitch;

	for (int i = 0; i < N_SMALL; i++) {
		if (p->small[i])
			continue;
		if (!WORKS(cuMemAlloc(&p->small[i], 512u << i % 12)))
			p->small[i] = 0;
		else
			fill(p, p->small[i], (uint32_t)i, 128);
	}
	for (int i = 0; i < N_LARGE; i++) {
		if (p->large[i])
			continue;
		if (!WORKS(cuMemAlloc(&p->large[i], (2 + i * 5) * MiB)))
			p->large[i] = 0;
		else
			fill(p, p->large[i], (uint32_t)i, 1024);
	}
	if (!p->pitched &&
	    !WORKS(cuMemAllocPitch(&p->pitched, &pitch, 1000, 10, 4)))
		p->pitched = 0;
}

static void give(CUdeviceptr *p)
{
	if (*p && WORKS(cuMemFree(*p)))
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
	if (WORKS(cuMemAlloc(&q, 3 * MiB)))
		give(&q);
	if (WORKS(cuStreamEndCapture(p->stream, &graph)))
		(void)WORKS(cuGraphDestroy(graph));
	else if (WORKS(cuStreamDestroy(p->stream)))
		p->stream = NULL;
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

	take_all(p);
	give_all(p, 2);
	take_all(p);
	capture(p);
	(void)WORKS(cuMemGetInfo(&free_bytes, &total));
	give_all(p, 3);
	(void)WORKS(cuCtxSynchronize());
	take_all(p);
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

/* One run; its exit status: 0 no failure was met, 3 one was, else wrong. */
static int run(const char *function, unsigned long n, int code)
{
	struct program p = {0};
	struct sim_books books;
	unsigned long n_failures;
	CUdevice device;

	injected = code;
	sim_fail(function, n, code);
	if (start(&p))
		act(&p);
	n_failures = sim_failures();
	sim_fail_clear();
	if (!p.ctx) {
		TRY(cuInit(0));
		TRY(cuDeviceGet(&device, 0));
		TRY(cuDevicePrimaryCtxRetain(&p.ctx, device));
	}
	TRY(cuCtxSetCurrent(p.ctx));
	recover(&p);
	TRY(cuCtxSetCurrent(NULL));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxReset(device));
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

int main(int argc, char **argv)
{
	unsigned long n_runs = 0, n_wrong = 0;

	if (argc > 2)
		return run(argv[1], strtoul(argv[2], NULL, 0),
			   argc > 3 ? atoi(argv[3]) : codes[0]);
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		if (argc > 1 && strcmp(argv[1], functions[i]))
			continue;
		for (size_t c = 0; c < 2; c++) {
			int met = 1;

			for (unsigned long n = 1; met && n <= MOST_FAILURES;
			     n++) {
				met = run_apart(functions[i], n, codes[c]);
				n_runs++;
				if (met >= 0)
					continue;
				n_wrong++;
				met = 1;
			}
		}
	}
	printf("torture: %lu runs, %lu wrong\n", n_runs, n_wrong);
	return n_wrong > 0;
}
