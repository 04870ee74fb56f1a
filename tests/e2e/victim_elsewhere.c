/* SPDX-License-Identifier: MIT
 *
 * victim_elsewhere [wait]: the second device is full, and calls that take
 * memory of it fail, each in its own way. What is freed on the first device and
 * allocated again stays mapped there. Before that they have what was freed on
 * the second one. wait: what another thread frees on the first device lies
 * behind work that waits for the thread which makes these calls.
 */
#include <pthread.h>

#include "victim_link.h"

#define GRAIN (2 * MiB)
#define MOST_NS UINT64_C(2000000000)

static CUcontext here, there;
static CUstream stream; /* of `there` */
static CUmemoryPool pool;
static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
static size_t asked;

static size_t available(void)
{
	size_t available, total;

	TRY(cuMemGetInfo(&available, &total));
	return available / GRAIN * GRAIN;
}

static CUresult create(void)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = cuMemCreate(&handle, asked, &prop, 0);

	if (result == CUDA_SUCCESS)
		TRY(cuMemRelease(handle));
	return result;
}

static CUresult given_back(CUresult result, const CUdeviceptr *p)
{
	if (result == CUDA_SUCCESS) {
		TRY(cuMemFreeAsync(*p, stream));
		TRY(cuStreamSynchronize(stream));
	}
	return result;
}

static CUresult async(void)
{
	CUdeviceptr p;

	return given_back(cuMemAllocAsync(&p, asked, stream), &p);
}

static CUresult from_pool(void)
{
	CUdeviceptr p;

	return given_back(cuMemAllocFromPoolAsync(&p, asked, pool, stream), &p);
}

static CUresult array(void)
{
	CUDA_ARRAY_DESCRIPTOR shape = {.Width = 8192,
				       .Height = asked / 8192 / 4,
				       .Format = CU_AD_FORMAT_FLOAT,
				       .NumChannels = 1};
	CUarray made;
	CUresult result = cuArrayCreate(&made, &shape);

	if (result == CUDA_SUCCESS)
		TRY(cuArrayDestroy(made));
	return result;
}

static CUresult pitched(void)
{
	CUdeviceptr p;
	size_t pitch;
	CUresult result =
		cuMemAllocPitch(&p, &pitch, 4 * MiB, asked / 4 / MiB, 16);

	if (result == CUDA_SUCCESS)
		TRY(cuMemFree(p));
	return result;
}

static CUresult plain(void)
{
	CUdeviceptr p;
	CUresult result = cuMemAlloc(&p, asked);

	if (result == CUDA_SUCCESS)
		TRY(cuMemFree(p));
	return result;
}

static const struct {
	const char *name;
	CUresult (*make)(void);
	bool is_here; /* the other device may be current */
	bool is_told; /* whose memory is asked for */
} calls[] = {
	{"cuMemCreate", create, true, true},
	{"cuMemAllocAsync", async, true, true},
	{"cuMemAllocFromPoolAsync", from_pool, true, false},
	{"cuArrayCreate", array, false, true},
	{"cuMemAllocPitch", pitched, false, true},
	{"cuMemAlloc", plain, false, true},
};
enum { N_CALLS = sizeof(calls) / sizeof(calls[0]) };

static unsigned n_releases;

static void count_releases(const char *call)
{
	n_releases += strcmp(call, "cuMemRelease") == 0;
}

static void make(int i, CUcontext ctx)
{
	uint64_t start = victim_now_ns();
	CUresult result;

	TRY(cuCtxSetCurrent(ctx));
	result = calls[i].make();
	printf("%s, %s device current: %s, %s\n", calls[i].name,
	       ctx == here ? "the other" : "its", victim_name(result),
	       victim_now_ns() - start < MOST_NS ? "at once" : "late");
}

/* Half of the device was freed, and more than the rest is asked for. */
static void have_what_is_freed(void)
{
	size_t size;

	TRY(cuCtxSetCurrent(there));
	size = available() / 2;
	asked = size / GRAIN * 3 / 2 * GRAIN;
	for (int i = 0; i < 2 * N_CALLS; i++) {
		if (i % 2 && !calls[i / 2].is_here)
			continue;
		TRY(cuCtxSetCurrent(there));
		victim_free(victim_alloc(size));
		make(i / 2, i % 2 ? here : there);
	}
}

static void fill(void)
{
	CUmemGenericAllocationHandle rest;

	TRY(cuCtxSetCurrent(there));
	TRY(cuMemCreate(&rest, available(), &prop, 0));
	asked = 8 * GRAIN;
	/* what a driver or a pool makes for the first of its calls */
	for (int i = 0; i < N_CALLS; i++)
		make(i, there);
}

/* With `is_idle` some memory is, on the first device. */
static void fail(bool is_idle)
{
	for (int i = 0; i < 2 * N_CALLS; i++) {
		if (!calls[i / 2].is_told || (i % 2 && !calls[i / 2].is_here))
			continue;
		TRY(cuCtxSetCurrent(here));
		if (is_idle)
			victim_free(victim_alloc(32 * GRAIN));
		make(i / 2, i % 2 ? here : there);
	}
}

static void *free_it(void *p)
{
	TRY(cuCtxSetCurrent(here));
	victim_free(*(CUdeviceptr *)p);
	return NULL;
}

static void beside_work(void)
{
	_Atomic bool flag = false;
	pthread_t thread;
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(here));
	p = victim_alloc(32 * GRAIN);
	TRY(cuMemsetD8Async(p, 1, 32 * GRAIN, NULL));
	TRY(cuLaunchHostFunc(NULL, victim_wait_for, &flag));
	TRY(pthread_create(&thread, NULL, free_it, &p));
	usleep(50000);
	fail(false);
	flag = true;
	pthread_join(thread, NULL);
	TRY(cuCtxSetCurrent(here));
	TRY(cuCtxSynchronize());
}

int main(int argc, char **argv)
{
	(void)argv;
	there = victim_start(1);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuDeviceGetDefaultMemPool(&pool, 1));
	here = victim_start(0);
	if (argc == 1)
		have_what_is_freed();
	fill();
	if (argc > 1) {
		beside_work();
		return 0;
	}
	sim_client_on_call(count_releases);
	fail(true);
	fail(true);
	sim_client_on_call(NULL);
	printf("given back: %u\n", n_releases);
	return 0;
}
