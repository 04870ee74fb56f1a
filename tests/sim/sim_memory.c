/* SPDX-License-Identifier: MIT */
#include "sim_memory.h"

#include <stdlib.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_context.h"
#include "sim_judge.h"
#include "sim_pool.h"
#include "sim_vmm.h"

static struct sim_ranges all;

struct sim_memory *sim_memory_new(enum sim_memory_kind kind, uint64_t start,
				  uint64_t size)
{
	struct sim_memory *m = sim_zalloc(sizeof(*m));

	m->kind = kind;
	m->range.start = start;
	m->range.size = size;
	m->mapping_start = start;
	m->mapping_size = size;
	m->buffer_id = sim_memory_next_id();
	m->ctx = sim_thread.current;
	if (m->ctx)
		m->device = m->ctx->device;
	if (!sim_range_insert(&all, &m->range)) {
		sim_say("sim: two allocations at %#llx",
			(unsigned long long)start);
		abort();
	}
	return m;
}

void sim_memory_delete(struct sim_memory *memory)
{
	sim_range_remove(&all, &memory->range);
	free(memory);
}

struct sim_memory *sim_memory_find(uint64_t addr)
{
	return (struct sim_memory *)sim_range_find(&all, addr);
}

struct sim_memory *sim_memory_next(uint64_t addr)
{
	return (struct sim_memory *)sim_range_next(&all, addr);
}

uint64_t sim_memory_next_id(void)
{
	static uint64_t last_id;

	return ++last_id;
}

bool sim_memory_is_host(const struct sim_memory *memory)
{
	return memory->kind == SIM_HOST || memory->kind == SIM_REGISTERED;
}

/*
 * cuMemAlloc memory belongs to a context; a kernel on another device needs
 * cuCtxEnablePeerAccess (cuda.h).
 */
static bool reaches(const struct sim_memory *m, const struct sim_context *ctx,
		    int device)
{
	switch (m->kind) {
	case SIM_LEGACY:
		return m->device == device || sim_context_reaches(ctx, m->ctx);
	case SIM_ASYNC:
		return sim_pool_accessible(m->pool, device);
	case SIM_IMPORTED:
		return m->device == device || m->ctx->device == device;
	default:
		return true;
	}
}

bool sim_memory_accessible(uint64_t start, uint64_t size,
			   const struct sim_context *ctx, int device,
			   bool write)
{
	struct sim_memory *m = sim_memory_find(start);

	if (!size)
		return true;
	if (!m)
		return sim_vmm_accessible(start, size, device, write);
	/* A free that waits for this very work does not hinder it. */
	return start + size <= m->range.start + m->range.size &&
	       reaches(m, ctx, device);
}

/* There at all, whoever may reach it. */
static bool exists(const struct sim_extent *t)
{
	struct sim_memory *m = sim_memory_find(t->addr);

	if (!m)
		return sim_vmm_mapped(t->addr, t->size);
	return t->addr + t->size <= m->range.start + m->range.size;
}

bool sim_memory_may_touch(const struct sim_context *ctx, int device,
			  const struct sim_extent *t)
{
	if (t->host || !t->size)
		return true;
	if (t->any_device)
		return exists(t);
	return sim_memory_accessible(t->addr, t->size, ctx, device, t->write);
}

bool sim_memory_check_access(struct sim_stream *stream, const struct sim_op *op)
{
	unsigned i;

	for (i = 0; i < op->n_touch; i++) {
		const struct sim_extent *t = &op->touch[i];

		if (sim_memory_may_touch(stream->ctx, op->device, t))
			continue;
		sim_violation(SIM_V_ILLEGAL,
			      "%s (%s) touches %#llx+%#llx, "
			      "which device %d cannot reach; stream %llu",
			      op->name, op->call, (unsigned long long)t->addr,
			      (unsigned long long)t->size, op->device,
			      (unsigned long long)stream->id);
		stream->ctx->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
		return false;
	}
	return true;
}

void sim_memory_sum(int device, struct sim_memory_sums *sums)
{
	struct sim_memory *m = sim_memory_next(0);

	for (; m; m = sim_memory_next(m->range.start + m->range.size)) {
		if (m->device != device)
			continue;
		sums->n[m->kind]++;
		sums->bytes[m->kind] += m->range.size;
	}
}
