/* SPDX-License-Identifier: MIT
 *
 * victim_pressure: fills the device, frees every other block, and asks for
 * what only the freed memory together can hold; then another allocator of the
 * driver asks for it. All that succeeds without the shim must succeed with it.
 */
#include "victim_link.h"

#define PARTS 64

int main(void)
{
	CUdeviceptr blocks[PARTS], big, async;
	size_t before, after, total, part;
	CUresult result;
	CUstream stream;
	int n = 0;

	victim_start(0);
	TRY(cuStreamCreate(&stream, 0));
	TRY(cuMemGetInfo(&before, &total));
	part = before / PARTS / (2 * MiB) * (2 * MiB);

	do {
		result = cuMemAlloc(&blocks[n], part);
	} while (result == CUDA_SUCCESS && ++n < PARTS);
	printf("filled: %d\n", n >= PARTS - 4);
	printf("too much: %s\n", victim_name(cuMemAlloc(&big, 8 * part)));

	for (int i = 0; i < n; i += 2)
		TRY(cuMemFree(blocks[i]));
	printf("8 parts: %s\n", victim_name(cuMemAlloc(&big, 8 * part)));
	TRY(cuMemsetD8(big, 3, 8 * part));
	TRY(cuMemFree(big));
	printf("24 parts: %s\n", victim_name(cuMemAlloc(&big, 24 * part)));
	TRY(cuMemFree(big));
	for (int i = 1; i < n; i += 2)
		TRY(cuMemFree(blocks[i]));

	printf("56 parts: %s\n", victim_name(cuMemAlloc(&big, 56 * part)));
	TRY(cuMemFree(big));
	TRY(cuMemGetInfo(&after, &total));
	printf("free again: %d\n", after + 4 * part >= before);

	printf("56 parts, async: %s\n",
	       victim_name(cuMemAllocAsync(&async, 56 * part, stream)));
	TRY(cuMemFreeAsync(async, stream));
	TRY(cuStreamSynchronize(stream));
	printf("56 parts once more: %s\n",
	       victim_name(cuMemAlloc(&big, 56 * part)));
	TRY(cuMemFree(big));
	TRY(cuStreamDestroy(stream));
	return 0;
}
