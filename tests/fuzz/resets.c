/* SPDX-License-Identifier: MIT
 *
 * resets [--seed S] [ROUNDS]
 *
 * Contexts die over and over with memory live and with memory freed under
 * unfinished work: created ones of several threads, and the primary one of the
 * first, by reset and by release, while another context of the device lives on
 * in half of the rounds. Then each thread retains and releases the primary one
 * as it likes, so that it dies when none happens to have it. What lives on must
 * keep its bytes, nothing may be left in the driver's books, and the judge must
 * be silent.
 *
 * Run under the preload, on the simulated driver (resets.test).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../e2e/victim_link.h"
#include "../sim/sim.h"

enum { N_THREADS = 3, N_BLOCKS = 12 };

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);

static CUdevice device;
static long n_rounds = 100;

/* Some blocks stay live, some are freed with their work queued. */
static void use_context(uint64_t *random, CUdeviceptr *left)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < N_BLOCKS; i++) {
		size_t size = victim_size(random, 22);
		CUdeviceptr p = victim_alloc(size);

		TRY(cuMemsetD8Async(p, 1, size, stream));
		left[i] = p;
		if (victim_random(random) % 2) {
			victim_free(p);
			left[i] = 0;
		}
	}
}

/* The context takes them with it. */
static void forget(const CUdeviceptr *left)
{
	for (int i = 0; i < N_BLOCKS; i++) {
		if (left[i])
			sim_client_note_free((void *)(uintptr_t)left[i]);
	}
}

static void created_round(uint64_t *random)
{
	CUdeviceptr left[N_BLOCKS];
	CUcontext ctx;
	CUstream stream;

	TRY(cuCtxCreate_v2(&ctx, 0, device));
	use_context(random, left);
	if (victim_random(random) % 8 == 0) {
		TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		TRY(cuStreamBeginCapture(stream,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
	}
	forget(left);
	TRY(cuCtxDestroy(ctx));
}

static void primary_round(uint64_t *random)
{
	unsigned how = victim_random(random) % 3;
	CUdeviceptr left[N_BLOCKS];
	CUcontext ctx;

	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	use_context(random, left);
	forget(left);
	if (how == 0)
		TRY(cuDevicePrimaryCtxReset(device));
	TRY(cuDevicePrimaryCtxRelease(device));
}

static void *worker(void *arg)
{
	uint64_t random = (uintptr_t)arg;
	bool is_first = random % N_THREADS == 0;

	for (long i = 0; i < n_rounds; i++) {
		if (is_first && victim_random(&random) % 2)
			primary_round(&random);
		else
			created_round(&random);
	}
	return NULL;
}

/* Whose release is the last is left to chance. */
static void *sharer(void *arg)
{
	uint64_t random = (uintptr_t)arg;

	for (long i = 0; i < n_rounds; i++) {
		size_t size = victim_size(&random, 22);
		CUdeviceptr small, p;
		CUcontext ctx;

		TRY(cuDevicePrimaryCtxRetain(&ctx, device));
		TRY(cuCtxSetCurrent(ctx));
		small = victim_alloc(3000);
		p = victim_alloc(size);
		TRY(cuMemsetD8(small, 7, 3000));
		TRY(cuMemsetD8(p, 8, size));
		CHECK(victim_is_filled(small, 3000, 7));
		CHECK(victim_is_filled(p, size, 8));
		victim_free(small);
		victim_free(p);
		TRY(cuCtxSetCurrent(NULL));
		TRY(cuDevicePrimaryCtxRelease(device));
	}
	return NULL;
}

static void check_books(void)
{
	struct sim_books books;

	sim_books(-1, &books);
	if (books.physical || books.n_mappings || books.n_handles ||
	    books.n_events || books.n_contexts || sim_captures())
		printf("left: %" PRIu64 " bytes, %" PRIu64 " mappings, %" PRIu64
		       " handles, %" PRIu64 " events, %" PRIu64
		       " contexts, %u captures\n",
		       books.physical, books.n_mappings, books.n_handles,
		       books.n_events, books.n_contexts, sim_captures());
	CHECK(books.physical == 0 && books.n_mappings == 0);
	CHECK(books.n_handles == 0 && books.n_events == 0);
	CHECK(books.n_contexts == 0 && sim_captures() == 0);
}

/* All threads at once; `is_watched`: another context lives all the while. */
static void crowd(uint64_t seed, void *(*work)(void *), bool is_watched)
{
	pthread_t threads[N_THREADS];
	CUdeviceptr kept[2] = {0};
	CUcontext other = NULL;

	if (is_watched) {
		TRY(cuCtxCreate_v2(&other, 0, device));
		kept[0] = victim_alloc(3000);
		kept[1] = victim_alloc(7 * MiB);
		TRY(cuMemsetD8(kept[0], 5, 3000));
		TRY(cuMemsetD8(kept[1], 6, 7 * MiB));
	}
	for (uintptr_t i = 0; i < N_THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work,
				     (void *)(seed * N_THREADS + i)) == 0);
	for (int i = 0; i < N_THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	if (is_watched) {
		CHECK(victim_is_filled(kept[0], 3000, 5));
		CHECK(victim_is_filled(kept[1], 7 * MiB, 6));
		victim_free(kept[0]);
		victim_free(kept[1]);
		TRY(cuCtxDestroy(other));
	}
	check_books();
}

/* A capture dies with its context: markers must go on without it. */
static void dead_capture(void)
{
	unsigned long before;
	int version;
	CUcontext ctx, other;
	CUstream stream;

	TRY(cuCtxCreate_v2(&other, 0, device));
	victim_free(victim_alloc(4 * MiB));
	TRY(cuCtxCreate_v2(&ctx, 0, device));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuCtxDestroy(ctx));
	before = sim_calls("cuCtxRecordEvent");
	for (int i = 0; i < 20; i++)
		victim_free(victim_alloc((size_t)(i + 4) * MiB));
	TRY(cuDriverGetVersion(&version));
	CHECK(version < 12050 || sim_calls("cuCtxRecordEvent") > before);
	TRY(cuCtxDestroy(other));
	check_books();
}

static void *slow_release(void *begun)
{
	CUcontext ctx;
	CUstream stream;
	CUdeviceptr p;

	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuMemAlloc(&p, MiB));
	TRY(cuMemsetD8Async(p, 1, MiB, stream));
	*(atomic_bool *)begun = true;
	TRY(cuDevicePrimaryCtxRelease(device));
	return NULL;
}

/* One thread retains while another's last release waits for its work. */
static void late_retain(void)
{
	atomic_bool is_begun = false;
	pthread_t thread;
	CUdeviceptr p;
	CUcontext ctx;

	sim_set_lag_us(100000);
	CHECK(pthread_create(&thread, NULL, slow_release, &is_begun) == 0);
	while (!is_begun)
		;
	usleep(20000);
	sim_set_lag_us(50);
	TRY(cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuMemAlloc(&p, 3000));
	CHECK(pthread_join(thread, NULL) == 0);
	TRY(cuMemsetD8(p, 1, 3000));
	TRY(cuMemFree(p));
	TRY(cuDevicePrimaryCtxRelease(device));
	check_books();
}

int main(int argc, char **argv)
{
	uint64_t seed = 1;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 0);
		else
			n_rounds = atol(argv[i]);
	}
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	dead_capture();
	late_retain();
	for (uint64_t i = 0; i < 4; i++)
		crowd(seed + i, worker, i % 2);
	crowd(seed, sharer, false);
	printf("resets seed %" PRIu64 ": %ld contexts, %lu violations\n", seed,
	       5 * N_THREADS * n_rounds, sim_violations());
	return sim_violations() > 0;
}
