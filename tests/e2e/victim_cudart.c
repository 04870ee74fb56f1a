/* SPDX-License-Identifier: MIT
 *
 * victim_cudart: the runtime API; built against the shared and the static
 * runtime.
 */
#include "victim.h"

#include <cuda_runtime_api.h>

static unsigned char host[1 << 20];

static uint64_t churn(void)
{
	void *blocks[16] = {NULL};
	size_t sizes[16];
	uint64_t random = 2, hash = HASH_START;

	for (int i = 0; i < 300; i++) {
		unsigned k = victim_random(&random) % 16;

		if (blocks[k]) {
			TRY(cudaMemcpy(host, blocks[k], sizes[k],
				       cudaMemcpyDeviceToHost));
			for (size_t j = 0; j < sizes[k]; j++)
				CHECK(host[j] == (unsigned char)(k + 7));
			hash = victim_hash(hash, host, sizes[k]);
			sim_client_note_free(blocks[k]);
			TRY(cudaFree(blocks[k]));
		}
		sizes[k] = victim_size(&random, 19);
		TRY(cudaMalloc(&blocks[k], sizes[k]));
		sim_client_note_alloc(blocks[k], sizes[k]);
		TRY(cudaMemset(blocks[k], (int)k + 7, sizes[k]));
	}
	for (int k = 0; k < 16; k++) {
		sim_client_note_free(blocks[k]);
		TRY(cudaFree(blocks[k]));
	}
	return hash;
}

int main(void)
{
	void *p = (void *)8;
	size_t free_bytes, total, pitch;
	int result = (int)cudaFree(NULL);

	printf("cudaFree(NULL): %d\n", result);
	if (result)
		return 1;
	result = (int)cudaMalloc(&p, 0);
	printf("cudaMalloc 0: %d %p\n", result, p);
	printf("churn %016" PRIx64 "\n", churn());
	result = (int)cudaMalloc(&p, (size_t)1 << 50);
	printf("cudaMalloc 2^50: %d %p\n", result, p);
	printf("last error: %d\n", (int)cudaGetLastError());
	printf("and then: %d\n", (int)cudaGetLastError());
	TRY(cudaMallocPitch(&p, &pitch, 1000, 20));
	printf("pitch %zu\n", pitch);
	TRY(cudaMemset2D(p, pitch, 9, 1000, 20));
	TRY(cudaMemcpy(host, p, pitch * 20, cudaMemcpyDeviceToHost));
	printf("rows %d %d\n", host[19 * pitch], host[19 * pitch + 999]);
	TRY(cudaFree(p));
	printf("free twice: %d\n", (int)cudaFree(p));
	printf("last error: %d\n", (int)cudaGetLastError());
	TRY(cudaMemGetInfo(&free_bytes, &total));
	printf("free below total: %d\n", free_bytes < total);
	TRY(cudaDeviceSynchronize());
	TRY(cudaDeviceReset());
	return 0;
}
