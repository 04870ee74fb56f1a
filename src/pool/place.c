/* SPDX-License-Identifier: MIT */
#include "pool/place.h"

enum { BASES_TRIED = 256 }; /* idle ranges looked at to extend */
/* See vs_place_within(): a part of the request. */
enum { AWAY_SHARE = 2 };
/*
 * Regions lie apart by twice their size, within these limits: near enough for
 * several to share a page table, which is for 512 MiB. The least is not for
 * those that are alone: there may be ten thousand of 8 MiB.
 */
#define LEAST_GAP ((uint64_t)256 << 20)
#define MOST_GAP ((uint64_t)4 << 30)

static bool is_room(const struct vs_range *beside, uint64_t span)
{
	return beside && beside->state == VS_RANGE_HOLE && beside->span >= span;
}

/*
 * The range is of whole chunks, or nearly all of the request: a block that was
 * freed, not what another has left of its last chunk.
 */
static bool is_a_block(const struct vs_pool *pool, const struct vs_range *r,
		       uint64_t span)
{
	return r->span >= span / 8 * 7 ||
	       (vs_views_begin(pool, r->base) &&
		vs_views_end(pool, r->base + r->span));
}

struct vs_range *vs_place_base(struct vs_pool *pool, const struct vs_plan *plan,
			       uint64_t least, bool *is_leftward_out)
{
	uint64_t span = plan->span;
	struct vs_range *r;

	if (pool->is_contiguous)
		return NULL;
	r = vs_heap_below(plan->heap, VS_AWAY, span);
	for (int i = 0; r && r->span >= least && i < BASES_TRIED; i++) {
		bool is_right = is_room(r->next, span);

		if ((is_right || is_room(r->prev, span)) &&
		    (!plan->is_alone || is_a_block(pool, r, span))) {
			*is_leftward_out = !is_right;
			return r;
		}
		r = vs_heap_smaller(plan->heap, r);
	}
	return NULL;
}

/* What is idle before a hole of the trunk, `least` bytes or more; or NULL. */
static struct vs_range *trunk_base(struct vs_pool *pool,
				   const struct vs_plan *plan,
				   const struct vs_range *hole, uint64_t least)
{
	struct vs_range *r = hole->prev;

	if (!r || r->state != VS_RANGE_IDLE || r->span < least ||
	    r->span >= plan->span ||
	    (plan->is_alone && !is_a_block(pool, r, plan->span)))
		return NULL;
	return r;
}

struct vs_range *vs_place_within(struct vs_pool *pool,
				 const struct vs_plan *plan, uint64_t least,
				 bool *is_leftward_out)
{
	struct vs_range *hole = vs_heap_hole(plan->heap, VS_TRUNK, plan->span);
	uint64_t much = hole ? plan->span / AWAY_SHARE : 0;
	struct vs_range *r = vs_place_base(
		pool, plan, least > much ? least : much, is_leftward_out);

	if (r || !hole)
		return r;
	*is_leftward_out = false;
	return trunk_base(pool, plan, hole, least);
}

CUresult vs_place_extend(struct vs_pool *pool, struct vs_plan *plan,
			 struct vs_range *base, bool is_leftward)
{
	plan->is_leftward = is_leftward;
	plan->region = vs_view_at(pool, base->base)->region;
	plan->left -= base->span;
	plan->base = vs_heap_take_at(pool, plan->heap, base->base, base->span,
				     VS_RANGE_BUSY);
	return plan->base ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Where a region begins in a hole. What is large begins at a stretch. */
static CUdeviceptr begin_in(const struct vs_pool *pool, const struct vs_heap *h,
			    const struct vs_range *hole, uint64_t gap,
			    uint64_t unit)
{
	uint64_t at = hole->base - pool->base + gap + unit - 1;

	return hole == h->first ? hole->base : pool->base + at / unit * unit;
}

/* At the trunk's end, or where something went; or *place_out is NULL. */
static CUresult trunk_place(struct vs_pool *pool, struct vs_plan *plan,
			    struct vs_range **place_out)
{
	struct vs_heap *h = plan->heap;
	bool is_vast = plan->filled >= VS_STRETCH;
	uint64_t unit = is_vast ? VS_STRETCH : VS_GRANULE;
	struct vs_range *hole =
		vs_heap_hole(h, VS_TRUNK, plan->filled + (is_vast ? unit : 0));

	*place_out = NULL;
	if (!hole)
		return CUDA_SUCCESS;
	plan->region = VS_TRUNK_REGION;
	*place_out = vs_heap_claim(
		pool, h, hole, begin_in(pool, h, hole, 0, unit), plan->filled);
	return *place_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Makes room for a region of its own, with room to extend the one before. It is
 * not far: the tables on the host are touched at the heap's begin. Where there
 * is no other, what the trunk does not need yet will do.
 */
static CUresult fresh_place(struct vs_pool *pool, struct vs_plan *plan,
			    struct vs_range **place_out)
{
	struct vs_heap *h = plan->heap;
	uint64_t gap = 2 * plan->filled, unit = VS_GRANULE;
	struct vs_range *hole = NULL;

	if (gap < LEAST_GAP && !plan->is_alone)
		gap = LEAST_GAP;
	if (gap > MOST_GAP)
		gap = MOST_GAP;
	if (plan->filled >= VS_STRETCH)
		unit = VS_STRETCH;
	while (gap >= VS_GRANULE &&
	       !(hole = vs_heap_hole(h, VS_AWAY,
				     plan->filled + 2 * gap + unit)))
		gap /= 4;
	if (!hole) {
		gap = 0;
		unit = VS_GRANULE;
		hole = vs_heap_hole(h, VS_AWAY, plan->filled);
	}
	if (!hole)
		hole = vs_heap_hole(h, VS_TRUNK, plan->filled);
	if (!hole)
		return VS_PLACE_NO_SPACE;
	*place_out =
		vs_heap_claim(pool, h, hole, begin_in(pool, h, hole, gap, unit),
			      plan->filled);
	return *place_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Cuts the place into one spot a step; or gives it back without host memory. */
static bool cut_spots(struct vs_pool *pool, struct vs_plan *plan,
		      struct vs_range *place)
{
	struct vs_step *step;
	unsigned n = 0;

	TAILQ_FOREACH (step, &plan->steps, link)
		n++;
	if (!vs_heap_stock(pool, n)) {
		vs_heap_hollow(pool, plan->heap, place);
		return false;
	}
	/* from the end: what is cut off is named anew */
	TAILQ_FOREACH_REVERSE(step, &plan->steps, vs_step_list, link)
	{
		uint64_t size = step->view->chunk->size;

		step->spot = place;
		if (place->span > size)
			step->spot = vs_heap_cut(pool, plan->heap, place,
						 place->span - size);
		step->view->at = step->spot->base;
		step->view->region = plan->region;
	}
	return true;
}

CUresult vs_place_steps(struct vs_pool *pool, struct vs_plan *plan)
{
	struct vs_range *base = plan->base, *hole, *place = NULL;
	CUdeviceptr at;
	CUresult r = CUDA_SUCCESS;

	if (base) {
		hole = plan->is_leftward ? base->prev : base->next;
		at = plan->is_leftward ? base->base - plan->filled
				       : base->base + base->span;
		if (!is_room(hole, plan->filled))
			return VS_PLACE_NO_ROOM;
		place = vs_heap_claim(pool, plan->heap, hole, at, plan->filled);
	} else {
		if (plan->is_trunk)
			r = trunk_place(pool, plan, &place);
		if (r == CUDA_SUCCESS && !place)
			r = fresh_place(pool, plan, &place);
		if (r != CUDA_SUCCESS)
			return r;
	}
	return place && cut_spots(pool, plan, place) ? CUDA_SUCCESS
						     : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Beside a base the block ends where that does, and what the last new chunk has
 * beyond it is left over there; but of one of Note [Whole] nothing may be, so
 * there the base has it.
 */
CUdeviceptr vs_place_of_block(const struct vs_plan *plan)
{
	const struct vs_step *last = TAILQ_LAST(&plan->steps, vs_step_list);
	const struct vs_range *base = plan->base;
	CUdeviceptr begin, end;

	if (!base)
		return TAILQ_FIRST(&plan->steps)->view->at + plan->lead;
	begin = base->base;
	end = base->base + base->span;
	if (plan->is_leftward) {
		begin -= plan->filled;
		last = TAILQ_FIRST(&plan->steps);
	} else {
		end += plan->filled;
	}
	return last->view->chunk->is_whole == plan->is_leftward
		       ? begin
		       : end - plan->span;
}
