/* SPDX-License-Identifier: MIT
 *
 * victim_pieces LEAST MOST: fills nine tenths of the memory with blocks of
 * LEAST to MOST KiB, frees every other one, and asks for most of what is free
 * in one block. The driver has it, since each of its blocks has pages of its
 * own.
 */
#include "victim_link.h"

/* Up to nine tenths of what is free; how many. */
static size_t fill(CUdeviceptr *blocks, size_t least, size_t most)
{
	size_t available, total, held = 0, n = 0;
	uint64_t state = 1;

	TRY(cuMemGetInfo(&available, &total));
	while (held < available / 10 * 9) {
		size_t size =
			least + victim_random(&state) % (most - least + 1);

		blocks[n++] = victim_alloc(size);
		held += size;
	}
	return n;
}

static void every_other(size_t least, size_t most)
{
	size_t available, total, n;
	CUdeviceptr *blocks, big;
	CUresult result;

	TRY(cuMemGetInfo(&available, &total));
	blocks = calloc(total / least, sizeof(*blocks));
	CHECK(blocks);
	n = fill(blocks, least, most);
	for (size_t i = 0; i < n; i += 2)
		victim_free(blocks[i]);
	TRY(cuMemGetInfo(&available, &total));
	result = cuMemAlloc(&big, available / 10 * 8);
	printf("most of what %zu blocks left: %s\n", n, victim_name(result));
	if (result == CUDA_SUCCESS)
		TRY(cuMemFree(big));
	for (size_t i = 1; i < n; i += 2)
		victim_free(blocks[i]);
	free(blocks);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	victim_start(0);
	every_other((size_t)atol(argv[1]) * KiB, (size_t)atol(argv[2]) * KiB);
	return 0;
}
