/* SPDX-License-Identifier: MIT */
#include "sim_pool.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_judge.h"

/*
 * A pool's memory is counted, not placed: each allocation has address space
 * of its own, and what is free in the pool is a number of bytes.
 */
struct sim_pool {
	uint64_t handle;
	struct sim_pool *next;
	int device;
	uint64_t used, reserved; /* reserved: counted on the device */
	uint64_t used_high, reserved_high;
	uint64_t threshold;
	bool is_default;
	unsigned char access[SIM_MAX_DEVICES];
};

#define POOL_STEP ((uint64_t)2 << 20)

static struct sim_pool *pools;

static struct sim_pool *pool_new(int device)
{
	struct sim_pool *pool = sim_zalloc(sizeof(*pool));

	pool->device = device;
	pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	pool->handle = sim_handle_new(SIM_POOL, pool);
	pool->next = pools;
	pools = pool;
	return pool;
}

static struct sim_pool *default_pool(int device)
{
	struct sim_device *d = &sim_devices[device];
	struct sim_pool *pool;

	if (!d->default_pool) {
		pool = pool_new(device);
		pool->is_default = true;
		d->default_pool = SIM_AS(CUmemoryPool, pool->handle);
		d->pool = d->default_pool;
	}
	return sim_handle_peek(SIM_POOL, SIM_OF(d->default_pool));
}

static struct sim_pool *current_pool(int device)
{
	default_pool(device);
	return sim_handle_peek(SIM_POOL, SIM_OF(sim_devices[device].pool));
}

bool sim_pool_accessible(const struct sim_pool *pool, int device)
{
	return pool->access[device] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

uint64_t sim_pool_handle(const struct sim_pool *pool)
{
	return pool->handle;
}

static void trim(struct sim_pool *pool, uint64_t keep)
{
	uint64_t target = pool->used > keep ? pool->used : keep;

	if (pool->reserved <= target)
		return;
	target = sim_round_up(target, POOL_STEP);
	if (pool->reserved <= target)
		return;
	sim_cost(SIM_COST_POOL_NEW, pool->reserved - target, 1);
	sim_device_give(pool->device, pool->reserved - target);
	pool->reserved = target;
}

void sim_pool_trim_device(int device)
{
	struct sim_pool *pool;

	for (pool = pools; pool; pool = pool->next)
		if (pool->device == device)
			trim(pool, 0);
}

void sim_pool_synchronized(int device)
{
	struct sim_pool *pool;

	for (pool = pools; pool; pool = pool->next)
		if (pool->device == device)
			trim(pool, pool->threshold);
}

static bool grow(struct sim_pool *pool, uint64_t size)
{
	uint64_t need;

	pool->used += size;
	if (pool->used > pool->reserved) {
		need = sim_round_up(pool->used, POOL_STEP) - pool->reserved;
		if (!sim_device_take(pool->device, need)) {
			pool->used -= size;
			return false;
		}
		sim_cost(SIM_COST_POOL_NEW, need, 1);
		pool->reserved += need;
	}
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
	return true;
}

void sim_pool_free(struct sim_memory *m)
{
	m->pool->used -= sim_round_up(m->range.size, 512);
	sim_judge_forget(m->range.start, m->range.size);
	sim_sys_release(m->mapping_start, m->mapping_size);
	sim_memory_delete(m);
}

void sim_pool_reset(void)
{
	struct sim_memory *m = sim_memory_next(0), *next_m;
	struct sim_pool *pool, *next;

	for (; m; m = next_m) {
		next_m = sim_memory_next(m->range.start + m->range.size);
		if (m->kind == SIM_ASYNC)
			sim_pool_free(m);
	}
	for (pool = pools; pool; pool = next) {
		next = pool->next;
		free(pool);
	}
	pools = NULL;
}

/* ---- allocation ------------------------------------------------------ */

static CUresult alloc(struct sim_pool *pool, size_t size, CUdeviceptr *ptr)
{
	uint64_t rounded = sim_round_up(size, 512);
	struct sim_memory *m;
	uint64_t start, span;

	if (size > sim_devices[pool->device].memory || !grow(pool, rounded))
		return CUDA_ERROR_OUT_OF_MEMORY;
	span = sim_round_up(size, 4096);
	start = sim_sys_reserve(span, 4096);
	if (!start) {
		pool->used -= rounded;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (sim_config.backing)
		sim_sys_protect(start, span, true, true);
	m = sim_memory_new(SIM_ASYNC, start, size);
	m->device = pool->device;
	m->pool = pool;
	m->mapping_size = span;
	*ptr = start;
	sim_cost(SIM_COST_POOL_ALLOC, size, 1);
	return CUDA_SUCCESS;
}

static CUresult alloc_async(struct sim_pool *pool, CUdeviceptr *dptr,
			    size_t bytesize, CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result == CUDA_SUCCESS)
		result = sim_capture_check_submit(stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize || !pool)
		return CUDA_ERROR_INVALID_VALUE;
	/* No graph allocation nodes here. */
	if (stream->capture)
		return CUDA_ERROR_NOT_SUPPORTED;
	return alloc(pool, bytesize, dptr);
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize,
			     CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	/* of the stream's device, whichever is current (cuda.h) */
	return alloc_async(current_pool(stream->ctx->device), dptr, bytesize,
			   hStream);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize,
				     CUmemoryPool pool, CUstream hStream)
{
	return alloc_async(sim_handle_get(SIM_POOL, SIM_OF(pool)), dptr,
			   bytesize, hStream);
}

static void finish_free(const struct sim_op *op, struct sim_context *ctx)
{
	struct sim_memory *m = sim_memory_find(op->u.any.value);

	(void)ctx;
	if (m && m->kind == SIM_ASYNC)
		sim_pool_free(m);
}

CUresult sim_cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct sim_op op = {
		.name = "free", .call = sim_thread.call, .finish = finish_free};
	struct sim_memory *m = sim_memory_find(dptr);
	struct sim_stream *stream = NULL;
	CUresult result = sim_context_current(&sim_thread.current);

	/* Only the default streams are the current context's (cuda.h). */
	if (result == CUDA_ERROR_INVALID_CONTEXT &&
	    hStream > CU_STREAM_PER_THREAD)
		result = CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = sim_stream_get(hStream, &stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr)
		return CUDA_SUCCESS;
	/* Before the address is looked at (an H200). */
	result = sim_capture_check_submit(stream);
	if (result != CUDA_SUCCESS)
		return result;
	/*
	 * Legacy memory may be freed this way too; it waits (an H200), and
	 * comes behind what the stream was given, of whatever device that is.
	 */
	if (m && m->kind == SIM_LEGACY && m->range.start == dptr &&
	    !stream->capture) {
		struct sim_vclock clock = {0};

		result = sim_capture_check_unsafe();
		if (result != CUDA_SUCCESS)
			return result;
		sim_stream_clock(stream, &clock);
		sim_wait_clock(&clock);
		return sim_cuMemFree_v2(dptr);
	}
	if (!m || m->range.start != dptr || m->kind != SIM_ASYNC || m->going) {
		sim_violation(SIM_V_BAD_FREE,
			      "cuMemFreeAsync of %#llx, which "
			      "is no allocation",
			      dptr);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (stream->capture)
		return CUDA_ERROR_INVALID_VALUE;
	op.u.any.value = dptr;
	sim_cost(SIM_COST_POOL_FREE, 0, 1);
	result = sim_submit(stream, &op, 1);
	/* It may be gone already; then nobody can ask for it. */
	m = sim_memory_find(dptr);
	if (result == CUDA_SUCCESS && m)
		m->going = true;
	return result;
}

/* ---- pools ----------------------------------------------------------- */

CUresult sim_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	if (!pool || !props ||
	    props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !sim_device_valid(props->location.id))
		return CUDA_ERROR_INVALID_VALUE;
	*pool = SIM_AS(CUmemoryPool, pool_new(props->location.id)->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool hPool)
{
	struct sim_pool *pool = sim_handle_get(SIM_POOL, SIM_OF(hPool));
	struct sim_pool **link = &pools;

	/* Memory in use keeps it alive; here that is an error. */
	if (!pool || pool->is_default || pool->used)
		return CUDA_ERROR_INVALID_VALUE;
	trim(pool, 0);
	if (SIM_OF(sim_devices[pool->device].pool) == pool->handle)
		sim_devices[pool->device].pool =
			sim_devices[pool->device].default_pool;
	while (*link != pool)
		link = &(*link)->next;
	*link = pool->next;
	sim_handle_free(pool->handle);
	free(pool);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	struct sim_pool *p = sim_handle_get(SIM_POOL, SIM_OF(pool));

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	trim(p, minBytesToKeep);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr,
				   void *value)
{
	struct sim_pool *p = sim_handle_get(SIM_POOL, SIM_OF(pool));

	if (!p || !value)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)attr) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		p->threshold = *(cuuint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		p->reserved_high = p->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		p->used_high = p->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult sim_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr,
				   void *value)
{
	struct sim_pool *p = sim_handle_get(SIM_POOL, SIM_OF(pool));
	cuuint64_t *out = value;

	if (!p || !value)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)attr) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*out = p->threshold;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*out = p->reserved;
		break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*out = p->reserved_high;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*out = p->used;
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*out = p->used_high;
		break;
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = 1;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map,
				size_t count)
{
	struct sim_pool *p = sim_handle_get(SIM_POOL, SIM_OF(pool));
	size_t i;

	if (!p || !map)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < count; i++)
		if (!sim_device_valid(map[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	for (i = 0; i < count; i++)
		p->access[map[i].location.id] = (unsigned char)map[i].flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
				CUmemLocation *location)
{
	struct sim_pool *p = sim_handle_get(SIM_POOL, SIM_OF(memPool));

	if (!p || !flags || !location || !sim_device_valid(location->id))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = (CUmemAccess_flags)p->access[location->id];
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	if (!pool_out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool_out = SIM_AS(CUmemoryPool, default_pool(dev)->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = SIM_AS(CUmemoryPool, current_pool(dev)->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	struct sim_pool *p = sim_handle_get(SIM_POOL, SIM_OF(pool));

	if (!sim_device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!p || p->device != dev)
		return CUDA_ERROR_INVALID_VALUE;
	default_pool(dev);
	sim_devices[dev].pool = pool;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetDefaultMemPool(CUmemoryPool *pool_out,
				    CUmemLocation *location,
				    CUmemAllocationType type)
{
	if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuDeviceGetDefaultMemPool(pool_out, location->id);
}

CUresult sim_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
			     CUmemAllocationType type)
{
	if (!location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuDeviceGetMemPool(pool, location->id);
}
