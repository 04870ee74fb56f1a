/* SPDX-License-Identifier: MIT */
#include "pool/slab.h"

#include <limits.h>
#include <string.h>

#include "base/meta.h"
#include "pool/dead.h"
#include "pool/mark.h"
#include "pool/pool.h"
#include "pool/range.h"

/* Of a slab: free, pinned, dead. */
enum { N_MAPS = 3 };

static size_t map_words(unsigned n_objects)
{
	return (n_objects + 63) / 64;
}

static size_t slab_struct_size(unsigned n_objects)
{
	return sizeof(struct vs_slab) +
	       N_MAPS * map_words(n_objects) * sizeof(uint64_t);
}

#define LARGEST ((size_t)2 << 20) /* bytes of a slab */
#define WASTE 32		  /* less than this part of it is no loss */
/*
 * What is swept in one hold of the lock, in objects (10 ns each), and what
 * takes as long as so many: to free a batch, to give a slab back.
 */
enum { SOME = 32768, OF_A_BATCH = 16, OF_A_SLAB = 32 };

/*
 * Eight objects or more, above 256 KiB two. The first multiple of a page that
 * wastes little, or of those up to LARGEST the one that wastes least.
 */
size_t vs_slab_span(unsigned class)
{
	size_t size = vs_class_size(class);
	size_t least = size <= LARGEST / 8 ? 8 * size : 2 * size, best = 0;

	for (size_t span = (least + VS_SLAB_PAGE - 1) & ~(VS_SLAB_PAGE - 1);
	     !best || span <= LARGEST; span += VS_SLAB_PAGE) {
		size_t n = span / size;

		/* more objects for the bytes */
		if (!best || n * best > best / size * span)
			best = span;
		if (span - n * size < span / WASTE)
			break;
	}
	return best;
}

/* The program has nothing of it: it can go back to the heap. */
static bool is_empty(const struct vs_slab *slab)
{
	return slab->n_free + slab->n_dead == slab->n_objects;
}

/*
 * Empty ones last: so a sweep finds them without a look at all the others, of
 * which a program with a million objects has ten thousands.
 */
static void list_add(struct vs_slabs *s, struct vs_slab *slab)
{
	struct vs_slab **head = &s->class[slab->class].with_free;
	struct vs_slab **end = &s->class[slab->class].with_free_end;
	bool is_last = is_empty(slab);

	slab->prev = is_last ? *end : NULL;
	slab->next = is_last ? NULL : *head;
	if (slab->prev)
		slab->prev->next = slab;
	else
		*head = slab;
	if (slab->next)
		slab->next->prev = slab;
	else
		*end = slab;
}

static void list_del(struct vs_slabs *s, struct vs_slab *slab)
{
	if (slab->prev)
		slab->prev->next = slab->next;
	else
		s->class[slab->class].with_free = slab->next;
	if (slab->next)
		slab->next->prev = slab->prev;
	else
		s->class[slab->class].with_free_end = slab->prev;
}

struct vs_slabs *vs_slabs_of(struct vs_pool *pool, struct vs_ctx *ctx)
{
	struct vs_slabs *s = ctx->slabs;

	if (s)
		return s;
	s = vs_meta_alloc(sizeof(*s));
	if (!s)
		return NULL;
	s->ctx = ctx;
	for (unsigned c = 0; c < VS_N_CLASSES; c++)
		s->class[c].pending_end = &s->class[c].pending;
	s->next = pool->slabs;
	pool->slabs = s;
	ctx->slabs = s;
	return s;
}

/* Takes free objects of one slab into the batch. */
static void take_from(struct vs_slab *slab, unsigned wanted,
		      struct vs_batch *batch)
{
	for (size_t w = 0; wanted > batch->n && slab->n_free > 0; w++) {
		while (slab->free_map[w] && batch->n < wanted) {
			unsigned i =
				(unsigned)(w * 64) +
				(unsigned)__builtin_ctzll(slab->free_map[w]);

			slab->free_map[w] &= slab->free_map[w] - 1;
			slab->n_free--;
			batch->obj[batch->n++] = (struct vs_obj){
				slab->base + i * vs_class_size(slab->class),
				&slab->words[i]};
		}
	}
}

/* Objects of so many bytes are in a batch of the pool's again. Lock. */
static void came_back(struct vs_pool *pool, uint64_t bytes)
{
	vs_stat_bump(&pool->repack, returned, bytes);
	vs_mark_freed_small(pool, bytes);
}

/* Only as much as there is: most batches are far from full. */
static void fill(struct vs_batch *batch, const struct vs_obj *obj, unsigned n,
		 uint64_t tag)
{
	batch->tag = tag;
	batch->n = n;
	memcpy(batch->obj, obj, n * sizeof(obj[0]));
}

/* The first of the pending, whose marker is done, goes into the batch. */
static void take_pending(struct vs_slabs *s, unsigned class, unsigned most,
			 struct vs_batch *batch)
{
	struct vs_batch *done = s->class[class].pending;

	if (done->n > most) {
		done->n -= most;
		fill(batch, done->obj + done->n, most, done->tag);
		return;
	}
	s->class[class].pending = done->next;
	if (!done->next)
		s->class[class].pending_end = &s->class[class].pending;
	fill(batch, done->obj, done->n, done->tag);
	vs_meta_free(done, sizeof(*done));
}

unsigned vs_slab_refill(struct vs_pool *pool, struct vs_slabs *s,
			unsigned class, unsigned wanted, unsigned most,
			struct vs_batch *batch)
{
	struct vs_batch *done = s->class[class].pending;
	struct vs_slab *slab;

	/* whoever freed them may never allocate, and so never have a marker */
	if (done && !s->class[class].with_free)
		vs_fence_settle(&pool->fence, done->tag);
	else if (done && !vs_fence_is_done(&pool->fence, done->tag))
		vs_fence_glance(&pool->fence);
	if (done && vs_fence_is_done(&pool->fence, done->tag)) {
		take_pending(s, class, most, batch);
		return batch->n;
	}
	while (batch->n < wanted && (slab = s->class[class].with_free)) {
		take_from(slab, wanted, batch);
		if (slab->n_free == 0)
			list_del(s, slab);
	}
	return batch->n;
}

void vs_slab_return(struct vs_pool *pool, struct vs_slabs *s, unsigned class,
		    struct vs_batch *batch)
{
	batch->next = NULL;
	if (batch->tag > s->newest)
		s->newest = batch->tag;
	*s->class[class].pending_end = batch;
	s->class[class].pending_end = &batch->next;
	came_back(pool, batch->n * vs_class_size(class));
}

/* The newest of the pending, if so many more of this tag belong there. */
static struct vs_batch *newest_for(struct vs_slabs *s, unsigned class,
				   unsigned n, uint64_t tag)
{
	struct vs_batch *newest =
		(struct vs_batch *)s->class[class].pending_end;

	if (!s->class[class].pending || newest->tag != tag ||
	    newest->n + n > VS_BATCH ||
	    (newest->n + n - 1) * vs_class_size(class) >= VS_SMALL_MAX)
		return NULL;
	return newest;
}

bool vs_slab_return_few(struct vs_pool *pool, struct vs_slabs *s,
			unsigned class, const struct vs_obj *few, unsigned n,
			uint64_t tag)
{
	struct vs_batch *b = newest_for(s, class, n, tag);

	if (b) {
		memcpy(b->obj + b->n, few, n * sizeof(few[0]));
		b->n += n;
		came_back(pool, n * vs_class_size(class));
		return true;
	}
	b = vs_meta_alloc_dirty(sizeof(*b));
	if (!b)
		return false;
	fill(b, few, n, tag);
	vs_slab_return(pool, s, class, b);
	return true;
}

/* A spare one of a class, or a new one; NULL without host memory. Lock. */
static struct vs_slab *blank(struct vs_pool *pool, unsigned class, unsigned n)
{
	struct vs_slab *slab = pool->spare_slabs[class];
	size_t size = vs_class_size(class);
	_Atomic uint64_t *words;

	if (slab) {
		pool->spare_slabs[class] = slab->next;
		return slab;
	}
	slab = vs_meta_alloc(slab_struct_size(n));
	words = vs_meta_alloc(n * sizeof(*words));
	if (!slab || !words) {
		vs_meta_free(slab, slab_struct_size(n));
		vs_meta_free(words, n * sizeof(*words));
		return NULL;
	}
	slab->class = class;
	slab->n_objects = n;
	slab->inverse =
		(((uint64_t)1 << 32) + size / VS_ALIGN - 1) / (size / VS_ALIGN);
	slab->pinned_map = slab->free_map + map_words(n);
	slab->dead_map = slab->pinned_map + map_words(n);
	slab->words = words;
	return slab;
}

struct vs_slab *vs_slab_make(struct vs_pool *pool, struct vs_slabs *s,
			     unsigned class, struct vs_range *range)
{
	unsigned n = (unsigned)(range->span / vs_class_size(class));
	struct vs_slab *slab = blank(pool, class, n);
	size_t page = (range->base - pool->base) / VS_SLAB_PAGE;

	if (!slab)
		return NULL;
	slab->range = range;
	/* who sees one of these sees that what lived here before is dead */
	__atomic_store_n(&slab->caches, s->ctx, __ATOMIC_RELEASE);
	__atomic_store_n(&slab->ctx, s->ctx, __ATOMIC_RELEASE);
	__atomic_store_n(&slab->base, range->base, __ATOMIC_RELEASE);
	slab->n_free = n;
	slab->n_pinned = slab->n_dead = 0;
	memset(slab->free_map, 0, N_MAPS * map_words(n) * sizeof(uint64_t));
	for (unsigned i = 0; i < n; i++)
		slab->free_map[i / 64] |= (uint64_t)1 << i % 64;
	list_add(s, slab);
	vs_stat_bump(pool, slab_bytes, range->span);
	for (size_t i = 0; i < range->span / VS_SLAB_PAGE; i++)
		__atomic_store_n(&pool->slab_at[page + i], slab,
				 __ATOMIC_RELEASE);
	return slab;
}

/* Its dead objects are not to be found any more; n_dead stays. Lock. */
static void unlist_dead(struct vs_pool *pool, struct vs_slab *slab)
{
	if (slab->n_dead == 0)
		return;
	TAILQ_REMOVE(&pool->dead_slabs, slab, dead_link);
	pool->dead_small -= slab->n_dead * vs_class_size(slab->class);
	vs_dead_show(pool);
}

/*
 * The slab leaves the index; none of its objects is live. `is_complete`: none
 * may be in use by work. Lock.
 */
static uint64_t unmake(struct vs_pool *pool, struct vs_slab *slab,
		       bool is_complete)
{
	uint64_t span = slab->range->span;
	size_t page = (slab->base - pool->base) / VS_SLAB_PAGE;

	for (size_t i = 0; i < span / VS_SLAB_PAGE; i++)
		__atomic_store_n(&pool->slab_at[page + i], NULL,
				 __ATOMIC_RELEASE);
	vs_stat_bump(pool, slab_bytes, -span);
	unlist_dead(pool, slab);
	if (slab->n_pinned)
		vs_dead_bury(pool, slab->range);
	else if (!is_complete)
		vs_range_put_off(pool, slab->range);
	else
		vs_heap_give(pool, &pool->heap[VS_HEAP_SLABS], slab->range);
	slab->next = pool->spare_slabs[slab->class];
	pool->spare_slabs[slab->class] = slab;
	return span;
}

void vs_slab_put(struct vs_pool *pool, struct vs_obj obj)
{
	struct vs_slab *slab = vs_slab_at(pool, obj.address);
	unsigned i = vs_slab_object(slab, obj.address);

	slab->free_map[i / 64] |= (uint64_t)1 << i % 64;
	if (slab->n_free++ > 0) {
		if (!is_empty(slab))
			return;
		list_del(slab->ctx->slabs, slab);
	}
	list_add(slab->ctx->slabs, slab);
}

void vs_slab_pin(struct vs_pool *pool, CUdeviceptr p)
{
	struct vs_slab *slab = vs_slab_at(pool, p);
	unsigned i = vs_slab_object(slab, p);
	uint64_t *word = &slab->pinned_map[i / 64], bit = (uint64_t)1 << i % 64;

	slab->n_pinned += !(*word & bit);
	*word |= bit;
	__atomic_store_n(&slab->caches, NULL, __ATOMIC_RELAXED);
}

/* Whether it was pinned: then it is dead from now on. */
static bool bury(struct vs_pool *pool, struct vs_slab *slab, unsigned i)
{
	if (!(slab->pinned_map[i / 64] >> i % 64 & 1))
		return false;
	unlist_dead(pool, slab);
	slab->dead_map[i / 64] |= (uint64_t)1 << i % 64;
	slab->n_dead++;
	slab->dead_tag = vs_fence_tag_freed(&pool->fence);
	TAILQ_INSERT_TAIL(&pool->dead_slabs, slab, dead_link);
	pool->dead_small += slab->n_dead * vs_class_size(slab->class);
	vs_dead_show(pool);
	vs_mark_freed_small(pool, vs_class_size(slab->class));
	if (is_empty(slab)) {
		if (slab->n_free > 0)
			list_del(slab->ctx->slabs, slab);
		unmake(pool, slab, true);
	}
	return true;
}

void vs_slab_return_one(struct vs_pool *pool, struct vs_slab *slab, unsigned i)
{
	CUdeviceptr p = slab->base + i * vs_class_size(slab->class);
	struct vs_obj one = {p, &slab->words[i]};

	if (bury(pool, slab, i) ||
	    vs_slab_return_few(pool, slab->ctx->slabs, slab->class, &one, 1,
			       vs_fence_tag_freed(&pool->fence)))
		return;
	vs_slab_pin(pool, p);
	bury(pool, slab, i);
}

void vs_slab_revive(struct vs_pool *pool, struct vs_slab *slab)
{
	size_t size = vs_class_size(slab->class);

	unlist_dead(pool, slab);
	for (unsigned i = 0; slab->n_dead > 0; i++) {
		uint64_t bit = (uint64_t)1 << i % 64;

		if (!(slab->dead_map[i / 64] & bit))
			continue;
		slab->dead_map[i / 64] &= ~bit;
		slab->pinned_map[i / 64] &= ~bit;
		slab->n_dead--;
		slab->n_pinned--;
		vs_slab_put(pool, (struct vs_obj){slab->base + i * size,
						  &slab->words[i]});
	}
	if (slab->n_pinned == 0)
		__atomic_store_n(&slab->caches, slab->ctx, __ATOMIC_RELAXED);
}

/* What a sweep takes: batches of no newer tag, until nothing is left of SOME.
 */
struct sweep {
	uint64_t tag;
	int left;
};

/* Objects of done batches of one class go home; empty slabs go. */
static uint64_t sweep_class(struct vs_pool *pool, struct vs_slabs *s,
			    unsigned class, struct sweep *sweep)
{
	struct vs_slab *slab;
	struct vs_batch *b;
	uint64_t bytes = 0;

	while (sweep->left > 0 && (b = s->class[class].pending) &&
	       b->tag <= sweep->tag && vs_fence_is_done(&pool->fence, b->tag)) {
		sweep->left -= (int)b->n + OF_A_BATCH;
		s->class[class].pending = b->next;
		for (unsigned i = 0; i < b->n; i++)
			vs_slab_put(pool, b->obj[i]);
		vs_meta_free(b, sizeof(*b));
	}
	if (!s->class[class].pending)
		s->class[class].pending_end = &s->class[class].pending;
	while (sweep->left > 0 && (slab = s->class[class].with_free_end) &&
	       is_empty(slab)) {
		sweep->left -= OF_A_SLAB;
		list_del(s, slab);
		bytes += unmake(pool, slab, true);
	}
	return bytes;
}

bool vs_slab_sweep_some(struct vs_pool *pool, uint64_t tag, uint64_t *bytes)
{
	struct sweep some = {.tag = tag, .left = SOME};

	for (struct vs_slabs *s = pool->slabs; s; s = s->next) {
		for (unsigned c = 0; c < VS_N_CLASSES; c++)
			*bytes += sweep_class(pool, s, c, &some);
	}
	return some.left <= 0;
}

uint64_t vs_slab_sweep(struct vs_pool *pool)
{
	uint64_t done = atomic_load(&pool->fence.done), bytes = 0;

	pthread_mutex_lock(&pool->lock);
	while (vs_slab_sweep_some(pool, done, &bytes))
		vs_pool_let_in(pool);
	pthread_mutex_unlock(&pool->lock);
	return bytes;
}

uint64_t vs_slab_newest(const struct vs_pool *pool)
{
	uint64_t newest = 0;

	for (const struct vs_slabs *s = pool->slabs; s; s = s->next)
		newest = s->newest > newest ? s->newest : newest;
	return newest;
}

/* The program's objects of a slab die with their context. */
static void lose_objects(struct vs_pool *pool, struct vs_slab *slab)
{
	for (unsigned i = 0; i < slab->n_objects; i++) {
		uint64_t word = atomic_exchange(&slab->words[i], 0);

		if (word == 0)
			continue;
		vs_range_lost(VS_WORD_SERIAL(word));
		vs_stat_bump(pool, lost_blocks, 1);
		vs_stat_bump(pool, lost_bytes, VS_WORD_SIZE(word));
		vs_stat_bump(pool, lost_spans, vs_class_size(slab->class));
	}
}

void vs_slab_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx)
{
	struct vs_heap *heap = &pool->heap[VS_HEAP_SLABS];
	struct vs_slabs *s = ctx->slabs, **link;
	struct vs_range *r, *next;
	struct vs_batch *b;

	if (!s)
		return;
	for (unsigned c = 0; c < VS_N_CLASSES; c++) {
		while ((b = s->class[c].pending)) {
			s->class[c].pending = b->next;
			vs_meta_free(b, sizeof(*b));
		}
	}
	for (r = heap->first; r; r = next) {
		struct vs_slab *slab;

		/* giving one back merges idle ranges, never live ones */
		for (next = r->next; next && next->state != VS_RANGE_LIVE;)
			next = next->next;
		slab = r->state == VS_RANGE_LIVE ? vs_slab_at(pool, r->base)
						 : NULL;
		if (!slab || slab->ctx != ctx)
			continue;
		lose_objects(pool, slab);
		/* another context may still use what was freed of it */
		unmake(pool, slab, false);
	}
	for (link = &pool->slabs; *link != s; link = &(*link)->next)
		;
	*link = s->next;
	ctx->slabs = NULL;
	vs_meta_free(s, sizeof(*s));
}
