/* SPDX-License-Identifier: MIT */
/*
 * Multicast objects, of no use but to ask which memory may be bound to one.
 */
#include "sim_base.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_vmm.h"

static char object; /* they have no state */

CUresult sim_cuMulticastCreate(CUmemGenericAllocationHandle *handle,
			       const CUmulticastObjectProp *prop)
{
	if (!handle || !prop || !prop->size || prop->size % SIM_GRANULARITY ||
	    prop->flags || prop->numDevices < 1)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = sim_handle_new(SIM_MULTICAST, &object);
	return CUDA_SUCCESS;
}

CUresult sim_cuMulticastAddDevice(CUmemGenericAllocationHandle handle,
				  CUdevice device)
{
	if (!sim_handle_get(SIM_MULTICAST, handle))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_device_valid(device) ? CUDA_SUCCESS
					: CUDA_ERROR_INVALID_DEVICE;
}

/* Of VMM, and within one allocation (cuda.h). */
CUresult sim_cuMulticastBindAddr(CUmemGenericAllocationHandle handle,
				 size_t offset, CUdeviceptr p, size_t size,
				 unsigned long long flags)
{
	const struct sim_mapping *m = sim_vmm_find(p);

	if (!sim_handle_get(SIM_MULTICAST, handle) || flags || !size || !m ||
	    (offset | p | size) % SIM_GRANULARITY ||
	    size > m->range.start + m->range.size - p)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle,
				    CUdevice device, size_t offset,
				    CUdeviceptr p, size_t size,
				    unsigned long long flags)
{
	const struct sim_mapping *m = sim_vmm_find(p);

	if (!m || m->physical->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuMulticastBindAddr(handle, offset, p, size, flags);
}
