/* SPDX-License-Identifier: MIT
 *
 * pairs: nanoseconds of one operation, for tests/bench/bench.
 *   pairs pair SIZE ROUNDS        cuMemAlloc + cuMemFree, one thread
 *   pairs threads N SIZE ROUNDS   the same in N threads; over all of them
 *   pairs burst SIZE ROUNDS       64 allocations, then 64 frees; a pair
 *   pairs query SIZE ROUNDS       cuMemGetAddressRange of an interior pointer
 *   pairs copy SIZE ROUNDS        cuMemcpyDtoD of a byte of two blocks
 *   pairs beside SIZE ROUNDS      the same, and there is another context
 *   pairs launch SIZE ROUNDS      cuGraphLaunch, and there is another context
 *   pairs work SIZE ROUNDS        a pair, then cuMemsetD8Async of a byte
 *   pairs cold SIZE ROUNDS        a pair of a size near it, 64 others live, the
 *                                 core's caches emptied before either call, as
 *                                 by a program that does something in between
 *   pairs dlsym ROUNDS            dlsym of a name that is not the driver's
 */
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timed.h"

/* Every driver has this one, whichever cuda.h means by cuCtxCreate. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags,
				CUdevice device);

#define N_BURST 64
#define MAX_THREADS 256

static CUcontext ctx;
static size_t size;
static long rounds;
static pthread_barrier_t barrier;

static void pair_rounds(long n)
{
	CUdeviceptr p;

	while (n--) {
		TRY(cuMemAlloc(&p, size));
		TRY(cuMemFree(p));
	}
}

static void burst_rounds(long n)
{
	CUdeviceptr p[N_BURST];

	while (n--) {
		for (int i = 0; i < N_BURST; i++)
			TRY(cuMemAlloc(&p[i], size));
		for (int i = 0; i < N_BURST; i++)
			TRY(cuMemFree(p[i]));
	}
}

static void query_rounds(long n)
{
	CUdeviceptr p, base;
	size_t range;

	TRY(cuMemAlloc(&p, size));
	while (n--)
		TRY(cuMemGetAddressRange(&base, &range, p + size / 2));
	TRY(cuMemFree(p));
}

static void copy_rounds(long n)
{
	CUdeviceptr p, q;

	TRY(cuMemAlloc(&p, size));
	TRY(cuMemAlloc(&q, size));
	while (n--)
		TRY(cuMemcpyDtoD(p, q, 1));
	TRY(cuMemFree(p));
	TRY(cuMemFree(q));
}

static void make_other_context(void)
{
	CUdevice device;
	CUcontext other;

	TRY(cuCtxGetDevice(&device));
	TRY(cuCtxCreate_v2(&other, 0, device));
	TRY(cuCtxSetCurrent(ctx));
}

static void launch_rounds(long n)
{
	CUgraph graph;
	CUgraphExec exec;
	CUstream stream;
	CUdeviceptr p;

	TRY(cuMemAlloc(&p, size));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuGraphCreate(&graph, 0));
	TRY(cuGraphInstantiate(&exec, graph, 0));
	while (n--)
		TRY(cuGraphLaunch(exec, stream));
	TRY(cuGraphExecDestroy(exec));
	TRY(cuGraphDestroy(graph));
	TRY(cuStreamDestroy(stream));
	TRY(cuMemFree(p));
}

/* As a framework that caches nothing: something is freed before each launch. */
static void work_rounds(long n)
{
	CUdeviceptr p, q;

	TRY(cuMemAlloc(&q, size));
	while (n--) {
		TRY(cuMemAlloc(&p, size));
		TRY(cuMemFree(p));
		TRY(cuMemsetD8Async(q, 0, 1, NULL));
	}
	TRY(cuMemFree(q));
}

/*
 * More than the caches and TLBs of one core hold, of data and of code, a line
 * each: what is left is in the cache that all share.
 */
#define COLD_DATA ((size_t)4 << 20)
#define COLD_CODE 16384
#define LINE 64
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)

__asm__(".pushsection .text\n"
	".p2align 6\n"
	"cold_code:\n"
	".rept " TEXT(COLD_CODE) "\n"
				 "ret\n"
				 ".p2align 6\n"
				 ".endr\n"
				 ".popsection\n");
extern const char cold_code[];
static char cold_data[COLD_DATA];

static void empty_caches(void)
{
	for (size_t i = 0; i < COLD_DATA; i += LINE)
		cold_data[i]++;
	for (size_t i = 0; i < COLD_CODE; i++)
		((void (*)(void))(uintptr_t)(cold_code + i * LINE))();
	(void)now(); /* whose own code counts for nothing then */
}

/* The mean of the middle half: some calls have markers to record, or wait. */
static double middle(double *took, long n)
{
	double sum = 0;

	sort_times(took, (size_t)n);
	for (long i = n / 4; i < n - n / 4; i++)
		sum += took[i];
	return sum / (double)(n - n / 4 - n / 4);
}

static double cold_rounds(void)
{
	double *alloc = calloc((size_t)rounds, sizeof(*alloc)), start;
	double *free = calloc((size_t)rounds, sizeof(*free));
	CUdeviceptr p[N_BURST];
	unsigned seed = 1;

	if (!alloc || !free)
		exit(1);
	for (int i = 0; i < N_BURST; i++)
		TRY(cuMemAlloc(&p[i], size / 2 + size / N_BURST * i));
	for (long i = 0; i < rounds; i++) {
		int j = rand_r(&seed) % N_BURST;
		size_t next = size / 2 + size / 256 * (rand_r(&seed) % 256);

		empty_caches();
		start = now();
		TRY(cuMemFree(p[j]));
		free[i] = now() - start;
		empty_caches();
		start = now();
		TRY(cuMemAlloc(&p[j], next));
		alloc[i] = now() - start;
	}
	return middle(alloc, rounds) + middle(free, rounds);
}

static void dlsym_rounds(long n)
{
	void *volatile found;

	while (n--)
		found = dlsym(RTLD_DEFAULT, "printf");
	(void)found;
}

/* Nanoseconds a round. */
static double timed(void (*work)(long))
{
	double start;

	work(rounds < 20 ? rounds : rounds / 20);
	start = now();
	work(rounds);
	return (now() - start) / (double)rounds;
}

static void *thread(void *arg)
{
	(void)arg;
	TRY(cuCtxSetCurrent(ctx));
	pair_rounds(rounds / 20 + 1);
	pthread_barrier_wait(&barrier);
	pair_rounds(rounds);
	pthread_barrier_wait(&barrier);
	return NULL;
}

static double threads(int n)
{
	pthread_t t[MAX_THREADS];
	double start, end;

	if (n < 1 || n > MAX_THREADS)
		n = 1;
	pthread_barrier_init(&barrier, NULL, (unsigned)n + 1);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, thread, NULL))
			exit(1);
	pthread_barrier_wait(&barrier);
	start = now();
	pthread_barrier_wait(&barrier);
	end = now();
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	return (end - start) / ((double)rounds * n);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	CUdevice device;
	double ns;

	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	size = argc > 3 ? strtoull(argv[argc - 2], NULL, 10) : 0;
	rounds = argc > 2 ? strtol(argv[argc - 1], NULL, 10) : 0;
	if (rounds < 1)
		what = "";
	if (strcmp(what, "pair") == 0)
		ns = timed(pair_rounds);
	else if (strcmp(what, "burst") == 0)
		ns = timed(burst_rounds) / N_BURST;
	else if (strcmp(what, "query") == 0)
		ns = timed(query_rounds);
	else if (strcmp(what, "copy") == 0)
		ns = timed(copy_rounds);
	else if (strcmp(what, "beside") == 0) {
		make_other_context();
		ns = timed(copy_rounds);
	} else if (strcmp(what, "launch") == 0) {
		make_other_context();
		ns = timed(launch_rounds);
	} else if (strcmp(what, "work") == 0)
		ns = timed(work_rounds);
	else if (strcmp(what, "cold") == 0)
		ns = cold_rounds();
	else if (strcmp(what, "dlsym") == 0)
		ns = timed(dlsym_rounds);
	else if (strcmp(what, "threads") == 0 && argc > 4)
		ns = threads(atoi(argv[2]));
	else {
		fprintf(stderr, "usage: pairs pair|burst|query|copy|beside|"
				"launch|work|cold SIZE ROUNDS | "
				"threads N SIZE ROUNDS | dlsym ROUNDS\n");
		return 2;
	}
	printf("%.1f\n", ns);
	return 0;
}
