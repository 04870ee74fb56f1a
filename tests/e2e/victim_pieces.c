/* SPDX-License-Identifier: MIT
 *
 * victim_pieces: fills nine tenths of the memory with blocks of one size, frees
 * every other one, and asks for most of what is free in one block. The driver
 * has it, since each of its blocks has pages of its own.
 */
#include "victim_link.h"

static void every_other(size_t size)
{
	size_t available, total, n;
	CUdeviceptr *blocks, big;
	CUresult result;

	TRY(cuMemGetInfo(&available, &total));
	n = available / 10 * 9 / size;
	blocks = calloc(n, sizeof(*blocks));
	CHECK(blocks);
	for (size_t i = 0; i < n; i++)
		blocks[i] = victim_alloc(size);
	for (size_t i = 0; i < n; i += 2)
		victim_free(blocks[i]);
	TRY(cuMemGetInfo(&available, &total));
	result = cuMemAlloc(&big, available / 10 * 8);
	printf("blocks of %zu MiB: %s\n", size / MiB, victim_name(result));
	if (result == CUDA_SUCCESS)
		TRY(cuMemFree(big));
	for (size_t i = 1; i < n; i += 2)
		victim_free(blocks[i]);
	free(blocks);
}

int main(void)
{
	victim_start(0);
	every_other(20 * MiB);
	every_other(100 * MiB);
	every_other(20 * MiB);
	return 0;
}
