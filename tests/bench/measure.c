/* SPDX-License-Identifier: MIT
 *
 * measure: one measurement of tests/gpu/bench, in a process of its own.
 *
 *   measure ALLOCATOR SECONDS WHAT [ARG...]
 *
 * ALLOCATOR: malloc, that is cuMemAlloc (of the driver, or of the shim if it
 * is preloaded), or async: cuMemAllocAsync, release threshold at maximum. Each
 * result takes about SECONDS, is a line of KEY=VALUE and appears at once.
 *
 *   pair SIZE...     ns of an allocation and its free, idle GPU
 *   churn SEED       ns of a free and an allocation: 64 live blocks of random
 *                    sizes, the GPU busy on two streams
 *   free             ns of a free while a 100 ms kernel runs
 *   threads SIZE N...  pairs a second of N threads together
 *   first SIZE...    ns of one allocation each; nothing is freed
 *   bandwidth SIZE   bytes a second of a copy and of a random gather
 *   ptx              prints the kernels (for rivals.py)
 */
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure_ptx.h"
#include "timed.h"

#define N_REPEATS 9
#define MAX_THREADS 256
#define MAX_SAMPLES 100000

static CUcontext ctx;
static CUdevice device;
static bool is_async;
static double seconds;

static CUdeviceptr alloc(size_t size, CUstream stream)
{
	CUdeviceptr p;
	CUresult r;

	if (is_async) {
		r = cuMemAllocAsync(&p, size, stream);
		/* the simulator reuses nothing before it is complete */
		if (r == CUDA_ERROR_OUT_OF_MEMORY) {
			TRY(cuStreamSynchronize(stream));
			r = cuMemAllocAsync(&p, size, stream);
		}
		try(r, "cuMemAllocAsync");
	} else {
		TRY(cuMemAlloc(&p, size));
	}
	return p;
}

static void release(CUdeviceptr p, CUstream stream)
{
	if (is_async)
		TRY(cuMemFreeAsync(p, stream));
	else
		TRY(cuMemFree(p));
}

static CUstream new_stream(void)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static CUfunction kernel(const char *ptx, const char *name)
{
	CUmodule module;
	CUfunction function;

	TRY(cuModuleLoadData(&module, ptx));
	TRY(cuModuleGetFunction(&function, module, name));
	return function;
}

static double sort_median(double *v, size_t n)
{
	sort_times(v, n);
	return v[n / 2];
}

/* ---- pair ------------------------------------------------------------ */

static long batch_size; /* pairs between two looks at the clock */

static void pairs(size_t size, CUstream stream, long n)
{
	while (n--)
		release(alloc(size, stream), stream);
}

static double ns_a_pair(size_t size, CUstream stream, double ns)
{
	double start = now(), end;
	long n = 0;

	do {
		pairs(size, stream, batch_size);
		n += batch_size;
		end = now();
	} while (end - start < ns);
	return (end - start) / (double)n;
}

static void measure_pair(const char *text)
{
	size_t size = strtoull(text, NULL, 10);
	CUstream stream = new_stream();
	double v[N_REPEATS], start;

	pairs(size, stream, 3);
	for (batch_size = 1; batch_size < 1 << 20; batch_size *= 2) {
		start = now();
		pairs(size, stream, batch_size);
		if (now() - start > 20000)
			break;
	}
	for (int i = 0; i < N_REPEATS; i++)
		v[i] = ns_a_pair(size, stream, seconds * 1e9 / N_REPEATS);
	sort_median(v, N_REPEATS);
	printf("pair=%zu ns=%.1f low=%.1f high=%.1f\n", size, v[N_REPEATS / 2],
	       v[0], v[N_REPEATS - 1]);
	TRY(cuStreamSynchronize(stream));
	TRY(cuStreamDestroy(stream));
}

/* ---- churn ----------------------------------------------------------- */

#define N_SLOTS 64
#define MIN_BLOCK 4096.0
#define MAX_BLOCK 67108864.0
/* The host is at most N_BATCHES * BATCH blocks ahead of the GPU. */
#define BATCH 32
#define N_BATCHES 4

struct slot {
	CUdeviceptr p;
	CUstream stream;
};

static uint64_t random_state;

static uint32_t next_random(void)
{
	random_state = random_state * 6364136223846793005u + 1;
	return (uint32_t)(random_state >> 32);
}

static size_t random_size(void)
{
	double u = next_random() / 4294967296.0;

	return (size_t)(MIN_BLOCK * pow(MAX_BLOCK / MIN_BLOCK, u)) & ~3ull;
}

/* Real work on a block: 10 us, then all of it is written. */
static void touch(CUfunction sleep, CUdeviceptr p, size_t size, uint64_t ns,
		  CUstream stream)
{
	uint32_t value = 1;
	uint64_t n_words = size / 4;
	void *args[] = {&ns, &p, &value, &n_words};

	TRY(cuLaunchKernel(sleep, 64, 1, 1, 256, 1, 1, 0, stream, args, NULL));
}

/* Replaces the block of one slot; returns the time of its free and alloc. */
static double replace(struct slot *slot, CUfunction sleep, CUstream stream)
{
	size_t size = random_size();
	double start = now(), ns;

	if (slot->p)
		release(slot->p, slot->stream);
	slot->p = alloc(size, stream);
	ns = now() - start;
	slot->stream = stream;
	touch(sleep, slot->p, size, 10000, stream);
	return ns;
}

struct churn {
	struct slot slots[N_SLOTS];
	CUstream streams[2];
	CUevent done[N_BATCHES][2];
	CUfunction sleep;
	long n_batches;
};

/* BATCH blocks are replaced; their times go to v. */
static void churn_batch(struct churn *c, double *v)
{
	int turn = (int)(c->n_batches++ % N_BATCHES);

	for (int i = 0; i < 2; i++)
		TRY(cuEventSynchronize(c->done[turn][i]));
	for (int i = 0; i < BATCH; i++)
		v[i] = replace(&c->slots[next_random() % N_SLOTS], c->sleep,
			       c->streams[next_random() % 2]);
	for (int i = 0; i < 2; i++)
		TRY(cuEventRecord(c->done[turn][i], c->streams[i]));
}

static void churn_start(struct churn *c)
{
	c->sleep = kernel(vs_kernels_ptx, "vs_sleep");
	for (int i = 0; i < 2; i++)
		c->streams[i] = new_stream();
	for (int i = 0; i < N_BATCHES * 2; i++)
		TRY(cuEventCreate(&c->done[i / 2][i % 2],
				  CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < N_SLOTS; i++)
		replace(&c->slots[i], c->sleep, c->streams[i % 2]);
}

static void measure_churn(const char *seed)
{
	static struct churn c;
	static double v[MAX_SAMPLES + BATCH];
	double means[N_REPEATS], start, sum;
	size_t n;

	random_state = strtoull(seed, NULL, 10);
	churn_start(&c);
	/* the first turn is a rehearsal */
	for (int i = -1; i < N_REPEATS; i++) {
		sum = 0;
		n = 0;
		start = now();
		do {
			churn_batch(&c, &v[n]);
			for (int j = 0; j < BATCH; j++)
				sum += v[n++];
		} while (now() - start < seconds * 1e9 / N_REPEATS &&
			 n < MAX_SAMPLES);
		if (i >= 0)
			means[i] = sum / (double)n;
	}
	sort_median(means, N_REPEATS);
	sort_median(v, n);
	printf("churn=%s ns=%.1f low=%.1f high=%.1f pairs=%zu median=%.1f "
	       "p99=%.1f most=%.1f\n",
	       seed, means[N_REPEATS / 2], means[0], means[N_REPEATS - 1], n,
	       v[n / 2], v[n * 99 / 100], v[n - 1]);
	TRY(cuCtxSynchronize());
}

/* ---- free under a kernel --------------------------------------------- */

#define N_UNDER 40 /* blocks to be freed under one kernel */

/*
 * All blocks are used by work behind the kernel. Samples are taken while it
 * runs: a free that waits for it is one, those after it are not.
 */
static size_t frees_under(CUfunction sleep, CUstream stream, double *v)
{
	static const size_t sizes[] = {4096, 1 << 20, 16 << 20, 64 << 20};
	CUdeviceptr p[N_UNDER], held = alloc(4096, stream);
	size_t n = 0;
	int i;

	for (i = 0; i < N_UNDER; i++)
		p[i] = alloc(sizes[i % 4], stream);
	touch(sleep, held, 4096, 100000000, stream);
	for (i = 0; i < N_UNDER; i++)
		touch(sleep, p[i], 4096, 0, stream);
	for (i = 0; i < N_UNDER; i++) {
		bool busy = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
		double start = now();

		release(p[i], stream);
		if (busy)
			v[n++] = now() - start;
	}
	release(held, stream);
	TRY(cuStreamSynchronize(stream));
	return n;
}

static void measure_free(void)
{
	static double v[MAX_SAMPLES + N_UNDER];
	CUfunction sleep = kernel(vs_kernels_ptx, "vs_sleep");
	CUstream stream = new_stream();
	double start;
	size_t n = 0;

	frees_under(sleep, stream, v);
	start = now();
	do
		n += frees_under(sleep, stream, &v[n]);
	while (now() - start < seconds * 1e9 && n < MAX_SAMPLES);
	sort_median(v, n);
	printf("free=1 ns=%.1f median=%.1f most=%.1f frees=%zu\n",
	       v[n * 99 / 100], v[n / 2], v[n - 1], n);
}

/* ---- threads --------------------------------------------------------- */

static pthread_barrier_t barrier;
static bool stop;
static size_t thread_size;

static void *thread(void *arg)
{
	long n = 0, *result = arg;
	CUstream stream;

	TRY(cuCtxSetCurrent(ctx));
	stream = new_stream();
	pairs(thread_size, stream, 3);
	pthread_barrier_wait(&barrier);
	do {
		pairs(thread_size, stream, 4);
		n += 4;
	} while (!__atomic_load_n(&stop, __ATOMIC_RELAXED));
	*result = n;
	pthread_barrier_wait(&barrier);
	TRY(cuStreamSynchronize(stream));
	TRY(cuStreamDestroy(stream));
	return NULL;
}

static void rest(double ns)
{
	struct timespec t = {(time_t)(ns / 1e9), (long)fmod(ns, 1e9)};

	nanosleep(&t, NULL);
}

/* Pairs a second of n threads together. */
static double threads_rate(int n, double ns)
{
	pthread_t t[MAX_THREADS];
	long pairs_of[MAX_THREADS], sum = 0;
	double start, end;

	pthread_barrier_init(&barrier, NULL, (unsigned)n + 1);
	__atomic_store_n(&stop, false, __ATOMIC_RELAXED);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t[i], NULL, thread, &pairs_of[i]))
			exit(1);
	pthread_barrier_wait(&barrier);
	start = now();
	rest(ns);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_barrier_wait(&barrier);
	end = now();
	for (int i = 0; i < n; i++) {
		pthread_join(t[i], NULL);
		sum += pairs_of[i];
	}
	pthread_barrier_destroy(&barrier);
	return (double)sum / (end - start) * 1e9;
}

static void measure_threads(const char *text)
{
	int n = atoi(text);
	double v[3];

	if (n < 1 || n > MAX_THREADS)
		exit(2);
	for (int i = 0; i < 3; i++)
		v[i] = threads_rate(n, seconds * 1e9 / 3);
	sort_median(v, 3);
	printf("threads=%d size=%zu rate=%.0f low=%.0f high=%.0f\n", n,
	       thread_size, v[1], v[0], v[2]);
}

/* ---- first ----------------------------------------------------------- */

static void measure_first(const char *text)
{
	size_t size = strtoull(text, NULL, 10);
	double start = now();

	alloc(size, NULL);
	printf("first=%zu ns=%.0f\n", size, now() - start);
}

/* ---- bandwidth ------------------------------------------------------- */

/* Median bytes a second of a kernel that moves so many. */
static double bytes_a_second(CUfunction f, void **args, double bytes)
{
	double v[N_REPEATS];
	CUevent before, after;
	float ms;

	TRY(cuEventCreate(&before, CU_EVENT_DEFAULT));
	TRY(cuEventCreate(&after, CU_EVENT_DEFAULT));
	for (int i = -1; i < N_REPEATS; i++) {
		TRY(cuEventRecord(before, NULL));
		TRY(cuLaunchKernel(f, 132 * 16, 1, 1, 256, 1, 1, 0, NULL, args,
				   NULL));
		TRY(cuEventRecord(after, NULL));
		TRY(cuEventSynchronize(after));
		TRY(cuEventElapsedTime(&ms, before, after));
		if (i >= 0)
			v[i] = bytes / ((double)ms / 1e3);
	}
	return sort_median(v, N_REPEATS);
}

static void measure_bandwidth(const char *text)
{
	uint64_t size = strtoull(text, NULL, 10), n_vectors, mask, n_words;
	size_t free_bytes, total;
	CUdeviceptr p, half, out = alloc(4096, NULL);
	void *copy[] = {&half, &p, &n_vectors};
	void *gather[] = {&p, &mask, &n_words, &out};

	TRY(cuMemGetInfo(&free_bytes, &total));
	while (size > free_bytes / 10 * 9)
		size /= 2;
	p = alloc(size, NULL);
	half = p + size / 2;
	n_vectors = size / 2 / 16;
	mask = size / 4 - 1;
	n_words = size / 4 < 1u << 28 ? size / 4 : 1u << 28;
	TRY(cuMemsetD32(p, 1, size / 4));
	printf("copy=%llu rate=%.4g\n", (unsigned long long)size,
	       bytes_a_second(kernel(measure_ptx, "vs_copy16"), copy,
			      (double)size));
	printf("gather=%llu rate=%.4g\n", (unsigned long long)size,
	       bytes_a_second(kernel(measure_ptx, "vs_gather"), gather,
			      (double)n_words * 4));
}

/* ---------------------------------------------------------------------- */

static void start_driver(void)
{
	CUmemoryPool pool;
	cuuint64_t most = UINT64_MAX;

	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	if (!is_async)
		return;
	TRY(cuDeviceGetDefaultMemPool(&pool, device));
	TRY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				  &most));
}

static void each(int n, char **args, void (*measure)(const char *))
{
	for (int i = 0; i < n; i++)
		measure(args[i]);
}

int main(int argc, char **argv)
{
	const char *what = argc > 3 ? argv[3] : "";
	int n = argc - 4;
	char **args = argv + 4;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && strcmp(argv[1], "ptx") == 0) {
		fputs(vs_kernels_ptx, stdout);
		return 0;
	}
	is_async = argc > 1 && strcmp(argv[1], "async") == 0;
	seconds = argc > 2 ? atof(argv[2]) : 0;
	start_driver();
	if (strcmp(what, "pair") == 0) {
		each(n, args, measure_pair);
	} else if (strcmp(what, "churn") == 0) {
		each(n, args, measure_churn);
	} else if (strcmp(what, "free") == 0) {
		measure_free();
	} else if (strcmp(what, "threads") == 0 && n > 1) {
		thread_size = strtoull(args[0], NULL, 10);
		each(n - 1, args + 1, measure_threads);
	} else if (strcmp(what, "first") == 0) {
		each(n, args, measure_first);
	} else if (strcmp(what, "bandwidth") == 0) {
		each(n, args, measure_bandwidth);
	} else {
		fprintf(stderr,
			"usage: measure malloc|async SECONDS pair|churn|free|"
			"threads|first|bandwidth [ARG...]\n");
		return 2;
	}
	return 0;
}
