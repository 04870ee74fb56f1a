/* SPDX-License-Identifier: MIT
 *
 * golden_cudart: golden through the runtime: error codes, what it remembers of
 * them, and what it says of pointers. Also compiled by nvcc, as C++.
 */
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static char *base; /* of the block in question */
static size_t base_size;

static const char *place(const void *pointer)
{
	static char text[8][32];
	static unsigned next;
	char *t = text[next++ % 8];
	uintptr_t p = (uintptr_t)pointer, b = (uintptr_t)base;

	if (!p)
		return "0";
	if (p < b || p > b + base_size)
		return "elsewhere";
	snprintf(t, sizeof(text[0]), "A+%#zx", (size_t)(p - b));
	return t;
}

/* A result, and what the runtime remembers of it. */
static cudaError_t say(const char *what, cudaError_t result)
{
	int peek = (int)cudaPeekAtLastError();
	int last = (int)cudaGetLastError();

	printf("%s: %d, peek %d, last %d, then %d\n", what, (int)result, peek,
	       last, (int)cudaGetLastError());
	return result;
}

#define SAY(call) say(#call, call)

static void try_it(cudaError_t result, int line)
{
	if (result == cudaSuccess)
		return;
	printf("line %d: error %d\n", line, (int)result);
	exit(1);
}

#define TRY(call) try_it((call), __LINE__)

static void describe(const char *what, const void *p)
{
	struct cudaPointerAttributes a;
	cudaError_t result = cudaPointerGetAttributes(&a, p);

	printf("%s: attributes: %d", what, (int)result);
	if (result == cudaSuccess)
		printf(" type %d device %d at %s, host %s", (int)a.type,
		       a.device, place(a.devicePointer), place(a.hostPointer));
	printf(", last %d\n", (int)cudaGetLastError());
}

static void errors(void)
{
	void *p = (void *)8;
	size_t free_bytes, total;
	int local = 0;

	SAY(cudaMalloc(&p, 0));
	printf("pointer: %s\n", p ? "not NULL" : "NULL");
	SAY(cudaMalloc((void **)NULL, 16));
	p = (void *)8;
	SAY(cudaMalloc(&p, (size_t)1 << 50));
	printf("pointer: %s\n", p ? "not NULL" : "NULL");
	p = (void *)8;
	SAY(cudaMalloc(&p, SIZE_MAX));
	printf("pointer: %s\n", p ? "not NULL" : "NULL");
	SAY(cudaFree(NULL));
	SAY(cudaFree(&local));
	SAY(cudaMemGetInfo(&free_bytes, &total));
	SAY(cudaMemGetInfo(NULL, NULL));
	/* an error stays until it is asked for */
	cudaMalloc(&p, (size_t)1 << 50);
	printf("peek: %d\n", (int)cudaPeekAtLastError());
	TRY(cudaMalloc(&p, 4096));
	printf("peek: %d\n", (int)cudaPeekAtLastError());
	TRY(cudaFree(p));
	printf("last: %d\n", (int)cudaGetLastError());
	printf("last: %d\n", (int)cudaGetLastError());
}

static void pitches(void)
{
	static const size_t extents[][2] = {{0, 0}, {0, 10},  {10, 0},
					    {1, 1}, {513, 7}, {SIZE_MAX, 2}};
	struct cudaPitchedPtr block;
	void *p;
	size_t pitch;

	for (size_t i = 0; i < sizeof(extents) / sizeof(extents[0]); i++) {
		struct cudaExtent extent = {extents[i][0], extents[i][1], 3};

		p = (void *)8;
		pitch = 7;
		printf("%zu x %zu\n", extents[i][0], extents[i][1]);
		if (SAY(cudaMallocPitch(&p, &pitch, extents[i][0],
					extents[i][1])) == cudaSuccess &&
		    p != (void *)8)
			TRY(cudaFree(p));
		printf("pitch %zu, pointer %s\n", pitch,
		       !p		? "NULL"
		       : p == (void *)8 ? "kept"
					: "new");
		block.ptr = (void *)8;
		block.pitch = 7;
		if (SAY(cudaMalloc3D(&block, extent)) == cudaSuccess &&
		    block.ptr != (void *)8)
			TRY(cudaFree(block.ptr));
		printf("pitch %zu, pointer %s\n", block.pitch,
		       !block.ptr		? "NULL"
		       : block.ptr == (void *)8 ? "kept"
						: "new");
	}
	SAY(cudaMallocPitch(NULL, &pitch, 10, 10));
	SAY(cudaMallocPitch(&p, NULL, 10, 10));
}

static void block(size_t size)
{
	TRY(cudaMalloc((void **)&base, size));
	base_size = size;
	printf("%zu bytes\n", size);
	describe("base", base);
	describe("interior", base + size / 2);
	describe("last", base + size - 1);
	describe("end", base + size);
	SAY(cudaFree(base + 1));
	SAY(cudaFreeHost(base));
	SAY(cudaFree(base));
	describe("freed", base);
	SAY(cudaFree(base));
}

static void others(void)
{
	void *p;
	int local = 0;

	base = NULL;
	base_size = 0;
	describe("NULL", NULL);
	base = (char *)&local;
	base_size = sizeof(local);
	describe("stack", &local);
	TRY(cudaMallocHost(&p, 4096));
	base = (char *)p;
	base_size = 4096;
	describe("host", p);
	SAY(cudaFree(p));
	cudaFreeHost(p);
	cudaGetLastError();
	TRY(cudaMallocManaged(&p, 4096, cudaMemAttachGlobal));
	base = (char *)p;
	describe("managed", p);
	SAY(cudaFree(p));
	SAY(cudaFree(p));
	TRY(cudaMalloc(&p, 4096));
	/* not twice: the driver says success, and crashes later (580.159) */
	SAY(cudaFreeAsync(p, NULL));
	TRY(cudaDeviceSynchronize());
}

/* Memory of one device, asked about and used under the other. */
static void devices(void)
{
	int n = 0;
	void *p, *q;

	TRY(cudaGetDeviceCount(&n));
	if (n < 2) {
		printf("one device\n");
		return;
	}
	TRY(cudaSetDevice(1));
	TRY(cudaMalloc((void **)&base, 8192));
	TRY(cudaMalloc(&q, 8192));
	base_size = 8192;
	TRY(cudaSetDevice(0));
	describe("other device", base);
	TRY(cudaMalloc(&p, 8192));
	SAY(cudaMemcpy(p, base, 8192, cudaMemcpyDeviceToDevice));
	SAY(cudaMemcpy(base, p, 8192, cudaMemcpyDefault));
	SAY(cudaMemcpy2D(base, 512, p, 1024, 512, 8, cudaMemcpyDefault));
	SAY(cudaMemcpyPeer(p, 0, base, 1, 8192));
	SAY(cudaMemcpy(q, base, 8192, cudaMemcpyDeviceToDevice));
	SAY(cudaMemset(base, 0, 8192));
	SAY(cudaDeviceSynchronize());
	describe("other device, after copies", base);
	SAY(cudaFree(base));
	SAY(cudaFree(q));
	SAY(cudaFree(p));
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	errors();
	pitches();
	block(100);
	block((size_t)3 << 20);
	others();
	devices();
	TRY(cudaDeviceReset());
	describe("after a reset", base);
	printf("done\n");
	return 0;
}
