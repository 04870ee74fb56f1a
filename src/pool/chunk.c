/* SPDX-License-Identifier: MIT */
#include "pool/chunk.h"

#include "base/meta.h"
#include "pool/state.h"

static struct vs_chunk **slot(const struct vs_chunks *cs, CUdeviceptr p)
{
	return &cs->at[(p - cs->base) / VS_GRANULE];
}

bool vs_chunks_init(struct vs_pool *pool)
{
	struct vs_chunks *cs = &pool->chunks;

	cs->base = pool->base;
	TAILQ_INIT(&cs->idle);
	TAILQ_INIT(&cs->cached);
	cs->at = vs_meta_table((pool->end - pool->base) / VS_GRANULE *
			       sizeof(*cs->at));
	return cs->at != NULL;
}

struct vs_chunk *vs_chunk_at(const struct vs_pool *pool, CUdeviceptr p)
{
	return *slot(&pool->chunks, p);
}

/* Brings the gauges in line; lock. */
static void show(struct vs_pool *pool)
{
	struct vs_chunks *cs = &pool->chunks;

	vs_stat_set(&pool->stats, reserved, cs->held);
	vs_stat_set(&pool->stats, idle, cs->idle_bytes);
	vs_stat_set(&pool->stats, cached, cs->cached_bytes);
	vs_stat_set(&pool->stats, chunks, cs->count);
}

static void leave_idle(struct vs_pool *pool, struct vs_chunk *c)
{
	TAILQ_REMOVE(&pool->chunks.idle, c, link);
	c->is_in_list = false;
	pool->chunks.idle_bytes -= c->size;
}

static void enter_idle(struct vs_pool *pool, struct vs_chunk *c)
{
	c->idle_since = pool->now;
	c->idle_tag =
		atomic_load_explicit(&pool->fence.done, memory_order_relaxed);
	TAILQ_INSERT_TAIL(&pool->chunks.idle, c, link);
	c->is_in_list = true;
	pool->chunks.idle_bytes += c->size;
}

bool vs_chunk_is_quiet(struct vs_pool *pool, const struct vs_chunk *c)
{
	return vs_fence_is_complete(&pool->fence, c->idle_tag);
}

void vs_chunks_use(struct vs_pool *pool, CUdeviceptr base, uint64_t span)
{
	CUdeviceptr p = base;

	while (p < base + span) {
		struct vs_chunk *c = vs_chunk_at(pool, p);

		if (c->used++ == 0)
			leave_idle(pool, c);
		p = c->at + c->size;
	}
	vs_stat_set(&pool->stats, idle, pool->chunks.idle_bytes);
}

void vs_chunks_unuse(struct vs_pool *pool, CUdeviceptr base, uint64_t span)
{
	CUdeviceptr p = base;

	while (p < base + span) {
		struct vs_chunk *c = vs_chunk_at(pool, p);

		if (--c->used == 0)
			enter_idle(pool, c);
		p = c->at + c->size;
	}
	vs_stat_set(&pool->stats, idle, pool->chunks.idle_bytes);
}

void vs_chunk_born(struct vs_pool *pool, struct vs_chunk *c)
{
	pool->chunks.held += c->size;
	pool->chunks.count++;
	vs_stat_add(&pool->stats, chunks_created, 1);
	show(pool);
	(void)c;
}

void vs_chunk_mapped(struct vs_pool *pool, struct vs_chunk *c, CUdeviceptr at,
		     unsigned used)
{
	for (uint64_t o = 0; o < c->size; o += VS_GRANULE)
		*slot(&pool->chunks, at + o) = c;
	c->at = at;
	c->used = used;
	if (used == 0)
		enter_idle(pool, c);
	show(pool);
}

void vs_chunk_unmapped(struct vs_pool *pool, struct vs_chunk *c)
{
	if (c->is_in_list)
		leave_idle(pool, c);
	for (uint64_t o = 0; o < c->size; o += VS_GRANULE)
		*slot(&pool->chunks, c->at + o) = NULL;
	c->at = 0;
	c->used = 0;
	show(pool);
}

void vs_chunk_cache(struct vs_pool *pool, struct vs_chunk *c)
{
	TAILQ_INSERT_TAIL(&pool->chunks.cached, c, link);
	c->is_in_list = true;
	c->idle_since = pool->now;
	pool->chunks.cached_bytes += c->size;
	pool->chunks.idle_bytes += c->size;
	show(pool);
}

void vs_chunk_uncache(struct vs_pool *pool, struct vs_chunk *c)
{
	TAILQ_REMOVE(&pool->chunks.cached, c, link);
	c->is_in_list = false;
	pool->chunks.cached_bytes -= c->size;
	pool->chunks.idle_bytes -= c->size;
	show(pool);
}

void vs_chunk_died(struct vs_pool *pool, struct vs_chunk *c)
{
	pool->chunks.held -= c->size;
	pool->chunks.count--;
	vs_stat_add(&pool->stats, chunks_released, 1);
	show(pool);
	vs_meta_free(c, sizeof(*c));
}
