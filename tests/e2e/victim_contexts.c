/* SPDX-License-Identifier: MIT
 *
 * victim_contexts [N]: work in many contexts of one device in turn, each time
 * with memory of another size, many times what the device has.
 */
#include "victim_link.h"

/* Which version cuda.h means by cuCtxCreate has changed; every driver has this.
 */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);

#define MOST 1000
#define ROUNDS 4000

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 300;
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
	for (int i = 0; i < ROUNDS; i++) {
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
