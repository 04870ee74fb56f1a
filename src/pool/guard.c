/* SPDX-License-Identifier: MIT */
#include "pool/guard.h"

#include <stddef.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/meta.h"
#include "driver/real.h"
#include "pool/capture.h"
#include "pool/fill.h"
#include "pool/grow.h"
#include "pool/mark.h"
#include "pool/owner.h"
#include "pool/range.h"
#include "pool/trim.h"

/* Unmapped bytes behind each block at least. */
#define GAP VS_GRANULE
/* How long a free waits at most. The driver's own waits for ever. */
#define PATIENCE ((uint64_t)10000000000)
/* Fills what the alignment leaves between a block and its mapping's end. */
#define MARK 0xc9
/* Blocks unmapped before others may grow: some 1 ms. */
enum { GONE_AT_ONCE = 32 };

static struct vs_guard_block *block_of(struct vs_range *r)
{
	return (struct vs_guard_block *)((char *)r -
					 offsetof(struct vs_guard_block,
						  range));
}

void vs_guard_init(struct vs_pool *pool, CUdeviceptr base)
{
	struct vs_guard *g = &pool->guard;

	g->base = g->next = g->top = base;
	g->end = pool->end;
	TAILQ_INIT(&g->live);
	TAILQ_INIT(&g->pending);
	TAILQ_INIT(&g->spare);
}

bool vs_guard_holds(const struct vs_pool *pool, CUdeviceptr p)
{
	return pool->guard.base != 0 && p >= pool->guard.base;
}

/* --- address space -------------------------------------------------------- */

static struct vs_view **slot(struct vs_pool *pool, CUdeviceptr p)
{
	return &vs_spot_at(pool, p)->view;
}

/* The end of the first mapping in [from, to), or 0. */
static CUdeviceptr in_the_way(struct vs_pool *pool, CUdeviceptr from,
			      CUdeviceptr to)
{
	for (CUdeviceptr p = from; p < to; p += VS_GRANULE) {
		struct vs_view *v = *slot(pool, p);

		if (v)
			return vs_view_end(v);
	}
	return 0;
}

/* The next place with a gap before and after it; 0: none. Grow. */
static CUdeviceptr find_place(struct vs_pool *pool, uint64_t size)
{
	struct vs_guard *g = &pool->guard;
	CUdeviceptr at = g->next;
	bool is_second_round = false;

	for (;;) {
		CUdeviceptr end;

		if (size > g->end - at || g->end - at - size < 2 * GAP) {
			if (is_second_round)
				return 0;
			is_second_round = true;
			at = g->base;
			continue;
		}
		end = in_the_way(pool, at, at + size + 2 * GAP);
		if (!end)
			break;
		at = end;
	}
	/* the gap behind it may be the one before the next */
	g->next = at + GAP + size;
	if (g->next > g->top)
		g->top = g->next;
	return at + GAP;
}

/* --- blocks --------------------------------------------------------------- */

/* A blank struct; its memory stays one for late look-ups. Lock. */
static struct vs_guard_block *new_block(struct vs_pool *pool)
{
	struct vs_range *r = TAILQ_FIRST(&pool->guard.spare);
	struct vs_guard_block *b;

	if (!r)
		return vs_meta_alloc(sizeof(*b));
	TAILQ_REMOVE(&pool->guard.spare, r, link);
	b = block_of(r);
	r->is_indexed = false;
	return b;
}

/* Enough memory for a handle, or what else there is given back. Grow. */
static CUresult create(struct vs_pool *pool, struct vs_chunk *c)
{
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	for (int i = 0; i < 2 && r == CUDA_ERROR_OUT_OF_MEMORY; i++) {
		if (i > 0)
			vs_grow_release(pool, UINT64_MAX, UINT64_MAX);
		if (pool->chunks.held + c->size <= pool->memory_limit)
			r = vs_vmm_create(&pool->dev, c->size, &c->handle);
	}
	return r;
}

/* Gives the chunk's memory up; false: not yet. Grow. */
static bool destroy(struct vs_pool *pool, struct vs_guard_block *b)
{
	struct vs_view *v = &b->view;
	struct vs_chunk *c = v->chunk;

	if (b->is_mapped && vs_vmm_unmap(v->at, c->size) != CUDA_SUCCESS)
		return false;
	b->is_mapped = false;
	if (vs_vmm_release(c->handle) != CUDA_SUCCESS)
		return false;
	pool->guard.lost -= b->lost;
	pthread_mutex_lock(&pool->lock);
	for (CUdeviceptr p = v->at; p < vs_view_end(v); p += VS_GRANULE)
		*slot(pool, p) = NULL;
	TAILQ_REMOVE(&c->views, v, link);
	vs_chunk_died(pool, c);
	TAILQ_INSERT_HEAD(&pool->guard.spare, &b->range, link);
	pthread_mutex_unlock(&pool->lock);
	return true;
}

/* The block's address and its place in the tables. Lock. */
static void enter(struct vs_pool *pool, struct vs_guard_block *b,
		  struct vs_chunk *c, size_t size)
{
	struct vs_view *v = &b->view;

	vs_chunk_born(pool, c);
	v->chunk = c;
	v->is_on = v->has_access = false;
	TAILQ_INSERT_TAIL(&c->views, v, link);
	/* a late look-up may still read the one before */
	vs_range_set_base(&b->range, vs_view_end(v) - (size + VS_ALIGN - 1) /
							      VS_ALIGN *
							      VS_ALIGN);
	b->range.span = c->size;
	for (CUdeviceptr p = v->at; p < vs_view_end(v); p += VS_GRANULE) {
		struct vs_spot *spot = vs_spot_at(pool, p);

		spot->view = v;
		vs_spot_name(spot, &b->range);
	}
	b->lost = c->size - size;
	pool->guard.lost += b->lost;
}

/*
 * A program with many small allocations must not run out of memory for this:
 * a quarter of it may be lost.
 */
static bool is_affordable(struct vs_pool *pool, uint64_t lost)
{
	return pool->guard.lost + lost <= pool->most / 4;
}

/* Nobody has it: it goes when somebody comes by. Lock. */
static void put_off(struct vs_pool *pool, struct vs_guard_block *b)
{
	b->range.tag = 0;
	pool->pending_bytes += b->range.span;
	TAILQ_INSERT_HEAD(&pool->guard.pending, &b->range, link);
}

/* By tag: what waited for its work comes late, but hardly ever. Lock. */
static void line_up(struct vs_pool *pool, struct vs_range *r)
{
	struct vs_range_list *pending = &pool->guard.pending;
	struct vs_range *before = TAILQ_LAST(pending, vs_range_list);

	while (before && before->tag > r->tag)
		before = TAILQ_PREV(before, vs_range_list, link);
	if (before)
		TAILQ_INSERT_AFTER(pending, before, r, link);
	else
		TAILQ_INSERT_HEAD(pending, r, link);
}

/* Maps a block of its own. Grow. */
static CUresult make(struct vs_pool *pool, size_t size,
		     struct vs_guard_block **out)
{
	uint64_t span = vs_granules_up(size);
	struct vs_guard_block *b = NULL;
	struct vs_chunk *c = NULL;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	CUdeviceptr at = 0;

	if (is_affordable(pool, span - size))
		at = find_place(pool, span);
	pthread_mutex_lock(&pool->lock);
	if (at && (c = vs_chunk_make(pool, span)))
		b = new_block(pool);
	pthread_mutex_unlock(&pool->lock);
	if (b)
		r = create(pool, c);
	if (r != CUDA_SUCCESS) {
		vs_meta_free(c, sizeof(*c));
		if (b) {
			pthread_mutex_lock(&pool->lock);
			TAILQ_INSERT_HEAD(&pool->guard.spare, &b->range, link);
			pthread_mutex_unlock(&pool->lock);
		}
		return r;
	}
	b->view.at = at;
	pthread_mutex_lock(&pool->lock);
	enter(pool, b, c, size);
	pthread_mutex_unlock(&pool->lock);
	r = vs_vmm_map(at, span, c->handle);
	b->is_mapped = r == CUDA_SUCCESS;
	if (r == CUDA_SUCCESS)
		r = vs_vmm_allow(at, span, pool->dev.device,
				 atomic_load(&pool->peers));
	if (r == CUDA_SUCCESS)
		*out = b;
	else if (!destroy(pool, b)) {
		pthread_mutex_lock(&pool->lock);
		put_off(pool, b);
		pthread_mutex_unlock(&pool->lock);
	}
	return r;
}

/* --- the bytes behind a block --------------------------------------------- */

static size_t slack(size_t size)
{
	return (VS_ALIGN - size % VS_ALIGN) % VS_ALIGN;
}

static void mark(struct vs_guard_block *b, struct vs_ctx *ctx, size_t size)
{
	b->is_marked =
		slack(size) > 0 && vs_fill_set(ctx, b->range.base + size, MARK,
					       slack(size)) == CUDA_SUCCESS;
}

/* All its work is done: whether the bytes behind it are still those of MARK. */
static void check_mark(struct vs_guard_block *b, struct vs_ctx *ctx,
		       const struct vs_guard_past *p)
{
	unsigned char bytes[VS_ALIGN];
	size_t n = slack(p->size);

	if (!b->is_marked ||
	    vs_fill_get(ctx, bytes, p->base + p->size, n) != CUDA_SUCCESS)
		return;
	for (size_t i = 0; i < n; i++) {
		if (bytes[i] == MARK)
			continue;
		vs_warn("overrun: byte %zu behind allocation %llu (0x%llx, "
			"%llu bytes) was written",
			i, (unsigned long long)p->id,
			(unsigned long long)p->base,
			(unsigned long long)p->size);
		return;
	}
}

/* --- allocation and free -------------------------------------------------- */

void vs_guard_served(struct vs_pool *pool, CUdeviceptr p, size_t size)
{
	static _Atomic bool is_told;

	if (atomic_load(&pool->guard.is_short) &&
	    (p < pool->guard.base || p >= pool->guard.end) &&
	    !atomic_exchange(&is_told, true))
		vs_warn("VMMSHIM_GUARD: no mapping of its own for an "
			"allocation of %zu bytes, which would take too much "
			"memory or address space: from now on some are not "
			"guarded",
			size);
}

CUresult vs_guard_alloc(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
			CUdeviceptr *out)
{
	uint64_t began = vs_vmm_clock();
	struct vs_guard_block *b;
	CUresult r;

	vs_guard_collect(pool, NULL);
	pthread_mutex_lock(&pool->grow);
	r = make(pool, size, &b);
	pthread_mutex_unlock(&pool->grow);
	vs_stat_add(&pool->stats, vmm_ns, vs_vmm_clock() - began);
	/* else it is the driver's to word: the process may be ending */
	atomic_store(&pool->guard.is_short, r == CUDA_ERROR_OUT_OF_MEMORY);
	if (r != CUDA_SUCCESS)
		return VS_PASS;
	mark(b, ctx, size);
	pthread_mutex_lock(&pool->lock);
	if (atomic_load(&ctx->is_dead)) { /* since it was looked up */
		put_off(pool, b);
		pthread_mutex_unlock(&pool->lock);
		return VS_PASS;
	}
	b->range.state = VS_RANGE_LIVE;
	TAILQ_INSERT_HEAD(&pool->guard.live, &b->range, link);
	vs_range_hand_out(pool, &b->range, ctx, size);
	*out = b->range.base;
	pthread_mutex_unlock(&pool->lock);
	vs_stat_add(&pool->stats, large_miss, 1);
	vs_debug("guard: allocation %llu: 0x%llx, %zu bytes",
		 (unsigned long long)atomic_load(&b->range.id),
		 (unsigned long long)b->range.base, size);
	return CUDA_SUCCESS;
}

/* A live block leaves the program's hands. Lock. */
static struct vs_guard_past end_life(struct vs_pool *pool, struct vs_range *r)
{
	struct vs_guard *g = &pool->guard;
	struct vs_guard_past p = {
		.base = r->base,
		.size = atomic_load(&r->size),
		.id = atomic_load(&r->id),
	};

	g->past[g->n_past++ % VS_GUARD_LATEST] = p;
	vs_range_end_life(pool, r);
	TAILQ_REMOVE(&g->live, r, link);
	r->state = VS_RANGE_PENDING;
	pool->pending_bytes += r->span;
	vs_mark_freed(pool, r->span);
	vs_stat_set(&pool->stats, pending, pool->pending_bytes);
	return p;
}

CUresult vs_guard_free(struct vs_pool *pool, struct vs_ctx *current,
		       CUdeviceptr p)
{
	struct vs_guard_past past;
	struct vs_ctx *ctx;
	struct vs_range *r;
	bool is_done;

	pthread_mutex_lock(&pool->lock);
	r = atomic_load(&current->is_dead) ? NULL : vs_owner_live(pool, p);
	if (!r) {
		pthread_mutex_unlock(&pool->lock);
		return VS_PASS;
	}
	ctx = r->ctx;
	past = end_life(pool, r);
	r->tag = vs_fence_tag_freed(&pool->fence);
	pthread_mutex_unlock(&pool->lock);
	vs_debug("guard: free of %llu: 0x%llx, %llu bytes",
		 (unsigned long long)past.id, (unsigned long long)past.base,
		 (unsigned long long)past.size);
	/* in no list meanwhile: nobody else unmaps it */
	is_done = vs_fence_wait_tag(&pool->fence, r->tag, PATIENCE);
	if (vs_ctx_is_beyond(ctx) && vs_capture_count() == 0)
		vs_pool_faulted(vs_vmm_ctx_wait(ctx->handle));
	else if (is_done)
		check_mark(block_of(r), ctx, &past);
	pthread_mutex_lock(&pool->lock);
	line_up(pool, r);
	pthread_mutex_unlock(&pool->lock);
	vs_mark_wait_at_free(pool);
	vs_guard_collect(pool, NULL);
	return CUDA_SUCCESS;
}

/* Takes the oldest off the list, if it is complete; or NULL. Lock. */
static struct vs_range *next_complete(struct vs_pool *pool)
{
	struct vs_range *r = TAILQ_FIRST(&pool->guard.pending);

	if (!r || !vs_fence_is_complete(&pool->fence, r->tag))
		return NULL;
	TAILQ_REMOVE(&pool->guard.pending, r, link);
	return r;
}

uint64_t vs_guard_newest(const struct vs_pool *pool)
{
	const struct vs_range_list *pending = &pool->guard.pending;

	/* also where it was never made: knob off */
	return TAILQ_EMPTY(pending) ? 0
				    : TAILQ_LAST(pending, vs_range_list)->tag;
}

/* Unmaps one that is complete; returns its bytes, 0: there is none. Grow. */
static uint64_t collect_one(struct vs_pool *pool)
{
	struct vs_range *r;
	uint64_t span;
	bool is_gone;

	pthread_mutex_lock(&pool->lock);
	r = next_complete(pool);
	pthread_mutex_unlock(&pool->lock);
	if (!r)
		return 0;
	span = r->span;
	is_gone = destroy(pool, block_of(r));
	pthread_mutex_lock(&pool->lock);
	if (is_gone) {
		pool->pending_bytes -= span;
	} else {
		/* behind the others, which the driver may let go */
		r->tag = vs_guard_newest(pool);
		TAILQ_INSERT_TAIL(&pool->guard.pending, r, link);
	}
	vs_stat_set(&pool->stats, pending, pool->pending_bytes);
	pthread_mutex_unlock(&pool->lock);
	return is_gone ? span : 0;
}

uint64_t vs_guard_collect(struct vs_pool *pool, const _Atomic bool *stop)
{
	struct vs_fence *f = &pool->fence;
	uint64_t released = 0, part = 1, tag, left;
	bool is_empty;

	if (!pool->guard.base)
		return 0;
	pthread_mutex_lock(&pool->lock);
	is_empty = TAILQ_EMPTY(&pool->guard.pending);
	tag = vs_guard_newest(pool);
	/* what others free meanwhile may never end */
	left = pool->pending_bytes;
	pthread_mutex_unlock(&pool->lock);
	if (is_empty)
		return 0;
	vs_fence_cover(f, tag);
	vs_fence_poll(f);
	pthread_mutex_lock(&pool->grow);
	for (unsigned n = 1; part > 0 && released < left; n++) {
		if (vs_pool_is_over(stop))
			break;
		part = collect_one(pool);
		released += part;
		if (n % GONE_AT_ONCE == 0)
			vs_trim_let_grow(pool);
	}
	pthread_mutex_unlock(&pool->grow);
	return released;
}

void vs_guard_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx)
{
	struct vs_range *r, *next;

	if (!pool->guard.base)
		return;
	for (r = TAILQ_FIRST(&pool->guard.live); r; r = next) {
		next = TAILQ_NEXT(r, link);
		if (r->ctx != ctx)
			continue;
		vs_range_lost(end_life(pool, r).id);
		r->tag = 0;
		TAILQ_INSERT_HEAD(&pool->guard.pending, r, link);
	}
}

CUresult vs_guard_allow(struct vs_pool *pool)
{
	CUdeviceptr p = pool->guard.base;
	CUresult r = CUDA_SUCCESS;

	while (r == CUDA_SUCCESS && p < pool->guard.top) {
		const struct vs_spot *spot = vs_spot_at(pool, p);
		struct vs_view *v = spot->view;

		p += VS_GRANULE;
		if (!v)
			continue;
		p = vs_view_end(v);
		/* unmapped, but not released yet: the driver refused */
		if (!block_of(vs_spot_range(spot))->is_mapped)
			continue;
		r = vs_vmm_allow(v->at, v->chunk->size, pool->dev.device,
				 atomic_load(&pool->peers));
	}
	return r;
}

/* --- after a fault -------------------------------------------------------- */

static void name_one(const char *what, CUdeviceptr base, uint64_t size,
		     uint64_t id)
{
	vs_warn("  %s: allocation %llu, 0x%llx to 0x%llx, %llu bytes", what,
		(unsigned long long)id, (unsigned long long)base,
		(unsigned long long)(base + size), (unsigned long long)size);
}

/* Lock. */
static void name_blocks(struct vs_pool *pool)
{
	struct vs_guard *g = &pool->guard;
	struct vs_range *r;
	unsigned n = 0;

	for (uint64_t i = g->n_past; i > 0 && n < VS_GUARD_LATEST; n++) {
		struct vs_guard_past *p = &g->past[--i % VS_GUARD_LATEST];

		name_one("freed lately", p->base, p->size, p->id);
	}
	n = 0;
	TAILQ_FOREACH (r, &g->live, link) {
		if (n++ == VS_GUARD_LATEST)
			break;
		name_one("live, new", r->base, atomic_load(&r->size),
			 atomic_load(&r->id));
	}
}

void vs_pool_faulted(CUresult result)
{
	static _Atomic bool is_told;
	struct vs_pool *pool;

	if (!vs_knobs.guard || vs_pool_count() == 0 ||
	    (result != CUDA_ERROR_ILLEGAL_ADDRESS &&
	     result != CUDA_ERROR_LAUNCH_FAILED) ||
	    atomic_exchange(&is_told, true))
		return;
	vs_warn("%s: work touched memory that is not allocated, or not any "
		"more. The driver does not say where; the kernel log may "
		"(dmesg, Xid 31). An address less than 2 MiB behind a block "
		"is an overrun of it, one in a freed block a use after its "
		"free. VMMSHIM_LOG=debug names every block.",
		vs_real_error(result));
	for (int i = 0; (pool = vs_pool_by_index(i)); i++) {
		pthread_mutex_lock(&pool->lock);
		if (pool->guard.base)
			name_blocks(pool);
		pthread_mutex_unlock(&pool->lock);
	}
}
