/* SPDX-License-Identifier: MIT */
#include "pool/owner.h"

static uint64_t page_no(const struct vs_pool *pool, CUdeviceptr p)
{
	return (p - pool->base) / VS_OWNER_PAGE;
}

size_t vs_owner_table(const struct vs_pool *pool)
{
	uint64_t last = pool->end - pool->base - 1;

	return (last / VS_OWNER_PAGE + 1) * sizeof(*pool->owner);
}

void vs_owner_init(struct vs_pool *pool, void *table)
{
	pool->owner = table;
}

void vs_owner_set(struct vs_pool *pool, struct vs_range *r)
{
	if (r->is_indexed)
		return;
	atomic_store_explicit(&pool->owner[page_no(pool, r->base)], r,
			      memory_order_release);
	r->is_indexed = true;
}

static struct vs_range *begins_in(const struct vs_pool *pool, CUdeviceptr p)
{
	return atomic_load_explicit(&pool->owner[page_no(pool, p)],
				    memory_order_acquire);
}

/* What is named for `p`, NULL or stale perhaps; i < N_NAMED. */
enum { N_NAMED = 4 };
static struct vs_range *named(const struct vs_pool *pool, CUdeviceptr p,
			      unsigned i)
{
	_Static_assert(VS_GRANULE == 2 * VS_OWNER_PAGE,
		       "or more pages of a granule are before that of p");

	switch (i) {
	case 0:
		return begins_in(pool, p);
	case 1:
		return begins_in(pool, p & ~(CUdeviceptr)(VS_GRANULE - 1));
	case 2:
		return vs_spot_range(vs_spot_at(pool, p));
	default:
		return vs_spot_range(vs_stretch_at(pool, p));
	}
}

struct vs_range *vs_owner_range(const struct vs_pool *pool, CUdeviceptr p)
{
	for (unsigned i = 0; i < N_NAMED; i++) {
		struct vs_range *r = named(pool, p, i);

		if (r && p >= r->base && p - r->base < r->span)
			return r;
	}
	return NULL;
}

struct vs_range *vs_owner_live(const struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_range *r = vs_owner_range(pool, p);

	return r && r->base == p && r->state == VS_RANGE_LIVE &&
			       atomic_load_explicit(&r->id,
						    memory_order_relaxed) != 0
		       ? r
		       : NULL;
}

/*
 * A live small object that `p` points into. While the word stays what it is the
 * object is live, and its slab where it is: no other allocation has that word.
 */
static bool find_object(const struct vs_pool *pool, CUdeviceptr p,
			struct vs_span *span_out)
{
	struct vs_slab *slab = vs_slab_at(pool, p);
	uint64_t word;
	unsigned i;

	if (!slab)
		return false;
	i = vs_slab_object(slab, p);
	if (i >= slab->n_objects)
		return false;
	word = atomic_load_explicit(&slab->words[i], memory_order_acquire);
	span_out->base = vs_slab_base(slab) + i * vs_class_size(slab->class);
	span_out->size = VS_WORD_SIZE(word);
	span_out->id = VS_WORD_SERIAL(word);
	span_out->ctx = __atomic_load_n(&slab->ctx, __ATOMIC_RELAXED)->handle;
	span_out->device = pool->dev.device;
	if (word == 0 || p - span_out->base >= span_out->size ||
	    vs_slab_at(pool, p) != slab)
		return false;
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&slab->words[i], memory_order_relaxed) ==
	       word;
}

/* Whether `r` is live and holds `p`; without the lock it may change meanwhile.
 */
static bool holds(const struct vs_pool *pool, struct vs_range *r, CUdeviceptr p,
		  struct vs_span *span_out)
{
	struct vs_ctx *ctx;
	uint64_t id;

	id = atomic_load_explicit(&r->id, memory_order_acquire);
	if (id == 0)
		return false;
	span_out->base = __atomic_load_n(&r->base, __ATOMIC_RELAXED);
	span_out->size = atomic_load_explicit(&r->size, memory_order_relaxed);
	ctx = __atomic_load_n(&r->ctx, __ATOMIC_RELAXED);
	span_out->ctx = ctx ? ctx->handle : NULL;
	span_out->id = id;
	span_out->device = pool->dev.device;
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&r->id, memory_order_relaxed) == id &&
	       p >= span_out->base && p - span_out->base < span_out->size;
}

/*
 * The bounds of a stale one may be in the middle of a change, so that only the
 * whole test tells that an entry is the right one.
 */
static bool find_range(const struct vs_pool *pool, CUdeviceptr p,
		       struct vs_span *span_out)
{
	for (unsigned i = 0; i < N_NAMED; i++) {
		struct vs_range *r = named(pool, p, i);

		if (r && holds(pool, r, p, span_out))
			return true;
	}
	return false;
}

bool vs_pool_find(CUdeviceptr p, struct vs_span *span_out)
{
	struct vs_pool *pool = vs_pool_at(p);

	if (!pool)
		return false;
	if (p < pool->slabs_end)
		return find_object(pool, p, span_out);
	return find_range(pool, p, span_out);
}

bool vs_pool_is_inside(CUdeviceptr p)
{
	return vs_pool_at(p) != NULL;
}
