/* SPDX-License-Identifier: MIT */
#include "pool/dead.h"

#include "pool/grow.h"
#include "pool/mark.h"
#include "pool/slab.h"
#include "pool/view.h"

/* The parts of memory (of the limit, if there is one) that may be dead. */
#define DEAD_SHARE 16
/* Chunks that go at once: 1 ms of the driver's time, if they are small. */
enum { RETIRED_AT_ONCE = 32 };

static uint64_t all_dead(const struct vs_pool *pool)
{
	return pool->dead_bytes + pool->dead_small;
}

void vs_dead_show(struct vs_pool *pool)
{
	vs_stat_set(&pool->stats, dead, all_dead(pool));
}

void vs_dead_note(struct vs_pool *pool, struct vs_chunk *c)
{
	if (c->is_noted)
		return;
	c->is_noted = true;
	TAILQ_INSERT_TAIL(&pool->noted, c, link);
}

static void unnote(struct vs_pool *pool, struct vs_chunk *c)
{
	if (!c->is_noted)
		return;
	c->is_noted = false;
	TAILQ_REMOVE(&pool->noted, c, link);
}

void vs_dead_bury(struct vs_pool *pool, struct vs_range *r)
{
	CUdeviceptr end = r->base + r->span, p, next;

	r->state = VS_RANGE_DEAD;
	r->tag = vs_fence_tag_freed(&pool->fence);
	TAILQ_INSERT_TAIL(&pool->dead, r, link);
	for (p = r->base; p < end; p = next) {
		struct vs_view *v = vs_view_at(pool, p);

		next = end < vs_view_end(v) ? end : vs_view_end(v);
		v->chunk->dead += next - p;
		v->chunk->dead_tag = r->tag;
		v->chunk->has_dead = true;
		/* the newest of all: behind those that may go before */
		unnote(pool, v->chunk);
		if (v->chunk->used == v->chunk->dead)
			vs_dead_note(pool, v->chunk);
	}
	vs_mark_freed(pool, r->span);
	pool->dead_bytes += r->span;
	vs_dead_show(pool);
}

/* A dead range becomes idle, and may be gone then. Lock. */
static void dig_out(struct vs_pool *pool, struct vs_range *r)
{
	CUdeviceptr end = r->base + r->span, p, next;

	TAILQ_REMOVE(&pool->dead, r, link);
	for (p = r->base; p < end; p = next) {
		struct vs_view *v = vs_view_at(pool, p);

		next = end < vs_view_end(v) ? end : vs_view_end(v);
		v->chunk->dead -= next - p;
		v->chunk->has_dead = v->chunk->dead > 0;
		if (!v->chunk->has_dead)
			unnote(pool, v->chunk);
	}
	pool->dead_bytes -= r->span;
	vs_dead_show(pool);
	r->is_pinned = false;
	vs_heap_give(pool, vs_heap_of(pool, r->base), r);
}

uint64_t vs_dead_newest(struct vs_pool *pool)
{
	struct vs_range *r = TAILQ_LAST(&pool->dead, vs_range_list);
	struct vs_slab *slab = TAILQ_LAST(&pool->dead_slabs, vs_slab_list);
	uint64_t tag = r ? r->tag : 0;

	return slab && slab->dead_tag > tag ? slab->dead_tag : tag;
}

/*
 * Tag of the oldest that is dead; something is. *slab_out: the slab whose
 * objects it is, or NULL: it is the first range.
 */
static uint64_t oldest(struct vs_pool *pool, struct vs_slab **slab_out)
{
	struct vs_range *r = TAILQ_FIRST(&pool->dead);
	struct vs_slab *slab = TAILQ_FIRST(&pool->dead_slabs);

	if (r && slab && slab->dead_tag >= r->tag)
		slab = NULL;
	*slab_out = slab;
	return slab ? slab->dead_tag : r->tag;
}

uint64_t vs_dead_revive(struct vs_pool *pool, uint64_t tag, uint64_t keep)
{
	uint64_t before = all_dead(pool), revived;

	while (all_dead(pool) > keep) {
		struct vs_slab *slab;
		uint64_t next = oldest(pool, &slab);

		if (next > tag || !vs_fence_is_complete(&pool->fence, next))
			break;
		if (slab)
			vs_slab_revive(pool, slab);
		else
			dig_out(pool, TAILQ_FIRST(&pool->dead));
	}
	revived = before - all_dead(pool);
	vs_stat_add(&pool->stats, revived, revived);
	return revived;
}

void vs_dead_thin(struct vs_pool *pool)
{
	uint64_t most = pool->most / DEAD_SHARE;
	struct vs_slab *slab;

	pthread_mutex_lock(&pool->lock);
	if (all_dead(pool) > most) {
		vs_fence_settle(&pool->fence, oldest(pool, &slab));
		vs_dead_revive(pool, UINT64_MAX, most);
	}
	pthread_mutex_unlock(&pool->lock);
}

/* No work can touch a chunk that only dead ranges use. */
static bool is_quiet(struct vs_pool *pool, const struct vs_chunk *c)
{
	bool is_good = vs_fence_is_complete(&pool->fence, c->dead_tag);
	const struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link)
		is_good &= vs_fence_is_complete(&pool->fence, v->idle_tag);
	return is_good;
}

/*
 * The next chunk that is spent: only dead ranges use it, and no work can touch
 * it any more. NULL: those that are noted behind the first are to wait with it.
 */
static struct vs_chunk *next_spent(struct vs_pool *pool)
{
	struct vs_chunk *c;

	while ((c = TAILQ_FIRST(&pool->noted))) {
		if (c->used == c->dead)
			return is_quiet(pool, c) ? c : NULL;
		unnote(pool, c); /* noted again when that use ends */
	}
	return NULL;
}

/*
 * Cuts a range that is dead on both sides of `p`, where a view ends. The stock
 * suffices. Lock.
 */
static void cut(struct vs_pool *pool, struct vs_range *r, CUdeviceptr p)
{
	struct vs_range *rest;

	if (r->state != VS_RANGE_DEAD || p <= r->base || p >= r->base + r->span)
		return;
	rest = vs_heap_cut(pool, vs_heap_of(pool, r->base), r, p - r->base);
	vs_views_cut(pool, r->base, r->span);
	vs_views_cut(pool, rest->base, rest->span);
	rest->tag = r->tag;
	TAILQ_INSERT_AFTER(&pool->dead, r, rest, link);
}

/* The chunk, idle as of now, leaves all hands; the stock suffices. Lock. */
static void detach(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		if (vs_view_is_had(v))
			vs_view_off(pool, v);
	}
	vs_chunk_hold(pool, c);
	vs_stat_set(&pool->stats, idle, pool->chunks.idle_bytes);
	TAILQ_INSERT_TAIL(&pool->spent, c, link);
}

/* Structs for ranges that cutting and putting all views off may take. */
static unsigned cuts(const struct vs_chunk *c)
{
	enum { BOTH_ENDS = 2 };
	const struct vs_view *v;
	unsigned n = 0;

	TAILQ_FOREACH (v, &c->views, link)
		n += BOTH_ENDS + VS_CARVE_CUTS;
	return n;
}

/* What is dead at the addresses of a view becomes idle. Lock. */
static void take_dead(struct vs_pool *pool, struct vs_view *v)
{
	CUdeviceptr p = v->at, next;

	if (!v->is_on)
		return;
	/* of others it is dead still: its chunks go one by one */
	cut(pool, vs_heap_at(pool, p), p);
	cut(pool, vs_heap_at(pool, vs_view_end(v) - 1), vs_view_end(v));
	for (; p < vs_view_end(v); p = next) {
		struct vs_range *r = vs_heap_at(pool, p);

		next = r->base + r->span;
		if (r->state == VS_RANGE_DEAD)
			dig_out(pool, r);
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
	TAILQ_FOREACH (v, &c->views, link)
		take_dead(pool, v);
	detach(pool, c);
	return true;
}

static void make_last(struct vs_pool *pool, struct vs_chunk *c)
{
	pthread_mutex_lock(&pool->lock);
	TAILQ_REMOVE(&pool->spent, c, link);
	TAILQ_INSERT_TAIL(&pool->spent, c, link);
	pthread_mutex_unlock(&pool->lock);
}

bool vs_dead_retire_some(struct vs_pool *pool, uint64_t *bytes,
			 const _Atomic bool *stop)
{
	struct vs_chunk *c;
	unsigned n = 0;

	pthread_mutex_lock(&pool->lock);
	while (n < RETIRED_AT_ONCE && (c = next_spent(pool)) &&
	       take_out(pool, c))
		n++;
	c = TAILQ_FIRST(&pool->spent);
	pthread_mutex_unlock(&pool->lock);
	if (c)
		vs_chunks_refresh_slowly(pool);
	while (c && !vs_pool_is_over(stop) && vs_grow_unmake(pool, c)) {
		pthread_mutex_lock(&pool->lock);
		TAILQ_REMOVE(&pool->spent, c, link);
		*bytes += c->size;
		vs_chunk_died(pool, c);
		c = TAILQ_FIRST(&pool->spent);
		pthread_mutex_unlock(&pool->lock);
	}
	/* what the driver refuses is tried again after the others */
	if (c)
		make_last(pool, c);
	return n == RETIRED_AT_ONCE && !c;
}

uint64_t vs_dead_retire(struct vs_pool *pool)
{
	uint64_t bytes = 0;

	while (vs_dead_retire_some(pool, &bytes, NULL))
		;
	return bytes;
}
