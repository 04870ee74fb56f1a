/* SPDX-License-Identifier: MIT
 *
 * client: an ordinary CUDA C++ program as nvcc builds it; linked to the static
 * runtime, to the shared one, and with per-thread default streams.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "try.h"

__global__ void fill(uint32_t *p, size_t n, uint32_t seed)
{
	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		p[i] = (uint32_t)i * 2654435761u + seed;
}

__global__ void add(const uint32_t *p, size_t n, unsigned long long *sum)
{
	unsigned long long mine = 0;

	for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		mine += p[i];
	atomicAdd(sum, mine);
}

/* Allocates, fills, sums and frees, everything on one stream. */
static unsigned long long work(unsigned seed, cudaStream_t stream)
{
	unsigned long long *sum, result = 0;
	std::vector<uint32_t *> blocks;

	TRY(cudaMalloc(&sum, sizeof(*sum)));
	TRY(cudaMemsetAsync(sum, 0, sizeof(*sum), stream));
	for (unsigned i = 0; i < 200; i++) {
		size_t n = 1 + (i * 7919u + seed * 104729u) % 1500000u;
		uint32_t *p;

		TRY(cudaMalloc(&p, n * sizeof(*p)));
		fill<<<64, 256, 0, stream>>>(p, n, seed + i);
		add<<<64, 256, 0, stream>>>(p, n, sum);
		blocks.push_back(p);
		if (blocks.size() > 8) {
			TRY(cudaFree(blocks.front()));
			blocks.erase(blocks.begin());
		}
	}
	TRY(cudaMemcpyAsync(&result, sum, sizeof(result), cudaMemcpyDefault,
			    stream));
	TRY(cudaStreamSynchronize(stream));
	for (uint32_t *p : blocks)
		TRY(cudaFree(p));
	TRY(cudaFree(sum));
	TRY(cudaGetLastError());
	return result;
}

int main()
{
	unsigned long long sums[4];
	std::vector<std::thread> threads;
	void *p;
	size_t pitch;

	std::printf("default stream %llu\n", work(1, 0));
	for (unsigned i = 0; i < 4; i++)
		threads.emplace_back([i, &sums] {
			cudaStream_t stream;

			TRY(cudaStreamCreateWithFlags(&stream,
						      cudaStreamNonBlocking));
			sums[i] = work(i + 2, stream);
			TRY(cudaStreamDestroy(stream));
		});
	for (std::thread &t : threads)
		t.join();
	for (unsigned i = 0; i < 4; i++)
		std::printf("thread %u %llu\n", i, sums[i]);
	TRY(cudaMallocPitch(&p, &pitch, 1000, 100));
	std::printf("pitch %zu\n", pitch);
	TRY(cudaFree(p));
	std::printf("free twice: %s\n", cudaGetErrorName(cudaFree(p)));
	cudaGetLastError();
	TRY(cudaDeviceReset());
	return 0;
}
