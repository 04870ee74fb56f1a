/* SPDX-License-Identifier: MIT
 *
 * churn [ROUNDS [PAUSE_MS]]
 *
 * Takes and gives device memory all the time, as a server does whose requests
 * have every size: each block is filled by a kernel, checked by another when
 * its turn is over, and freed while that check is still queued. An ordinary
 * program of the driver API; it knows nothing of the shim.
 *
 * With PAUSE_MS it rests after the rounds, half of its blocks live, and then
 * goes on for a while. Results go to standard output, times to standard error.
 */
#include <cuda.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "kernels_ptx.h"

#define N_SLOTS 48
#define N_STREAMS 3

struct slot {
	CUdeviceptr p; /* 0: empty */
	uint64_t n_words;
	uint32_t value;
};

static struct slot slots[N_SLOTS];
static CUstream streams[N_STREAMS];
static CUfunction fill_kernel, check_kernel;
static CUdeviceptr n_wrong; /* a counter on the device */
static uint64_t random_state = 42;
static uint64_t n_blocks, n_bytes, live_bytes, live_high;
static double alloc_us, free_us;

static void try(CUresult result, const char *what)
{
	const char *name = "unknown error";

	if (result == CUDA_SUCCESS)
		return;
	cuGetErrorName(result, &name);
	fprintf(stderr, "churn: %s: %s\n", what, name);
	exit(1);
}
#define TRY(call) try(call, #call)

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint32_t next_random(void)
{
	random_state = random_state * UINT64_C(6364136223846793005) + 1;
	return (uint32_t)(random_state >> 33);
}

/* 512 bytes to 16 MiB, each power of two as likely as the others. */
static uint64_t next_words(void)
{
	uint64_t words = UINT64_C(128) << next_random() % 15;

	return words + next_random() % words;
}

static void launch(CUfunction kernel, CUstream stream, void **arguments)
{
	TRY(cuLaunchKernel(kernel, 64, 1, 1, 256, 1, 1, 0, stream, arguments,
			   NULL));
}

/* The check is queued; the free comes at once. */
static void give(int k)
{
	struct slot *s = &slots[k];
	void *arguments[] = {&s->p, &s->value, &s->n_words, &n_wrong};
	double start;

	if (!s->p)
		return;
	launch(check_kernel, streams[k % N_STREAMS], arguments);
	start = now_us();
	TRY(cuMemFree(s->p));
	free_us += now_us() - start;
	live_bytes -= s->n_words * 4;
	s->p = 0;
}

static void take(int k)
{
	struct slot *s = &slots[k];
	void *arguments[] = {&s->p, &s->value, &s->n_words};
	double start;

	s->n_words = next_words();
	s->value = next_random();
	start = now_us();
	TRY(cuMemAlloc(&s->p, s->n_words * 4));
	alloc_us += now_us() - start;
	launch(fill_kernel, streams[k % N_STREAMS], arguments);
	n_blocks++;
	n_bytes += s->n_words * 4;
	live_bytes += s->n_words * 4;
	live_high = live_bytes > live_high ? live_bytes : live_high;
}

/* A signal that is handled ends a sleep early: sleep on. */
static void rest(long ms)
{
	double end = now_us() + (double)ms * 1e3;

	while (now_us() < end)
		usleep(10000);
}

static void rounds(long n)
{
	while (n-- > 0) {
		int k = (int)(next_random() % N_SLOTS);

		give(k);
		take(k);
	}
}

static void start(void)
{
	CUdevice device;
	CUcontext ctx;
	CUmodule module;

	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuModuleLoadData(&module, vs_kernels_ptx));
	TRY(cuModuleGetFunction(&fill_kernel, module, "vs_fill"));
	TRY(cuModuleGetFunction(&check_kernel, module, "vs_check"));
	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	TRY(cuMemAlloc(&n_wrong, sizeof(uint64_t)));
	TRY(cuMemsetD8(n_wrong, 0, sizeof(uint64_t)));
	TRY(cuCtxSynchronize());
}

static long number(const char *text, long least)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < least) {
		fprintf(stderr, "churn: not a number from %ld on: %s\n", least,
			text);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	long n = argc > 1 ? number(argv[1], 1) : 3000;
	long pause_ms = argc > 2 ? number(argv[2], 0) : 0;
	uint64_t wrong = 0;
	double begin;

	start();
	begin = now_us();
	rounds(n);
	TRY(cuCtxSynchronize());
	fprintf(stderr,
		"%ld rounds in %.0f ms; cuMemAlloc %.2f us, cuMemFree %.2f us "
		"on average\n",
		n, (now_us() - begin) / 1e3, alloc_us / (double)n_blocks,
		free_us / (double)n_blocks);
	if (pause_ms > 0) {
		for (int k = 0; k < N_SLOTS; k += 2)
			give(k);
		TRY(cuCtxSynchronize());
		fprintf(stderr, "resting\n");
		rest(pause_ms);
		rounds(n / 10);
	}
	for (int k = 0; k < N_SLOTS; k++)
		give(k);
	TRY(cuCtxSynchronize());
	TRY(cuMemcpyDtoH(&wrong, n_wrong, sizeof(wrong)));
	TRY(cuMemFree(n_wrong));
	printf("%" PRIu64 " blocks, %" PRIu64 " MiB in all, %" PRIu64
	       " MiB at once at most, %" PRIu64 " wrong words\n",
	       n_blocks, n_bytes >> 20, live_high >> 20, wrong);
	return wrong != 0;
}
