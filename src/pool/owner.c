/* SPDX-License-Identifier: MIT */
#include "pool/owner.h"

#include "base/meta.h"

#define PAGE_SHIFT 20

static struct vs_owner_page *page_of(const struct vs_pool *pool, CUdeviceptr p)
{
	return &pool->owner[(p - pool->base) >> PAGE_SHIFT];
}

bool vs_owner_init(struct vs_pool *pool)
{
	pool->owner = vs_meta_table(((pool->end - pool->base) >> PAGE_SHIFT) *
				    sizeof(*pool->owner));
	return pool->owner != NULL;
}

void vs_owner_set(struct vs_pool *pool, struct vs_range *r)
{
	struct vs_owner_page *page = page_of(pool, r->base);
	struct vs_owner_page *last = page_of(pool, r->base + r->span - 1);

	if (r->is_indexed)
		return;
	atomic_store_explicit(&page->starts, r, memory_order_release);
	while (page++ < last)
		atomic_store_explicit(&page->covers, r, memory_order_release);
	r->is_indexed = true;
}

struct vs_range *vs_owner_range(const struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_owner_page *page = page_of(pool, p);
	struct vs_range *r;

	r = atomic_load_explicit(&page->starts, memory_order_acquire);
	if (r && p >= r->base && p - r->base < r->span)
		return r;
	return atomic_load_explicit(&page->covers, memory_order_acquire);
}

/* A live small object that `p` points into. */
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
	span_out->base = slab->base + i * vs_class_size(slab->class);
	span_out->size = VS_WORD_SIZE(word);
	span_out->id = VS_WORD_SERIAL(word);
	span_out->ctx = slab->ctx->handle;
	span_out->device = pool->dev.device;
	return word != 0 && p - span_out->base < span_out->size;
}

static bool find_range(const struct vs_pool *pool, CUdeviceptr p,
		       struct vs_span *span_out)
{
	struct vs_range *r = vs_owner_range(pool, p);
	struct vs_ctx *ctx;
	uint64_t id;

	if (!r)
		return false;
	id = atomic_load_explicit(&r->id, memory_order_acquire);
	if (id == 0)
		return false;
	span_out->base = r->base;
	span_out->size = atomic_load_explicit(&r->size, memory_order_relaxed);
	ctx = r->ctx;
	span_out->ctx = ctx ? ctx->handle : NULL;
	span_out->id = id;
	span_out->device = pool->dev.device;
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&r->id, memory_order_relaxed) == id &&
	       p >= span_out->base && p - span_out->base < span_out->size;
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
