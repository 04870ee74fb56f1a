/* SPDX-License-Identifier: MIT
 *
 * A libcuda.so.1 that is none: it opens the driver ($ROADS_DRIVER) and passes
 * each call on to what dlsym finds there, as that of Windows' Linux subsystem
 * does. When it looks: at the first call, or with ROADS_EAGER as it is loaded.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>

static void *driver(void)
{
	static void *handle;

	if (!handle)
		handle = dlopen(getenv("ROADS_DRIVER"), RTLD_NOW | RTLD_LOCAL);
	return handle;
}

#define LOOK(symbol)                                                           \
	(symbol##_there                                                        \
		 ? symbol##_there                                              \
		 : (*(void **)&symbol##_there = dlsym(driver(), #symbol),      \
		    symbol##_there))
#define PASS(symbol, parameters, arguments)                                    \
	static __typeof__(symbol) *symbol##_there;                             \
	CUresult CUDAAPI symbol parameters                                     \
	{                                                                      \
		return LOOK(symbol) arguments;                                 \
	}

PASS(cuInit, (unsigned flags), (flags))
PASS(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device),
     (out, device))
PASS(cuCtxSetCurrent, (CUcontext ctx), (ctx))
PASS(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), (out, size))
PASS(cuMemFree_v2, (CUdeviceptr p), (p))
PASS(cuGetProcAddress_v2,
     (const char *symbol, void **out, int version, cuuint64_t flags,
      CUdriverProcAddressQueryResult *status),
     (symbol, out, version, flags, status))

static void __attribute__((constructor)) look(void)
{
	if (!getenv("ROADS_EAGER"))
		return;
	LOOK(cuInit);
	LOOK(cuDevicePrimaryCtxRetain);
	LOOK(cuCtxSetCurrent);
	LOOK(cuMemAlloc_v2);
	LOOK(cuMemFree_v2);
	LOOK(cuGetProcAddress_v2);
}
