/* SPDX-License-Identifier: MIT */
#include "pool/view.h"

#include "base/clock.h"
#include "base/meta.h"
#include "pool/state.h"

/* See Note [Asleep]. So many uses elsewhere, and it falls asleep... */
enum { MOST_VAIN = 4 };
/* ... where so many views in so long are told, and for so long then. */
enum { WINDOW = 320 };
#define WINDOW_IS_DEAR (16 * VS_MS)
#define STAYS_DEAR (1000 * VS_MS)

struct vs_view *vs_view_at(const struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_view *v = vs_spot_at(pool, p)->view;

	return v ? v : vs_stretch_at(pool, p)->view;
}

struct vs_heap *vs_heap_of(struct vs_pool *pool, CUdeviceptr p)
{
	int k = 0;

	while (p < pool->heap[k].base || p >= pool->heap[k].end)
		k++;
	return &pool->heap[k];
}

bool vs_views_join(const struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_view *left, *right;

	if (p % VS_GRANULE != 0)
		return true;
	left = vs_view_at(pool, p - 1);
	right = vs_view_at(pool, p);
	return left == right ||
	       (left->region == right->region && !pool->is_contiguous);
}

bool vs_views_begin(const struct vs_pool *pool, CUdeviceptr p)
{
	return p % VS_GRANULE == 0 && vs_view_at(pool, p)->at == p;
}

bool vs_views_end(const struct vs_pool *pool, CUdeviceptr p)
{
	return p % VS_GRANULE == 0 && vs_view_end(vs_view_at(pool, p - 1)) == p;
}

bool vs_views_break(const struct vs_pool *pool, CUdeviceptr base, uint64_t span)
{
	struct vs_view *first = vs_view_at(pool, base);
	struct vs_view *last = vs_view_at(pool, base + span - 1);

	return (first->chunk->is_whole && first->at < base) ||
	       (last->chunk->is_whole && vs_view_end(last) > base + span);
}

bool vs_views_spoil(const struct vs_pool *pool, CUdeviceptr base, uint64_t span)
{
	struct vs_chunk *first = vs_view_at(pool, base)->chunk;
	struct vs_chunk *last = vs_view_at(pool, base + span - 1)->chunk;

	return vs_chunk_is_too_vast(first, span) ||
	       vs_chunk_is_too_vast(last, span);
}

/* The part of [base, base + span) from `p` on that lies in one view. */
static uint64_t part(const struct vs_view *v, CUdeviceptr p, CUdeviceptr end)
{
	return (end < vs_view_end(v) ? end : vs_view_end(v)) - p;
}

unsigned vs_views_cuts(const struct vs_pool *pool, CUdeviceptr base,
		       uint64_t span)
{
	unsigned n = 0;

	for (CUdeviceptr p = base; p < base + span;) {
		struct vs_view *v = vs_view_at(pool, p);

		n += 2 * (v->chunk->n_on - 1);
		p = vs_view_end(v);
	}
	return n;
}

/*
 * Each view of a chunk that is on; they come before those that are asleep,
 * which are not touched.
 */
#define FOREACH_ON(w, c, left)                                                 \
	for ((w) = TAILQ_FIRST(&(c)->views), (left) = (c)->n_on; (left) > 0;   \
	     (w) = TAILQ_NEXT(w, link))                                        \
		if ((w)->is_on && (left)--)

/*
 * What lies at every other address is fetched at once: in a large heap each is
 * on a page of its own, in no cache, and the next would be asked for only when
 * the one before has been dealt with.
 */
static inline void fetch_names(struct vs_pool *pool, const struct vs_view *v,
			       uint64_t offset)
{
	struct vs_view *w;
	unsigned left;

	if (v->chunk->n_on < 3)
		return; /* there is one */
	FOREACH_ON (w, v->chunk, left)
		__builtin_prefetch(vs_spot_at(pool, w->at + offset));
	FOREACH_ON (w, v->chunk, left)
		__builtin_prefetch(vs_spot_at(pool, w->at + offset)->range);
}

/* Of a range of `span` bytes `n` lie in a chunk; see Note [Guests] there. */
static inline bool is_guest(const struct vs_view *v, uint64_t n, uint64_t span)
{
	return n == span && vs_chunk_is_guest(v->chunk, span);
}

/* Its bytes become one busy range. False without host memory. */
static bool close_view(struct vs_pool *pool, struct vs_view *v)
{
	struct vs_heap *h = vs_heap_of(pool, v->at);
	struct vs_range *r, *first = NULL;

	/* what is idle may go on at both ends, in other views */
	if (!vs_heap_stock(pool, VS_CARVE_CUTS))
		return false;
	for (CUdeviceptr p = v->at; p < vs_view_end(v); p = r->base + r->span) {
		r = vs_heap_at(pool, p);
		if (r->state == VS_RANGE_IDLE)
			r = vs_heap_carve(pool, h, r, p,
					  part(v, p, r->base + r->span));
		r->state = VS_RANGE_BUSY;
		if (!first)
			first = r;
	}
	while (first->span < v->chunk->size)
		first = vs_heap_join(pool, h, first);
	v->is_on = false;
	v->chunk->n_on--;
	return true;
}

/* One more view is told that bytes are taken elsewhere. */
static void count_shading(struct vs_shading *s)
{
	uint64_t now;

	if (++s->n < WINDOW)
		return;
	now = vs_vmm_ticks();
	if (now - s->began < WINDOW_IS_DEAR)
		s->dear_until = now + STAYS_DEAR;
	s->n = 0;
	s->began = now;
}

/* Nothing is taken at a view; whether it is asleep now. */
static __attribute__((noinline)) bool fall_asleep(struct vs_pool *pool,
						  struct vs_view *v)
{
	if (!close_view(pool, v))
		return false;
	v->is_asleep = true;
	vs_heap_of(pool, v->at)->n_asleep++;
	TAILQ_REMOVE(&v->chunk->views, v, link);
	TAILQ_INSERT_TAIL(&v->chunk->views, v, link);
	return true;
}

/* Nothing is in use there, and it may be done without; not the trunk's. */
static inline bool is_spare(const struct vs_view *v)
{
	return v->used == 0 && !vs_view_is_trunk(v);
}

/* One more view was told; whether it should rather sleep. */
static inline bool is_sleepy(struct vs_pool *pool, struct vs_view *v)
{
	count_shading(&pool->chunks.shading);
	/* more than there can be ahead: a suspended machine counts from 0 */
	return ++v->n_vain > MOST_VAIN && is_spare(v) &&
	       pool->chunks.shading.dear_until - vs_vmm_ticks() <= STAYS_DEAR;
}

/* At every other address the bytes leave what is idle. */
static void shade(struct vs_pool *pool, struct vs_view *v, uint64_t offset,
		  uint64_t n)
{
	struct vs_view *w, *sleepy = NULL;
	unsigned left;

	fetch_names(pool, v, offset);
	FOREACH_ON (w, v->chunk, left) {
		struct vs_heap *h;
		struct vs_range *r;

		if (w == v)
			continue;
		h = vs_heap_of(pool, w->at);
		r = vs_heap_at(pool, w->at + offset);
		r = vs_heap_carve(pool, h, r, w->at + offset, n);
		r->state = VS_RANGE_SHADOW;
		if (is_sleepy(pool, w))
			sleepy = w;
	}
	if (sleepy)
		fall_asleep(pool, sleepy);
}

static void unshade(struct vs_pool *pool, struct vs_view *v, uint64_t offset)
{
	struct vs_view *w;
	unsigned left;

	fetch_names(pool, v, offset);
	FOREACH_ON (w, v->chunk, left) {
		struct vs_heap *h;

		if (w == v)
			continue;
		h = vs_heap_of(pool, w->at);
		vs_heap_settle(pool, h, vs_heap_at(pool, w->at + offset),
			       VS_RANGE_IDLE);
	}
}

void vs_views_use(struct vs_pool *pool, CUdeviceptr base, uint64_t span)
{
	CUdeviceptr p = base;

	while (p < base + span) {
		struct vs_view *v = vs_view_at(pool, p);
		uint64_t n = part(v, p, base + span);

		v->used += n;
		v->n_vain = 0;
		v->touched = ++pool->chunks.touches;
		v->chunk->n_guests += is_guest(v, n, span);
		vs_chunk_use(pool, v->chunk, n);
		if (v->chunk->n_on > 1)
			shade(pool, v, p - v->at, n);
		p += n;
	}
}

void vs_views_unuse(struct vs_pool *pool, CUdeviceptr base, uint64_t span,
		    uint64_t tag)
{
	CUdeviceptr p = base;

	while (p < base + span) {
		struct vs_view *v = vs_view_at(pool, p);
		uint64_t n = part(v, p, base + span);

		v->used -= n;
		v->touched = ++pool->chunks.touches;
		if (v->idle_tag < tag)
			v->idle_tag = tag;
		v->chunk->n_guests -= is_guest(v, n, span);
		vs_chunk_unuse(pool, v->chunk, n, tag);
		if (v->chunk->n_on > 1)
			unshade(pool, v, p - v->at);
		p += n;
	}
}

void vs_views_cut(struct vs_pool *pool, CUdeviceptr base, uint64_t span)
{
	struct vs_view *v = vs_view_at(pool, base);

	v->chunk->n_guests += is_guest(v, part(v, base, base + span), span);
}

static void see(struct vs_spot *spots, uint64_t from, uint64_t to,
		struct vs_view *v)
{
	for (; from < to; from++)
		spots[from].view = v;
}

/* What is seen over all of a view. */
static void lay(struct vs_pool *pool, const struct vs_view *v,
		struct vs_view *seen)
{
	struct vs_cover c = vs_cover_of(
		v->at - pool->base, vs_view_end(v) - pool->base, VS_GRANULE);

	see(pool->chunks.spots, c.head, c.head_end, seen);
	see(pool->chunks.stretches, c.whole, c.whole_end, seen);
	see(pool->chunks.spots, c.tail, c.tail_end, seen);
}

void vs_view_mapped(struct vs_pool *pool, struct vs_view *v)
{
	lay(pool, v, v);
	v->touched = ++pool->chunks.touches;
	TAILQ_INSERT_TAIL(&v->chunk->views, v, link);
}

void vs_view_unmapped(struct vs_pool *pool, struct vs_view *v)
{
	struct vs_heap *h = vs_heap_of(pool, v->at);
	struct vs_range *r = vs_heap_at(pool, v->at);

	lay(pool, v, NULL);
	TAILQ_REMOVE(&v->chunk->views, v, link);
	vs_heap_hollow(pool, h, r);
	vs_meta_free(v, sizeof(*v));
}

/* Another of the chunk that is on, or asleep; or NULL. */
static struct vs_view *other(const struct vs_view *v, bool may_sleep)
{
	struct vs_view *w;

	TAILQ_FOREACH (w, &v->chunk->views, link) {
		if (w != v && (w->is_on || (may_sleep && w->is_asleep)))
			return w;
	}
	return NULL;
}

static struct vs_view *other_on(const struct vs_view *v)
{
	return other(v, false);
}

unsigned vs_view_cuts(struct vs_pool *pool, const struct vs_view *v)
{
	struct vs_view *like = other_on(v);
	struct vs_range *r;
	unsigned n = VS_CARVE_CUTS; /* of one that falls asleep */

	if (!like)
		return 0;
	r = vs_heap_at(pool, like->at);
	for (; r && r->base < vs_view_end(like); r = r->next)
		n++;
	return n;
}

/* Makes `r`, all of view `v`, look like view `like`. */
static void copy_ranges(struct vs_pool *pool, struct vs_view *v,
			struct vs_range *r, struct vs_view *like)
{
	struct vs_heap *h = vs_heap_of(pool, v->at);
	struct vs_range *from = vs_heap_at(pool, like->at);

	for (; from && from->base < vs_view_end(like); from = from->next) {
		CUdeviceptr end = from->base + from->span;
		struct vs_range *rest = NULL;

		if (end < vs_view_end(like))
			rest = vs_heap_cut(pool, h, r,
					   end - like->at + v->at - r->base);
		if (from->state == VS_RANGE_IDLE)
			vs_heap_settle(pool, h, r, VS_RANGE_IDLE);
		else
			r->state = VS_RANGE_SHADOW;
		r = rest;
	}
}

/* A view is had that was not (by 1); or no longer is (by -1). */
static void count_had(struct vs_pool *pool, const struct vs_view *v, int by)
{
	struct vs_chunk *c = v->chunk;
	unsigned n_others = by > 0 ? c->n_had : c->n_had - 1;

	c->n_had = (uint8_t)(c->n_had + by);
	if (n_others == 0)
		return;
	vs_heap_of(pool, v->at)->n_shared += (uint64_t)by;
	if (n_others == 1)
		vs_heap_of(pool, other(v, true)->at)->n_shared += (uint64_t)by;
}

static void wake_up(struct vs_pool *pool, struct vs_view *v)
{
	v->is_asleep = false;
	vs_heap_of(pool, v->at)->n_asleep--;
}

/* One more is on: that longest not used falls asleep, if they are too many. */
static void rest_oldest(struct vs_pool *pool, const struct vs_view *last)
{
	struct vs_view *v, *oldest = NULL;

	if (last->chunk->n_on <= VS_VIEWS)
		return;
	TAILQ_FOREACH (v, &last->chunk->views, link) {
		if (v != last && v->is_on && is_spare(v) &&
		    (!oldest || v->touched < oldest->touched))
			oldest = v;
	}
	if (oldest)
		fall_asleep(pool, oldest);
}

bool vs_view_on(struct vs_pool *pool, struct vs_view *v)
{
	struct vs_view *like = other_on(v);
	struct vs_heap *h = vs_heap_of(pool, v->at);
	struct vs_range *r = vs_heap_at(pool, v->at);

	if (!vs_heap_stock(pool, vs_view_cuts(pool, v)))
		return false;
	if (v->is_asleep)
		wake_up(pool, v);
	else
		count_had(pool, v, 1);
	v->is_on = v->has_access = true;
	v->chunk->n_on++;
	if (v->chunk->n_had > v->chunk->n_on) {
		TAILQ_REMOVE(&v->chunk->views, v, link);
		TAILQ_INSERT_HEAD(&v->chunk->views, v, link);
	}
	v->n_vain = 0;
	v->touched = ++pool->chunks.touches;
	if (like)
		copy_ranges(pool, v, r, like);
	else
		vs_heap_settle(pool, h, r, VS_RANGE_IDLE);
	vs_chunk_sort(pool, v->chunk);
	rest_oldest(pool, v);
	return true;
}

bool vs_view_off(struct vs_pool *pool, struct vs_view *v)
{
	if (v->is_asleep)
		wake_up(pool, v);
	else if (!close_view(pool, v))
		return false;
	count_had(pool, v, -1);
	vs_chunk_sort(pool, v->chunk);
	return true;
}

/* Nothing can touch it, and it is not the only one that is on. */
static bool may_go(struct vs_pool *pool, const struct vs_view *v)
{
	return (v->is_asleep || (v->is_on && v->chunk->n_on > 1)) &&
	       is_spare(v) && vs_fence_is_complete(&pool->fence, v->idle_tag);
}

bool vs_view_may_add(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	if (c->n_had < VS_VIEWS_WAITING)
		return true;
	if (c->n_had == UINT8_MAX)
		return false;
	TAILQ_FOREACH (v, &c->views, link) {
		if (may_go(pool, v))
			return true;
	}
	return false;
}

struct vs_view *vs_view_oldest(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v, *oldest = NULL;

	if (c->n_had < VS_VIEWS_MOST)
		return NULL;
	TAILQ_FOREACH (v, &c->views, link) {
		if (may_go(pool, v) &&
		    (!oldest || v->touched < oldest->touched))
			oldest = v;
	}
	return oldest;
}

struct vs_view *vs_view_spare(struct vs_pool *pool, struct vs_chunk *c,
			      const struct vs_heap *h)
{
	struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		/* first: one of pool/guard is in no heap */
		if (may_go(pool, v) && vs_heap_of(pool, v->at) == h)
			return v;
	}
	return NULL;
}

bool vs_view_is_in(const struct vs_chunk *c, uint64_t region)
{
	struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		if (v->region == region)
			return true;
	}
	return false;
}
