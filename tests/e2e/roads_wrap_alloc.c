/* SPDX-License-Identifier: MIT
 *
 * roads_wrap_alloc: another preloaded library, which counts allocations on
 * their way to whatever comes next.
 */
#include <cuda.h>
#include <dlfcn.h>

static int n_calls;

int roads_wrap_calls(void);

int roads_wrap_calls(void)
{
	return n_calls;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	static __typeof__(cuMemAlloc_v2) *next;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	if (!next)
		return CUDA_ERROR_NOT_FOUND;
	n_calls++;
	return next(out, size);
}

/* Before main, also before the constructors of those that come earlier. */
__attribute__((constructor)) static void early(void)
{
	/* no last call: the compiler would make it a jump, from libc */
	dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	if (!dlsym(RTLD_NEXT, "malloc") || !dlsym(RTLD_DEFAULT, "malloc"))
		n_calls = -1000;
}
