/* SPDX-License-Identifier: MIT */
#include "fake.h"

#include <bsd/sys/tree.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/meta.h"
#include "base/modules.h"
#include "base/thread.h"
#include "driver/real.h"
#include "driver/vmm.h"

#define GRANULE ((uint64_t)2 << 20)

struct fake fake;

struct handle {
	uint64_t id; /* in the order of their making */
	uint64_t size;
	unsigned mapped;
	int is_released, was_mapped;
};

struct mapping {
	RB_ENTRY(mapping) entry;
	CUdeviceptr at;
	struct handle *handle;
	uint64_t devices; /* with access, a bit each */
	unsigned n_cold;  /* page tables that its access will make */
};

static int compare(const struct mapping *a, const struct mapping *b)
{
	return a->at < b->at ? -1 : a->at > b->at;
}

RB_HEAD(mappings, mapping);
/* tree.h marks its functions by a name that glibc leaves to struct members */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(mappings, mapping, entry, compare)
#undef __unused

static struct mappings mappings = RB_INITIALIZER(&mappings);
static CUdeviceptr next_va = (CUdeviceptr)1 << 40;
static uint64_t next_id;

static void broken(const char *rule)
{
	fprintf(stderr, "fake driver: broken rule: %s\n", rule);
	abort();
}

static int fails(unsigned *countdown)
{
	return *countdown > 0 && --*countdown == 0;
}

/* Microseconds at a size, from a table by MiB, measured on an H200. */
static double cost_at(const double *us, uint64_t size)
{
	static const double mib[] = {2, 32, 256, 1024, 4096, 16384};
	double m = (double)size / (1 << 20);

	if (m <= mib[0])
		return us[0];
	for (int i = 1; i < 6; i++) {
		if (m <= mib[i])
			return us[i - 1] + (us[i] - us[i - 1]) *
						   (m - mib[i - 1]) /
						   (mib[i] - mib[i - 1]);
	}
	return us[5] * m / mib[5];
}

/*
 * A page table is for 512 MiB of address space. It is made with the first
 * mapping there and goes with the last (H200, medians of 25: to map 16 MiB
 * takes 28 us beside others and 40 where nothing is mapped, to unmap them 19
 * and 26; with every further table 9 to 11 and 4 more).
 */
enum { TABLE_SHIFT = 29, N_TABLES = 1 << 16 };
static unsigned mapped_at[N_TABLES];

/* Tables that are made, or go, with a mapping of [at, at + size). */
static unsigned count_tables(CUdeviceptr at, uint64_t size, int change)
{
	unsigned n = 0;

	for (uint64_t t = at >> TABLE_SHIFT;
	     t <= (at + size - 1) >> TABLE_SHIFT; t++) {
		unsigned *mapped = &mapped_at[t % N_TABLES];

		n += *mapped == (change < 0);
		*mapped += (unsigned)change;
	}
	return n;
}

static void spend(double us)
{
	fake.cost_us += us;
	fake.now += (uint64_t)(us * 1000);
}

/* The mapping that begins at an address. */
static struct mapping *begins_at(CUdeviceptr at)
{
	struct mapping wanted = {.at = at};

	return RB_FIND(mappings, &mappings, &wanted);
}

/* The first mapping that ends behind `p`. */
static struct mapping *first_behind(CUdeviceptr p)
{
	struct mapping *m = RB_ROOT(&mappings), *found = NULL;

	while (m) {
		if (p < m->at + m->handle->size) {
			found = m;
			m = RB_LEFT(m, entry);
		} else {
			m = RB_RIGHT(m, entry);
		}
	}
	return found;
}

CUdeviceptr fake_mapping(CUdeviceptr p)
{
	struct mapping *m = first_behind(p);

	return m && m->at <= p ? m->at : 0;
}

int fake_piece(CUdeviceptr p, struct fake_piece *out)
{
	struct mapping *m = first_behind(p);

	if (!m || m->at > p || m->devices == 0)
		return 0;
	out->handle = m->handle->id;
	out->handle_size = m->handle->size;
	out->offset = p - m->at;
	out->size = m->handle->size - out->offset;
	out->devices = m->devices;
	return 1;
}

static void forget_handle(struct handle *h)
{
	if (!h->is_released || h->mapped)
		return;
	fake.held -= h->size;
	if (fake.on_gone)
		fake.on_gone(h->id);
	free(h);
}

static CUresult fake_reserve(CUdeviceptr *p, size_t size, size_t alignment,
			     CUdeviceptr hint, unsigned long long flags)
{
	(void)alignment, (void)hint, (void)flags;
	if (size > fake.space)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*p = next_va;
	next_va += size;
	return CUDA_SUCCESS;
}

static CUresult fake_unreserve(CUdeviceptr p, size_t size)
{
	(void)p, (void)size;
	return CUDA_SUCCESS;
}

static CUresult fake_create(CUmemGenericAllocationHandle *out, size_t size,
			    const CUmemAllocationProp *prop,
			    unsigned long long flags)
{
	static const double us[] = {9, 12, 14, 18, 30, 300};
	struct handle *h;

	(void)prop, (void)flags;
	if (size == 0 || size % GRANULE)
		broken("cuMemCreate of a size that is not granular");
	if (fails(&fake.fail_create))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (fake.held + fake.others + size > fake.memory) {
		fake.refused++;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	h = calloc(1, sizeof(*h));
	h->size = size;
	h->id = ++next_id;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)h;
	fake.held += size;
	if (fake.held > fake.held_high)
		fake.held_high = fake.held;
	fake.creates++;
	fake.handles++;
	spend(cost_at(us, size));
	return CUDA_SUCCESS;
}

/* The memory goes when its last mapping goes. */
static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
	struct handle *h = (struct handle *)(uintptr_t)handle;

	if (h->is_released)
		broken("cuMemRelease twice");
	if (fails(&fake.fail_release))
		return CUDA_ERROR_UNKNOWN;
	h->is_released = 1;
	fake.releases++;
	fake.handles--;
	spend(9 + 0.25 * (double)h->size / (1 << 20));
	forget_handle(h);
	return CUDA_SUCCESS;
}

static CUresult fake_map(CUdeviceptr at, size_t size, size_t offset,
			 CUmemGenericAllocationHandle handle,
			 unsigned long long flags)
{
	struct handle *h = (struct handle *)(uintptr_t)handle;
	struct mapping *m = first_behind(at);

	(void)flags;
	if (h->is_released)
		broken("cuMemMap of a released handle");
	if (offset || size != h->size)
		broken("cuMemMap of a part of a handle");
	if (at % GRANULE)
		broken("cuMemMap at an address that is not granular");
	if (m && m->at < at + size)
		broken("cuMemMap over a mapping");
	if (fails(&fake.fail_map))
		return CUDA_ERROR_UNKNOWN;
	m = calloc(1, sizeof(*m));
	m->at = at;
	m->handle = h;
	m->n_cold = count_tables(at, size, 1);
	fake.tables += m->n_cold;
	RB_INSERT(mappings, &mappings, m);
	/* the first time it is registered for RDMA */
	spend(h->was_mapped ? 0.7 : 7);
	h->was_mapped = 1;
	h->mapped++;
	fake.maps++;
	fake.mappings++;
	return CUDA_SUCCESS;
}

static CUresult fake_unmap(CUdeviceptr at, size_t size)
{
	CUdeviceptr end = at + size;
	unsigned n;

	if (fails(&fake.fail_unmap) || at == fake.never_unmapped)
		return CUDA_ERROR_UNKNOWN;
	if (fake.on_unmap)
		fake.on_unmap(at, size);
	while (at < end) {
		struct mapping *m = begins_at(at);
		struct handle *h;

		if (!m)
			broken("cuMemUnmap of what is not a whole mapping");
		h = m->handle;
		at += h->size;
		h->mapped--;
		n = count_tables(m->at, h->size, -1);
		spend(n > 0 ? 22 + 4 * n : 19);
		RB_REMOVE(mappings, &mappings, m);
		free(m);
		fake.unmaps++;
		fake.mappings--;
		forget_handle(h);
	}
	if (at != end)
		broken("cuMemUnmap of a part of a mapping");
	return CUDA_SUCCESS;
}

static CUresult fake_access(CUdeviceptr at, size_t size,
			    const CUmemAccessDesc *access, size_t n)
{
	CUdeviceptr end = at + size;
	uint64_t devices = 0;

	if (fails(&fake.fail_access))
		return CUDA_ERROR_UNKNOWN;
	for (size_t i = 0; i < n; i++)
		devices |= (uint64_t)1 << access[i].location.id;
	while (at < end) {
		struct mapping *m = begins_at(at);

		if (!m)
			broken("cuMemSetAccess over a hole");
		m->devices = devices;
		at += m->handle->size;
		spend(17 + 0.002 * (double)m->handle->size / (1 << 20) +
		      11 * m->n_cold);
		m->n_cold = 0;
	}
	if (at != end)
		broken("cuMemSetAccess of a part of a mapping");
	fake.accesses++;
	return CUDA_SUCCESS;
}

static CUresult fake_granularity(size_t *out, const CUmemAllocationProp *prop,
				 CUmemAllocationGranularity_flags which)
{
	(void)prop, (void)which;
	*out = GRANULE;
	return CUDA_SUCCESS;
}

static CUresult fake_attribute(int *out, CUdevice_attribute which, CUdevice d)
{
	(void)d;
	*out = which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
	return CUDA_SUCCESS;
}

static CUresult fake_version(int *out)
{
	*out = 13000;
	return CUDA_SUCCESS;
}

static CUresult fake_total(size_t *out, CUdevice d)
{
	(void)d;
	*out = fake.memory;
	return CUDA_SUCCESS;
}

static CUresult fake_count(int *out)
{
	*out = 1;
	return CUDA_SUCCESS;
}

static CUresult fake_get_current(CUcontext *out)
{
	*out = fake.current;
	return CUDA_SUCCESS;
}

static CUresult fake_get_device(CUdevice *out)
{
	*out = 0;
	return CUDA_SUCCESS;
}

static CUresult fake_api_version(CUcontext ctx, unsigned int *out)
{
	(void)ctx;
	*out = 3020;
	return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext ctx)
{
	(void)ctx;
	return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *out)
{
	*out = fake.current;
	return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *out, unsigned flags)
{
	(void)flags;
	*out = (CUevent)calloc(1, sizeof(uint64_t));
	return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent e)
{
	free(e);
	return CUDA_SUCCESS;
}

static CUresult fake_record(CUcontext ctx, CUevent e)
{
	(void)ctx;
	if (fake.captures > 0)
		broken("cuCtxRecordEvent while a capture is open");
	if (fails(&fake.fail_record))
		return CUDA_ERROR_UNKNOWN;
	*(uint64_t *)e = (fake.gpu_free > fake.now ? fake.gpu_free : fake.now) +
			 fake.lag_ns;
	fake.records++;
	return CUDA_SUCCESS;
}

static CUresult fake_wait(CUcontext ctx, CUevent e)
{
	(void)ctx, (void)e;
	fake.orders++;
	return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent e)
{
	fake.queries++;
	if (fake.now < *(uint64_t *)e)
		return CUDA_ERROR_NOT_READY;
	fake.seen++;
	return CUDA_SUCCESS;
}

static CUresult fake_synchronize(void)
{
	fake.now += fake.lag_ns;
	return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode *mode)
{
	*mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	return CUDA_SUCCESS;
}

static CUresult fake_alloc(CUdeviceptr *p, size_t size)
{
	(void)p, (void)size;
	fake.natives++;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult barrier_alloc(CUdeviceptr *p, size_t size)
{
	(void)size;
	*p = 0x5000;
	return CUDA_SUCCESS;
}

static CUresult barrier_free(CUdeviceptr p)
{
	(void)p;
	fake.barriers++;
	fake.now += fake.lag_ns;
	return CUDA_SUCCESS;
}

void fake_allow_barriers(void)
{
	struct vs_real real = vs_real;

	real.cuMemAlloc_v2 = barrier_alloc;
	real.cuMemFree_v2 = barrier_free;
	vs_real_set(&real);
}

static CUresult fake_info(size_t *unused_out, size_t *total_out)
{
	*unused_out = fake.memory - fake.held - fake.others;
	*total_out = fake.memory;
	return CUDA_SUCCESS;
}

static uint64_t fake_clock(void)
{
	return fake.now;
}

/* A wait lets time pass: 10 us a look. */
static void fake_pause(unsigned round)
{
	(void)round;
	fake.now += 10000;
}

/* Then whoever waits behind a barrier does so itself. */
static int no_thread(pthread_t *thread, const pthread_attr_t *attributes,
		     void *(*run)(void *), void *argument)
{
	(void)thread, (void)attributes, (void)run, (void)argument;
	return EAGAIN;
}

void fake_install(uint64_t memory)
{
	struct vs_real real;
	struct mapping *m;

	/* nothing here depends on the drivers of this machine */
	vs_modules_path = "/dev/null";
	vs_meta_overcommit_path = "/dev/null";
	/* what another driver had mapped is forgotten */
	while ((m = RB_ROOT(&mappings))) {
		RB_REMOVE(mappings, &mappings, m);
		if (--m->handle->mapped == 0)
			free(m->handle);
		free(m);
	}
	memset(&real, 0, sizeof(real));
	memset(&fake, 0, sizeof(fake));
	memset(mapped_at, 0, sizeof(mapped_at));
	fake.memory = memory;
	fake.space = (uint64_t)64 << 40;
	fake.current = FAKE_CTX;
	fake.now = 1000000000;
	real.cuMemAddressReserve = fake_reserve;
	real.cuMemAddressFree = fake_unreserve;
	real.cuMemCreate = fake_create;
	real.cuMemRelease = fake_release;
	real.cuMemMap = fake_map;
	real.cuMemUnmap = fake_unmap;
	real.cuMemSetAccess = fake_access;
	real.cuMemGetAllocationGranularity = fake_granularity;
	real.cuDeviceGetAttribute = fake_attribute;
	real.cuDriverGetVersion = fake_version;
	real.cuDeviceTotalMem_v2 = fake_total;
	real.cuDeviceGetCount = fake_count;
	real.cuCtxGetCurrent = fake_get_current;
	real.cuCtxGetDevice = fake_get_device;
	real.cuCtxGetApiVersion = fake_api_version;
	real.cuCtxPushCurrent_v2 = fake_push;
	real.cuCtxPopCurrent_v2 = fake_pop;
	real.cuEventCreate = fake_event_create;
	real.cuEventDestroy_v2 = fake_event_destroy;
	real.cuCtxRecordEvent = fake_record;
	real.cuCtxWaitEvent = fake_wait;
	real.cuEventQuery = fake_query;
	real.cuCtxSynchronize = fake_synchronize;
	real.cuThreadExchangeStreamCaptureMode = fake_exchange;
	real.cuMemAlloc_v2 = fake_alloc;
	real.cuMemGetInfo_v2 = fake_info;
	vs_real_set(&real);
	vs_vmm_clock = vs_vmm_ticks = fake_clock;
	vs_vmm_pause = fake_pause;
	vs_thread_create = no_thread;
}
