/* SPDX-License-Identifier: MIT */
#include "pool/heap.h"

#include "base/meta.h"
#include "pool/state.h"
#include "pool/view.h"

/* See place_among_guests(): from such a part beyond need on; ends looked at. */
enum { GUESTS_SHARE = 8, HOSTS_TRIED = 16 };
/* The trunk's best fit may be larger than another, by such a part of that. */
enum { NEARER = 44 };

static int compare_size(const struct vs_range *a, const struct vs_range *b)
{
	if (a->span != b->span)
		return a->span < b->span ? -1 : 1;
	return a->base < b->base ? -1 : a->base > b->base;
}

/* tree.h marks its functions by a name that glibc leaves to struct members */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(vs_size_tree, vs_range, by_size, compare_size)
#undef __unused

/* Those of the part of the heap that a range is in. */
static inline struct vs_by_size *part_of(struct vs_heap *h,
					 const struct vs_range *r)
{
	return &h->part[r->base < h->trunk_end ? VS_TRUNK : VS_AWAY];
}

/* Puts an idle range or a hole among those of its size; takes it out. */
static void list(struct vs_heap *h, struct vs_range *r)
{
	struct vs_by_size *s = part_of(h, r);
	unsigned bin;

	if (r->state == VS_RANGE_HOLE) {
		RB_INSERT(vs_size_tree, &s->holes, r);
		return;
	}
	bin = vs_bin_of(r->span);
	RB_INSERT(vs_size_tree, &s->idle[bin], r);
	vs_bins_fill(&s->filled, bin);
}

static void unlist(struct vs_heap *h, struct vs_range *r)
{
	struct vs_by_size *s = part_of(h, r);
	unsigned bin;

	if (r->state == VS_RANGE_HOLE) {
		RB_REMOVE(vs_size_tree, &s->holes, r);
		return;
	}
	bin = vs_bin_of(r->span);
	RB_REMOVE(vs_size_tree, &s->idle[bin], r);
	if (RB_EMPTY(&s->idle[bin]))
		vs_bins_empty(&s->filled, bin);
}

/* The smallest idle range of a bin or those behind it; or NULL. */
static struct vs_range *smallest_from(struct vs_by_size *s, unsigned bin)
{
	bin = vs_bins_from(&s->filled, bin);
	return bin < VS_RANGE_BINS ? RB_MIN(vs_size_tree, &s->idle[bin]) : NULL;
}

/* The largest idle range of the bins before one, or NULL. */
static struct vs_range *largest_before(struct vs_by_size *s, unsigned bin)
{
	bin = vs_bins_before(&s->filled, bin);
	return bin < VS_RANGE_BINS ? RB_MAX(vs_size_tree, &s->idle[bin]) : NULL;
}

/* The smallest idle range of a part with `span` bytes or more, or NULL. */
static struct vs_range *find_in(struct vs_by_size *s, uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0};
	unsigned bin;
	struct vs_range *r;

	if (s->filled.words == 0)
		return NULL;
	bin = vs_bin_of(span);
	r = RB_NFIND(vs_size_tree, &s->idle[bin], &wanted);
	return r ? r : smallest_from(s, bin + 1);
}

/* Of the best fits of both parts the trunk's is taken, by Note [Trunk]. */
static inline bool is_nearer(const struct vs_pool *pool,
			     const struct vs_range *near,
			     const struct vs_range *away)
{
	return near && (pool->is_trunk_first || !away ||
			near->span <= away->span + away->span / NEARER);
}

/* The smallest idle range of at least `span` bytes, or NULL. */
static inline struct vs_range *find_fit(const struct vs_pool *pool,
					struct vs_heap *h, uint64_t span)
{
	struct vs_range *near = find_in(&h->part[VS_TRUNK], span), *away = NULL;

	if (!near || !pool->is_trunk_first)
		away = find_in(&h->part[VS_AWAY], span);
	return is_nearer(pool, near, away) ? near : away;
}

/* The next larger one of the part (or at a higher address), or NULL. */
static struct vs_range *larger(struct vs_by_size *s, struct vs_range *r)
{
	struct vs_range *next = RB_NEXT(vs_size_tree, NULL, r);

	return next ? next : smallest_from(s, vs_bin_of(r->span) + 1);
}

bool vs_heap_stock(struct vs_pool *pool, unsigned n)
{
	while (pool->stock.n < n) {
		struct vs_range *r = vs_meta_alloc(sizeof(*r));

		if (!r)
			return false;
		r->next = pool->stock.first;
		pool->stock.first = r;
		pool->stock.n++;
	}
	return true;
}

/* One, and all that come next. */
static void free_all(struct vs_range *r)
{
	struct vs_range *next;

	for (; r; r = next) {
		next = r->next;
		vs_meta_free(r, sizeof(*r));
	}
}

void vs_heap_unstock(struct vs_pool *pool)
{
	free_all(pool->stock.first);
	pool->stock = (struct vs_stock){NULL, 0};
}

/* The second line is not touched: id is 0 since the last death. */
static struct vs_range *from_stock(struct vs_pool *pool)
{
	struct vs_range *r = pool->stock.first;

	pool->stock.first = r->next;
	pool->stock.n--;
	return r;
}

/* The tables by address may still name it: without bounds it owns nothing. */
static void to_stock(struct vs_pool *pool, struct vs_range *r)
{
	r->span = 0;
	r->next = pool->stock.first;
	pool->stock.first = r;
	pool->stock.n++;
}

bool vs_heap_init(struct vs_pool *pool, struct vs_heap *h, CUdeviceptr base,
		  uint64_t trunk, CUdeviceptr end)
{
	struct vs_range *r, *rest = NULL;

	if (!vs_heap_stock(pool, 2))
		return false;
	r = from_stock(pool);
	h->base = base;
	h->trunk_end = base + trunk;
	h->end = end;
	r->base = base;
	r->span = end - base;
	r->state = VS_RANGE_HOLE;
	r->prev = r->next = NULL;
	h->first = h->last = r;
	if (trunk > 0)
		rest = vs_heap_cut(pool, h, r, trunk);
	list(h, r);
	if (rest)
		list(h, rest);
	return true;
}

void vs_heap_drop(struct vs_heap *h)
{
	free_all(h->first);
	h->first = NULL;
}

bool vs_heap_is_bare(const struct vs_heap *h)
{
	const struct vs_range *second = h->first->next;

	return h->first->state == VS_RANGE_HOLE &&
	       (!second ||
		(second == h->last && second->state == VS_RANGE_HOLE));
}

/*
 * Names `r` at the granules that begin in [base, base + span), part of it. A
 * range that is cut stays named by the stretches that it covers in part now.
 */
static void name(struct vs_pool *pool, struct vs_range *r, CUdeviceptr base,
		 uint64_t span)
{
	uint64_t from = base - pool->base;
	struct vs_cover c = vs_cover_of(from, from + span, VS_GRANULE);

	for (; c.head < c.head_end; c.head++)
		vs_spot_name(&pool->chunks.spots[c.head], r);
	for (; c.whole < c.whole_end; c.whole++)
		vs_spot_name(&pool->chunks.stretches[c.whole], r);
	for (; c.tail < c.tail_end; c.tail++)
		vs_spot_name(&pool->chunks.spots[c.tail], r);
}

/* From now on they are neighbours; NULL: the other is the first, or the last.
 */
static inline void link_up(struct vs_heap *h, struct vs_range *left,
			   struct vs_range *right)
{
	if (left)
		left->next = right;
	else
		h->first = right;
	if (right)
		right->prev = left;
	else
		h->last = left;
}

/* Cuts `span` bytes off the left of a range; they are the new one. */
static struct vs_range *cut_left(struct vs_pool *pool, struct vs_heap *h,
				 struct vs_range *r, uint64_t span)
{
	struct vs_range *left = from_stock(pool);

	vs_range_set_base(left, r->base);
	left->span = span;
	left->state = r->state;
	link_up(h, r->prev, left);
	link_up(h, left, r);
	vs_range_set_base(r, r->base + span);
	r->span -= span;
	if (r->state != VS_RANGE_HOLE)
		name(pool, left, left->base, left->span);
	return left;
}

struct vs_range *vs_heap_cut(struct vs_pool *pool, struct vs_heap *h,
			     struct vs_range *r, uint64_t span)
{
	struct vs_range *right = from_stock(pool);

	vs_range_set_base(right, r->base + span);
	right->span = r->span - span;
	right->state = r->state;
	link_up(h, right, r->next);
	link_up(h, r, right);
	r->span = span;
	if (r->state != VS_RANGE_HOLE)
		name(pool, right, right->base, right->span);
	return right;
}

/* The larger one stays, so that few granules change their range. */
struct vs_range *vs_heap_join(struct vs_pool *pool, struct vs_heap *h,
			      struct vs_range *left)
{
	struct vs_range *right = left->next;
	bool is_right = right->span > left->span;
	struct vs_range *stays = is_right ? right : left;
	struct vs_range *goes = is_right ? left : right;

	if (left->state != VS_RANGE_HOLE)
		name(pool, stays, goes->base, goes->span);
	vs_range_set_base(stays, left->base);
	stays->span = left->span + right->span;
	/* the neighbour beyond the one that stays is not touched */
	if (is_right)
		link_up(h, left->prev, right);
	else
		link_up(h, left, right->next);
	to_stock(pool, goes);
	return stays;
}

/* Whether a range and the one right of it are one, both idle or holes. */
static bool may_merge(struct vs_pool *pool, const struct vs_heap *h,
		      struct vs_range *left)
{
	struct vs_range *right = left->next;

	if (!right || right->state != left->state)
		return false;
	if (left->state == VS_RANGE_HOLE)
		return right->base != h->trunk_end;
	return vs_views_join(pool, right->base);
}

void vs_heap_settle(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r,
		    enum vs_range_state state)
{
	r->state = state;
	if (may_merge(pool, h, r)) {
		unlist(h, r->next);
		r = vs_heap_join(pool, h, r);
	}
	if (r->prev && r->prev->state == state && may_merge(pool, h, r->prev)) {
		unlist(h, r->prev);
		r = vs_heap_join(pool, h, r->prev);
	}
	list(h, r);
}

struct vs_range *vs_heap_carve(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span)
{
	uint64_t before = base - r->base, after = r->span - before - span;
	struct vs_range *rest;

	unlist(h, r);
	/* the largest part keeps the struct: few granules change their range */
	if (after > 0 && after >= before + span) {
		rest = r;
		r = cut_left(pool, h, rest, before + span);
		list(h, rest);
	} else if (after > 0) {
		list(h, vs_heap_cut(pool, h, r, before + span));
	}
	if (before > 0 && before >= span) {
		rest = r;
		r = vs_heap_cut(pool, h, rest, before);
		list(h, rest);
	} else if (before > 0) {
		list(h, cut_left(pool, h, r, before));
	}
	return r;
}

/* Takes a part of an idle range; NULL without host memory. */
static struct vs_range *take_part(struct vs_pool *pool, struct vs_heap *h,
				  struct vs_range *r, CUdeviceptr base,
				  uint64_t span, enum vs_range_state state)
{
	if (!vs_heap_stock(pool,
			   VS_CARVE_CUTS + vs_views_cuts(pool, base, span)))
		return NULL;
	r = vs_heap_carve(pool, h, r, base, span);
	r->state = state;
	vs_range_set_ctx(r, NULL); /* that of its last life may die */
	r->is_indexed = false;
	vs_views_use(pool, base, span);
	return r;
}

/*
 * Where in an idle range a smaller one is to lie: what is left at the edge of a
 * chunk can be used with another chunk.
 */
static CUdeviceptr place_in(const struct vs_pool *pool,
			    const struct vs_range *r, uint64_t span)
{
	if (r->span > span && vs_views_begin(pool, r->base) &&
	    !vs_views_end(pool, r->base + r->span))
		return r->base + r->span - span;
	return r->base;
}

/* See skip_vast(): of one part. */
static struct vs_range *skip_vast_in(struct vs_pool *pool, struct vs_by_size *s,
				     uint64_t span, bool is_sparing,
				     CUdeviceptr *base_out)
{
	for (struct vs_range *r = find_in(s, span); r; r = larger(s, r)) {
		CUdeviceptr place[] = {place_in(pool, r, span), r->base,
				       r->base + r->span - span};

		for (int i = 0; i < 3; i++) {
			*base_out = place[i];
			if (!vs_views_break(pool, place[i], span) &&
			    !(is_sparing &&
			      vs_views_spoil(pool, place[i], span)))
				return r;
		}
	}
	return NULL;
}

/*
 * The first fit that breaks no chunk of Note [Whole] in pool/chunk, or NULL,
 * and where in it; `is_sparing`: nor comes first in one of Note [Vast].
 */
static __attribute__((noinline)) struct vs_range *
skip_vast(struct vs_pool *pool, struct vs_heap *h, uint64_t span,
	  bool is_sparing, CUdeviceptr *base_out)
{
	CUdeviceptr base;
	struct vs_range *near =
		skip_vast_in(pool, &h->part[VS_TRUNK], span, is_sparing, &base);
	struct vs_range *away = skip_vast_in(pool, &h->part[VS_AWAY], span,
					     is_sparing, base_out);

	if (!is_nearer(pool, near, away))
		return away;
	*base_out = base;
	return near;
}

/* A view of the chunk in a heap, or NULL. */
static const struct vs_view *view_in(const struct vs_heap *h,
				     const struct vs_chunk *c)
{
	const struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		if (v->is_on && v->at >= h->base && v->at < h->end)
			return v;
	}
	return NULL;
}

/* Of the chunks with guests that which has the least idle at an end. */
static const struct vs_view *find_host(struct vs_pool *pool,
				       const struct vs_heap *h,
				       enum vs_chunk_end end, uint64_t span)
{
	const struct vs_view *v;
	struct vs_chunk *c = vs_chunk_end_from(pool, end, span);

	for (int i = 0; c && i < HOSTS_TRIED; i++) {
		if (c->n_guests > 0 && (v = view_in(h, c)))
			return v;
		c = vs_chunk_end_next(c, end);
	}
	return NULL;
}

/* So much more than the program needs is held that packing is not good. */
static inline bool is_loose(const struct vs_pool *pool)
{
	uint64_t most = pool->need / GUESTS_SHARE;

	return pool->chunks.held >
	       pool->need + (most > VS_FLOOR ? most : VS_FLOOR);
}

/* A block that was to lie at `base` would be the first guest of its chunk. */
static inline bool is_first_guest(const struct vs_pool *pool, CUdeviceptr base,
				  uint64_t span)
{
	const struct vs_view *v = vs_view_at(pool, base);

	return v->chunk->n_guests == 0 && vs_chunk_is_guest(v->chunk, span) &&
	       base + span <= vs_view_end(v);
}

/*
 * The same block beside other guests, next to what is in use; `base` if it fits
 * nowhere there. See Note [Guests] in pool/chunk.
 */
static __attribute__((noinline)) CUdeviceptr
place_among_guests(struct vs_pool *pool, const struct vs_heap *h,
		   CUdeviceptr base, uint64_t span)
{
	const struct vs_view *head, *tail;

	vs_chunks_refresh(pool);
	head = find_host(pool, h, VS_CHUNK_HEAD, span);
	tail = find_host(pool, h, VS_CHUNK_TAIL, span);
	if (tail && (!head || tail->chunk->tail <= head->chunk->head))
		return vs_view_end(tail) - tail->chunk->tail;
	return head ? head->at + head->chunk->head - span : base;
}

struct vs_range *vs_heap_take(struct vs_pool *pool, struct vs_heap *h,
			      uint64_t span, bool is_sparing)
{
	CUdeviceptr base = 0;
	struct vs_range *r;

	if (__builtin_expect(pool->chunks.vast_bytes > 0, 0)) {
		r = skip_vast(pool, h, span, is_sparing, &base);
	} else {
		r = find_fit(pool, h, span);
		if (r)
			base = place_in(pool, r, span);
	}
	if (!r)
		return NULL;
	if (h == &pool->heap[VS_HEAP_LARGE] && !pool->is_contiguous &&
	    is_loose(pool) && is_first_guest(pool, base, span)) {
		base = place_among_guests(pool, h, base, span);
		r = vs_heap_at(pool, base);
	}
	return take_part(pool, h, r, base, span, VS_RANGE_LIVE);
}

struct vs_range *vs_heap_take_at(struct vs_pool *pool, struct vs_heap *h,
				 CUdeviceptr base, uint64_t span,
				 enum vs_range_state state)
{
	return take_part(pool, h, vs_heap_at(pool, base), base, span, state);
}

void vs_heap_give(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r)
{
	uint64_t tag =
		atomic_load_explicit(&pool->fence.done, memory_order_relaxed);

	/* what was put aside before more was handed out by order, not for it */
	if (r->state == VS_RANGE_SHELVED)
		tag = r->tag;
	vs_views_unuse(pool, r->base, r->span, tag);
	vs_heap_settle(pool, h, r, VS_RANGE_IDLE);
}

struct vs_range *vs_heap_claim(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span)
{
	if (!vs_heap_stock(pool, VS_CARVE_CUTS))
		return NULL;
	r = vs_heap_carve(pool, h, r, base, span);
	r->state = VS_RANGE_BUSY;
	name(pool, r, base, span);
	return r;
}

void vs_heap_hollow(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r)
{
	vs_heap_settle(pool, h, r, VS_RANGE_HOLE);
}

/* What is named and does not hold the granule's first byte is stale. */
struct vs_range *vs_heap_at(const struct vs_pool *pool, CUdeviceptr p)
{
	CUdeviceptr granule = p & ~(CUdeviceptr)(VS_GRANULE - 1);
	struct vs_range *r = vs_spot_at(pool, p)->range;

	if (!r || granule - r->base >= r->span)
		r = vs_stretch_at(pool, p)->range;
	while (p - r->base >= r->span)
		r = r->next;
	return r;
}

struct vs_range *vs_heap_hole(struct vs_heap *h, enum vs_heap_part part,
			      uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0};

	return RB_NFIND(vs_size_tree, &h->part[part].holes, &wanted);
}

struct vs_range *vs_heap_below(struct vs_heap *h, enum vs_heap_part part,
			       uint64_t span)
{
	struct vs_by_size *s = &h->part[part];
	struct vs_range wanted = {.span = span, .base = 0};
	unsigned bin = vs_bin_of(span);
	struct vs_range *r = RB_NFIND(vs_size_tree, &s->idle[bin], &wanted);

	return r ? vs_heap_smaller(h, r) : largest_before(s, bin + 1);
}

struct vs_range *vs_heap_smaller(struct vs_heap *h, struct vs_range *r)
{
	struct vs_range *smaller = RB_PREV(vs_size_tree, NULL, r);

	return smaller ? smaller
		       : largest_before(part_of(h, r), vs_bin_of(r->span));
}
