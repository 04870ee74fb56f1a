/* SPDX-License-Identifier: MIT */
#include "pool/stitch.h"

#include <limits.h>

#define NO_CAP UINT64_MAX
#define WORTH_A_VIEW ((uint64_t)4 << 20) /* bytes a tail must bring more */
#define WORTH_AN_END ((uint64_t)4 << 20) /* bytes the last must save */
/*
 * Chunks looked at for one piece: those mapped in the plan's region are passed
 * over each time, and on a device full of small chunks that took a second.
 */
enum { LOOKS = 256 };

static int looks(const struct vs_plan *plan)
{
	return plan->is_thorough ? INT_MAX : LOOKS;
}

/* Largest chunk to touch: a small block would keep it from being idle. */
static uint64_t cap_of(struct vs_pool *pool, struct vs_plan *plan,
		       enum vs_grow_how how)
{
	return how == VS_GROW_ALL ? NO_CAP : vs_plan_cap(pool, plan->kind);
}

/* The chunk may be mapped once more, in the region of the plan. */
static bool may_use(struct vs_pool *pool, struct vs_plan *plan,
		    struct vs_chunk *c, uint64_t cap)
{
	return c->size <= cap && !c->is_whole && c->plan != plan->number &&
	       !vs_view_is_in(c, plan->region) && vs_view_may_add(pool, c);
}

/* Counts on `n` idle bytes of a chunk from an offset on. */
static CUresult add(struct vs_pool *pool, struct vs_plan *plan,
		    struct vs_chunk *c, uint64_t offset, uint64_t n)
{
	struct vs_step *step = vs_plan_step(plan, c);
	struct vs_view *v;

	if (!step)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (c->n_on == 0) {
		vs_chunk_hold(pool, c);
		return CUDA_SUCCESS;
	}
	v = vs_view_oldest(pool, c);
	if (v && vs_view_off(pool, v))
		step->old = v;
	for (v = TAILQ_FIRST(&c->views); !v->is_on; v = TAILQ_NEXT(v, link))
		;
	step->place = vs_heap_take_at(pool, vs_heap_of(pool, v->at),
				      v->at + offset, n, VS_RANGE_BUSY);
	return step->place ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Which chunk used in part may lend what it has idle at an end. */
struct bounds {
	uint64_t cap;	       /* bytes of the chunk, at most */
	uint64_t least, below; /* idle bytes, at least, and fewer than */
};

/* The one with the most but `other`, or NULL. */
static struct vs_chunk *find_most(struct vs_pool *pool, struct vs_plan *plan,
				  enum vs_chunk_end end, struct bounds b,
				  const struct vs_chunk *other)
{
	struct vs_chunk *c;

	if (pool->is_contiguous)
		return NULL;
	c = vs_chunk_end_below(pool, end, b.below);
	for (int i = 0;
	     c && vs_chunk_idle_at(c, end) >= b.least && i < looks(plan); i++) {
		if (c != other && may_use(pool, plan, c, b.cap))
			return c;
		c = vs_chunk_end_prev(c, end);
	}
	return NULL;
}

/*
 * Where a block begins, or NULL. It cannot end in the same chunk: the one with
 * the largest tail and the largest head is used where more is had in all.
 */
static struct vs_chunk *find_tail(struct vs_pool *pool, struct vs_plan *plan,
				  struct bounds b)
{
	struct bounds any = {b.cap, 1, b.below};
	struct vs_chunk *c = find_most(pool, plan, VS_CHUNK_TAIL, b, NULL);
	struct vs_chunk *tail, *head;

	if (!c || find_most(pool, plan, VS_CHUNK_HEAD, any, NULL) != c)
		return c;
	tail = find_most(pool, plan, VS_CHUNK_TAIL, b, c);
	head = find_most(pool, plan, VS_CHUNK_HEAD, any, c);
	return c->tail + (head ? head->head : 0) >=
			       c->head + (tail ? tail->tail : 0)
		       ? c
		       : tail;
}

CUresult vs_stitch_tail(struct vs_pool *pool, struct vs_plan *plan,
			uint64_t base_span, enum vs_grow_how how)
{
	uint64_t tail;
	struct bounds b = {cap_of(pool, plan, how), base_span + 1, plan->span};
	struct vs_chunk *c;

	/* where all there is is to serve, so is the last granule */
	if (how != VS_GROW_ALL)
		b.least += WORTH_A_VIEW;
	vs_chunks_refresh(pool);
	c = find_tail(pool, plan, b);
	if (!c)
		return CUDA_SUCCESS;
	tail = c->tail;
	plan->lead = c->size - tail;
	plan->left -= tail;
	return add(pool, plan, c, plan->lead, tail);
}

/* The end at which the last chunk found is used, if it is used in part. */
static enum vs_chunk_end last_end(const struct vs_plan *plan)
{
	return plan->is_leftward ? VS_CHUNK_TAIL : VS_CHUNK_HEAD;
}

/* What is left of the block is at an end of that chunk. */
static CUresult add_last(struct vs_pool *pool, struct vs_plan *plan,
			 struct vs_chunk *c, uint64_t n)
{
	return add(pool, plan, c, plan->is_leftward ? c->size - n : 0, n);
}

/* The least idle end of one used in part that is the block's, or NULL. */
static struct vs_chunk *find_part(struct vs_pool *pool, struct vs_plan *plan,
				  uint64_t cap)
{
	enum vs_chunk_end end = last_end(plan);
	struct vs_chunk *c;

	if (pool->is_contiguous)
		return NULL;
	c = vs_chunk_end_from(pool, end, plan->left);
	for (int i = 0; c && i < looks(plan); i++) {
		if (may_use(pool, plan, c, cap))
			return c;
		c = vs_chunk_end_next(c, end);
	}
	return NULL;
}

/* The smallest idle chunk that ends the block, or NULL. */
static struct vs_chunk *find_end(struct vs_pool *pool, struct vs_plan *plan,
				 uint64_t cap)
{
	struct vs_chunk *c = vs_chunk_free_from(pool, plan->left);

	for (int i = 0; c && i < looks(plan); i++) {
		if (may_use(pool, plan, c, cap))
			return c;
		c = vs_chunk_free_next(c);
	}
	return NULL;
}

/* The largest idle chunk, or NULL. */
static struct vs_chunk *find_piece(struct vs_pool *pool, struct vs_plan *plan,
				   uint64_t cap)
{
	struct vs_chunk *c;

	if (pool->is_contiguous)
		return NULL;
	c = vs_chunk_free_last(pool);
	for (int i = 0; c && i < looks(plan); i++) {
		if (may_use(pool, plan, c, cap))
			return c;
		c = vs_chunk_free_prev(c);
	}
	return NULL;
}

/* Whole chunks, the largest first, until one ends the block; NOT_FOUND. */
static CUresult add_idle(struct vs_pool *pool, struct vs_plan *plan,
			 uint64_t cap)
{
	for (;;) {
		struct vs_chunk *part = find_part(pool, plan, cap);
		struct vs_chunk *c = find_end(pool, plan, cap);
		CUresult r;

		if (part &&
		    (!c || vs_chunk_idle_at(part, last_end(plan)) <= c->size))
			return add_last(pool, plan, part, plan->left);
		if (c)
			return add_last(pool, plan, c, plan->left);
		c = find_piece(pool, plan, cap);
		if (!c)
			return CUDA_ERROR_NOT_FOUND;
		/* it does, but the smaller ones that do not were too many */
		if (c->size >= plan->left)
			return add_last(pool, plan, c, plan->left);
		plan->left -= c->size;
		r = add(pool, plan, c, 0, c->size);
		if (r != CUDA_SUCCESS)
			return r;
	}
}

/* What is idle does not do: new chunks, and an idle end behind them. */
static CUresult add_new(struct vs_pool *pool, struct vs_plan *plan,
			uint64_t cap, enum vs_grow_how how)
{
	uint64_t before = plan->filled, wanted = plan->left, got;
	struct bounds b = {cap, how == VS_GROW_ALL ? 1 : WORTH_AN_END, wanted};
	struct vs_chunk *c = find_most(pool, plan, last_end(plan), b, NULL);

	if (c)
		wanted -= vs_chunk_idle_at(c, last_end(plan));
	if (!vs_plan_new(pool, plan, wanted, true))
		return CUDA_ERROR_OUT_OF_MEMORY;
	got = plan->filled - before;
	if (got >= plan->left)
		return CUDA_SUCCESS;
	return add_last(pool, plan, c, plan->left - got);
}

CUresult vs_stitch_rest(struct vs_pool *pool, struct vs_plan *plan,
			enum vs_grow_how how)
{
	uint64_t cap = cap_of(pool, plan, how), part = 0;
	struct vs_chunk *c = vs_chunk_end_last(pool, last_end(plan));
	CUresult r;

	if (c)
		part = vs_chunk_idle_at(c, last_end(plan));
	if (how == VS_GROW_MOVE &&
	    vs_chunks_loose(&pool->chunks) + part < plan->left)
		return CUDA_ERROR_NOT_FOUND;
	r = add_idle(pool, plan, cap);
	if (r == CUDA_ERROR_NOT_FOUND && how != VS_GROW_MOVE)
		r = add_new(pool, plan, cap, how);
	return r;
}
