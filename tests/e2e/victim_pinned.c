/* SPDX-License-Identifier: MIT
 *
 * victim_pinned: each step keeps a small block and frees a buffer that was
 * registered, as programs do with each buffer that a NIC sends (SYNC_MEMOPS is
 * set on it first), or of which an IPC handle was made. All of them together
 * are more than the device has.
 *
 *   victim_pinned WHAT KEEP BUFFER STEPS
 *     WHAT: register; export (by IPC); async (register, and then another
 *     allocator of the driver has what the others leave, half of it)
 */
#include "victim_link.h"

static void pin(const char *what, CUdeviceptr p)
{
	unsigned yes = 1;
	CUipcMemHandle handle;

	if (strcmp(what, "export") == 0)
		TRY(cuIpcGetMemHandle(&handle, p));
	else
		TRY(cuPointerSetAttribute(&yes,
					  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
}

/* Whether it had to be given up. */
static bool step(const char *what, size_t keep, size_t size, int i)
{
	CUdeviceptr buffer, kept;
	CUresult result = cuMemAlloc(&buffer, size);

	if (result == CUDA_SUCCESS) {
		pin(what, buffer);
		result = cuMemAlloc(&kept, keep);
	}
	if (result != CUDA_SUCCESS) {
		printf("step %d: %s\n", i, victim_name(result));
		return false;
	}
	TRY(cuMemsetD8Async(buffer, 1, size, NULL));
	if (i % 2)
		TRY(cuCtxSynchronize());
	TRY(cuMemFree(buffer));
	return true;
}

int main(int argc, char **argv)
{
	size_t keep, size, available, total;
	CUdeviceptr async;
	int n, i = 0;

	if (argc != 5)
		return 2;
	keep = (size_t)atol(argv[2]);
	size = (size_t)atol(argv[3]);
	n = atoi(argv[4]);
	victim_start(0);
	while (i < n && step(argv[1], keep, size, i))
		i++;
	printf("%d steps\n", i);
	if (strcmp(argv[1], "async") == 0) {
		TRY(cuMemGetInfo(&available, &total));
		printf("half of the rest, async: %s\n",
		       victim_name(cuMemAllocAsync(
			       &async, (total - (size_t)n * keep) / 2, NULL)));
	}
	return 0;
}
