/* SPDX-License-Identifier: MIT */
#include "sim_device.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_pool.h"

struct sim_device sim_devices[SIM_MAX_DEVICES];

bool sim_device_valid(int device)
{
	return device >= 0 && device < sim_config.n_devices;
}

/* SIM_SHARED: what all processes use of each device; NULL without. */
static _Atomic uint64_t *shared;
static pid_t sharer; /* a forked child gives nothing back */

uint64_t sim_device_used(int device)
{
	return shared ? atomic_load(&shared[device]) : sim_devices[device].used;
}

/* Counts bytes in, also among all processes, if there is room. */
static bool count(int device, uint64_t bytes)
{
	struct sim_device *d = &sim_devices[device];
	uint64_t used = sim_device_used(device);

	do {
		if (bytes > d->memory || used > d->memory - bytes)
			return false;
	} while (shared && !atomic_compare_exchange_weak(&shared[device], &used,
							 used + bytes));
	d->used += bytes;
	return true;
}

bool sim_device_take(int device, uint64_t bytes)
{
	struct sim_device *d = &sim_devices[device];

	if (!count(device, bytes)) {
		/* Pools give way to other allocations of the process (as NVIDIA
		 * says in RMM's issue 1245) */
		sim_pool_trim_device(device);
		if (!count(device, bytes))
			return false;
	}
	if (d->used > d->peak)
		d->peak = d->used;
	return true;
}

void sim_device_give(int device, uint64_t bytes)
{
	sim_devices[device].used -= bytes;
	if (shared)
		atomic_fetch_sub(&shared[device], bytes);
}

/* What the process still has goes with it. */
static __attribute__((destructor)) void leave(void)
{
	int i;

	for (i = 0; shared && sharer == getpid() && i < SIM_MAX_DEVICES; i++)
		atomic_fetch_sub(&shared[i], sim_devices[i].used);
}

static void share(const char *path)
{
	size_t size = SIM_MAX_DEVICES * sizeof(*shared);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		sim_say("sim: cannot use SIM_SHARED=%s", path);
	else
		shared = p;
	if (fd >= 0)
		close(fd);
	sharer = getpid();
}

void sim_device_reset(void)
{
	const char *path = sim_env("SIM_SHARED");
	int i;

	leave();
	if (path && !shared)
		share(path);
	memset(sim_devices, 0, SIM_MAX_DEVICES * sizeof(sim_devices[0]));
	for (i = 0; i < SIM_MAX_DEVICES; i++)
		sim_devices[i].memory = sim_config.memory;
}

void sim_set_memory(int device, uint64_t bytes)
{
	int i;

	sim_lock();
	for (i = 0; i < sim_config.n_devices; i++)
		if (device < 0 || device == i)
			sim_devices[i].memory = bytes;
	sim_unlock();
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuDeviceGet(CUdevice *device, int ordinal)
{
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetCount(int *count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim_config.n_devices;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char *name, int len, CUdevice dev)
{
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "Simulated GPU %d", dev);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = sim_devices[dev].memory;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*major = 9;
	*minor = 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	memset(uuid, 0, sizeof(*uuid));
	memcpy(uuid->bytes, "simulated-gpu", 13);
	uuid->bytes[15] = (char)dev;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return sim_cuDeviceGetUuid_v2(uuid, dev);
}

CUresult sim_cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
	if (!pciBusId || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(pciBusId, (size_t)len, "0000:%02x:00.0", dev + 1);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
	unsigned domain, bus;

	if (!dev || !pciBusId)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(pciBusId, "%x:%x", &domain, &bus) != 2 ||
	    !sim_device_valid((int)bus - 1))
		return CUDA_ERROR_INVALID_DEVICE;
	*dev = (int)bus - 1;
	return CUDA_SUCCESS;
}

/* As on an H200; what is not listed is 0, as for a feature it lacks. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} constants[] = {
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
	{CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
	{CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
	{CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
	{CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
	{CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
	{CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
	{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
	{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
	{CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
	{CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
	{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
	{CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
	{CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
	{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
};

static int attribute(CUdevice_attribute attrib, int dev)
{
	unsigned i;

	switch ((int)attrib) {
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
		return !sim_config.no_vmm;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return dev + 1;
	default:
		break;
	}
	for (i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
		if (constants[i].attribute == attrib)
			return constants[i].value;
	return 0;
}

CUresult sim_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib,
				  CUdevice dev)
{
	if (!pi || attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*pi = attribute(attrib, dev);
	return CUDA_SUCCESS;
}

bool sim_device_may_be_peers(int a, int b)
{
	return sim_config.peer && a != b &&
	       (!sim_config.peer_near || a - b == 1 || b - a == 1);
}

CUresult sim_cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev,
				   CUdevice peerDev)
{
	if (!canAccessPeer)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev) || !sim_device_valid(peerDev))
		return CUDA_ERROR_INVALID_DEVICE;
	*canAccessPeer = sim_device_may_be_peers(dev, peerDev);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib,
				     CUdevice srcDevice, CUdevice dstDevice)
{
	CUresult result =
		sim_cuDeviceCanAccessPeer(value, srcDevice, dstDevice);

	if (result == CUDA_SUCCESS &&
	    attrib == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)
		*value = 0;
	return result;
}
