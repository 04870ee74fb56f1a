/* SPDX-License-Identifier: MIT */
/*
 * Legacy: cuMemAlloc and its kin.  Sizes up to 1 MiB are carved from blocks
 * of 2 MiB in steps of 512 B; larger ones take 2 MiB steps of their own
 * (an H200).  A block is a file, so that another process can open it.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_pool.h"

#define STEP 512u
#define MAX_SMALL ((uint64_t)1 << 20)
#define N_STEPS ((unsigned)(SIM_GRANULARITY / STEP))

struct sim_block {
	struct sim_block *next, *prev;
	uint64_t start, size;
	struct sim_context *ctx;
	int fd;
	bool small;		     /* carved */
	unsigned n_free;	     /* steps */
	unsigned search;	     /* steps before are in use */
	unsigned char used[N_STEPS]; /* small: 1 in use, 2 was used */
};

static struct sim_block *blocks;
static uint64_t physical[SIM_MAX_DEVICES];

uint64_t sim_legacy_physical(int device)
{
	return physical[device];
}

int sim_legacy_file(const struct sim_memory *memory, uint64_t *offset_out)
{
	*offset_out = memory->range.start - memory->block->start;
	return memory->block->fd;
}

static struct sim_block *block_new(struct sim_context *ctx, uint64_t size,
				   bool small)
{
	/* The table is for small blocks only. */
	struct sim_block *b = sim_zalloc(
		small ? sizeof(*b) : offsetof(struct sim_block, used));

	b->fd = -1;
	b->size = size;
	b->small = small;
	b->n_free = N_STEPS;
	b->ctx = ctx;
	b->start = sim_sys_reserve(size, SIM_GRANULARITY);
	if (b->start && sim_config.backing) {
		b->fd = sim_sys_memfd("sim-legacy", size);
		if (b->fd < 0 || !sim_sys_map(b->start, size, b->fd, 0)) {
			sim_say("sim: no memory for a block");
			abort();
		}
		sim_sys_protect(b->start, size, true, true);
	}
	b->next = blocks;
	if (blocks)
		blocks->prev = b;
	blocks = b;
	physical[ctx->device] += size;
	return b;
}

static void block_free(struct sim_block *b)
{
	physical[b->ctx->device] -= b->size;
	sim_device_give(b->ctx->device, b->size);
	sim_sys_release(b->start, b->size);
	if (b->fd >= 0)
		close(b->fd);
	if (b->prev)
		b->prev->next = b->next;
	else
		blocks = b->next;
	if (b->next)
		b->next->prev = b->prev;
	free(b);
}

/* First fit; N_STEPS if there is no run of n free steps. */
static unsigned find_run(struct sim_block *b, unsigned n)
{
	unsigned i, run = 0;

	while (b->search < N_STEPS && b->used[b->search] == 1)
		b->search++;
	for (i = b->search; i < N_STEPS; i++) {
		run = b->used[i] == 1 ? 0 : run + 1;
		if (run == n)
			return i + 1 - n;
	}
	return N_STEPS;
}

/* Re-used memory reads as zero (an H200). */
static uint64_t carve(struct sim_block *b, unsigned first, unsigned n)
{
	uint64_t start = b->start + (uint64_t)first * STEP;
	unsigned i;

	for (i = first; i < first + n; i++) {
		if (b->used[i] == 2 && b->fd >= 0)
			memset((char *)b->start + (size_t)i * STEP, 0, STEP);
		b->used[i] = 1;
	}
	b->n_free -= n;
	return start;
}

static struct sim_block *place_small(struct sim_context *ctx, unsigned n,
				     unsigned *first_out)
{
	struct sim_block *b;

	for (b = blocks; b; b = b->next) {
		if (!b->small || b->ctx != ctx || b->n_free < n)
			continue;
		*first_out = find_run(b, n);
		if (*first_out < N_STEPS)
			return b;
	}
	if (!sim_device_take(ctx->device, SIM_GRANULARITY))
		return NULL;
	*first_out = 0;
	return block_new(ctx, SIM_GRANULARITY, true);
}

static CUresult place(struct sim_context *ctx, size_t size,
		      CUdeviceptr *ptr_out)
{
	struct sim_block *b;
	struct sim_memory *m;
	uint64_t start, rounded;
	unsigned first, n;

	/* A green context is its primary one with fewer units (cuda.h). */
	if (ctx->parent)
		ctx = ctx->parent;
	if (size > sim_devices[ctx->device].memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (size <= MAX_SMALL) {
		n = (unsigned)((size + STEP - 1) / STEP);
		b = place_small(ctx, n, &first);
		if (!b)
			return CUDA_ERROR_OUT_OF_MEMORY;
		start = carve(b, first, n);
	} else {
		rounded = sim_round_up(size, SIM_GRANULARITY);
		if (!sim_device_take(ctx->device, rounded))
			return CUDA_ERROR_OUT_OF_MEMORY;
		b = block_new(ctx, rounded, false);
		start = b->start;
	}
	m = sim_memory_new(SIM_LEGACY, start, size);
	m->ctx = ctx;
	m->device = ctx->device;
	m->mapping_start = b->start;
	m->mapping_size = b->size;
	m->block = b;
	m->sync_memops = true; /* an H200 says so before it is set */
	*ptr_out = start;
	return CUDA_SUCCESS;
}

static CUresult legacy_alloc(struct sim_context *ctx, size_t size,
			     CUdeviceptr *ptr_out)
{
	CUresult result = place(ctx, size, ptr_out);

	if (result == CUDA_SUCCESS)
		sim_cost(SIM_COST_ALLOC, size, 1);
	else
		sim_cost(SIM_COST_CREATE_FAIL, size, 1);
	return result;
}

static void legacy_free(struct sim_memory *m)
{
	struct sim_block *b = m->block;
	unsigned first = (unsigned)((m->range.start - b->start) / STEP);
	unsigned n = (unsigned)((m->range.size + STEP - 1) / STEP);

	sim_memory_delete(m);
	if (!b->small) {
		block_free(b);
		return;
	}
	memset(b->used + first, 2, n);
	b->n_free += n;
	if (first < b->search)
		b->search = first;
	if (b->n_free == N_STEPS)
		block_free(b);
}

static void free_all(struct sim_context *ctx)
{
	struct sim_memory *m = sim_memory_next(0), *next;

	for (; m; m = next) {
		next = sim_memory_next(m->range.start + m->range.size);
		if (m->kind == SIM_LEGACY && (!ctx || m->ctx == ctx))
			legacy_free(m);
	}
}

void sim_legacy_free_context(struct sim_context *ctx)
{
	free_all(ctx);
}

void sim_legacy_reset(void)
{
	free_all(NULL);
}

/* ---- driver functions ------------------------------------------------ */

/* One that fails clears the address, whatever is wrong (an H100). */
static CUresult begin_alloc(CUdeviceptr *dptr)
{
	if (dptr)
		*dptr = 0;
	return sim_context_current(&sim_thread.current);
}

CUresult sim_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	CUresult result = begin_alloc(dptr);

	if (result == CUDA_SUCCESS)
		result = sim_capture_check_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !bytesize)
		return CUDA_ERROR_INVALID_VALUE;
	return legacy_alloc(sim_thread.current, bytesize, dptr);
}

/*
 * The pitch is the width in steps of 512, whatever the element (an H200), and
 * is told where a capture forbids the allocation, too (an H100).
 */
CUresult sim_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch,
				size_t WidthInBytes, size_t Height,
				unsigned int ElementSizeBytes)
{
	CUresult result = begin_alloc(dptr);
	size_t pitch, size;

	if (result != CUDA_SUCCESS)
		return result;
	if (!dptr || !pPitch || !WidthInBytes || !Height ||
	    (ElementSizeBytes != 4 && ElementSizeBytes != 8 &&
	     ElementSizeBytes != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (WidthInBytes > SIZE_MAX - STEP)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pitch = sim_round_up(WidthInBytes, STEP);
	if (__builtin_mul_overflow(pitch, Height, &size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = sim_capture_check_unsafe();
	if (result == CUDA_SUCCESS)
		result = legacy_alloc(sim_thread.current, size, dptr);
	if (result == CUDA_SUCCESS ||
	    result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		*pPitch = pitch;
	return result;
}

/*
 * cuMemFree of legacy memory waits for all work of the device and for copies
 * that peers do on the memory, not for their kernels, but for kernels of the
 * device in graphs that peers launched (two H200, 580.159.04); of pool memory
 * for none (cuda.h).
 */
static CUresult free_memory(struct sim_memory *m)
{
	uint64_t start = m->range.start, id = m->buffer_id;
	struct sim_vclock clock = {0};

	m->going = m->kind != SIM_ASYNC;
	if (m->going) {
		sim_context_device_clock(m->device, &clock);
		sim_judge_heeded(start, m->range.size, &clock);
		sim_wait_clock(&clock);
		/* Its context may have died meanwhile. */
		m = sim_memory_find(start);
		if (!m || m->buffer_id != id)
			return CUDA_ERROR_INVALID_VALUE;
	}
	sim_judge_gone(m->range.start, m->range.size);
	sim_work_quiesce(m->range.start, m->range.size);
	sim_cost(SIM_COST_FREE, m->range.size, 1);
	if (m->kind == SIM_LEGACY)
		legacy_free(m);
	else if (m->kind == SIM_ASYNC)
		sim_pool_free(m);
	else
		sim_host_free(m);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemFree_v2(CUdeviceptr dptr)
{
	struct sim_memory *m;
	CUresult result;

	/* Needs no context, nor does any other (an H200). */
	if (!dptr)
		return CUDA_SUCCESS;
	result = sim_context_current(&sim_thread.current);
	if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED &&
	    sim_config.free_after_end)
		result = CUDA_SUCCESS;
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_CONTEXT)
		result = sim_capture_check_unsafe();
	if (result != CUDA_SUCCESS)
		return result;
	m = sim_memory_find(dptr);
	if (!m || m->range.start != dptr || m->going ||
	    (m->kind != SIM_LEGACY && m->kind != SIM_ASYNC &&
	     m->kind != SIM_MANAGED)) {
		sim_violation(SIM_V_BAD_FREE,
			      "cuMemFree of %#llx, which is "
			      "no allocation",
			      dptr);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return free_memory(m);
}

CUresult sim_cuMemGetInfo_v2(size_t *free, size_t *total)
{
	int device = sim_thread.current->device;
	const struct sim_device *d = &sim_devices[device];
	uint64_t used = sim_device_used(device);

	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	*free = used < d->memory ? d->memory - used : 0;
	*total = d->memory;
	return CUDA_SUCCESS;
}
