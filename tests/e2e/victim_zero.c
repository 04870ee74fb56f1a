/* SPDX-License-Identifier: MIT
 *
 * victim_zero: every block that is had reads as zero, be it one that is used
 * again (VMMSHIM_ZERO=always). Out of memory is an answer, too.
 */
#include "victim_link.h"

#define ROUNDS 4

static void try(size_t size)
{
	int n_cleared = 0, n_served = 0;

	for (int i = 0; i < ROUNDS; i++) {
		CUdeviceptr p = 0;
		CUresult result = cuMemAlloc(&p, size);

		if (result == CUDA_ERROR_OUT_OF_MEMORY) {
			CHECK(p == 0);
			continue;
		}
		TRY(result);
		n_served++;
		n_cleared += victim_is_filled(p, size, 0);
		TRY(cuMemsetD8(p, 0x77, size));
		TRY(cuCtxSynchronize());
		TRY(cuMemFree(p));
		TRY(cuCtxSynchronize());
	}
	CHECK(n_served > 0);
	printf("%zu bytes: %s\n", size,
	       n_cleared == n_served ? "all cleared" : "not all cleared");
}

int main(void)
{
	victim_start(0);
	try(512);
	try(3 * MiB);
	try(64 * MiB);
	return 0;
}
