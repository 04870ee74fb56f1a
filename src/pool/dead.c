/* SPDX-License-Identifier: MIT */
#include "pool/dead.h"

#include "pool/mark.h"
#include "pool/view.h"

static CUdeviceptr end_of(const struct vs_view *v)
{
	return v->at + v->chunk->size;
}

static void show(struct vs_pool *pool, uint64_t change)
{
	vs_stat_set(&pool->stats, dead,
		    vs_stat_get(&pool->stats, dead) + change);
}

void vs_dead_bury(struct vs_pool *pool, struct vs_range *r)
{
	CUdeviceptr end = r->base + r->span, p, next;

	r->state = VS_RANGE_DEAD;
	r->tag = vs_fence_tag(&pool->fence);
	TAILQ_INSERT_TAIL(&pool->dead, r, link);
	for (p = r->base; p < end; p = next) {
		struct vs_view *v = vs_view_at(pool, p);

		next = end < end_of(v) ? end : end_of(v);
		v->chunk->dead += next - p;
		v->chunk->dead_tag = r->tag;
		v->chunk->has_dead = true;
		pool->chunks.has_spent |= v->chunk->used == v->chunk->dead;
	}
	vs_mark_freed(pool, r->span);
	show(pool, r->span);
}

uint64_t vs_dead_newest(struct vs_pool *pool)
{
	struct vs_range *r = TAILQ_LAST(&pool->dead, vs_range_list);

	return r ? r->tag : 0;
}

/*
 * Only dead ranges use the chunk, and no work can touch it any more. If some
 * can, it is to be looked at again. Lock.
 */
static bool is_spent(struct vs_pool *pool, const struct vs_chunk *c)
{
	bool is_quiet = vs_fence_is_complete(&pool->fence, c->dead_tag);
	const struct vs_view *v;

	if (c->used != c->dead)
		return false;
	TAILQ_FOREACH (v, &c->views, link)
		is_quiet &= vs_fence_is_complete(&pool->fence, v->idle_tag);
	pool->chunks.has_spent |= !is_quiet;
	return is_quiet;
}

/*
 * Cuts a dead range at the end of the view it begins in, so that its chunks
 * can go one by one. False without host memory. Lock.
 */
static bool cut(struct vs_pool *pool, struct vs_range *r)
{
	struct vs_view *v = vs_view_at(pool, r->base);
	struct vs_range *rest;

	if (r->base + r->span <= end_of(v))
		return true;
	if (!vs_heap_stock(pool, 1))
		return false;
	rest = vs_heap_cut(pool, vs_heap_of(pool, r->base), r,
			   end_of(v) - r->base);
	rest->tag = r->tag;
	TAILQ_INSERT_AFTER(&pool->dead, r, rest, link);
	return true;
}

/* The chunk, idle as of now, leaves all hands; the stock suffices. Lock. */
static void detach(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		if (v->is_on)
			vs_view_off(pool, v);
	}
	vs_chunk_hold(pool, c);
	vs_stat_set(&pool->stats, idle, pool->chunks.idle_bytes);
	TAILQ_INSERT_TAIL(&pool->spent, c, link);
}

/* Structs for ranges that putting all views off may take. */
static unsigned cuts(const struct vs_chunk *c)
{
	const struct vs_view *v;
	unsigned n = 4;

	TAILQ_FOREACH (v, &c->views, link)
		n += 4;
	return n;
}

/* What is dead at the addresses of a view becomes idle. Lock. */
static void take_dead(struct vs_pool *pool, struct vs_view *v)
{
	CUdeviceptr p = v->at, next;

	for (; v->is_on && p < end_of(v); p = next) {
		struct vs_range *r = vs_heap_at(pool, p);

		next = r->base + r->span;
		if (r->state != VS_RANGE_DEAD)
			continue;
		TAILQ_REMOVE(&pool->dead, r, link);
		show(pool, -r->span);
		v->chunk->dead -= r->span;
		vs_heap_give(pool, vs_heap_of(pool, r->base), r);
	}
}

/*
 * A spent chunk leaves the heap: idle for a moment, under the lock, then in
 * nobody's hands. False without host memory (nothing changed). Lock.
 */
static bool take_out(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	if (!vs_heap_stock(pool, cuts(c)))
		return false;
	c->has_dead = false;
	TAILQ_FOREACH (v, &c->views, link)
		take_dead(pool, v);
	detach(pool, c);
	return true;
}

/*
 * Moves the chunks that are spent from the heap to their list. Lock. Each miss
 * comes here, so it looks at all that is dead only where there may be one.
 */
static void find_spent(struct vs_pool *pool)
{
	struct vs_range *r, *before;

	if (!pool->chunks.has_spent)
		return;
	TAILQ_FOREACH (r, &pool->dead, link) {
		if (!cut(pool, r))
			return;
	}
	pool->chunks.has_spent = false;
	r = TAILQ_FIRST(&pool->dead);
	while (r) {
		struct vs_chunk *c = vs_view_at(pool, r->base)->chunk;

		/* of another chunk, or it would have been taken out before */
		before = TAILQ_PREV(r, vs_range_list, link);
		if (is_spent(pool, c) && !take_out(pool, c))
			break;
		if (c->dead > 0)
			r = TAILQ_NEXT(r, link);
		else
			r = before ? TAILQ_NEXT(before, link)
				   : TAILQ_FIRST(&pool->dead);
	}
	pool->chunks.has_spent |= r != NULL;
}

/* Unmaps and releases; false if the driver refuses: again next time. */
static bool let_go(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	while ((v = TAILQ_FIRST(&c->views))) {
		if (vs_vmm_unmap(v->at, c->size) != CUDA_SUCCESS)
			return false;
		pthread_mutex_lock(&pool->lock);
		vs_view_unmapped(pool, v);
		pthread_mutex_unlock(&pool->lock);
	}
	return vs_vmm_release(c->handle) == CUDA_SUCCESS;
}

uint64_t vs_dead_retire(struct vs_pool *pool)
{
	uint64_t released = 0;
	struct vs_chunk *c;

	pthread_mutex_lock(&pool->lock);
	find_spent(pool);
	c = TAILQ_FIRST(&pool->spent);
	pthread_mutex_unlock(&pool->lock);
	while (c && let_go(pool, c)) {
		pthread_mutex_lock(&pool->lock);
		TAILQ_REMOVE(&pool->spent, c, link);
		released += c->size;
		vs_chunk_died(pool, c);
		c = TAILQ_FIRST(&pool->spent);
		pthread_mutex_unlock(&pool->lock);
	}
	return released;
}
