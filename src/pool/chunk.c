/* SPDX-License-Identifier: MIT */
#include "pool/chunk.h"

#include <limits.h>

#include "base/meta.h"
#include "pool/dead.h"
#include "pool/state.h"

/* In one hold of the lock, where there is time: .1 to .2 ms. */
enum { SORTED_AT_ONCE = 1024 };

static int compare(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* By a length, then by age. */
#define COMPARE(name, field)                                                   \
	static int name(const struct vs_chunk *a, const struct vs_chunk *b)    \
	{                                                                      \
		int order = compare(a->field, b->field);                       \
                                                                               \
		return order ? order : compare(a->serial, b->serial);          \
	}

COMPARE(compare_size, size)
COMPARE(compare_head, head)
COMPARE(compare_tail, tail)

/* tree.h marks its functions by a name that glibc leaves to struct members */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(vs_chunk_size_tree, vs_chunk, by_size, compare_size)
RB_GENERATE_STATIC(vs_chunk_head_tree, vs_chunk, by_head, compare_head)
RB_GENERATE_STATIC(vs_chunk_tail_tree, vs_chunk, by_tail, compare_tail)
#undef __unused

static size_t size_of_spots(const struct vs_pool *pool)
{
	uint64_t last = pool->end - pool->base - 1;

	return (last / VS_GRANULE + 1) * sizeof(*pool->chunks.spots);
}

size_t vs_chunks_table(const struct vs_pool *pool)
{
	uint64_t last = pool->end - pool->base - 1;

	return size_of_spots(pool) +
	       (last / VS_STRETCH + 1) * sizeof(*pool->chunks.stretches);
}

void vs_chunks_init(struct vs_pool *pool, void *table)
{
	struct vs_chunks *cs = &pool->chunks;

	TAILQ_INIT(&cs->all);
	TAILQ_INIT(&cs->idle);
	TAILQ_INIT(&cs->cached);
	cs->regions = VS_TRUNK_REGION;
	RB_INIT(&cs->free);
	RB_INIT(&cs->heads);
	RB_INIT(&cs->tails);
	cs->spots = table;
	cs->stretches = (void *)((char *)table + size_of_spots(pool));
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

static void enter(struct vs_pool *pool, struct vs_chunk *c,
		  enum vs_chunk_place place)
{
	struct vs_chunks *cs = &pool->chunks;

	c->place = place;
	c->idle_since = pool->now;
	cs->idle_bytes += c->size;
	cs->whole_bytes += c->is_whole ? c->size : 0;
	cs->vast_bytes += c->is_whole || c->is_vast ? c->size : 0;
	if (place == VS_CHUNK_IDLE) {
		TAILQ_INSERT_TAIL(&cs->idle, c, link);
	} else {
		TAILQ_INSERT_TAIL(&cs->cached, c, link);
		cs->cached_bytes += c->size;
	}
}

/* Leaves its list; the tree by size is told later. */
static void leave(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_chunks *cs = &pool->chunks;

	if (c->place == VS_CHUNK_NOWHERE)
		return;
	cs->idle_bytes -= c->size;
	cs->whole_bytes -= c->is_whole ? c->size : 0;
	cs->vast_bytes -= c->is_whole || c->is_vast ? c->size : 0;
	if (c->place == VS_CHUNK_IDLE) {
		TAILQ_REMOVE(&cs->idle, c, link);
	} else {
		TAILQ_REMOVE(&cs->cached, c, link);
		cs->cached_bytes -= c->size;
	}
	c->place = VS_CHUNK_NOWHERE;
}

static void leave_size(struct vs_pool *pool, struct vs_chunk *c)
{
	if (c->is_by_size)
		RB_REMOVE(vs_chunk_size_tree, &pool->chunks.free, c);
	c->is_by_size = false;
}

void vs_chunk_hold(struct vs_pool *pool, struct vs_chunk *c)
{
	leave(pool, c);
	leave_size(pool, c);
}

static void make_stale(struct vs_pool *pool, struct vs_chunk *c)
{
	if (c->is_stale)
		return;
	c->is_stale = true;
	c->next_stale = pool->chunks.stale;
	pool->chunks.stale = c;
}

void vs_chunk_use(struct vs_pool *pool, struct vs_chunk *c, uint64_t n)
{
	if (c->used == 0) {
		leave(pool, c);
		vs_stat_set(&pool->stats, idle, pool->chunks.idle_bytes);
	}
	c->used += n;
	make_stale(pool, c);
}

void vs_chunk_unuse(struct vs_pool *pool, struct vs_chunk *c, uint64_t n,
		    uint64_t tag)
{
	if (c->idle_tag < tag)
		c->idle_tag = tag;
	c->used -= n;
	make_stale(pool, c);
	if (c->has_dead && c->used == c->dead)
		vs_dead_note(pool, c);
	if (c->used > 0)
		return;
	enter(pool, c, VS_CHUNK_IDLE);
	vs_stat_set(&pool->stats, idle, pool->chunks.idle_bytes);
}

bool vs_chunk_is_quiet(struct vs_pool *pool, const struct vs_chunk *c)
{
	return vs_fence_is_complete(&pool->fence, c->idle_tag);
}

struct vs_chunk *vs_chunk_make(struct vs_pool *pool, uint64_t size)
{
	struct vs_chunk *c = vs_meta_alloc(sizeof(*c));

	if (!c)
		return NULL;
	TAILQ_INIT(&c->views);
	c->size = size;
	/* not where a knob says how large they are, or that memory is kept */
	c->is_vast = size > VS_VAST_LEAST && !pool->is_contiguous &&
		     !pool->chunk_size &&
		     pool->release_threshold <= VS_VAST_LEAST;
	c->serial = ++pool->chunks.serial;
	return c;
}

void vs_chunk_born(struct vs_pool *pool, struct vs_chunk *c)
{
	TAILQ_INSERT_TAIL(&pool->chunks.all, c, of_all);
	pool->chunks.held += c->size;
	pool->chunks.small_held += c->is_small ? c->size : 0;
	pool->chunks.count++;
	vs_stat_add(&pool->stats, chunks_created, 1);
	show(pool);
}

void vs_chunk_sort(struct vs_pool *pool, struct vs_chunk *c)
{
	enum vs_chunk_place place = c->n_on ? VS_CHUNK_IDLE : VS_CHUNK_CACHED;

	if (c->used > 0)
		place = VS_CHUNK_NOWHERE;
	make_stale(pool, c);
	if (c->place == place)
		return;
	vs_chunk_hold(pool, c);
	if (place != VS_CHUNK_NOWHERE)
		enter(pool, c, place);
	show(pool);
}

static void leave_ends(struct vs_pool *pool, struct vs_chunk *c)
{
	if (c->head)
		RB_REMOVE(vs_chunk_head_tree, &pool->chunks.heads, c);
	if (c->tail)
		RB_REMOVE(vs_chunk_tail_tree, &pool->chunks.tails, c);
	c->head = c->tail = 0;
}

void vs_chunk_died(struct vs_pool *pool, struct vs_chunk *c)
{
	/* out of that list, in which all that a trim releases may be */
	vs_chunks_refresh(pool);
	leave_ends(pool, c);
	leave_size(pool, c);
	TAILQ_REMOVE(&pool->chunks.all, c, of_all);
	pool->chunks.held -= c->size;
	pool->chunks.small_held -= c->is_small ? c->size : 0;
	pool->chunks.count--;
	vs_stat_add(&pool->stats, chunks_released, 1);
	show(pool);
	vs_meta_free(c, sizeof(*c));
}

/* Finds the idle bytes at both ends of a chunk that is used in part. */
static void find_ends(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;
	struct vs_range *r;
	CUdeviceptr end;

	leave_ends(pool, c);
	if (c->used == 0)
		return;
	for (v = TAILQ_FIRST(&c->views); !v->is_on; v = TAILQ_NEXT(v, link))
		;
	end = vs_view_end(v);
	r = vs_heap_at(pool, v->at);
	if (r->state == VS_RANGE_IDLE) {
		c->head = r->base + r->span - v->at;
		RB_INSERT(vs_chunk_head_tree, &pool->chunks.heads, c);
	}
	r = vs_heap_at(pool, end - 1);
	if (r->state == VS_RANGE_IDLE) {
		c->tail = end - r->base;
		RB_INSERT(vs_chunk_tail_tree, &pool->chunks.tails, c);
	}
}

static void find_size(struct vs_pool *pool, struct vs_chunk *c)
{
	bool is_free = c->place != VS_CHUNK_NOWHERE;

	if (is_free && !c->is_by_size)
		RB_INSERT(vs_chunk_size_tree, &pool->chunks.free, c);
	else if (!is_free)
		leave_size(pool, c);
	c->is_by_size = is_free;
}

static bool refresh(struct vs_pool *pool, unsigned most)
{
	struct vs_chunk *c;

	for (unsigned n = 0; n < most && (c = pool->chunks.stale); n++) {
		pool->chunks.stale = c->next_stale;
		c->is_stale = false;
		find_ends(pool, c);
		find_size(pool, c);
	}
	return pool->chunks.stale;
}

void vs_chunks_refresh(struct vs_pool *pool)
{
	refresh(pool, UINT_MAX);
}

void vs_chunks_refresh_some(struct vs_pool *pool, unsigned most)
{
	refresh(pool, most);
}

void vs_chunks_refresh_slowly(struct vs_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	/* those that others use meanwhile may never end */
	for (uint64_t i = pool->chunks.count / SORTED_AT_ONCE;
	     refresh(pool, SORTED_AT_ONCE) && i > 0; i--)
		vs_pool_let_in(pool);
	pthread_mutex_unlock(&pool->lock);
}

struct vs_chunk *vs_chunk_free_from(struct vs_pool *pool, uint64_t size)
{
	struct vs_chunk wanted = {.size = size};

	vs_chunks_refresh(pool);
	return RB_NFIND(vs_chunk_size_tree, &pool->chunks.free, &wanted);
}

struct vs_chunk *vs_chunk_free_next(struct vs_chunk *c)
{
	return RB_NEXT(vs_chunk_size_tree, NULL, c);
}

struct vs_chunk *vs_chunk_free_whole(struct vs_pool *pool)
{
	struct vs_chunk *c = NULL;

	if (pool->chunks.whole_bytes > 0)
		c = vs_chunk_free_last(pool);
	/* few: they are the largest of all */
	while (c && c->is_whole && !vs_chunk_is_quiet(pool, c))
		c = vs_chunk_free_prev(c);
	return c && c->is_whole ? c : NULL;
}

struct vs_chunk *vs_chunk_free_last(struct vs_pool *pool)
{
	vs_chunks_refresh(pool);
	return RB_MAX(vs_chunk_size_tree, &pool->chunks.free);
}

struct vs_chunk *vs_chunk_free_prev(struct vs_chunk *c)
{
	return RB_PREV(vs_chunk_size_tree, NULL, c);
}

struct vs_chunk *vs_chunk_end_from(struct vs_pool *pool, enum vs_chunk_end end,
				   uint64_t size)
{
	struct vs_chunks *cs = &pool->chunks;
	struct vs_chunk wanted = {.head = size, .tail = size};

	return end == VS_CHUNK_HEAD
		       ? RB_NFIND(vs_chunk_head_tree, &cs->heads, &wanted)
		       : RB_NFIND(vs_chunk_tail_tree, &cs->tails, &wanted);
}

struct vs_chunk *vs_chunk_end_next(struct vs_chunk *c, enum vs_chunk_end end)
{
	return end == VS_CHUNK_HEAD ? RB_NEXT(vs_chunk_head_tree, NULL, c)
				    : RB_NEXT(vs_chunk_tail_tree, NULL, c);
}

struct vs_chunk *vs_chunk_end_last(struct vs_pool *pool, enum vs_chunk_end end)
{
	struct vs_chunks *cs = &pool->chunks;

	return end == VS_CHUNK_HEAD ? RB_MAX(vs_chunk_head_tree, &cs->heads)
				    : RB_MAX(vs_chunk_tail_tree, &cs->tails);
}

struct vs_chunk *vs_chunk_end_below(struct vs_pool *pool, enum vs_chunk_end end,
				    uint64_t size)
{
	struct vs_chunk *c = vs_chunk_end_from(pool, end, size);

	return c ? vs_chunk_end_prev(c, end) : vs_chunk_end_last(pool, end);
}

struct vs_chunk *vs_chunk_end_prev(struct vs_chunk *c, enum vs_chunk_end end)
{
	return end == VS_CHUNK_HEAD ? RB_PREV(vs_chunk_head_tree, NULL, c)
				    : RB_PREV(vs_chunk_tail_tree, NULL, c);
}
