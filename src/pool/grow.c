/* SPDX-License-Identifier: MIT */
#include "pool/grow.h"

#include "base/clock.h"
#include "base/log.h"
#include "driver/real.h"
#include "pool/crumb.h"
#include "pool/dead.h"
#include "pool/mark.h"
#include "pool/place.h"
#include "pool/plan.h"

/* Unmaps a view that is off; false if the driver refuses. No lock but grow. */
static bool unmap(struct vs_pool *pool, struct vs_view *v)
{
	if (vs_vmm_unmap(v->at, v->chunk->size) != CUDA_SUCCESS)
		return false;
	pthread_mutex_lock(&pool->lock);
	vs_view_unmapped(pool, v);
	pthread_mutex_unlock(&pool->lock);
	return true;
}

/* Maps one chunk; no lock but grow. */
static CUresult make_step(struct vs_pool *pool, struct vs_step *step)
{
	struct vs_chunk *c = step->view->chunk;
	CUresult r;

	/* if it stays mapped, the chunk has one view more, no matter */
	if (step->old && unmap(pool, step->old))
		step->old = NULL;
	if (c->handle) {
		vs_stat_add(&pool->stats, chunks_moved, 1);
		c->n_moved++;
	} else {
		if (pool->chunks.held + c->size > pool->memory_limit)
			return CUDA_ERROR_OUT_OF_MEMORY;
		r = vs_vmm_create(&pool->dev, c->size, &c->handle);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			vs_mark_refused(pool);
		if (r != CUDA_SUCCESS)
			return r;
		pthread_mutex_lock(&pool->lock);
		vs_chunk_born(pool, c);
		pthread_mutex_unlock(&pool->lock);
	}
	r = vs_vmm_map(step->view->at, c->size, c->handle);
	step->is_mapped = r == CUDA_SUCCESS;
	return r;
}

/* Takes back what was mapped, as far as the driver lets us. */
static void unmake_steps(struct vs_plan *plan)
{
	struct vs_step *step;

	TAILQ_FOREACH (step, &plan->steps, link) {
		struct vs_view *v = step->view;

		if (step->is_mapped &&
		    vs_vmm_unmap(v->at, v->chunk->size) == CUDA_SUCCESS)
			step->is_mapped = false;
	}
}

/* Executes the driver calls of a plan, or undoes those it made. */
static CUresult make_steps(struct vs_pool *pool, struct vs_plan *plan)
{
	CUresult r = CUDA_SUCCESS;
	struct vs_step *step;

	TAILQ_FOREACH (step, &plan->steps, link) {
		r = make_step(pool, step);
		if (r != CUDA_SUCCESS)
			break;
	}
	if (r == CUDA_SUCCESS)
		r = vs_vmm_allow(TAILQ_FIRST(&plan->steps)->view->at,
				 plan->filled, pool->dev.device,
				 atomic_load(&pool->peers));
	if (r != CUDA_SUCCESS)
		unmake_steps(plan);
	return r;
}

static CUresult grow_there(struct vs_pool *pool, enum vs_heap_kind kind,
			   uint64_t span, enum vs_grow_how how,
			   struct vs_range **range_out)
{
	struct vs_plan plan;
	bool is_done;
	CUresult r;

	pthread_mutex_lock(&pool->lock);
	r = vs_plan_make(pool, &plan, kind, span, how);
	pthread_mutex_unlock(&pool->lock);
	if (r != CUDA_SUCCESS)
		return r;
	r = make_steps(pool, &plan);
	pthread_mutex_lock(&pool->lock);
	is_done = r == CUDA_SUCCESS && vs_plan_commit(pool, &plan, range_out);
	if (r != CUDA_SUCCESS)
		vs_plan_drop(pool, &plan);
	else
		vs_plan_loosen(pool);
	pthread_mutex_unlock(&pool->lock);
	if (r != CUDA_SUCCESS)
		return r;
	if (!is_done) {
		unmake_steps(&plan);
		pthread_mutex_lock(&pool->lock);
		vs_plan_drop(pool, &plan);
		pthread_mutex_unlock(&pool->lock);
	}
	return is_done && *range_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Views to unmap before a plan is tried again: some 10 ms. */
enum { SPARES_AT_ONCE = 512 };

/*
 * Unmaps those views of a chunk that are of a heap, and spare. From the list's
 * begin each time: others move in it what wakes and falls asleep meanwhile.
 */
static unsigned unmap_spares_of(struct vs_pool *pool, struct vs_chunk *c,
				const struct vs_heap *h)
{
	struct vs_view *v;
	unsigned n = 0;

	do {
		pthread_mutex_lock(&pool->lock);
		v = vs_view_spare(pool, c, h);
		if (v && !vs_view_off(pool, v))
			v = NULL;
		pthread_mutex_unlock(&pool->lock);
		n += v && unmap(pool, v);
	} while (v);
	return n;
}

/* The chunk longest not looked at; it comes last the next time. Grow lock. */
static struct vs_chunk *next_in_turn(struct vs_pool *pool)
{
	struct vs_chunk *c = TAILQ_FIRST(&pool->chunks.all);

	TAILQ_REMOVE(&pool->chunks.all, c, of_all);
	TAILQ_INSERT_TAIL(&pool->chunks.all, c, of_all);
	return c;
}

/* Unmaps some of what nobody uses of a heap and can be had elsewhere, too. */
static unsigned unmap_spares(struct vs_pool *pool, enum vs_heap_kind kind)
{
	struct vs_heap *h = &pool->heap[kind];
	unsigned n = 0;

	/* views are put on and off only under the grow lock, which is ours */
	if (h->n_shared == 0)
		return 0;
	for (uint64_t i = 0; i < pool->chunks.count && n < SPARES_AT_ONCE;
	     i++) {
		struct vs_chunk *c = next_in_turn(pool);

		if (c->n_had > 1)
			n += unmap_spares_of(pool, c, h);
	}
	return n;
}

/*
 * There are addresses for VS_VIEWS_MOST of each chunk, but not where the
 * program's are limited, or with many large devices.
 */
static CUresult grow(struct vs_pool *pool, enum vs_heap_kind kind,
		     uint64_t span, enum vs_grow_how how,
		     struct vs_range **range_out)
{
	CUresult r = grow_there(pool, kind, span, how, range_out);
	unsigned n;

	while (r == VS_PLACE_NO_SPACE && (n = unmap_spares(pool, kind)) > 0) {
		vs_debug("no address space for %zu bytes: %u views unmapped",
			 (size_t)span, n);
		r = grow_there(pool, kind, span, how, range_out);
	}
	if (r == CUDA_SUCCESS)
		atomic_store(&pool->cramped[kind], 0);
	if (r != VS_PLACE_NO_SPACE)
		return r;
	vs_info("no address space left for %zu bytes", (size_t)span);
	atomic_store(&pool->cramped_span[kind], span);
	atomic_store(&pool->cramped[kind], vs_vmm_clock());
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* All ways to find addresses take 1 to 4 ms (139 GiB, simulated). */
#define CRAMPED_LASTS (100 * VS_MS)

bool vs_grow_is_cramped(struct vs_pool *pool, enum vs_heap_kind kind,
			uint64_t span)
{
	uint64_t since = atomic_load(&pool->cramped[kind]);
	size_t available, total;

	return since && span >= atomic_load(&pool->cramped_span[kind]) &&
	       vs_vmm_clock() - since < CRAMPED_LASTS &&
	       pool->memory_limit == UINT64_MAX &&
	       vs_real.cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS &&
	       available > span + VS_FLOOR;
}

/* Puts the views of a chunk off; those of a chunk that is idle. Lock. */
static bool views_off(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		if (vs_view_is_had(v) && !vs_view_off(pool, v))
			return false;
	}
	return true;
}

/*
 * Back where it was, but for what is unmapped by now, and for what a driver
 * that unmaps nothing has left. Lock.
 */
static void keep(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v, *next;

	/* one that is put on may be moved in the list */
	for (v = TAILQ_FIRST(&c->views); v; v = next) {
		next = TAILQ_NEXT(v, link);
		if (!vs_view_is_had(v) && v->has_access &&
		    c->n_had < VS_VIEWS_WAITING)
			vs_view_on(pool, v);
	}
	vs_chunk_sort(pool, c);
}

/* Takes a chunk that is idle out of all hands; NULL if that fails. Lock. */
static struct vs_chunk *detach(struct vs_pool *pool, struct vs_chunk *c)
{
	if (c && !views_off(pool, c)) {
		keep(pool, c);
		return NULL;
	}
	if (c)
		vs_chunk_hold(pool, c);
	return c;
}

bool vs_grow_unmake(struct vs_pool *pool, struct vs_chunk *c)
{
	struct vs_view *v;

	while ((v = TAILQ_FIRST(&c->views))) {
		if (!unmap(pool, v))
			return false;
	}
	return vs_vmm_release(c->handle) == CUDA_SUCCESS;
}

/* A detached chunk goes; false: it stays, as the driver refuses. */
static bool let_go(struct vs_pool *pool, struct vs_chunk *c)
{
	bool is_good = vs_grow_unmake(pool, c);

	pthread_mutex_lock(&pool->lock);
	if (is_good)
		vs_chunk_died(pool, c);
	else
		keep(pool, c);
	pthread_mutex_unlock(&pool->lock);
	return is_good;
}

/* The next chunk to release, or NULL. Lock. */
static struct vs_chunk *next_victim(struct vs_pool *pool, uint64_t before)
{
	struct vs_chunk *c = TAILQ_FIRST(&pool->chunks.cached);

	if (!c || c->idle_since >= before)
		c = TAILQ_FIRST(&pool->chunks.idle);
	if (!c || c->idle_since >= before || !vs_chunk_is_quiet(pool, c))
		return NULL;
	return c;
}

/* The smallest above a size. Lock. */
static struct vs_chunk *next_above(struct vs_pool *pool, uint64_t above)
{
	struct vs_chunk *c = vs_chunk_free_from(pool, above + 1);

	while (c && (c->is_whole || !vs_chunk_is_quiet(pool, c)))
		c = vs_chunk_free_next(c);
	return c;
}

/*
 * One of Note [Whole] in pool/chunk that stands in the way, or NULL; the pool
 * is to have no more of them then. Lock.
 */
static struct vs_chunk *next_whole(struct vs_pool *pool, uint64_t span,
				   uint64_t excess, enum vs_grow_how how)
{
	struct vs_chunk *c = NULL;

	if ((how == VS_GROW_BEYOND && excess > 0) ||
	    (how == VS_GROW_ALL && vs_chunks_loose(&pool->chunks) < span))
		c = vs_chunk_free_whole(pool);
	pool->is_varied |= c != NULL;
	return c;
}

/* The driver has no more: whether one of Note [Vast] there went for that. */
static bool release_vast(struct vs_pool *pool, uint64_t span)
{
	struct vs_chunk *c = NULL;

	pthread_mutex_lock(&pool->lock);
	if (vs_chunks_are_vast(&pool->chunks))
		c = detach(pool, next_above(pool, vs_chunk_most_for(span)));
	pthread_mutex_unlock(&pool->lock);
	return c && let_go(pool, c);
}

/*
 * Releases chunks that the request is not to have: they are too large for it
 * (vs_plan_excess), or it would break them.
 */
static void release_large(struct vs_pool *pool, enum vs_heap_kind kind,
			  uint64_t span, enum vs_grow_how how)
{
	for (;;) {
		uint64_t excess, above;
		struct vs_chunk *c;

		pthread_mutex_lock(&pool->lock);
		excess = vs_plan_excess(pool, kind, span, &above);
		c = next_whole(pool, span, excess, how);
		if (!c && excess > 0 && above != UINT64_MAX)
			c = next_above(pool, above);
		c = detach(pool, c);
		pthread_mutex_unlock(&pool->lock);
		if (!c || !let_go(pool, c))
			return;
	}
}

/*
 * Takes the crumbs out of all hands, if nothing else will do for the request.
 * Returns how many. Lock.
 */
static unsigned detach_crumbs(struct vs_pool *pool, enum vs_heap_kind kind,
			      uint64_t span, struct vs_chunk **crumbs)
{
	unsigned n = vs_crumbs_for(pool, kind, span, crumbs), n_detached = 0;

	for (unsigned i = 0; i < n; i++) {
		if (detach(pool, crumbs[i]))
			crumbs[n_detached++] = crumbs[i];
	}
	return n_detached;
}

/* New chunks for what was released, be it beyond need: no more is held. */
static CUresult grow_anew(struct vs_pool *pool, enum vs_heap_kind kind,
			  uint64_t span, uint64_t released,
			  struct vs_range **range_out)
{
	CUresult r;

	pool->anew = released;
	r = grow(pool, kind, released < span ? released : span, VS_GROW_WITHIN,
		 range_out);
	pool->anew = 0;
	return r;
}

/* NOT_FOUND: the request is to have what was made, and more by a move. */
static CUresult merge_crumbs(struct vs_pool *pool, enum vs_heap_kind kind,
			     uint64_t span, struct vs_range **range_out)
{
	struct vs_chunk **crumbs = pool->crumbs;
	struct vs_range *r;
	uint64_t bytes = 0;
	unsigned n;

	pthread_mutex_lock(&pool->lock);
	n = detach_crumbs(pool, kind, span, crumbs);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < n; i++) {
		uint64_t size = crumbs[i]->size;

		bytes += let_go(pool, crumbs[i]) ? size : 0;
	}
	if (bytes == 0 ||
	    grow_anew(pool, kind, span, bytes, &r) != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	if (bytes >= span) {
		*range_out = r;
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&pool->lock);
	vs_heap_give(pool, &pool->heap[kind], r);
	pthread_mutex_unlock(&pool->lock);
	return CUDA_ERROR_NOT_FOUND;
}

CUresult vs_grow(struct vs_pool *pool, enum vs_heap_kind kind, uint64_t span,
		 enum vs_grow_how how, struct vs_range **range_out)
{
	uint64_t refused = atomic_load(&pool->refused);
	uint64_t began = vs_vmm_clock(), end, bytes = 0;
	bool is_more_dead = vs_dead_retire_some(pool, &bytes, NULL);
	CUresult r = CUDA_ERROR_NOT_FOUND;

	if (how != VS_GROW_WITHIN) {
		vs_dead_retire(pool);
		vs_chunks_refresh_slowly(pool);
		release_large(pool, kind, span, how);
	}
	if (how == VS_GROW_MOVE)
		r = merge_crumbs(pool, kind, span, range_out);
	if (r == CUDA_ERROR_NOT_FOUND &&
	    (how == VS_GROW_MOVE || how == VS_GROW_BEYOND))
		r = grow(pool, kind, span, VS_GROW_WITHIN, range_out);
	if (r == CUDA_ERROR_NOT_FOUND)
		r = grow(pool, kind, span, how, range_out);
	/* before it does without: Note [No more than it must] in pool/dead.h */
	if (r != CUDA_SUCCESS && is_more_dead && vs_dead_retire(pool) > 0) {
		/* for their sake: memory is no scarcer for that */
		atomic_store(&pool->refused, refused);
		r = grow(pool, kind, span, how, range_out);
	}
	if (r == CUDA_ERROR_OUT_OF_MEMORY && release_vast(pool, span))
		r = grow(pool, kind, span, how, range_out);
	end = vs_vmm_clock();
	vs_stat_add(&pool->stats, vmm_ns, end - began);
	if (how != VS_GROW_WITHIN)
		vs_toll_pay(pool, began, end);
	return r;
}

/* One that the driver keeps does not keep the others; but it may keep all. */
enum { REFUSALS = 4 };

uint64_t vs_grow_release(struct vs_pool *pool, uint64_t bytes, uint64_t before)
{
	uint64_t released = 0;
	unsigned n_refused = 0;

	while (released < bytes && n_refused < REFUSALS) {
		struct vs_chunk *c;
		uint64_t size;

		pthread_mutex_lock(&pool->lock);
		c = detach(pool, next_victim(pool, before));
		size = c ? c->size : 0;
		pthread_mutex_unlock(&pool->lock);
		if (!c)
			break;
		if (let_go(pool, c))
			released += size;
		else
			n_refused++;
	}
	return released;
}

void vs_grow_spare(struct vs_pool *pool, enum vs_heap_kind kind, uint64_t span)
{
	struct vs_range *range;
	CUresult r;

	/* whoever holds it brings memory by himself */
	if (pthread_mutex_trylock(&pool->grow) != 0)
		return;
	r = vs_grow(pool, kind, span, VS_GROW_WITHIN, &range);
	pthread_mutex_lock(&pool->lock);
	if (r == CUDA_SUCCESS)
		vs_heap_give(pool, &pool->heap[kind], range);
	else
		vs_turnover_no_spare(pool, span);
	pthread_mutex_unlock(&pool->lock);
	pthread_mutex_unlock(&pool->grow);
}

/* The first range from `r` on that is a hole, or is none. Lock. */
static struct vs_range *next_that(struct vs_range *r, bool is_hole)
{
	while (r && (r->state == VS_RANGE_HOLE) != is_hole)
		r = r->next;
	return r;
}

/* Gives all peers access to what is mapped in a heap; holes stay. Grow. */
static CUresult allow_heap(struct vs_pool *pool, struct vs_heap *h)
{
	struct vs_range *from, *hole = NULL;
	CUresult r = CUDA_SUCCESS;

	do {
		CUdeviceptr base = 0, end = h->end;

		pthread_mutex_lock(&pool->lock);
		from = next_that(hole ? hole : h->first, false);
		if (from)
			base = from->base;
		hole = next_that(from, true);
		if (hole)
			end = hole->base;
		pthread_mutex_unlock(&pool->lock);
		if (base)
			r = vs_vmm_allow(base, end - base, pool->dev.device,
					 atomic_load(&pool->peers));
	} while (hole && r == CUDA_SUCCESS);
	return r;
}

CUresult vs_grow_allow(struct vs_pool *pool)
{
	CUresult r = CUDA_SUCCESS;

	for (int k = VS_N_HEAPS - 1; k >= 0 && r == CUDA_SUCCESS; k--)
		r = allow_heap(pool, &pool->heap[k]);
	return r;
}
