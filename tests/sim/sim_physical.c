/* SPDX-License-Identifier: MIT */
#include "sim_physical.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_judge.h"

static struct sim_physical *first;
static uint64_t last_serial;

/* In the file's name, so that an importer knows what it got. */
#define NAME_FORMAT "sim-d%d-r%d-t%d"

static struct sim_physical *physical_new(uint64_t size,
					 const CUmemAllocationProp *prop)
{
	struct sim_physical *p = sim_zalloc(sizeof(*p));

	p->size = size;
	p->prop = *prop;
	p->device = prop->location.id;
	p->serial = ++last_serial;
	p->fd = -1;
	p->next = first;
	if (first)
		first->prev = p;
	first = p;
	return p;
}

static void drop_if_unused(struct sim_physical *p)
{
	if (p->handle_refs || p->n_mappings)
		return;
	if (!p->imported)
		sim_device_give(p->device, p->size);
	if (p->fd >= 0)
		close(p->fd);
	if (p->prev)
		p->prev->next = p->next;
	else
		first = p->next;
	if (p->next)
		p->next->prev = p->prev;
	free(p);
}

struct sim_physical *sim_physical_get(CUmemGenericAllocationHandle handle)
{
	return sim_handle_get(SIM_PHYSICAL, handle);
}

CUmemGenericAllocationHandle sim_physical_hold(struct sim_physical *p)
{
	if (p->handle_refs++ == 0)
		p->handle = sim_handle_new(SIM_PHYSICAL, p);
	return p->handle;
}

void sim_physical_map(struct sim_physical *p)
{
	p->n_mappings++;
}

void sim_physical_unmap(struct sim_physical *p)
{
	p->n_mappings--;
	drop_if_unused(p);
}

void sim_physical_sum(int device, struct sim_physical_sums *sums)
{
	const struct sim_physical *p;

	for (p = first; p; p = p->next) {
		if (p->device != device)
			continue;
		sums->n_handles += p->handle_refs;
		sums->n_physical++;
		sums->bytes += p->size;
	}
}

void sim_physical_reset(void)
{
	while (first) {
		first->handle_refs = 0;
		first->n_mappings = 0;
		drop_if_unused(first);
	}
}

/* ---- driver functions ------------------------------------------------ */

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!sim_device_valid(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	/* An H200: no fabric here. */
	if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC)
		return CUDA_ERROR_NOT_PERMITTED;
	if (prop->requestedHandleTypes &
	    ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (prop->allocFlags.usage || prop->allocFlags.compressionType)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CUresult
sim_cuMemGetAllocationGranularity(size_t *granularity,
				  const CUmemAllocationProp *prop,
				  CUmemAllocationGranularity_flags option)
{
	CUresult result = check_prop(prop);

	if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
			     option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		*granularity = SIM_GRANULARITY;
	return result;
}

static bool back(struct sim_physical *p)
{
	struct stat st;
	char name[64];

	if (!sim_config.backing)
		return true;
	snprintf(name, sizeof(name), NAME_FORMAT, p->device,
		 p->prop.allocFlags.gpuDirectRDMACapable,
		 (int)p->prop.requestedHandleTypes);
	p->fd = sim_sys_memfd(name, p->size);
	if (p->fd < 0 || fstat(p->fd, &st))
		return false;
	p->inode = st.st_ino;
	return true;
}

CUresult sim_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
			 const CUmemAllocationProp *prop,
			 unsigned long long flags)
{
	CUresult result = check_prop(prop);
	struct sim_physical *p;

	if (result != CUDA_SUCCESS)
		return result;
	if (!handle || !size || flags || size % SIM_GRANULARITY) {
		sim_violation(SIM_V_RULE, "cuMemCreate of %#zx bytes", size);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!sim_device_take(prop->location.id, size)) {
		sim_cost_vmm(SIM_COST_CREATE_FAIL, size, 1);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p = physical_new(size, prop);
	if (!back(p)) {
		sim_say("sim: no file for %zu bytes", size);
		drop_if_unused(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = sim_physical_hold(p);
	sim_cost_vmm(SIM_COST_CREATE, size, 1);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct sim_physical *p = sim_handle_peek(SIM_PHYSICAL, handle);

	if (!p) {
		sim_violation(SIM_V_RULE,
			      "cuMemRelease of the unknown handle "
			      "%#llx",
			      handle);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (p->handle_refs == 1 && !p->n_mappings)
		sim_cost_vmm(SIM_COST_RELEASE, p->size, 1);
	if (--p->handle_refs == 0)
		sim_handle_free(handle);
	drop_if_unused(p);
	return CUDA_SUCCESS;
}

CUresult
sim_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
					   CUmemGenericAllocationHandle handle)
{
	struct sim_physical *p = sim_physical_get(handle);

	if (!prop || !p)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = p->prop;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemExportToShareableHandle(void *shareableHandle,
					  CUmemGenericAllocationHandle handle,
					  CUmemAllocationHandleType handleType,
					  unsigned long long flags)
{
	struct sim_physical *p = sim_physical_get(handle);
	int fd;

	if (!shareableHandle || !p || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!(p->prop.requestedHandleTypes & handleType)) {
		sim_violation(SIM_V_RULE,
			      "export of memory not created exportable");
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (p->fd < 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)shareableHandle = fd;
	return CUDA_SUCCESS;
}

/* What the exporter wrote into the file's name. */
static bool read_name(int fd, CUmemAllocationProp *prop)
{
	char link[64], name[128], *text;
	int device, rdma, types;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, name, sizeof(name) - 1);
	if (n < 0)
		return false;
	name[n] = '\0';
	for (text = name; *text && *text != ':'; text++)
		;
	if (sscanf(text, ":" NAME_FORMAT, &device, &rdma, &types) != 3 ||
	    !sim_device_valid(device))
		return false;
	*prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	prop->allocFlags.gpuDirectRDMACapable = (unsigned char)rdma;
	return true;
}

CUresult
sim_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
				   void *osHandle,
				   CUmemAllocationHandleType shHandleType)
{
	int fd = (int)(intptr_t)osHandle;
	CUmemAllocationProp prop;
	struct sim_physical *p;
	struct stat st;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (fstat(fd, &st) || !read_name(fd, &prop))
		return CUDA_ERROR_INVALID_VALUE;
	for (p = first; p; p = p->next)
		if (p->inode == st.st_ino)
			break;
	if (!p) {
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		if (fd < 0)
			return CUDA_ERROR_OPERATING_SYSTEM;
		p = physical_new((uint64_t)st.st_size, &prop);
		p->fd = fd;
		p->inode = st.st_ino;
		p->imported = true;
	}
	*handle = sim_physical_hold(p);
	return CUDA_SUCCESS;
}
