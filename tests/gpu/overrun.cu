/* SPDX-License-Identifier: MIT
 *
 * overrun [bad]: a correct program; with "bad" its last kernel writes one
 * element past the end of what it allocated.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "try.h"

__global__ void write(int *p, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		p[i] = i;
}

int main(int argc, char **argv)
{
	const int n = 1024;
	bool is_bad = argc > 1 && std::strcmp(argv[1], "bad") == 0;
	int *small, *large, *again, *host;
	long long sum = 0;

	host = (int *)std::malloc(n * sizeof(*host));
	for (int turn = 0; turn < 20; turn++) {
		TRY(cudaMalloc(&small, n * sizeof(int)));
		TRY(cudaMalloc(&large, 1000 * n * sizeof(int)));
		write<<<n / 256, 256>>>(small, n);
		write<<<1000 * n / 256, 256>>>(large, 1000 * n);
		TRY(cudaFree(small));
		TRY(cudaMalloc(&again, 3 * n * sizeof(int)));
		write<<<3 * n / 256, 256>>>(again, 3 * n);
		TRY(cudaMemcpy(host, again, n * sizeof(int),
			       cudaMemcpyDeviceToHost));
		for (int i = 0; i < n; i++)
			sum += host[i];
		TRY(cudaFree(large));
		TRY(cudaFree(again));
	}
	TRY(cudaMalloc(&small, n * sizeof(int)));
	write<<<n / 256 + 1, 256>>>(small, is_bad ? n + 1 : n);
	std::printf("after: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
	std::printf("sum %lld\n", sum);
	cudaFree(small);
	std::free(host);
	return 0;
}
