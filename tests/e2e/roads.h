/* SPDX-License-Identifier: MIT
 *
 * roads: the smallest CUDA program, for every road to the driver: it prints
 * whether its allocation came from the pool. All else that it prints must be
 * the same without the shim.
 */
#ifndef ROADS_H
#define ROADS_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"

#define DRIVER "libcuda.so.1"

/* symbol, name and version to ask cuGetProcAddress for */
#define ROADS_CALLS(X)                                                         \
	X(cuInit, "cuInit", 2000)                                              \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)          \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                            \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                   \
	X(cuMemFree_v2, "cuMemFree", 3020)

struct roads {
#define X(symbol, name, since) __typeof__(symbol) *symbol;
	ROADS_CALLS(X)
#undef X
};

static inline void roads_try(const char *what, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return;
	printf("%s: error %d\n", what, (int)result);
	fflush(stdout);
	_Exit(1);
}

/* One allocation and its free, by the functions given. */
static inline void roads_serve(const struct roads *d)
{
	CUdeviceptr p = 0;
	CUcontext ctx;
	long before;

	roads_try("cuInit", d->cuInit(0));
	roads_try("cuDevicePrimaryCtxRetain",
		  d->cuDevicePrimaryCtxRetain(&ctx, 0));
	roads_try("cuCtxSetCurrent", d->cuCtxSetCurrent(ctx));
	before = pool_blocks();
	roads_try("cuMemAlloc", d->cuMemAlloc_v2(&p, 5 << 20));
	printf("pool %s\n", pool_blocks() > before ? "yes" : "no");
	roads_try("cuMemFree", d->cuMemFree_v2(p));
	if (pool_blocks() != before)
		printf("the free was lost\n");
}

/* Asks dlsym and serves. What the first has not is the other's. */
static inline void roads_serve_from_two(void *handle, void *other)
{
	struct roads d;

#define X(symbol, name, since)                                                 \
	*(void **)&d.symbol = dlsym(handle, #symbol);                          \
	if (!d.symbol)                                                         \
		*(void **)&d.symbol = dlsym(other, #symbol);                   \
	if (!d.symbol) {                                                       \
		printf("no " #symbol "\n");                                    \
		return;                                                        \
	}
	ROADS_CALLS(X)
#undef X
	roads_serve(&d);
}

static inline void roads_serve_from(void *handle)
{
	roads_serve_from_two(handle, handle);
}

static inline void *roads_open(const char *path, int mode)
{
	void *handle = dlopen(path, mode);

	if (!handle) {
		printf("%s\n", dlerror());
		exit(1);
	}
	return handle;
}

/* The file name of the object that holds a function. */
static inline const char *roads_home(void *function)
{
	Dl_info info;
	const char *slash;

	if (!function)
		return "nowhere";
	if (!dladdr(function, &info))
		return "unknown";
	slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

/* Whether a function lies in the object loaded from `path`. */
static inline bool roads_is_in(void *function, const char *path)
{
	Dl_info info;

	return function && dladdr(function, &info) &&
	       !strcmp(info.dli_fname, path);
}

#endif
