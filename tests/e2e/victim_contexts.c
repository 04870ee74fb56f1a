/* SPDX-License-Identifier: MIT
 *
 * victim_contexts [N [ROUNDS]]: work in many contexts of one device in turn,
 * each time with memory of another size, many times what the device has. A copy
 * of another's memory comes after what that one is at.
 */
#include "victim_link.h"

#define MOST 1000

static void copy_in_order(CUcontext here, CUcontext there)
{
	unsigned char last = 0;
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(there));
	p = victim_alloc(4 * MiB);
	TRY(cuMemsetD8(p, 1, 4 * MiB));
	TRY(cuCtxSynchronize());
	victim_delay();
	TRY(cuMemsetD8Async(p, 7, 4 * MiB, NULL));
	TRY(cuCtxSetCurrent(here));
	TRY(cuMemcpyDtoH(&last, p + 4 * MiB - 1, 1));
	printf("of another context, after a set: %d\n", last);
	TRY(cuCtxSetCurrent(there));
	victim_free(p);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 300;
	int n_rounds = argc > 2 ? atoi(argv[2]) : 4000;
	static CUcontext contexts[MOST];
	CUdevice device;

	CHECK(n > 0 && n <= MOST);
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	for (int i = 0; i < n; i++) {
		CUcontext popped;

		TRY(cuCtxCreate_v2(&contexts[i], 0, device));
		TRY(cuCtxPopCurrent(&popped));
	}
	copy_in_order(contexts[0], contexts[n - 1]);
	for (int i = 0; i < n_rounds; i++) {
		CUdeviceptr p;

		TRY(cuCtxSetCurrent(contexts[i % n]));
		p = victim_alloc(4 * MiB + (size_t)i * 512);
		TRY(cuMemsetD8Async(p, 1, 1000, 0));
		victim_free(p);
	}
	for (int i = 0; i < n; i++)
		TRY(cuCtxDestroy(contexts[i]));
	printf("done\n");
	return 0;
}
