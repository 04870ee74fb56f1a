/* SPDX-License-Identifier: MIT */
#include "sim_vmm.h"

#include <stdlib.h>

#include "sim.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_work.h"

static struct sim_ranges reservations, mappings;

struct sim_mapping *sim_vmm_find(uint64_t addr)
{
	return (struct sim_mapping *)sim_range_find(&mappings, addr);
}

struct sim_reservation *sim_vmm_find_reservation(uint64_t addr)
{
	return (struct sim_reservation *)sim_range_find(&reservations, addr);
}

bool sim_vmm_mapped(uint64_t start, uint64_t size)
{
	uint64_t at = start;

	while (at < start + size) {
		struct sim_range *m = sim_range_find(&mappings, at);

		if (!m)
			return false;
		at = m->start + m->size;
	}
	return true;
}

bool sim_vmm_accessible(uint64_t start, uint64_t size, int device, bool write)
{
	uint64_t at = start;

	while (at < start + size) {
		struct sim_mapping *m = sim_vmm_find(at);

		if (!m || !m->access[device] ||
		    (write &&
		     m->access[device] != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			return false;
		at = m->range.start + m->range.size;
	}
	return true;
}

void sim_vmm_sum(int device, struct sim_vmm_sums *sums)
{
	struct sim_range *r = sim_range_next(&mappings, 0);

	if (device == 0) {
		sums->n_reservations += reservations.n;
		sums->reserved += reservations.bytes;
	}
	for (; r; r = sim_range_next(&mappings, r->start + r->size)) {
		if (((struct sim_mapping *)r)->physical->device != device)
			continue;
		sums->n_mappings++;
		sums->mapped += r->size;
	}
}

static void unmap_one(struct sim_mapping *m)
{
	sim_range_remove(&mappings, &m->range);
	sim_physical_unmap(m->physical);
	free(m);
}

void sim_vmm_reset(void)
{
	struct sim_range *r;

	while ((r = sim_range_next(&mappings, 0)))
		unmap_one((struct sim_mapping *)r);
	while ((r = sim_range_next(&reservations, 0))) {
		sim_range_remove(&reservations, r);
		sim_sys_release(r->start, r->size);
		free(r);
	}
}

/* ---- driver functions ------------------------------------------------ */

static bool is_power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

CUresult sim_cuMemAddressReserve(CUdeviceptr *ptr, size_t size,
				 size_t alignment, CUdeviceptr addr,
				 unsigned long long flags)
{
	struct sim_reservation *r;
	uint64_t start;

	(void)addr; /* only a hint (cuda.h) */
	if (!ptr || !size || size % SIM_GRANULARITY || flags ||
	    (alignment && !is_power_of_two(alignment))) {
		sim_violation(SIM_V_RULE, "cuMemAddressReserve of %#zx bytes",
			      size);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (alignment < SIM_GRANULARITY)
		alignment = SIM_GRANULARITY;
	start = sim_sys_reserve(size, alignment);
	if (!start)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = sim_zalloc(sizeof(*r));
	r->range.start = start;
	r->range.size = size;
	sim_range_insert(&reservations, &r->range);
	*ptr = start;
	sim_cost_vmm(SIM_COST_RESERVE, size, 1);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	struct sim_reservation *r = sim_vmm_find_reservation(ptr);

	if (!r || r->range.start != ptr || r->range.size != size) {
		sim_violation(SIM_V_RULE,
			      "cuMemAddressFree of %#llx+%#zx, "
			      "which is no whole reservation",
			      ptr, size);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (sim_range_overlap(&mappings, ptr, size)) {
		sim_violation(SIM_V_RULE,
			      "cuMemAddressFree of %#llx+%#zx "
			      "with mappings in it",
			      ptr, size);
		return CUDA_ERROR_INVALID_VALUE;
	}
	sim_range_remove(&reservations, &r->range);
	sim_sys_release(ptr, size);
	free(r);
	sim_cost_vmm(SIM_COST_FREE_VA, size, 1);
	return CUDA_SUCCESS;
}

/* What an H200 answers to cuMemMap, each with its own code. */
static CUresult check_map(CUdeviceptr ptr, size_t size, size_t offset,
			  const struct sim_physical *p,
			  const struct sim_reservation *r)
{
	const char *why = NULL;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!p)
		why = "an unknown handle";
	else if (offset || size < p->size) {
		why = "a part of a handle";
		result = CUDA_ERROR_NOT_SUPPORTED;
	} else if (size != p->size)
		why = "more than the handle";
	else if (ptr % SIM_GRANULARITY)
		why = "an address that is not aligned";
	else if (!r || ptr + size > r->range.start + r->range.size)
		why = "addresses that are not reserved";
	else if (sim_range_overlap(&mappings, ptr, size))
		why = "addresses that are mapped already";
	if (!why)
		return CUDA_SUCCESS;
	sim_violation(SIM_V_RULE, "cuMemMap at %#llx+%#zx: %s", ptr, size, why);
	return result;
}

CUresult sim_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
		      CUmemGenericAllocationHandle handle,
		      unsigned long long flags)
{
	struct sim_physical *p = sim_physical_get(handle);
	struct sim_reservation *r = sim_vmm_find_reservation(ptr);
	CUresult result = check_map(ptr, size, offset, p, r);
	struct sim_mapping *m;

	if (result != CUDA_SUCCESS)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->fd >= 0 && !sim_sys_map(ptr, size, p->fd, 0)) {
		sim_say("sim: mmap failed; vm.max_map_count reached?");
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m = sim_zalloc(sizeof(*m));
	m->range.start = ptr;
	m->range.size = size;
	m->physical = p;
	m->reservation = r;
	m->buffer_id = sim_memory_next_id();
	sim_range_insert(&mappings, &m->range);
	sim_physical_map(p);
	sim_cost_vmm(SIM_COST_MAP, size, 1);
	return CUDA_SUCCESS;
}

/*
 * Counts the mappings that fill [ptr, ptr + size) exactly; 0 if they leave a
 * gap or reach over its edges.
 */
static unsigned count_whole(CUdeviceptr ptr, size_t size)
{
	uint64_t at = ptr;
	unsigned n = 0;

	while (at < ptr + size) {
		struct sim_range *m = sim_range_find(&mappings, at);

		if (!m || m->start != at || m->start + m->size > ptr + size)
			return 0;
		at += m->size;
		n++;
	}
	return n;
}

CUresult sim_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	unsigned n = count_whole(ptr, size);
	struct sim_range *r;

	if (!n) {
		sim_violation(SIM_V_RULE,
			      "cuMemUnmap of %#llx+%#zx, which "
			      "is not whole mappings",
			      ptr, size);
		return CUDA_ERROR_INVALID_VALUE;
	}
	sim_judge_gone(ptr, size);
	sim_work_quiesce(ptr, size);
	sim_cost_vmm(SIM_COST_UNMAP, size, n);
	/* Again from scratch: another thread may have come in between. */
	while ((r = sim_range_overlap(&mappings, ptr, size))) {
		struct sim_mapping *m = (struct sim_mapping *)r;

		if (m->physical->fd >= 0)
			sim_sys_unmap(r->start, r->size);
		if (m->physical->n_mappings == 1 && !m->physical->handle_refs)
			sim_cost_vmm(SIM_COST_RELEASE, r->size, 1);
		unmap_one(m);
	}
	return CUDA_SUCCESS;
}

static CUresult check_access(const CUmemAccessDesc *desc, size_t count)
{
	size_t i;

	if (!desc || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < count; i++) {
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
		     desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
		     desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			return CUDA_ERROR_INVALID_VALUE;
		if (!sim_device_valid(desc[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

/* Seen by others: devices that claim to be peers and refuse all the same. */
static CUresult check_peer(const struct sim_mapping *m,
			   const CUmemAccessDesc *desc, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (desc[i].location.id == m->physical->device ||
		    desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
			continue;
		if (sim_config.set_access_peer_fails)
			return CUDA_ERROR_INVALID_VALUE;
		if (!sim_device_may_be_peers(desc[i].location.id,
					     m->physical->device))
			return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

static void apply_access(struct sim_mapping *m, const CUmemAccessDesc *desc,
			 size_t count)
{
	bool read = false, write = false;
	size_t i;

	for (i = 0; i < count; i++)
		m->access[desc[i].location.id] = (unsigned char)desc[i].flags;
	for (i = 0; i < SIM_MAX_DEVICES; i++) {
		read |= m->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
		write |= m->access[i] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	if (m->physical->fd >= 0)
		sim_sys_protect(m->range.start, m->range.size, read, write);
}

CUresult sim_cuMemSetAccess(CUdeviceptr ptr, size_t size,
			    const CUmemAccessDesc *desc, size_t count)
{
	CUresult result = check_access(desc, count);
	unsigned n = count_whole(ptr, size);
	uint64_t at;

	if (result != CUDA_SUCCESS)
		return result;
	if (!n) {
		sim_violation(SIM_V_RULE,
			      "cuMemSetAccess of %#llx+%#zx, which "
			      "is not whole mappings",
			      ptr, size);
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (at = ptr; at < ptr + size; at += sim_vmm_find(at)->range.size) {
		result = check_peer(sim_vmm_find(at), desc, count);
		if (result != CUDA_SUCCESS)
			return result;
	}
	sim_work_quiesce(ptr, size);
	sim_cost_vmm(SIM_COST_SET_ACCESS, size, n);
	if (count > 1)
		sim_cost_vmm(SIM_COST_SET_PEER, size, (unsigned)count - 1);
	for (at = ptr; at < ptr + size; at += sim_vmm_find(at)->range.size)
		apply_access(sim_vmm_find(at), desc, count);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAccess(unsigned long long *flags,
			    const CUmemLocation *location, CUdeviceptr ptr)
{
	struct sim_mapping *m = sim_vmm_find(ptr);
	const struct sim_memory *legacy = m ? NULL : sim_memory_find(ptr);

	if (!flags || !location ||
	    (!m && (!legacy || legacy->kind != SIM_LEGACY)) ||
	    location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(location->id))
		return CUDA_ERROR_INVALID_DEVICE;
	/* of cuMemAlloc memory it says: none (an H200) */
	*flags = m ? m->access[location->id] : 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
					 void *addr)
{
	struct sim_mapping *m = sim_vmm_find((uint64_t)(uintptr_t)addr);

	if (!handle || !m)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = sim_physical_hold(m->physical);
	return CUDA_SUCCESS;
}
