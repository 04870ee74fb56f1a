/* SPDX-License-Identifier: MIT */
#include "pool/heap.h"

#include "base/meta.h"
#include "pool/state.h"
#include "pool/view.h"

static int compare_base(const struct vs_range *a, const struct vs_range *b)
{
	return a->base < b->base ? -1 : a->base > b->base;
}

static int compare_size(const struct vs_range *a, const struct vs_range *b)
{
	if (a->span != b->span)
		return a->span < b->span ? -1 : 1;
	return compare_base(a, b);
}

/* tree.h marks its functions by a name that glibc leaves to struct members */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(vs_size_tree, vs_range, by_size, compare_size)
RB_GENERATE_STATIC(vs_base_tree, vs_range, by_base, compare_base)
#undef __unused

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

/* A blank struct; id is 0 since the last death. */
static struct vs_range *from_stock(struct vs_pool *pool)
{
	struct vs_range *r = pool->stock.first;

	pool->stock.first = r->next;
	pool->stock.n--;
	r->ctx = NULL;
	r->is_indexed = r->is_pinned = false;
	return r;
}

/* The owner index may still name it: without bounds it owns nothing. */
static void to_stock(struct vs_pool *pool, struct vs_range *r)
{
	r->span = 0;
	r->next = pool->stock.first;
	pool->stock.first = r;
	pool->stock.n++;
}

bool vs_heap_init(struct vs_pool *pool, struct vs_heap *h, CUdeviceptr base,
		  CUdeviceptr end)
{
	struct vs_range *r;

	if (!vs_heap_stock(pool, 1))
		return false;
	r = from_stock(pool);
	h->base = base;
	h->end = end;
	RB_INIT(&h->idle);
	RB_INIT(&h->holes);
	RB_INIT(&h->ranges);
	r->base = base;
	r->span = end - base;
	r->state = VS_RANGE_HOLE;
	r->prev = r->next = NULL;
	h->first = h->last = r;
	RB_INSERT(vs_size_tree, &h->holes, r);
	RB_INSERT(vs_base_tree, &h->ranges, r);
	return true;
}

static struct vs_size_tree *tree_of(struct vs_heap *h, struct vs_range *r)
{
	return r->state == VS_RANGE_IDLE ? &h->idle : &h->holes;
}

struct vs_range *vs_heap_cut(struct vs_pool *pool, struct vs_heap *h,
			     struct vs_range *r, uint64_t span)
{
	struct vs_range *right = from_stock(pool);

	right->base = r->base + span;
	right->span = r->span - span;
	right->state = r->state;
	right->prev = r;
	right->next = r->next;
	if (r->next)
		r->next->prev = right;
	else
		h->last = right;
	r->next = right;
	r->span = span;
	r->is_indexed = false;
	RB_INSERT(vs_base_tree, &h->ranges, right);
	return right;
}

void vs_heap_join(struct vs_pool *pool, struct vs_heap *h,
		  struct vs_range *left)
{
	struct vs_range *right = left->next;

	RB_REMOVE(vs_base_tree, &h->ranges, right);
	left->span += right->span;
	left->is_indexed = false;
	left->next = right->next;
	if (right->next)
		right->next->prev = left;
	else
		h->last = left;
	to_stock(pool, right);
}

/* Whether a range and the one right of it are one, both idle or holes. */
static bool may_merge(struct vs_pool *pool, struct vs_range *left)
{
	struct vs_range *right = left->next;

	if (!right || right->state != left->state)
		return false;
	return left->state == VS_RANGE_HOLE || vs_views_join(pool, right->base);
}

void vs_heap_settle(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r,
		    enum vs_range_state state)
{
	r->state = state;
	if (may_merge(pool, r)) {
		RB_REMOVE(vs_size_tree, tree_of(h, r), r->next);
		vs_heap_join(pool, h, r);
	}
	if (r->prev && r->prev->state == state && may_merge(pool, r->prev)) {
		r = r->prev;
		RB_REMOVE(vs_size_tree, tree_of(h, r), r);
		vs_heap_join(pool, h, r);
	}
	RB_INSERT(vs_size_tree, tree_of(h, r), r);
}

struct vs_range *vs_heap_carve(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span)
{
	uint64_t before = base - r->base, after = r->span - before - span;
	struct vs_size_tree *tree = tree_of(h, r);

	RB_REMOVE(vs_size_tree, tree, r);
	if (after > 0)
		RB_INSERT(vs_size_tree, tree,
			  vs_heap_cut(pool, h, r, before + span));
	if (before > 0) {
		struct vs_range *left = r;

		r = vs_heap_cut(pool, h, left, before);
		RB_INSERT(vs_size_tree, tree, left);
	}
	return r;
}

/* Takes a part of an idle range; NULL without host memory. */
static struct vs_range *take_part(struct vs_pool *pool, struct vs_heap *h,
				  struct vs_range *r, CUdeviceptr base,
				  uint64_t span, enum vs_range_state state)
{
	if (!vs_heap_stock(pool, 2 + vs_views_cuts(pool, base, span)))
		return NULL;
	r = vs_heap_carve(pool, h, r, base, span);
	r->state = state;
	vs_views_use(pool, base, span);
	return r;
}

struct vs_range *vs_heap_take(struct vs_pool *pool, struct vs_heap *h,
			      uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0};
	struct vs_range *r = RB_NFIND(vs_size_tree, &h->idle, &wanted);
	CUdeviceptr base;

	if (!r)
		return NULL;
	base = r->base;
	/* what is left at the edge of a chunk can be used with another chunk */
	if (r->span > span && vs_views_begin(pool, base) &&
	    !vs_views_end(pool, base + r->span))
		base += r->span - span;
	return take_part(pool, h, r, base, span, VS_RANGE_LIVE);
}

struct vs_range *vs_heap_take_at(struct vs_pool *pool, struct vs_heap *h,
				 CUdeviceptr base, uint64_t span,
				 enum vs_range_state state)
{
	return take_part(pool, h, vs_heap_at(h, base), base, span, state);
}

void vs_heap_give(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r)
{
	r->ctx = NULL;
	vs_views_unuse(pool, r->base, r->span);
	vs_heap_settle(pool, h, r, VS_RANGE_IDLE);
}

struct vs_range *vs_heap_claim(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span)
{
	if (!vs_heap_stock(pool, 2))
		return NULL;
	r = vs_heap_carve(pool, h, r, base, span);
	r->state = VS_RANGE_BUSY;
	return r;
}

void vs_heap_hollow(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r)
{
	vs_heap_settle(pool, h, r, VS_RANGE_HOLE);
}

struct vs_range *vs_heap_at(struct vs_heap *h, CUdeviceptr p)
{
	struct vs_range *r = RB_ROOT(&h->ranges), *found = NULL;

	while (r) {
		if (r->base > p) {
			r = RB_LEFT(r, by_base);
		} else {
			found = r;
			r = RB_RIGHT(r, by_base);
		}
	}
	return found;
}

struct vs_range *vs_heap_hole(struct vs_heap *h, uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0};

	return RB_NFIND(vs_size_tree, &h->holes, &wanted);
}

struct vs_range *vs_heap_below(struct vs_heap *h, uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0};
	struct vs_range *r = RB_NFIND(vs_size_tree, &h->idle, &wanted);

	return r ? RB_PREV(vs_size_tree, &h->idle, r)
		 : RB_MAX(vs_size_tree, &h->idle);
}

struct vs_range *vs_heap_smaller(struct vs_heap *h, struct vs_range *r)
{
	(void)h;
	return RB_PREV(vs_size_tree, &h->idle, r);
}
