/* SPDX-License-Identifier: MIT
 *
 * victim_fault [late|free]: a kernel writes where there is no memory. From the
 * next wait on the context has nothing but that error to give, and no memory
 * either, nor does it take any back. late: that wait comes a while later; free:
 * a free comes first, by then.
 */
#include <unistd.h>

#include "victim_link.h"

int main(int argc, char **argv)
{
	CUdeviceptr nowhere = (CUdeviceptr)0x70 << 32, p[20], kept[2];
	uint32_t value = 1;
	uint64_t n_words = 10;
	void *arguments[] = {&nowhere, &value, &n_words};
	CUdeviceptr base = UINT64_MAX;
	CUfunction kernel;
	CUresult result;

	victim_start(0);
	kernel = victim_kernel("vs_fill");
	for (int i = 0; i < 20; i++)
		p[i] = victim_alloc(1000 << i % 5 * 3);
	for (int i = 0; i < 20; i++)
		victim_free(p[i]);
	TRY(cuCtxSynchronize());
	for (int i = 0; i < 20; i++)
		victim_free(victim_alloc(1000 << i % 5 * 3));
	TRY(cuCtxSynchronize());

	kept[0] = victim_alloc(4096);
	kept[1] = victim_alloc(4 * MiB);
	victim_launch(kernel, NULL, arguments);
	if (argc > 1)
		usleep(300000);
	if (argc > 1 && !strcmp(argv[1], "free")) {
		printf("free: %s\n", victim_name(cuMemFree(kept[0])));
		printf("allocation: %s\n",
		       victim_name(cuMemAlloc(&kept[0], 4096)));
	}
	printf("wait: %s\n", victim_name(cuCtxSynchronize()));
	/* asked for the first time: no half of an answer */
	result = cuPointerGetAttribute(
		&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, kept[1]);
	printf("base: %s, %s\n", victim_name(result),
	       base == UINT64_MAX ? "untouched"
	       : base == kept[1]  ? "right"
				  : "wrong");
	for (int i = 0; i < 5; i++)
		printf("%d bytes: %s\n", 1000 << i * 3,
		       victim_name(cuMemAlloc(&p[i], 1000 << i * 3)));
	for (int i = 0; i < 4; i++)
		printf("free: %s\n", victim_name(cuMemFree(kept[i % 2])));
	return 0;
}
