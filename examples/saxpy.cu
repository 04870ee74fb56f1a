/* SPDX-License-Identifier: MIT
 *
 * saxpy [ROUNDS]
 *
 * Temporary vectors by cudaMalloc and cudaFree in the middle of a loop, as
 * much code has them: y = a x + y, then the sum of y. Built by nvcc with the
 * static runtime. Results go to standard output, the time to standard error.
 */
#include <cstdio>
#include <cstdlib>
#include <ctime>

#define TRY(call)                                                              \
	do {                                                                   \
		cudaError_t answer = (call);                                   \
		if (answer != cudaSuccess) {                                   \
			std::fprintf(stderr, "saxpy: %s: %s\n", #call,         \
				     cudaGetErrorName(answer));                \
			std::exit(1);                                          \
		}                                                              \
	} while (0)

__global__ void fill(float *p, int n, float value)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += gridDim.x * blockDim.x)
		p[i] = value;
}

__global__ void saxpy(int n, float a, const float *x, float *y)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += gridDim.x * blockDim.x)
		y[i] += a * x[i];
}

/* Whole numbers: the sum does not depend on the order. */
__global__ void sum(int n, const float *y, unsigned long long *total)
{
	unsigned long long mine = 0;

	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += gridDim.x * blockDim.x)
		mine += (unsigned long long)y[i];
	atomicAdd(total, mine);
}

int main(int argc, char **argv)
{
	int n_rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
	unsigned long long *total, result;
	timespec begin, end;

	TRY(cudaMalloc(&total, sizeof(*total)));
	TRY(cudaMemset(total, 0, sizeof(*total)));
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 0; i < n_rounds; i++) {
		int n = 1 << (8 + i * 7 % 15);
		float *x, *y;

		TRY(cudaMalloc(&x, n * sizeof(float)));
		TRY(cudaMalloc(&y, n * sizeof(float)));
		fill<<<32, 256>>>(x, n, (float)(i % 10));
		fill<<<32, 256>>>(y, n, 3.0f);
		saxpy<<<32, 256>>>(n, 2.0f, x, y);
		sum<<<32, 256>>>(n, y, total);
		TRY(cudaFree(x));
		TRY(cudaFree(y));
	}
	TRY(cudaMemcpy(&result, total, sizeof(result), cudaMemcpyDeviceToHost));
	clock_gettime(CLOCK_MONOTONIC, &end);
	TRY(cudaFree(total));
	std::fprintf(stderr, "%d rounds in %.0f ms\n", n_rounds,
		     (double)(end.tv_sec - begin.tv_sec) * 1e3 +
			     (double)(end.tv_nsec - begin.tv_nsec) / 1e6);
	std::printf("sum %llu\n", result);
	return 0;
}
