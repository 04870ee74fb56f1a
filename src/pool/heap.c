/* SPDX-License-Identifier: MIT */
#include "pool/heap.h"

#include "base/meta.h"
#include "pool/state.h"

static int compare(const struct vs_range *a, const struct vs_range *b)
{
	if (a->span != b->span)
		return a->span < b->span ? -1 : 1;
	return a->base < b->base ? -1 : a->base > b->base;
}

/* tree.h marks its functions by a name that glibc leaves to struct members */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(vs_range_tree, vs_range, by_size, compare)
#undef __unused

bool vs_heap_init(struct vs_heap *h, CUdeviceptr base, CUdeviceptr end)
{
	struct vs_range *r = vs_meta_alloc(sizeof(*r));

	if (!r)
		return false;
	h->base = base;
	h->end = end;
	RB_INIT(&h->idle);
	RB_INIT(&h->holes);
	r->base = base;
	r->span = end - base;
	r->state = VS_RANGE_HOLE;
	h->first = h->last = r;
	RB_INSERT(vs_range_tree, &h->holes, r);
	return true;
}

static struct vs_range_tree *tree_of(struct vs_heap *h, struct vs_range *r)
{
	return r->state == VS_RANGE_IDLE ? &h->idle : &h->holes;
}

static void index_range(struct vs_heap *h, struct vs_range *r)
{
	if (r->state == VS_RANGE_IDLE)
		h->idle_bytes += r->span;
	RB_INSERT(vs_range_tree, tree_of(h, r), r);
}

static void unindex_range(struct vs_heap *h, struct vs_range *r)
{
	if (r->state == VS_RANGE_IDLE)
		h->idle_bytes -= r->span;
	RB_REMOVE(vs_range_tree, tree_of(h, r), r);
}

/* The right part of `r` becomes a range of its own; in no tree. */
static void split(struct vs_heap *h, struct vs_range *r, uint64_t span,
		  struct vs_range *right)
{
	right->base = r->base + span;
	right->span = r->span - span;
	right->state = r->state;
	right->ctx = r->ctx;
	right->prev = r;
	right->next = r->next;
	if (r->next)
		r->next->prev = right;
	else
		h->last = right;
	r->next = right;
	r->span = span;
	r->is_indexed = false;
}

/* `left` swallows the range right of it, which is in no tree. */
static void swallow(struct vs_heap *h, struct vs_range *left)
{
	struct vs_range *right = left->next;

	left->span += right->span;
	left->is_indexed = false;
	left->next = right->next;
	if (right->next)
		right->next->prev = left;
	else
		h->last = left;
	vs_meta_free(right, sizeof(*right));
}

/* Whether idle neighbours may be one: in contiguous mode only in one chunk. */
static bool may_merge(struct vs_pool *pool, struct vs_range *left)
{
	struct vs_range *right = left->next;

	if (!right || right->state != left->state)
		return false;
	if (left->state != VS_RANGE_IDLE || !pool || !pool->is_contiguous)
		return true;
	return vs_chunk_at(pool, right->base - 1) ==
	       vs_chunk_at(pool, right->base);
}

/* Merges `r` (in no tree) with neighbours of its state and indexes it. */
static struct vs_range *settle(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r)
{
	if (may_merge(pool, r)) {
		unindex_range(h, r->next);
		swallow(h, r);
	}
	if (r->prev && r->prev->state == r->state && may_merge(pool, r->prev)) {
		r = r->prev;
		unindex_range(h, r);
		swallow(h, r);
	}
	index_range(h, r);
	return r;
}

struct vs_range *vs_heap_take(struct vs_pool *pool, struct vs_heap *h,
			      uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0}, *r, *rest = NULL;

	r = RB_NFIND(vs_range_tree, &h->idle, &wanted);
	if (!r)
		return NULL;
	if (r->span > span) {
		rest = vs_meta_alloc(sizeof(*rest));
		if (!rest)
			return NULL;
	}
	unindex_range(h, r);
	if (rest) {
		split(h, r, span, rest);
		index_range(h, rest);
	}
	r->state = VS_RANGE_LIVE;
	vs_chunks_use(pool, r->base, r->span);
	return r;
}

void vs_heap_give(struct vs_pool *pool, struct vs_heap *h, struct vs_range *r)
{
	r->state = VS_RANGE_IDLE;
	r->ctx = NULL;
	vs_chunks_unuse(pool, r->base, r->span);
	settle(pool, h, r);
}

struct vs_range *vs_heap_carve(struct vs_pool *pool, struct vs_heap *h,
			       struct vs_range *r, CUdeviceptr base,
			       uint64_t span)
{
	uint64_t before = base - r->base, after = r->span - before - span;
	struct vs_range *middle = NULL, *right = NULL;
	bool was_idle = r->state == VS_RANGE_IDLE;

	if (before > 0 && !(middle = vs_meta_alloc(sizeof(*middle))))
		return NULL;
	if (after > 0 && !(right = vs_meta_alloc(sizeof(*right)))) {
		vs_meta_free(middle, sizeof(*middle));
		return NULL;
	}
	unindex_range(h, r);
	if (right) {
		split(h, r, before + span, right);
		index_range(h, right);
	}
	if (middle) {
		split(h, r, before, middle);
		index_range(h, r);
		r = middle;
	}
	r->state = VS_RANGE_BUSY;
	if (was_idle)
		vs_chunks_use(pool, r->base, r->span);
	return r;
}

struct vs_range *vs_heap_join(struct vs_heap *h, struct vs_range *left)
{
	swallow(h, left);
	return left;
}

struct vs_range *vs_heap_cut(struct vs_heap *h, struct vs_range *r,
			     uint64_t span)
{
	struct vs_range *right = vs_meta_alloc(sizeof(*right));

	if (right)
		split(h, r, span, right);
	return right;
}

void vs_heap_hollow(struct vs_heap *h, struct vs_range *r)
{
	r->state = VS_RANGE_HOLE;
	settle(NULL, h, r);
}

struct vs_range *vs_heap_hole(struct vs_heap *h, uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0};

	return RB_NFIND(vs_range_tree, &h->holes, &wanted);
}

struct vs_range *vs_heap_largest(struct vs_heap *h)
{
	return RB_MAX(vs_range_tree, &h->idle);
}

struct vs_range *vs_heap_smaller(struct vs_heap *h, struct vs_range *r)
{
	(void)h;
	return RB_PREV(vs_range_tree, &h->idle, r);
}

/* Few idle ranges are as large as a chunk, so a walk by size ends soon. */
struct vs_range *vs_heap_idle_over(struct vs_heap *h, CUdeviceptr base,
				   uint64_t span)
{
	struct vs_range wanted = {.span = span, .base = 0}, *r;

	for (r = RB_NFIND(vs_range_tree, &h->idle, &wanted); r;
	     r = RB_NEXT(vs_range_tree, &h->idle, r)) {
		if (r->base <= base && base + span <= r->base + r->span)
			return r;
	}
	return NULL;
}
