/* SPDX-License-Identifier: MIT
 *
 * roads_wrap_dlsym: another preloaded library that wraps dlsym, in the usual
 * way. With SUBSTITUTE it answers for one function of the driver with its own,
 * with BY_NAME with one that it exports by the driver's name, unasked.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <string.h>

#if defined(__aarch64__)
#define DLSYM_VERSION "GLIBC_2.17"
#else
#define DLSYM_VERSION "GLIBC_2.2.5"
#endif

static int n_calls;
static void *(*next)(void *handle, const char *name);
static __typeof__(cuMemAlloc_v2) *next_alloc;

int roads_wrap_calls(void);

int roads_wrap_calls(void)
{
	return n_calls;
}

#ifdef SUBSTITUTE
static CUresult counting_alloc(CUdeviceptr *out, size_t size)
{
	n_calls++;
	return next_alloc(out, size);
}
#endif

#ifdef BY_NAME
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	n_calls++;
	if (!next_alloc)
		*(void **)&next_alloc = next(dlopen("libcuda.so.1", RTLD_LAZY),
					     "cuMemAlloc_v2");
	return next_alloc(out, size);
}
#endif

void *dlsym(void *restrict handle, const char *restrict name)
{
	/* of what comes next this is the caller: no jump at the end */
	void *volatile answer;

	if (!next)
		*(void **)&next = dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
#ifdef BY_NAME
	if (handle != RTLD_NEXT && !strcmp(name, "cuMemAlloc_v2"))
		return (void *)cuMemAlloc_v2;
#endif
	answer = next(handle, name);
#ifdef SUBSTITUTE
	if (answer && !strcmp(name, "cuMemAlloc_v2")) {
		if (!next_alloc)
			*(void **)&next_alloc = answer;
		return (void *)counting_alloc;
	}
#else
	(void)next_alloc;
#endif
	return answer;
}
