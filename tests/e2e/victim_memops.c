/* SPDX-License-Identifier: MIT
 *
 * victim_memops: SYNC_MEMOPS is set for an allocation, as who registers it with
 * a NIC does; from then on a plain copy has ended when it returns, whatever
 * flags the program gives the context.
 */
#include "victim_link.h"

#define SIZE ((size_t)3 * MiB)

static _Atomic bool is_over;

static void CUDA_CB end_late(void *unused)
{
	(void)unused;
	usleep(50000);
	is_over = true;
}

/* One context's memory, copied behind some work of its NULL stream. */
static void copy(const char *when, CUdeviceptr to, CUdeviceptr from)
{
	is_over = false;
	TRY(cuLaunchHostFunc(NULL, end_late, NULL));
	TRY(cuMemcpyDtoD(to, from, SIZE));
	printf("%s: copied when it returns: %d\n", when, is_over);
	TRY(cuCtxSynchronize());
}

/* The scheduling flag, which a program sets to be polite. */
static bool is_polite(void)
{
	unsigned flags = 0;

	TRY(cuCtxGetFlags(&flags));
	return flags & CU_CTX_SCHED_BLOCKING_SYNC;
}

int main(void)
{
	CUdeviceptr p, q;
	unsigned yes = 1;
	CUdevice device;

	victim_start(0);
	TRY(cuDeviceGet(&device, 0));
	p = victim_alloc(SIZE);
	q = victim_alloc(SIZE);
	TRY(cuCtxSetFlags(CU_CTX_SCHED_SPIN));
	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	copy("set", q, p);
	TRY(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC));
	printf("polite: %d\n", is_polite());
	copy("context's flags", p, q);
	TRY(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_SPIN));
	printf("polite: %d\n", is_polite());
	copy("primary context's flags", p, q);
	victim_free(p);
	victim_free(q);
	return 0;
}
