/* SPDX-License-Identifier: MIT
 *
 * victim_depth: threads with a small stack, as fibres and coroutines have, that
 * allocate and free in many ways; and how much of the stack is in use when the
 * driver is called, and was ever written beyond what an idle thread has.
 * victim_depth show: how much, of each.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "victim_link.h"

/* Bytes: at a call of the driver; written. Of them 0.3 and 3 without the shim.
 */
#ifdef __OPTIMIZE__
#define MOST_AT_CALL (3 * KiB)
#define MOST_WRITTEN (5 * KiB)
#else
#define MOST_AT_CALL STACK /* frames are as large as they like */
#define MOST_WRITTEN STACK
#endif
#ifdef __aarch64__
#define STACK (128 * KiB) /* the least that the C library takes */
#else
#define STACK (16 * KiB)
#endif
#define PAINT 0x5c
#define N_BLOCKS 3000

static CUcontext ctx, other;
static CUdeviceptr block[N_BLOCKS];
static char *stack;
static __thread const char *top; /* of a thread that is watched */
static size_t deepest;

static void nothing(void)
{
}

static void start(void)
{
	ctx = victim_start(0);
}

static void take_small(void)
{
	for (unsigned i = 0; i < N_BLOCKS; i++)
		block[i] = victim_alloc(100 + (size_t)i * 100);
}

static void small(void)
{
	TRY(cuCtxSetCurrent(ctx));
	take_small();
	for (unsigned i = 0; i < N_BLOCKS; i++) {
		TRY(cuMemsetD8Async(block[i], 1, 10, NULL));
		victim_free(block[i]);
	}
}

/* Until nothing is left of the device. */
static unsigned fill(size_t size, size_t vary)
{
	unsigned n = 0;

	while (n < N_BLOCKS &&
	       cuMemAlloc(&block[n], size + n % 37 * vary) == CUDA_SUCCESS)
		n++;
	return n;
}

static void large(void)
{
	TRY(cuCtxSetCurrent(ctx));
	for (unsigned round = 0; round < 4; round++) {
		unsigned n = fill((1 + round) * MiB, MiB);

		for (unsigned i = 0; i < n; i += 2)
			TRY(cuMemFree(block[i]));
		for (unsigned i = 1; i < n; i += 2)
			TRY(cuMemFree(block[i]));
	}
}

static void full(void)
{
	unsigned n;

	TRY(cuCtxSetCurrent(ctx));
	n = fill(64 * MiB, 0);
	while (n < N_BLOCKS && cuMemAlloc(&block[n], 1000) == CUDA_SUCCESS)
		n++;
	for (unsigned i = 0; i < n; i++)
		TRY(cuMemFree(block[i]));
}

static void capture(void)
{
	CUstream stream;

	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	for (unsigned i = 0; i < 200; i++)
		block[i] = victim_alloc(1000 * (size_t)i + 1);
	for (unsigned i = 0; i < 200; i++)
		victim_free(block[i]);
	victim_end_capture(stream);
	TRY(cuStreamDestroy(stream));
}

static void elsewhere_made(void)
{
	TRY(cuCtxCreate_v2(&other, 0, 0));
	take_small();
}

/* By a thread without a cache of theirs, under another context. */
static void elsewhere_freed(void)
{
	TRY(cuCtxSetCurrent(ctx));
	for (unsigned i = 0; i < N_BLOCKS; i++)
		victim_free(block[i]);
}

/* It goes with its context. */
static void leave(CUdeviceptr *p, size_t size)
{
	TRY(cuMemAlloc(p, size));
}

static void context(void)
{
	CUcontext brief;

	TRY(cuCtxCreate_v2(&brief, 0, 0));
	leave(&block[0], 3 * MiB);
	leave(&block[1], 3000);
	TRY(cuMemsetD8Async(block[0], 1, 10, NULL));
	TRY(cuCtxDestroy(brief));
}

static void queries(void)
{
	CUipcMemHandle handle;
	CUdeviceptr base;
	size_t size, available;

	TRY(cuCtxSetCurrent(ctx));
	block[0] = victim_alloc(5 * MiB);
	TRY(cuMemGetAddressRange(&base, &size, block[0]));
	TRY(cuMemGetInfo(&available, &size));
	TRY(cuIpcGetMemHandle(&handle, block[0]));
	TRY(cuMemcpyDtoD(block[0], block[0] + MiB, 100));
	TRY(cuCtxSynchronize());
	victim_free(block[0]);
}

static void reset(void)
{
	TRY(cuCtxSetCurrent(ctx));
	leave(&block[0], 3 * MiB);
	leave(&block[1], 3000);
	TRY(cuDevicePrimaryCtxReset(0));
}

static const struct job {
	const char *name;
	void (*run)(void);
} jobs[] = {
	{"nothing", nothing},
	{"start", start},
	{"small", small},
	{"large", large},
	{"full", full},
	{"small again", small},
	{"capture", capture},
	{"elsewhere, made", elsewhere_made},
	{"elsewhere, freed", elsewhere_freed},
	{"context", context},
	{"queries", queries},
	{"reset", reset},
};

#define N_JOBS (sizeof(jobs) / sizeof(jobs[0]))

/* The simulator's, before each call. */
static void hear(const char *call)
{
	char here;

	(void)call;
	if (top && (size_t)(top - &here) > deepest)
		deepest = (size_t)(top - &here);
}

static void *run(void *job)
{
	char here;

	top = &here;
	((const struct job *)job)->run();
	return NULL;
}

/* Returns how many bytes of its stack were written. */
static size_t watch(const struct job *job)
{
	pthread_attr_t attributes;
	pthread_t thread;
	size_t clean = 0;

	memset(stack, PAINT, STACK);
	deepest = 0;
	CHECK(!pthread_attr_init(&attributes));
	CHECK(!pthread_attr_setstack(&attributes, stack, STACK));
	CHECK(!pthread_create(&thread, &attributes, run, (void *)job));
	CHECK(!pthread_join(thread, NULL));
	while (clean < STACK && stack[clean] == PAINT)
		clean++;
	return STACK - clean;
}

int main(int argc, char **argv)
{
	bool is_shown = argc > 1 && strcmp(argv[1], "show") == 0;
	size_t idle = 0, written;

	stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stack != MAP_FAILED);
	sim_client_on_call(hear);
	for (size_t i = 0; i < N_JOBS; i++) {
		written = watch(&jobs[i]);
		if (i == 0)
			idle = written;
		if (is_shown)
			printf("%s: %zu, %zu\n", jobs[i].name, deepest,
			       written - idle);
		else if (deepest <= MOST_AT_CALL &&
			 written - idle <= MOST_WRITTEN)
			printf("%s: little\n", jobs[i].name);
		else
			printf("%s: %zu bytes, %zu in all\n", jobs[i].name,
			       deepest, written - idle);
	}
	return 0;
}
