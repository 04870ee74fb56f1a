/* SPDX-License-Identifier: MIT
 *
 * victim_beside: a kernel of a device that has copied memory of another runs
 * until the host lets it end, as the half of a collective does. Meanwhile one
 * thread is out of memory on the other device, and a second one frees
 * something there before it lets the kernel end. The driver's free does not
 * wait for another device's kernel.
 */
#include <pthread.h>

#include "victim_link.h"

#define N_BLOCKS 20
/* By then the first thread has waited in vain for what it could do without. */
#define LATE_S 3
#define MOST_NS UINT64_C(2000000000)

static CUcontext here, there;
static CUdeviceptr scrap;
static _Atomic uint32_t *flag;

static void *free_and_go_on(void *unused)
{
	uint64_t start;

	TRY(cuCtxSetCurrent(here));
	sleep(LATE_S);
	start = victim_now_ns();
	victim_free(scrap);
	printf("the free %s\n",
	       victim_now_ns() - start < MOST_NS ? "is quick" : "waits");
	*flag = 1;
	return unused;
}

/* In a stream of `there`, which has copied memory of `here`. */
static void launch_other_half(CUdeviceptr p)
{
	CUdeviceptr mine, at;
	void *arguments[] = {&at}, *host;
	CUfunction kernel;
	CUstream stream;

	TRY(cuCtxSetCurrent(there));
	TRY(cuMemHostAlloc(&host, sizeof(*flag),
			   CU_MEMHOSTALLOC_DEVICEMAP |
				   CU_MEMHOSTALLOC_PORTABLE));
	TRY(cuMemHostGetDevicePointer(&at, host, 0));
	flag = host;
	*flag = 0;
	kernel = victim_kernel("vs_spin_flag");
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuCtxEnablePeerAccess(here, 0));
	mine = victim_alloc(MiB);
	TRY(cuMemcpyDtoDAsync(mine, p, MiB, stream));
	TRY(cuStreamSynchronize(stream));
	victim_launch(kernel, stream, arguments);
	TRY(cuCtxSetCurrent(here));
}

int main(void)
{
	CUdeviceptr p[N_BLOCKS];
	size_t size, available, total;
	pthread_t thread;
	CUresult result;

	there = victim_start(1);
	here = victim_start(0);
	TRY(cuMemGetInfo(&available, &total));
	size = available / 26 / MiB * MiB;
	for (int i = 0; i < N_BLOCKS; i++)
		p[i] = victim_alloc(size);
	scrap = victim_alloc(2 * MiB);
	launch_other_half(p[0]);
	TRY(pthread_create(&thread, NULL, free_and_go_on, NULL));
	for (int i = 0; i < N_BLOCKS; i += 2)
		victim_free(p[i]);
	/* those ten, and most of what was left */
	result = cuMemAlloc(&p[0], 15 * size);
	*flag = 1;
	pthread_join(thread, NULL);
	printf("%s\n", victim_name(result));
	TRY(cuCtxSetCurrent(there));
	TRY(cuCtxSynchronize());
	return 0;
}
