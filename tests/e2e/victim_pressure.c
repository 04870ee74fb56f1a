/* SPDX-License-Identifier: MIT
 *
 * victim_pressure: fills the device, frees every other block, and asks for
 * what only the freed memory together can hold; then another allocator of the
 * driver asks for it, the kernels' stacks, their heap, and for what is freed
 * in part. All that succeeds without the shim must succeed with it.
 */
#include <stdlib.h>

#include "victim_link.h"

#define PARTS 64

/* Half of the memory for the stacks of all threads, then for a heap. */
static void kernels(void)
{
	CUfunction kernel = victim_kernel("vs_fill");
	int n_multiprocessors, n_threads;
	CUdeviceptr p = victim_alloc(1000);
	uint32_t value = 7;
	uint64_t n_words = 250;
	void *arguments[] = {&p, &value, &n_words};
	size_t available, total, size;
	CUdevice device;
	CUresult result;

	TRY(cuCtxGetDevice(&device));
	TRY(cuDeviceGetAttribute(&n_multiprocessors,
				 CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
				 device));
	TRY(cuDeviceGetAttribute(
		&n_threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
		device));
	TRY(cuMemGetInfo(&available, &total));
	size = available / 2 / n_threads / n_multiprocessors / 16 * 16;
	result = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024 + size);
	printf("stacks: %s\n", victim_name(result));
	TRY(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));

	victim_free(victim_alloc(available / 8 * 7));
	TRY(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, available / 2));
	result = cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, arguments,
				NULL);
	printf("launch: %s\n", victim_name(result));
	victim_free(p);
}

/*
 * A tenth of the memory was freed long ago, three tenths under a kernel, and
 * the driver's other allocator asks for more than these.
 */
static void old_and_new(CUstream stream)
{
	CUfunction kernel = victim_kernel("vs_sleep");
	uint64_t ns = 1500000000, n_words = 16;
	CUdeviceptr at_rest, old, new, async;
	uint32_t value = 7;
	void *arguments[] = {&ns, &new, &value, &n_words};
	size_t available, total;
	CUresult result;

	TRY(cuMemGetInfo(&available, &total));
	at_rest = victim_alloc(available / 10 * 5);
	old = victim_alloc(available / 10);
	new = victim_alloc(available / 10 * 3);
	victim_free(old);
	TRY(cuCtxSynchronize());
	victim_launch(kernel, stream, arguments);
	victim_free(new);
	result = cuMemAllocAsync(&async, available / 100 * 35, stream);
	printf("old and new, async: %s\n", victim_name(result));
	if (result == CUDA_SUCCESS)
		TRY(cuMemFreeAsync(async, stream));
	TRY(cuStreamSynchronize(stream));
	victim_free(at_rest);
}

/*
 * A GiB, or half of the memory, for a module's variable, and what the compiler
 * says of it.
 */
static void variable(void)
{
	CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER,
				  CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
				  CU_JIT_LOG_VERBOSE};
	char text[512], log[4096] = "";
	void *values[] = {log, (void *)sizeof(log), (void *)1};
	size_t available, total, size;
	CUmodule module;
	CUresult result;

	TRY(cuMemGetInfo(&available, &total));
	size = available / 2 < 1024 * MiB ? available / 2 : 1024 * MiB;
	victim_free(
		victim_alloc((available - size / 2) / (2 * MiB) * (2 * MiB)));
	snprintf(text, sizeof(text),
		 ".version 6.4\n.target sm_70\n.address_size 64\n"
		 ".visible .global .align 8 .b8 big[%zu];\n"
		 ".visible .entry nothing() {\nret;\n}\n",
		 size);
	result = cuModuleLoadDataEx(&module, text, 3, options, values);
	printf("variable: %s, told %zu bytes, %zu of them\n",
	       victim_name(result), (size_t)values[1], strlen(log));
	if (result == CUDA_SUCCESS)
		TRY(cuModuleUnload(module));
}

int main(void)
{
	CUdeviceptr blocks[PARTS], big, async;
	size_t before, after, total, part;
	CUresult result;
	CUstream stream;
	int n = 0;

	/* the compiler says nothing of what it has in its cache */
	setenv("CUDA_CACHE_DISABLE", "1", 1);
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
	kernels();
	old_and_new(stream);
	variable();
	TRY(cuStreamDestroy(stream));
	return 0;
}
