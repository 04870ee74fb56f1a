/* SPDX-License-Identifier: MIT */
/* What a pointer is: the answers of an H200, for each kind of memory. */
#include <fcntl.h>
#include <string.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_context.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_pool.h"
#include "sim_vmm.h"

/* Either memory or mapping is set; both NULL: unknown. */
struct pointer {
	struct sim_memory *memory;
	struct sim_mapping *mapping;
	uint64_t addr;
};

static bool look_up(uint64_t addr, struct pointer *p)
{
	p->addr = addr;
	p->memory = sim_memory_find(addr);
	p->mapping = p->memory ? NULL : sim_vmm_find(addr);
	if (p->memory && p->memory->going)
		p->memory = NULL;
	return p->memory || p->mapping;
}

static bool is_legacy(const struct pointer *p);
static bool reachable(const struct pointer *p);

CUresult sim_cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize,
				     CUdeviceptr dptr)
{
	const struct sim_range *range;
	struct pointer p;

	/* of what the current context can reach (two H200) */
	if (!look_up(dptr, &p) || (is_legacy(&p) && !reachable(&p)))
		return CUDA_ERROR_NOT_FOUND;
	range = p.memory ? &p.memory->range : &p.mapping->range;
	if (pbase)
		*pbase = range->start;
	if (psize)
		*psize = range->size;
	return CUDA_SUCCESS;
}

/*
 * An attribute's value, and how many bytes of it the program's buffer takes.
 */
struct answer {
	union {
		uint64_t u64;
		uint32_t u32;
		bool flag;
		void *ptr;
	} u;
	size_t size;
};

static void set_u64(struct answer *a, uint64_t value)
{
	a->u.u64 = value;
	a->size = sizeof(uint64_t);
}

static void set_u32(struct answer *a, uint32_t value)
{
	a->u.u64 = 0;
	a->u.u32 = value;
	a->size = sizeof(uint32_t);
}

static void set_flag(struct answer *a, bool value)
{
	a->u.u64 = 0;
	a->u.flag = value;
	a->size = sizeof(bool);
}

static bool is_host(const struct pointer *p)
{
	return p->memory && sim_memory_is_host(p->memory);
}

static uint64_t context_of(const struct pointer *p)
{
	if (!p->memory || p->memory->kind == SIM_ASYNC || !p->memory->ctx)
		return 0;
	return p->memory->ctx->handle;
}

static int device_of(const struct pointer *p)
{
	return p->memory ? p->memory->device : p->mapping->physical->device;
}

static bool is_managed(const struct pointer *p)
{
	return p->memory && p->memory->kind == SIM_MANAGED;
}

static bool is_legacy(const struct pointer *p)
{
	return p->memory && p->memory->kind == SIM_LEGACY;
}

static bool reachable(const struct pointer *p)
{
	struct sim_context *ctx = sim_thread.current;

	return ctx &&
	       sim_memory_accessible(p->addr, 1, ctx, ctx->device, false);
}

/*
 * The ranges: legacy's own, or VMM's reservation and mapping; false: another
 * kind of attribute.
 */
static bool answer_range(const struct pointer *p, CUpointer_attribute attribute,
			 struct answer *a)
{
	const struct sim_range *r =
		p->memory ? &p->memory->range : &p->mapping->reservation->range;

	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		set_u64(a, r->start);
		return true;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		set_u64(a, r->size);
		return true;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		set_u64(a, p->memory ? p->memory->mapping_start
				     : p->mapping->range.start);
		return true;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		set_u64(a, p->memory ? p->memory->mapping_size
				     : p->mapping->range.size);
		return true;
	default:
		return false;
	}
}

/* That cuMemAlloc's answers for it under a context that is gone is a guess. */
static bool is_opened(const struct pointer *p)
{
	return p->memory && p->memory->kind == SIM_IMPORTED;
}

static bool rdma_capable(const struct pointer *p)
{
	return is_legacy(p) ||
	       (p->mapping &&
		p->mapping->physical->prop.allocFlags.gpuDirectRDMACapable);
}

/* Those that are yes or no; false: another kind of attribute. */
static bool answer_flag(const struct pointer *p, CUpointer_attribute attribute,
			struct answer *a)
{
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		set_flag(a, !p->memory || p->memory->sync_memops);
		return true;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		set_flag(a, is_managed(p));
		return true;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		set_flag(a, true);
		return true;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		set_flag(a, is_legacy(p));
		return true;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		set_flag(a, rdma_capable(p));
		return true;
	default:
		return false;
	}
}

static CUresult answer(const struct pointer *p, CUpointer_attribute attribute,
		       struct answer *a)
{
	if (answer_flag(p, attribute, a) || answer_range(p, attribute, a))
		return CUDA_SUCCESS;
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		set_u64(a, context_of(p));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		set_u32(a,
			is_host(p) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		set_u64(a, reachable(p) ? p->addr : 0);
		return reachable(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		set_u64(a, p->addr);
		return is_host(p) || is_managed(p) ? CUDA_SUCCESS
						   : CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		set_u64(a, p->memory ? p->memory->buffer_id
				     : p->mapping->buffer_id);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		set_u32(a, (uint32_t)device_of(p));
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		set_u64(a, 0);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		set_u32(a, is_legacy(p) || is_opened(p) || reachable(p)
				   ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
				   : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		set_u64(a, p->memory && p->memory->pool
				   ? sim_pool_handle(p->memory->pool)
				   : 0);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/* Asked under a context that was destroyed: there is none (NULL), but no error.
 */
static CUresult enter_context(void)
{
	CUresult result = sim_context_current(&sim_thread.current);

	if (result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return result;
	sim_thread.current = NULL;
	return CUDA_SUCCESS;
}

CUresult sim_cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
				   CUdeviceptr ptr)
{
	CUresult result = enter_context();
	struct answer a = {.size = 0};
	struct pointer p;

	if (result != CUDA_SUCCESS)
		return result;
	if (!data || !look_up(ptr, &p))
		return CUDA_ERROR_INVALID_VALUE;
	result = answer(&p, attribute, &a);
	if (result == CUDA_SUCCESS ||
	    (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && is_legacy(&p)))
		memcpy(data, &a.u, a.size);
	return result;
}

/* For a pointer that nobody knows: null values, of the right size. */
static void answer_unknown(CUpointer_attribute attribute, struct answer *a)
{
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		set_u32(a, 0);
		return;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		set_u32(a, (uint32_t)CU_DEVICE_INVALID);
		return;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		set_flag(a, false);
		return;
	default:
		set_u64(a, 0);
	}
}

CUresult sim_cuPointerGetAttributes(unsigned int numAttributes,
				    CUpointer_attribute *attributes,
				    void **data, CUdeviceptr ptr)
{
	CUresult result = enter_context();
	struct pointer p;
	bool known;
	unsigned i;

	if (result != CUDA_SUCCESS)
		return result;
	known = look_up(ptr, &p);
	if (!numAttributes || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < numAttributes; i++) {
		struct answer a = {.size = 0};

		if (!known || answer(&p, attributes[i], &a) != CUDA_SUCCESS)
			answer_unknown(attributes[i], &a);
		memcpy(data[i], &a.u, a.size);
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuPointerSetAttribute(const void *value,
				   CUpointer_attribute attribute,
				   CUdeviceptr ptr)
{
	CUresult result = enter_context();
	struct pointer p;

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_thread.current || !value || !look_up(ptr, &p))
		return CUDA_ERROR_INVALID_VALUE;
	/* VMM memory says so of every attribute (driver 580.159) */
	if (!p.memory)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	if (p.memory->kind == SIM_ASYNC)
		return CUDA_ERROR_NOT_SUPPORTED;
	p.memory->sync_memops = *(const unsigned int *)value;
	p.memory->memops_wait = p.memory->sync_memops;
	return CUDA_SUCCESS;
}

/* DMA-BUF: works for both kinds (an H200); the range must be whole pages. */
CUresult sim_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr,
					   size_t size,
					   CUmemRangeHandleType handleType,
					   unsigned long long flags)
{
	struct pointer p;
	uint64_t offset;
	int fd;

	(void)flags;
	if (!handle || !size || dptr % 4096 || size % 4096 ||
	    handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
	    !look_up(dptr, &p))
		return CUDA_ERROR_INVALID_VALUE;
	if (p.memory && p.memory->kind != SIM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	if (p.mapping && !sim_vmm_mapped(dptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	fd = p.memory ? sim_legacy_file(p.memory, &offset)
		      : p.mapping->physical->fd;
	if (fd < 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)handle = fd;
	return CUDA_SUCCESS;
}
