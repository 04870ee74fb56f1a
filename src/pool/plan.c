/* SPDX-License-Identifier: MIT */
#include "pool/plan.h"

#include <string.h>

#include "base/meta.h"
#include "pool/budget.h"
#include "pool/mark.h"
#include "pool/place.h"
#include "pool/stitch.h"

/*
 * Chunk sizes by heap: a share of the memory held, and the limits. Small blocks
 * must not keep large chunks from being idle, so their heaps have small ones.
 * What a small program wastes with the least is part of the floor, while chunks
 * of a granule made its first block of 64 MiB take 448 us on an H200, where
 * cuMemAlloc takes 68.
 */
static const struct {
	unsigned share;
	uint64_t least, most;
} chunk_rule[VS_N_HEAPS] = {
	[VS_HEAP_LARGE] = {55, (uint64_t)16 << 20, (uint64_t)256 << 20},
	[VS_HEAP_MIDDLE] = {256, (uint64_t)8 << 20, (uint64_t)32 << 20},
	[VS_HEAP_SLABS] = {512, VS_GRANULE, (uint64_t)16 << 20},
};

enum {
	LEAST_SHARE = 512, /* no least above this share of the memory */
	ALONE_SHARE = 6,   /* see is_alone() */
	FINE_SHARE = 16,   /* see is_fine() */
	USUAL_TIMES = 5,   /* a larger request gets several chunks */
	MANY_BLOCKS = 48,  /* see is_of_small() */
	MANY_PIECES = 16,  /* for one request of such a program */
	FAST_TIMES = 4,	   /* chunks of a program that churns are larger */
	/* See Note [Tight]: times halved, growths for each, kept if idle */
	TIGHT_MOST = 6,
	TIGHT_LASTS = 64,
	TIGHT_TIMES = 4,
	TIGHT_USUAL = 3,   /* instead of USUAL_TIMES */
	TIGHT_PIECES = 12, /* more for one request cost more than they save */
};
/*
 * A chunk of which any part is live is neither released nor mapped elsewhere:
 * with larger ones other allocators of the program found no memory
 * (victim_pressure on an H200), and programs of few huge blocks held up to 18 %
 * more. What is larger is handed out whole (Note [Whole] in pool/chunk).
 */
#define HUGE_CHUNK ((uint64_t)8 << 30)
/* Smaller ones at the end of a block would be too many. */
#define SMALLEST_END ((uint64_t)8 << 20)

static uint64_t round_up(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* Bytes that may still be created within what may be held. */
static uint64_t allowance(struct vs_pool *pool)
{
	uint64_t most = vs_budget(pool), held = pool->chunks.held;
	uint64_t room = most > held ? most - held : 0;

	return room > pool->anew ? room : pool->anew;
}

uint64_t vs_plan_beyond(struct vs_pool *pool, uint64_t span)
{
	uint64_t most = vs_budget(pool), held = pool->chunks.held;

	held += round_up(span, VS_GRANULE);
	return held > most ? held - most : 0;
}

uint64_t vs_plan_surplus(struct vs_pool *pool)
{
	/* the program may not have begun (pool/turnover) */
	return pool->chunks.held > VS_FLOOR ? vs_plan_beyond(pool, 0) : 0;
}

/* The size that the knob says, or what is left below knob MEMORY_LIMIT. */
static uint64_t fixed_size(const struct vs_pool *pool)
{
	uint64_t limit = pool->memory_limit, held = pool->chunks.held;
	uint64_t room = limit > held ? limit - held : 0;

	if (room < VS_GRANULE || room >= pool->chunk_size)
		return pool->chunk_size;
	return room / VS_GRANULE * VS_GRANULE;
}

static uint64_t least_size(const struct vs_pool *pool, enum vs_heap_kind kind)
{
	uint64_t size = chunk_rule[kind].least;

	while (size > VS_GRANULE && size > pool->most / LEAST_SHARE)
		size /= 2;
	return size;
}

/*
 * Once so much of what there is at most was made for slabs and middle blocks,
 * such a block shares no new chunk but one of a granule, in which it ends and
 * the next begins. Of 80 GiB that were full of them 67 stayed held when seven
 * in ten were freed, and 31 do. (Not before, or those of other programs would
 * cost twice as much.)
 */
static bool is_fine(const struct vs_pool *pool, enum vs_heap_kind kind)
{
	return kind != VS_HEAP_LARGE && !pool->is_contiguous &&
	       !pool->chunk_size &&
	       pool->chunks.small_held >= pool->most / FINE_SHARE;
}

/* Size of the chunks a heap is extended by, when a request needs less. */
static uint64_t usual_size(struct vs_pool *pool, enum vs_heap_kind kind)
{
	uint64_t high = pool->need, held = pool->chunks.held;
	uint64_t share = (high > held ? high : held) / chunk_rule[kind].share;
	uint64_t size = VS_GRANULE;

	if (pool->chunk_size)
		return fixed_size(pool);
	if (is_fine(pool, kind))
		return VS_GRANULE;
	/* before the program asked for anything: pool/prepare */
	if (high > 0)
		size = least_size(pool, kind);
	/* it holds more than it needs, for speed alone */
	if (pool->turnover.is_fast)
		share *= FAST_TIMES;
	while (size * 2 <= share && size < chunk_rule[kind].most)
		size *= 2;
	size >>= (pool->tight + TIGHT_LASTS - 1) / TIGHT_LASTS;
	return size > VS_GRANULE ? size : VS_GRANULE;
}

void vs_plan_tighten(struct vs_pool *pool, uint64_t span)
{
	uint64_t used = pool->live_spans + pool->slab_bytes +
			pool->pending_bytes + pool->dead_bytes;

	if (pool->chunks.held < used + span)
		return; /* there is too little memory, however it lies */
	if (pool->chunks.idle_bytes >= span)
		return; /* whole chunks serve it, whatever their size */
	pool->tight += TIGHT_LASTS;
	if (pool->tight > TIGHT_MOST * TIGHT_LASTS)
		pool->tight = TIGHT_MOST * TIGHT_LASTS;
}

void vs_plan_loosen(struct vs_pool *pool)
{
	if (pool->tight > 0)
		pool->tight--;
}

uint64_t vs_plan_cap(struct vs_pool *pool, enum vs_heap_kind kind)
{
	if (pool->chunk_size)
		return UINT64_MAX;
	if (kind == VS_HEAP_LARGE)
		return pool->tight ? TIGHT_TIMES * usual_size(pool, kind)
				   : UINT64_MAX;
	return 2 * usual_size(pool, kind);
}

uint64_t vs_plan_crumb(struct vs_pool *pool, enum vs_heap_kind kind)
{
	if (kind != VS_HEAP_LARGE || pool->chunk_size || pool->is_contiguous ||
	    pool->tight || vs_mark_was_refused(pool))
		return 0;
	return usual_size(pool, kind);
}

struct vs_step *vs_plan_step(struct vs_plan *plan, struct vs_chunk *c)
{
	struct vs_step *step = vs_meta_alloc(sizeof(*step));
	struct vs_view *v = vs_meta_alloc(sizeof(*v));

	if (!step || !v) {
		vs_meta_free(step, sizeof(*step));
		vs_meta_free(v, sizeof(*v));
		return NULL;
	}
	v->chunk = c;
	c->plan = plan->number;
	step->view = v;
	if (plan->is_leftward)
		TAILQ_INSERT_HEAD(&plan->steps, step, link);
	else
		TAILQ_INSERT_TAIL(&plan->steps, step, link);
	plan->filled += c->size;
	return step;
}

/* A chunk yet to be created. */
static bool add_new(struct vs_pool *pool, struct vs_plan *plan, uint64_t size,
		    bool is_whole)
{
	struct vs_chunk *c = vs_chunk_make(pool, size);

	if (!c)
		return false;
	c->is_whole = is_whole;
	c->is_small = plan->kind != VS_HEAP_LARGE;
	c->is_of_slabs = plan->kind == VS_HEAP_SLABS;
	if (!vs_plan_step(plan, c)) {
		vs_meta_free(c, sizeof(*c));
		return false;
	}
	return true;
}

/*
 * Nearly all that the program has live at once is to cost what the driver
 * costs: a first block. Others of a few hundred MiB are better made of several
 * chunks, or a program of few such blocks, each time of other sizes, wastes a
 * third.
 */
static bool is_nearly_all(const struct vs_pool *pool, uint64_t bytes)
{
	return bytes >= pool->need / 8 * 7;
}

/*
 * Fewer handles are mapped faster (H200, medians of nine processes: 64 GiB in
 * handles of 64, 32, 16 and 8 take 1.87, 1.88, 2.02 and 2.44 ms, cuMemAlloc
 * 1.75). A program has few such blocks; of smaller ones, of which it may have
 * several, each in its time, one could not have the memory of another without
 * the driver. Nor is a chunk of Note [Whole] (pool/chunk) for those who want
 * much memory kept (knob RELEASE_THRESHOLD), or to be used again at once (knob
 * REUSE=ordered): it could not be released then.
 */
static bool is_huge(const struct vs_pool *pool, uint64_t bytes)
{
	return !pool->is_contiguous && !pool->chunk_size && !pool->tight &&
	       !pool->is_varied && !pool->fence.is_ordered &&
	       pool->release_threshold <= HUGE_CHUNK &&
	       bytes >= pool->dev.total / 5 * 2 && bytes > VS_WHOLE_LEAST &&
	       is_nearly_all(pool, bytes);
}

/* One to use as a whole, behind one for the smaller blocks that may follow. */
static bool add_huge(struct vs_pool *pool, struct vs_plan *plan, uint64_t bytes)
{
	return add_new(pool, plan, HUGE_CHUNK, false) &&
	       add_new(pool, plan, bytes - HUGE_CHUNK, true);
}

/*
 * Many blocks are live, of less than half a usual chunk on average. What a
 * large one leaves such a program goes on to use for small ones, and any that
 * stays keeps all of its chunk. Then larger chunks than the usual made what was
 * idle so scattered that training of a language model, whose results are an
 * eighth of all it has, held a quarter more than it needs. Of so small ones a
 * request gets MANY_PIECES: each is mapped by itself, again and again. Blocks
 * of 10 to 30 GiB beside 500 of 10 to 100 MiB took 377 us of driver time an
 * allocation in up to 120 pieces, and 71 in a few.
 */
static bool is_of_small(const struct vs_pool *pool, uint64_t usual)
{
	uint64_t n = pool->live_blocks;

	return n >= MANY_BLOCKS && pool->live_spans / n < usual / 2;
}

/* The largest new chunk for so many bytes of a request. */
static uint64_t largest_for(const struct vs_pool *pool, uint64_t span,
			    uint64_t bytes, uint64_t usual)
{
	uint64_t most = usual * (pool->tight ? TIGHT_USUAL : USUAL_TIMES);
	uint64_t piece = round_up(span / MANY_PIECES, VS_GRANULE);

	if (pool->is_contiguous)
		return UINT64_MAX;
	if (pool->chunk_size)
		return usual;
	if (is_nearly_all(pool, bytes) ||
	    (span > VS_WHOLE_LEAST && is_nearly_all(pool, span)))
		return HUGE_CHUNK;
	if (pool->tight && most < bytes / TIGHT_PIECES)
		most = round_up(bytes / TIGHT_PIECES, VS_GRANULE);
	if (!pool->tight && piece < most && is_of_small(pool, usual))
		most = piece > usual ? piece : usual;
	return most;
}

uint64_t vs_plan_excess(struct vs_pool *pool, enum vs_heap_kind kind,
			uint64_t span, uint64_t *above_out)
{
	uint64_t need = round_up(span, VS_GRANULE), room = allowance(pool);
	uint64_t cap = vs_plan_cap(pool, kind), own = 0;

	if (cap == UINT64_MAX && vs_chunks_are_vast(&pool->chunks))
		cap = vs_chunk_most_for(span);
	/* what would be created for it again is not too large */
	if (kind == VS_HEAP_LARGE && cap != UINT64_MAX)
		own = largest_for(pool, span, span, usual_size(pool, kind));
	*above_out = own > cap ? own : cap;
	return need > room ? need - room : 0;
}

/* What to create when a request needs less than the usual. */
static uint64_t size_for(struct vs_pool *pool, uint64_t bytes, uint64_t usual)
{
	uint64_t room = allowance(pool) / VS_GRANULE * VS_GRANULE;

	if (usual <= room)
		return usual;
	return room > bytes ? room : bytes;
}

/*
 * Once a sixth of what there is at most is held, large blocks share no new
 * chunks: they get no larger ones than they need, and extend by them no idle
 * range but what was a block itself, or each would begin in what the one before
 * left of its last. On a device full of blocks of 20 MiB, 13 of them in a
 * chunk, every other of which was freed, a fifth of what was free could be had
 * in one piece, and of blocks of 8 to 60 MiB a half. Not small ones, which
 * would cost twice as much. (A block that was freed may come again a little
 * larger: a buffer that grew by a hundredth was mapped anew each time, chunk by
 * chunk, which took 100 times as long.)
 */
static bool is_alone(const struct vs_pool *pool, enum vs_heap_kind kind)
{
	return kind == VS_HEAP_LARGE && !pool->is_contiguous &&
	       !pool->chunk_size &&
	       pool->chunks.held >= pool->most / ALONE_SHARE;
}

/*
 * A block of a large chunk ends in a small one: what a smaller block leaves
 * free when it takes the place of a larger one is then for the most part a
 * chunk of its own, which can be mapped anywhere. Bytes of it; 0: none.
 */
static uint64_t end_piece(struct vs_pool *pool, struct vs_plan *plan,
			  uint64_t bytes, uint64_t size, uint64_t usual)
{
	if (plan->kind != VS_HEAP_LARGE || pool->is_contiguous ||
	    pool->chunk_size || size < usual / 2 || usual / 4 < SMALLEST_END ||
	    is_nearly_all(pool, bytes))
		return 0;
	return usual / 4;
}

/* Of several the last is what is left, and so a smaller one without more. */
static bool add_several(struct vs_pool *pool, struct vs_plan *plan,
			uint64_t bytes, uint64_t most)
{
	for (; bytes > most; bytes -= most) {
		if (!add_new(pool, plan, most, false))
			return false;
	}
	return add_new(pool, plan, pool->chunk_size ? most : bytes, false);
}

/*
 * What was made ahead there (pool/prepare) has gone back, and nothing came
 * since. A first block then gets no more than it would have had of that.
 */
static bool has_gone_back(const struct vs_pool *pool, enum vs_heap_kind kind)
{
	return atomic_load(&pool->is_prepared) &&
	       vs_heap_is_bare(&pool->heap[kind]);
}

/* The granule of which the block needs a part only is a chunk of its own. */
static bool add_fine(struct vs_pool *pool, struct vs_plan *plan, uint64_t bytes)
{
	uint64_t part = bytes % VS_GRANULE, whole = bytes - part;

	return (whole == 0 || add_new(pool, plan, whole, false)) &&
	       (part == 0 || add_new(pool, plan, VS_GRANULE, false));
}

bool vs_plan_new(struct vs_pool *pool, struct vs_plan *plan, uint64_t bytes,
		 bool is_exact)
{
	uint64_t usual = usual_size(pool, plan->kind), most, size, end;

	if (is_fine(pool, plan->kind))
		return add_fine(pool, plan, bytes);
	bytes = round_up(bytes, VS_GRANULE);
	if (is_huge(pool, bytes))
		return add_huge(pool, plan, bytes);
	most = largest_for(pool, plan->span, bytes, usual);
	if (bytes > most)
		return add_several(pool, plan, bytes, most);
	size = bytes;
	if (size < usual)
		size = pool->chunk_size ? usual
		       : is_exact || has_gone_back(pool, plan->kind)
			       ? size
			       : size_for(pool, size, usual);
	end = end_piece(pool, plan, bytes, size, usual);
	return add_new(pool, plan, size - end, false) &&
	       (end == 0 || add_new(pool, plan, end, false));
}

/* By new chunks, as far as the program needs them. */
static CUresult plan_within(struct vs_pool *pool, struct vs_plan *plan)
{
	if (round_up(plan->left, VS_GRANULE) > allowance(pool))
		return CUDA_ERROR_NOT_FOUND;
	return vs_plan_new(pool, plan, plan->left,
			   plan->is_alone && !plan->base)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Bytes of the smallest idle range that is worth looking at. A program at its
 * need can have nothing within it, whichever of hundreds is extended. 0: all.
 */
static uint64_t least_base(struct vs_pool *pool, const struct vs_plan *plan)
{
	uint64_t room = allowance(pool);

	return plan->span > room ? plan->span - room : 0;
}

/* What is to be mapped where; leaves what it did to be dropped. */
static CUresult decide(struct vs_pool *pool, struct vs_plan *plan,
		       enum vs_grow_how how, bool may_extend)
{
	struct vs_range *base = NULL;
	CUresult r = CUDA_SUCCESS;
	bool is_leftward;

	plan->is_trunk = how == VS_GROW_WITHIN;
	plan->is_alone = plan->is_trunk && is_alone(pool, plan->kind);
	if (may_extend && plan->is_trunk)
		base = vs_place_within(pool, plan, least_base(pool, plan),
				       &is_leftward);
	else if (may_extend)
		base = vs_place_base(pool, plan, 0, &is_leftward);
	if (how != VS_GROW_WITHIN)
		r = vs_stitch_tail(pool, plan, base ? base->span : 0, how);
	if (r == CUDA_SUCCESS && base && plan->lead == 0)
		r = vs_place_extend(pool, plan, base, is_leftward);
	if (r != CUDA_SUCCESS)
		return r;
	r = how == VS_GROW_WITHIN ? plan_within(pool, plan)
				  : vs_stitch_rest(pool, plan, how);
	return r == CUDA_SUCCESS ? vs_place_steps(pool, plan) : r;
}

static CUresult attempt(struct vs_pool *pool, struct vs_plan *plan,
			enum vs_heap_kind kind, uint64_t span,
			enum vs_grow_how how, bool may_extend)
{
	CUresult r;

	memset(plan, 0, sizeof(*plan));
	plan->heap = &pool->heap[kind];
	plan->kind = kind;
	plan->span = plan->left = span;
	plan->is_thorough = how == VS_GROW_ALL;
	plan->region = plan->number = ++pool->chunks.regions;
	TAILQ_INIT(&plan->steps);
	r = decide(pool, plan, how, may_extend);
	if (r != CUDA_SUCCESS)
		vs_plan_drop(pool, plan);
	return r;
}

/*
 * What is mapped in a region cannot be mapped there again, so an idle range
 * that is extended keeps the idle chunks beside it out. So when moving finds
 * too little that way it is tried once more without; and for large blocks no
 * range is extended when memory is to be created past what is needed. (What
 * small ones leave idle at its end is too little to be worth a view.)
 */
CUresult vs_plan_make(struct vs_pool *pool, struct vs_plan *plan,
		      enum vs_heap_kind kind, uint64_t span,
		      enum vs_grow_how how)
{
	CUresult r = VS_PLACE_NO_ROOM;

	if (how == VS_GROW_WITHIN || how == VS_GROW_MOVE ||
	    (how == VS_GROW_BEYOND && kind != VS_HEAP_LARGE))
		r = attempt(pool, plan, kind, span, how, true);
	if (r == VS_PLACE_NO_ROOM ||
	    (r == CUDA_ERROR_NOT_FOUND && how == VS_GROW_MOVE))
		r = attempt(pool, plan, kind, span, how, false);
	return r;
}

static void drop_step(struct vs_pool *pool, struct vs_plan *plan,
		      struct vs_step *step)
{
	struct vs_chunk *c = step->view->chunk;

	if (step->is_mapped) {
		vs_view_mapped(pool, step->view);
	} else {
		if (step->spot)
			vs_heap_hollow(pool, plan->heap, step->spot);
		vs_meta_free(step->view, sizeof(*step->view));
	}
	if (step->old)
		vs_view_on(pool, step->old);
	if (step->place)
		vs_heap_give(pool, vs_heap_of(pool, step->place->base),
			     step->place);
	else if (c->handle)
		vs_chunk_sort(pool, c);
	else
		vs_meta_free(c, sizeof(*c));
	vs_meta_free(step, sizeof(*step));
}

void vs_plan_drop(struct vs_pool *pool, struct vs_plan *plan)
{
	struct vs_step *step;

	while ((step = TAILQ_FIRST(&plan->steps))) {
		TAILQ_REMOVE(&plan->steps, step, link);
		drop_step(pool, plan, step);
	}
	if (plan->base)
		vs_heap_give(pool, plan->heap, plan->base);
}

bool vs_plan_commit(struct vs_pool *pool, struct vs_plan *plan,
		    struct vs_range **range_out)
{
	CUdeviceptr block = vs_place_of_block(plan);
	struct vs_step *step;
	unsigned n = 0;

	TAILQ_FOREACH (step, &plan->steps, link)
		n += vs_view_cuts(pool, step->view);
	if (!vs_heap_stock(pool, n))
		return false;
	TAILQ_FOREACH (step, &plan->steps, link) {
		vs_view_mapped(pool, step->view);
		vs_view_on(pool, step->view);
	}
	while ((step = TAILQ_FIRST(&plan->steps))) {
		TAILQ_REMOVE(&plan->steps, step, link);
		if (step->place)
			vs_heap_give(pool, vs_heap_of(pool, step->place->base),
				     step->place);
		vs_meta_free(step, sizeof(*step));
	}
	if (plan->base)
		vs_heap_give(pool, plan->heap, plan->base);
	*range_out = vs_heap_take_at(pool, plan->heap, block, plan->span,
				     VS_RANGE_LIVE);
	return true;
}
