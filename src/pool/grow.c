/* SPDX-License-Identifier: MIT */
#include "pool/grow.h"

#include <string.h>

#include "base/log.h"
#include "base/meta.h"
#include "pool/pool.h"

/*
 * Chunk sizes by heap: a share of the memory held, within bounds. Small chunks
 * hold less that is half used, large ones cost fewer driver calls (HACKING.md
 * has the comparison). In a small pool all are granules: nothing is lost yet.
 */
static const struct {
	unsigned share;
	uint64_t least, most;
} chunk_rule[VS_N_HEAPS] = {
	[VS_HEAP_LARGE] = {64, (uint64_t)16 << 20, (uint64_t)256 << 20},
	[VS_HEAP_MIDDLE] = {128, (uint64_t)8 << 20, (uint64_t)32 << 20},
	[VS_HEAP_SLABS] = {512, (uint64_t)2 << 20, (uint64_t)16 << 20},
};
#define SMALL_POOL ((uint64_t)512 << 20)

enum {
	BASES_TRIED = 64, /* idle ranges looked at to extend */
};
/* More handles or fewer cost more than the driver's own 16 and 64 GiB (H200).
 */
#define HUGE_CHUNK ((uint64_t)8 << 30)
#define FRESH_GAP ((uint64_t)1 << 30) /* room to extend a fresh region */

/* What one growth does; on the stack of the thread that holds grow. */
struct plan {
	struct vs_heap *heap;
	struct vs_range *base;	     /* busy, was idle: extended; or NULL */
	struct vs_range *fill;	     /* busy, was a hole: to be filled */
	uint64_t base_span;	     /* bytes the base brings */
	uint64_t need;		     /* bytes to fill at least */
	uint64_t filled;	     /* bytes of the chunks in `steps` */
	struct vs_chunk_list steps;  /* in the order of their addresses */
	struct vs_range_list places; /* busy: where moved ones were */
};

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static uint64_t high_water(struct vs_pool *pool)
{
	return vs_stat_get(&pool->stats, live_high);
}

/* Bytes that may still be created within what the program needs. */
static uint64_t allowance(struct vs_pool *pool)
{
	uint64_t high = high_water(pool);
	uint64_t slack = high / 1000 * 45;

	if (slack < VS_FLOOR)
		slack = VS_FLOOR;
	return high + slack > pool->chunks.held
		       ? high + slack - pool->chunks.held
		       : 0;
}

/* Size of the chunks a heap is extended by, when a request needs less. */
static uint64_t usual_size(struct vs_pool *pool, enum vs_heap_kind kind)
{
	uint64_t high = high_water(pool), held = pool->chunks.held;
	uint64_t share = (high > held ? high : held) / chunk_rule[kind].share;
	uint64_t size = high < SMALL_POOL ? VS_GRANULE : chunk_rule[kind].least;

	if (pool->chunk_size)
		return pool->chunk_size;
	while (size * 2 <= share && size < chunk_rule[kind].most)
		size *= 2;
	return size;
}

static void add_step(struct plan *plan, struct vs_chunk *c)
{
	TAILQ_INSERT_TAIL(&plan->steps, c, link);
	plan->filled += c->size;
}

/* A chunk yet to be created (handle 0). */
static bool add_new(struct plan *plan, uint64_t size)
{
	struct vs_chunk *c = vs_meta_alloc(sizeof(*c));

	if (!c)
		return false;
	c->size = size;
	add_step(plan, c);
	return true;
}

/* New chunks for what is left to fill. */
static bool plan_new(struct vs_pool *pool, struct plan *plan,
		     enum vs_heap_kind kind)
{
	uint64_t left = plan->need - plan->filled;
	uint64_t usual = usual_size(pool, kind);
	uint64_t largest = usual, n;

	if (plan->filled >= plan->need)
		return true;
	if (pool->is_contiguous)
		return add_new(plan, left > usual ? left : usual);
	if (left < usual) {
		uint64_t room = allowance(pool) / VS_GRANULE * VS_GRANULE;

		if (room > usual)
			room = usual;
		return add_new(plan, room > left ? room : left);
	}
	/* a request that is much of all memory costs what the driver costs */
	if (left >= high_water(pool) / 4 && !pool->chunk_size)
		largest = left < HUGE_CHUNK ? left : HUGE_CHUNK;
	for (n = (left + largest - 1) / largest; n > 0; n--) {
		uint64_t size = round_up(left / n, VS_GRANULE);

		if (!add_new(plan, size))
			return false;
		left -= size < left ? size : left;
	}
	return true;
}

static void plan_cached(struct vs_pool *pool, struct plan *plan)
{
	struct vs_chunk *c, *next;

	for (c = TAILQ_FIRST(&pool->chunks.cached);
	     c && plan->filled < plan->need; c = next) {
		next = TAILQ_NEXT(c, link);
		if (pool->is_contiguous && c->size < plan->need)
			continue;
		vs_chunk_uncache(pool, c);
		add_step(plan, c);
	}
}

/* The heap that an address belongs to. */
static struct vs_heap *heap_at(struct vs_pool *pool, CUdeviceptr p)
{
	for (int k = 0; k < VS_N_HEAPS; k++) {
		if (p >= pool->heap[k].base && p < pool->heap[k].end)
			return &pool->heap[k];
	}
	return NULL;
}

/* Takes a mapped idle chunk out of its range: its place becomes busy. */
static struct vs_range *lift(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_heap *h = heap_at(pool, c->at);
	struct vs_range *r = vs_heap_idle_over(h, c->at, c->size);

	return r ? vs_heap_carve(pool, h, r, c->at, c->size) : NULL;
}

/*
 * The idle chunk to move next: the smallest that ends it, else the largest. A
 * chunk above `most` would be pinned by a request much smaller than itself.
 */
static struct vs_chunk *best_idle(struct vs_pool *pool, uint64_t left,
				  uint64_t most)
{
	struct vs_chunk *c, *enough = NULL, *largest = NULL;

	TAILQ_FOREACH (c, &pool->chunks.idle, link) {
		if (c->size > most || !vs_chunk_is_quiet(pool, c))
			continue;
		if (c->size >= left && (!enough || c->size < enough->size))
			enough = c;
		if (!largest || c->size > largest->size)
			largest = c;
	}
	if (pool->is_contiguous)
		return enough;
	return enough ? enough : largest;
}

/* Idle chunks from elsewhere for what is left to fill. */
static void plan_moves(struct vs_pool *pool, struct plan *plan,
		       enum vs_heap_kind kind)
{
	uint64_t most =
		kind == VS_HEAP_LARGE ? UINT64_MAX : 4 * usual_size(pool, kind);

	if (most < plan->need)
		most = plan->need;
	while (plan->filled < plan->need) {
		struct vs_chunk *c =
			best_idle(pool, plan->need - plan->filled, most);
		struct vs_range *place = c ? lift(pool, c) : NULL;

		if (!place)
			return;
		TAILQ_INSERT_TAIL(&plan->places, place, link);
		add_step(plan, c);
	}
}

/* The largest idle range with a hole right of it that is large enough. */
static struct vs_range *find_base(struct vs_pool *pool, struct vs_heap *h,
				  uint64_t span)
{
	struct vs_range *r = vs_heap_largest(h);

	if (pool->is_contiguous)
		return NULL;
	for (int i = 0; r && i < BASES_TRIED; i++) {
		struct vs_range *hole = r->next;

		if (r->span < span && hole && hole->state == VS_RANGE_HOLE &&
		    hole->span >= span)
			return r;
		r = vs_heap_smaller(h, r);
	}
	return NULL;
}

/* Address space for `plan->filled` bytes, right of the base or fresh. */
static bool plan_place(struct vs_pool *pool, struct plan *plan)
{
	struct vs_heap *h = plan->heap;
	struct vs_range *hole;
	CUdeviceptr at;

	if (plan->base) {
		hole = plan->base->next;
		at = hole->base;
		if (hole->state != VS_RANGE_HOLE || hole->span < plan->filled)
			return false;
	} else {
		hole = h->last;
		if (hole->state == VS_RANGE_HOLE &&
		    hole->span > plan->filled * 3 + FRESH_GAP) {
			at = hole->base;
			if (hole != h->first)
				at += round_up(FRESH_GAP + 2 * plan->filled,
					       VS_GRANULE);
		} else {
			hole = vs_heap_hole(h, plan->filled);
			if (!hole)
				return false;
			at = hole->base;
		}
	}
	plan->fill = vs_heap_carve(pool, h, hole, at, plan->filled);
	return plan->fill != NULL;
}

/*
 * Undoes a plan of which nothing is mapped (any more): chunks that exist go to
 * the cache, moved ones that were not unmapped stay where they are. Lock.
 */
static void drop_plan(struct vs_pool *pool, struct plan *plan)
{
	struct vs_chunk *c;
	struct vs_range *r;

	while ((c = TAILQ_FIRST(&plan->steps))) {
		TAILQ_REMOVE(&plan->steps, c, link);
		if (c->at)
			continue; /* still mapped in its old place */
		if (c->handle)
			vs_chunk_cache(pool, c);
		else
			vs_meta_free(c, sizeof(*c));
	}
	while ((r = TAILQ_FIRST(&plan->places))) {
		TAILQ_REMOVE(&plan->places, r, link);
		if (vs_chunk_at(pool, r->base))
			vs_heap_give(pool, heap_at(pool, r->base), r);
		else
			vs_heap_hollow(heap_at(pool, r->base), r);
	}
	if (plan->fill)
		vs_heap_hollow(plan->heap, plan->fill);
	if (plan->base)
		vs_heap_give(pool, plan->heap, plan->base);
}

/*
 * Decides everything; lock held. SUCCESS, NOT_FOUND (too few idle chunks),
 * NO_ROOM (none right of the base) or OUT_OF_MEMORY.
 */
#define NO_ROOM CUDA_ERROR_ILLEGAL_ADDRESS
static CUresult make_plan(struct vs_pool *pool, struct plan *plan,
			  enum vs_heap_kind kind, uint64_t span,
			  enum vs_grow_how how, bool may_extend)
{
	struct vs_range *base;
	uint64_t left;

	memset(plan, 0, sizeof(*plan));
	plan->heap = &pool->heap[kind];
	TAILQ_INIT(&plan->steps);
	TAILQ_INIT(&plan->places);
	base = may_extend ? find_base(pool, plan->heap, span) : NULL;
	if (base) {
		plan->base_span = base->span;
		plan->base = vs_heap_carve(pool, plan->heap, base, base->base,
					   base->span);
		if (!plan->base)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	plan->need = round_up(span - plan->base_span, VS_GRANULE);
	plan_cached(pool, plan);
	if (how == VS_GROW_MOVE || how == VS_GROW_ALL)
		plan_moves(pool, plan, kind);
	left = plan->need > plan->filled ? plan->need - plan->filled : 0;
	if ((how == VS_GROW_MOVE && left > 0) ||
	    (how == VS_GROW_WITHIN && left > allowance(pool)))
		return CUDA_ERROR_NOT_FOUND;
	if (!plan_new(pool, plan, kind))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!plan_place(pool, plan)) {
		if (plan->base)
			return NO_ROOM;
		vs_warn("no address space left for %zu bytes",
			(size_t)plan->filled);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* Brings one chunk to `at`; no lock but grow. */
static CUresult place_chunk(struct vs_pool *pool, struct vs_chunk *c,
			    CUdeviceptr at)
{
	CUresult r;

	if (c->at) {
		r = vs_vmm_unmap(c->at, c->size);
		if (r != CUDA_SUCCESS)
			return r;
		pthread_mutex_lock(&pool->lock);
		vs_chunk_unmapped(pool, c);
		vs_stat_add(&pool->stats, chunks_moved, 1);
		pthread_mutex_unlock(&pool->lock);
	} else if (!c->handle) {
		if (pool->chunks.held + c->size > pool->memory_limit)
			return CUDA_ERROR_OUT_OF_MEMORY;
		r = vs_vmm_create(&pool->dev, c->size, &c->handle);
		if (r != CUDA_SUCCESS)
			return r;
		pthread_mutex_lock(&pool->lock);
		vs_chunk_born(pool, c);
		pthread_mutex_unlock(&pool->lock);
	}
	return vs_vmm_map(at, c->size, c->handle);
}

/* Executes the driver calls of a plan, or undoes those it made. */
static CUresult fill_place(struct vs_pool *pool, struct plan *plan)
{
	CUdeviceptr at = plan->fill->base;
	CUresult r = CUDA_SUCCESS;
	struct vs_chunk *c;

	TAILQ_FOREACH (c, &plan->steps, link) {
		r = place_chunk(pool, c, at);
		if (r != CUDA_SUCCESS)
			break;
		at += c->size;
	}
	if (r == CUDA_SUCCESS)
		r = vs_vmm_allow(plan->fill->base, plan->filled,
				 pool->dev.device, atomic_load(&pool->peers));
	if (r != CUDA_SUCCESS && at > plan->fill->base)
		vs_vmm_unmap(plan->fill->base, at - plan->fill->base);
	return r;
}

/* Everything is mapped: the base and the fill become one idle range. Lock. */
static void commit(struct vs_pool *pool, struct plan *plan)
{
	CUdeviceptr at = plan->fill->base;
	struct vs_range *whole = plan->fill, *place;
	struct vs_chunk *c;

	while ((c = TAILQ_FIRST(&plan->steps))) {
		TAILQ_REMOVE(&plan->steps, c, link);
		vs_chunk_mapped(pool, c, at, 1);
		at += c->size;
	}
	while ((place = TAILQ_FIRST(&plan->places))) {
		TAILQ_REMOVE(&plan->places, place, link);
		vs_heap_hollow(heap_at(pool, place->base), place);
	}
	if (pool->is_contiguous) {
		/* one idle range a chunk */
		while (whole->span > vs_chunk_at(pool, whole->base)->size) {
			struct vs_range *rest = vs_heap_cut(
				plan->heap, whole,
				vs_chunk_at(pool, whole->base)->size);

			if (!rest)
				break;
			vs_heap_give(pool, plan->heap, whole);
			whole = rest;
		}
	} else if (plan->base) {
		whole = vs_heap_join(plan->heap, plan->base);
	}
	vs_heap_give(pool, plan->heap, whole);
}

CUresult vs_grow(struct vs_pool *pool, enum vs_heap_kind kind, uint64_t span,
		 enum vs_grow_how how, struct vs_range **range_out)
{
	uint64_t began = vs_vmm_clock();
	struct plan plan;
	CUresult r;

	pthread_mutex_lock(&pool->lock);
	r = make_plan(pool, &plan, kind, span, how, true);
	if (r == NO_ROOM) {
		drop_plan(pool, &plan);
		r = make_plan(pool, &plan, kind, span, how, false);
	}
	if (r != CUDA_SUCCESS)
		drop_plan(pool, &plan);
	pthread_mutex_unlock(&pool->lock);
	if (r != CUDA_SUCCESS)
		return r;
	r = fill_place(pool, &plan);
	pthread_mutex_lock(&pool->lock);
	if (r == CUDA_SUCCESS) {
		commit(pool, &plan);
		*range_out = vs_heap_take(pool, &pool->heap[kind], span);
		if (!*range_out)
			r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		drop_plan(pool, &plan);
	}
	pthread_mutex_unlock(&pool->lock);
	vs_stat_add(&pool->stats, vmm_ns, vs_vmm_clock() - began);
	return r;
}

/* Takes the next chunk to release out of its list, or NULL. Lock. */
static struct vs_chunk *next_victim(struct vs_pool *pool, uint64_t before,
				    struct vs_range **place_out)
{
	struct vs_chunk *c = TAILQ_FIRST(&pool->chunks.cached);

	*place_out = NULL;
	if (c && c->idle_since < before) {
		vs_chunk_uncache(pool, c);
		return c;
	}
	c = TAILQ_FIRST(&pool->chunks.idle);
	if (!c || c->idle_since >= before || !vs_chunk_is_quiet(pool, c))
		return NULL;
	*place_out = lift(pool, c);
	return *place_out ? c : NULL;
}

/* Releases an unmapped chunk; keeps it cached if the driver refuses. */
static bool let_go(struct vs_pool *pool, struct vs_chunk *c, uint64_t *released)
{
	CUresult r = vs_vmm_release(c->handle);

	pthread_mutex_lock(&pool->lock);
	if (r == CUDA_SUCCESS) {
		*released += c->size;
		vs_chunk_died(pool, c);
	} else {
		vs_chunk_cache(pool, c);
	}
	pthread_mutex_unlock(&pool->lock);
	return r == CUDA_SUCCESS;
}

uint64_t vs_grow_release(struct vs_pool *pool, uint64_t bytes, uint64_t before)
{
	uint64_t released = 0;

	while (released < bytes) {
		struct vs_range *place;
		struct vs_chunk *c;
		bool is_unmapped = true;

		pthread_mutex_lock(&pool->lock);
		c = next_victim(pool, before, &place);
		pthread_mutex_unlock(&pool->lock);
		if (!c)
			break;
		if (place)
			is_unmapped =
				vs_vmm_unmap(c->at, c->size) == CUDA_SUCCESS;
		pthread_mutex_lock(&pool->lock);
		if (!is_unmapped) {
			vs_heap_give(pool, heap_at(pool, place->base), place);
			pthread_mutex_unlock(&pool->lock);
			break;
		}
		if (place) {
			vs_chunk_unmapped(pool, c);
			vs_heap_hollow(heap_at(pool, place->base), place);
		}
		pthread_mutex_unlock(&pool->lock);
		if (!let_go(pool, c, &released))
			break;
	}
	return released;
}
