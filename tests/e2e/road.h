/* SPDX-License-Identifier: MIT
 *
 * road: one body of work for the programs that differ only in how they find
 * the driver's functions.
 */
#ifndef ROAD_H
#define ROAD_H

#include "victim.h"

/* symbol, name and version to ask cuGetProcAddress for */
#define ROAD_CALLS(X)                                                          \
	X(cuInit, "cuInit", 2000)                                              \
	X(cuDeviceGet, "cuDeviceGet", 2000)                                    \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)          \
	X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000)    \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                            \
	X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                          \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                   \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020)                         \
	X(cuMemFree_v2, "cuMemFree", 3020)                                     \
	X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020)               \
	X(cuMemsetD8_v2, "cuMemsetD8", 3020)                                   \
	X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020)                               \
	X(cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020)

struct road {
#define X(symbol, name, since) __typeof__(symbol) *symbol;
	ROAD_CALLS(X)
#undef X
};

#define ROAD_SLOTS 24

struct road_slot {
	CUdeviceptr p;
	size_t size;
};

static inline void road_free(const struct road *d, struct road_slot *slot,
			     unsigned char *host, int byte, uint64_t *hash)
{
	if (!slot->p)
		return;
	TRY(d->cuMemcpyDtoH_v2(host, slot->p, slot->size));
	for (size_t i = 0; i < slot->size; i++)
		CHECK(host[i] == (unsigned char)byte);
	*hash = victim_hash(*hash, host, slot->size);
	sim_client_note_free((void *)(uintptr_t)slot->p);
	TRY(d->cuMemFree_v2(slot->p));
	slot->p = 0;
}

/* Blocks of random sizes, each filled, copied over, read back and freed. */
static inline void road_churn(const struct road *d)
{
	struct road_slot slots[ROAD_SLOTS] = {{0, 0}};
	uint64_t random = 1, hash = HASH_START;
	unsigned char *host = malloc(16 * MiB);

	CHECK(host);
	for (int i = 0; i < 600; i++) {
		unsigned k = victim_random(&random) % ROAD_SLOTS;
		struct road_slot *slot = &slots[k];

		road_free(d, slot, host, (int)k + 1, &hash);
		slot->size = victim_size(&random, 23);
		TRY(d->cuMemAlloc_v2(&slot->p, slot->size));
		sim_client_note_alloc((void *)(uintptr_t)slot->p, slot->size);
		TRY(d->cuMemsetD8_v2(slot->p, (unsigned char)(k + 1),
				     slot->size));
	}
	for (int k = 0; k < ROAD_SLOTS; k++)
		road_free(d, &slots[k], host, k + 1, &hash);
	printf("churn %016" PRIx64 "\n", hash);
	free(host);
}

/* What the driver answers at the edges. */
static inline void road_edges(const struct road *d)
{
	CUdeviceptr p = 0, base = 0;
	size_t size = 0, pitch = 0;
	int local;

	printf("alloc 0: %d\n", d->cuMemAlloc_v2(&p, 0));
	printf("alloc NULL: %d\n", d->cuMemAlloc_v2(NULL, 4));
	printf("alloc 2^50: %d\n", d->cuMemAlloc_v2(&p, (size_t)1 << 50));
	printf("alloc 2^64-1: %d\n", d->cuMemAlloc_v2(&p, SIZE_MAX));
	printf("free 0: %d\n", d->cuMemFree_v2(0));
	printf("free stack: %d\n",
	       d->cuMemFree_v2((CUdeviceptr)(uintptr_t)&local));
	TRY(d->cuMemAlloc_v2(&p, 1000));
	printf("aligned: %d\n", p % 256 == 0);
	printf("free interior: %d\n", d->cuMemFree_v2(p + 256));
	TRY(d->cuMemGetAddressRange_v2(&base, &size, p + 999));
	printf("range: +%d %zu\n", (int)(p - base), size);
	printf("free: %d\n", d->cuMemFree_v2(p));
	printf("free again: %d\n", d->cuMemFree_v2(p));
	printf("range after: %d\n",
	       d->cuMemGetAddressRange_v2(&base, &size, p));
	printf("pitch 3: %d\n", d->cuMemAllocPitch_v2(&p, &pitch, 100, 10, 3));
	TRY(d->cuMemAllocPitch_v2(&p, &pitch, 1000, 10, 4));
	TRY(d->cuMemGetAddressRange_v2(&base, &size, p));
	printf("pitch: %zu, %zu bytes\n", pitch, size);
	TRY(d->cuMemFree_v2(p));
}

static inline int road_main(const struct road *d)
{
	CUdevice device;
	CUcontext ctx;
	CUdeviceptr p;
	int result = (int)d->cuMemAlloc_v2(&p, 4);

	printf("alloc before cuInit: %d\n", result);
	result = (int)d->cuInit(0);
	printf("cuInit: %d\n", result);
	if (result)
		return 1;
	TRY(d->cuDeviceGet(&device, 0));
	printf("alloc without context: %d\n", d->cuMemAlloc_v2(&p, 4));
	TRY(d->cuDevicePrimaryCtxRetain(&ctx, device));
	TRY(d->cuCtxSetCurrent(ctx));
	road_churn(d);
	road_edges(d);
	TRY(d->cuCtxSynchronize());
	TRY(d->cuDevicePrimaryCtxRelease_v2(device));
	return 0;
}

#endif
