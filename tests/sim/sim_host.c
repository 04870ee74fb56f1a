/* SPDX-License-Identifier: MIT */
/* Host: page-locked, registered and managed memory. */
#include <stdlib.h>
#include <sys/mman.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_context.h"
#include "sim_handle.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_vmm.h"

static struct sim_memory *host_alloc(enum sim_memory_kind kind, size_t size)
{
	/* aligned, so that answers do not depend on where the kernel puts it */
	uint64_t whole = sim_round_up(size, 4096);
	uint64_t start = 0;

	if (size <= sim_config.va_limit)
		start = sim_sys_reserve(whole, SIM_GRANULARITY);
	if (!start)
		return NULL;
	sim_sys_protect(start, whole, true, true);
	return sim_memory_new(kind, start, size);
}

void sim_host_free(struct sim_memory *m)
{
	if (m->kind != SIM_REGISTERED)
		munmap((void *)m->range.start, m->range.size);
	sim_memory_delete(m);
}

void sim_host_reset(void)
{
	struct sim_memory *m = sim_memory_next(0), *next;

	for (; m; m = next) {
		next = sim_memory_next(m->range.start + m->range.size);
		if (sim_memory_is_host(m) || m->kind == SIM_MANAGED)
			sim_host_free(m);
	}
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	struct sim_memory *m;

	if (!pp || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	m = host_alloc(SIM_HOST, bytesize);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->flags = Flags;
	*pp = (void *)m->range.start;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return sim_cuMemHostAlloc(pp, bytesize, 0);
}

CUresult sim_cuMemFreeHost(void *p)
{
	struct sim_memory *m = sim_memory_find(SIM_OF(p));
	struct sim_vclock clock = {0};

	if (!m || m->range.start != SIM_OF(p) || m->kind != SIM_HOST ||
	    m->going) {
		sim_violation(SIM_V_BAD_FREE, "cuMemFreeHost of %p", p);
		return CUDA_ERROR_INVALID_VALUE;
	}
	m->going = true;
	sim_context_device_clock(m->device, &clock);
	sim_wait_clock(&clock);
	sim_judge_gone(m->range.start, m->range.size);
	sim_work_quiesce(m->range.start, m->range.size);
	sim_host_free(m);
	return CUDA_SUCCESS;
}

/* It is none of the host's to lock (openucx/ucx, issue 4393). */
static bool is_of_device(void *p)
{
	struct sim_memory *m = sim_memory_find(SIM_OF(p));

	if (!m)
		return sim_vmm_find_reservation(SIM_OF(p)) != NULL;
	return !sim_memory_is_host(m) && m->kind != SIM_MANAGED;
}

CUresult sim_cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	uint64_t end;

	if (!p || !bytesize ||
	    __builtin_add_overflow(SIM_OF(p), bytesize, &end) ||
	    is_of_device(p))
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_memory_next(SIM_OF(p)) &&
	    sim_memory_next(SIM_OF(p))->range.start < end)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	sim_memory_new(SIM_REGISTERED, SIM_OF(p), bytesize)->flags = Flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostUnregister(void *p)
{
	struct sim_memory *m = sim_memory_find(SIM_OF(p));

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m || m->range.start != SIM_OF(p) || m->kind != SIM_REGISTERED)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	sim_judge_gone(m->range.start, m->range.size);
	sim_work_quiesce(m->range.start, m->range.size);
	sim_host_free(m);
	return CUDA_SUCCESS;
}

/* VMM memory of a device is taken for the host's (an H200). */
static bool is_taken_for_host(const struct sim_memory *m, void *p)
{
	return m ? sim_memory_is_host(m) : sim_vmm_find(SIM_OF(p)) != NULL;
}

CUresult sim_cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p,
					  unsigned int Flags)
{
	struct sim_memory *m = sim_memory_find(SIM_OF(p));

	if (!pdptr || Flags || !is_taken_for_host(m, p))
		return CUDA_ERROR_INVALID_VALUE;
	*pdptr = SIM_OF(p);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
	struct sim_memory *m = sim_memory_find(SIM_OF(p));

	if (!pFlags || !is_taken_for_host(m, p))
		return CUDA_ERROR_INVALID_VALUE;
	*pFlags = m ? m->flags : 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize,
			       unsigned int flags)
{
	struct sim_memory *m;

	if (!dptr || !bytesize ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	m = host_alloc(SIM_MANAGED, bytesize);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*dptr = m->range.start;
	return CUDA_SUCCESS;
}
