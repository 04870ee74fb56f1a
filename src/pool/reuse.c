/* SPDX-License-Identifier: MIT */
#include "pool/reuse.h"

#include <stddef.h>

#include "pool/mark.h"
#include "pool/view.h"
#include "pool/wake.h"

/*
 * See Note [In parts]: 512 blocks of 2 MiB take .1 to .3 ms, by how cold they
 * are (a CPU, counting driver). Those that lie in several chunks count as many
 * times: 258 of 480 MiB in chunks of 2 took 4 to 9 ms (simulated).
 */
enum { HOME_AT_ONCE = 512 };
/* See most_waste(): parts of what was asked for, and of what is needed. */
enum { WASTE_OF_ONE = 10, WASTE_OF_NEED = 200 };
/* The same of what is on a shelf; and if else nothing fits, see make_fit(). */
enum {
	SHELVED_WASTE_OF_ONE = 8,
	LAST_WASTE_OF_ONE = 4,
	LAST_WASTE_OF_NEED = 16
};

/* What is pending may have been a slab, of a context that ended. */
static inline bool was_slab(const struct vs_pool *pool,
			    const struct vs_range *r)
{
	return __builtin_expect(r->base < pool->heap[VS_HEAP_SLABS].end, 0);
}

void vs_reuse_go_home(struct vs_pool *pool, struct vs_range *r)
{
	/* by address: its span may be of another heap's (see below) */
	vs_heap_give(pool, vs_heap_of(pool, r->base), r);
}

/* None fits: one at views that sleep, or NULL. Lock. */
static inline struct vs_range *wake_fit(struct vs_pool *pool,
					enum vs_heap_kind kind, uint64_t span,
					bool is_sparing)
{
	struct vs_heap *h = &pool->heap[kind];

	if (__builtin_expect(h->n_asleep == 0, 1) || !vs_wake(pool, h, span))
		return NULL;
	return vs_heap_take(pool, h, span, is_sparing);
}

struct vs_range *vs_reuse_anywhere(struct vs_pool *pool, uint64_t span)
{
	static const enum vs_heap_kind kinds[] = {VS_HEAP_MIDDLE,
						  VS_HEAP_LARGE};
	struct vs_range *r = NULL;

	pthread_mutex_lock(&pool->lock);
	for (int i = 0; i < 2 && !r; i++) {
		r = vs_heap_take(pool, &pool->heap[kinds[i]], span, false);
		if (!r)
			r = wake_fit(pool, kinds[i], span, false);
	}
	pthread_mutex_unlock(&pool->lock);
	return r;
}

/* Takes the oldest off what is pending, if it is done; or NULL. Lock. */
static inline struct vs_range *next_done(struct vs_pool *pool)
{
	struct vs_range *r = TAILQ_FIRST(&pool->pending);

	if (!r || !vs_fence_is_done(&pool->fence, r->tag))
		return NULL;
	TAILQ_REMOVE(&pool->pending, r, link);
	pool->pending_bytes -= r->span;
	return r;
}

/*
 * The same, but in one hold of the lock no more than some, since so many views
 * had been touched: each piece of what goes home touches one. Lock.
 */
static inline struct vs_range *next_of_some(struct vs_pool *pool,
					    uint64_t before)
{
	return pool->chunks.touches - before < HOME_AT_ONCE ? next_done(pool)
							    : NULL;
}

/* Of what was freed with a tag or an older one some is done, and not home. */
static inline bool is_more(struct vs_pool *pool, uint64_t tag)
{
	const struct vs_range *r = TAILQ_FIRST(&pool->pending);

	return r && r->tag <= tag && vs_fence_is_done(&pool->fence, r->tag);
}

/* What is done comes onto the shelf, or is kept. Lock. */
static inline void put_aside(struct vs_pool *pool, struct vs_range *r)
{
	r->state = VS_RANGE_SHELVED;
	/* none of a later epoch touches it, whatever is handed out meanwhile */
	r->tag = atomic_load_explicit(&pool->fence.done, memory_order_relaxed);
	pool->shelved_bytes += r->span;
}

/* It is live again, nobody's yet: that of its last life may die. Lock. */
static inline struct vs_range *resurrect(struct vs_range *r)
{
	r->state = VS_RANGE_LIVE;
	vs_range_set_ctx(r, NULL);
	return r;
}

/* It is handed out as it is. Lock. */
static inline struct vs_range *fetch(struct vs_pool *pool, struct vs_range *r)
{
	pool->shelved_bytes -= r->span;
	vs_reuse_show_pending(pool);
	return resurrect(r);
}

/* It goes home after all. Lock. */
static void clear_away(struct vs_pool *pool, struct vs_range *r)
{
	pool->shelved_bytes -= r->span;
	vs_reuse_go_home(pool, r);
}

/* Of what was put aside, a range of a heap; or NULL. */
static struct vs_range *any_aside(struct vs_pool *pool, enum vs_heap_kind kind)
{
	bool is_large = kind == VS_HEAP_LARGE;
	struct vs_range *r = vs_shelf_any(&pool->shelf[kind]);

	return r ? r
		 : vs_kept_within(&pool->kept, is_large ? VS_MIDDLE_MAX : 0,
				  is_large ? UINT64_MAX : VS_MIDDLE_MAX);
}

/* What of a heap was put aside goes home; whether anything was. Lock. */
static bool clear_shelf(struct vs_pool *pool, enum vs_heap_kind kind)
{
	bool is_any = false;
	struct vs_range *r;

	while ((r = any_aside(pool, kind))) {
		clear_away(pool, r);
		is_any = true;
	}
	vs_reuse_show_pending(pool);
	return is_any;
}

static inline bool clear_shelves(struct vs_pool *pool)
{
	bool is_any;

	if (__builtin_expect(pool->shelved_bytes == 0, 1))
		return false;
	is_any = clear_shelf(pool, VS_HEAP_LARGE);
	return clear_shelf(pool, VS_HEAP_MIDDLE) || is_any;
}

bool vs_reuse_harvest(struct vs_pool *pool)
{
	bool is_any = clear_shelves(pool);
	uint64_t before = pool->chunks.touches;
	struct vs_range *r;

	while ((r = next_of_some(pool, before))) {
		vs_reuse_go_home(pool, r);
		is_any = true;
	}
	vs_reuse_show_pending(pool);
	return is_any;
}

/* What is done comes onto the shelf; whether any did. Lock. */
static bool shelve(struct vs_pool *pool)
{
	bool is_any = false;
	struct vs_range *r;

	for (int i = 0; i < HOME_AT_ONCE && (r = next_done(pool)); i++) {
		is_any = true;
		if (was_slab(pool, r)) {
			vs_reuse_go_home(pool, r);
			continue;
		}
		put_aside(pool, r);
		vs_shelf_put(&pool->shelf[vs_reuse_kind(r->span)], r);
	}
	vs_reuse_show_pending(pool);
	return is_any;
}

/* What is done is kept, and what that leaves no room for goes home. Lock. */
static bool keep(struct vs_pool *pool)
{
	bool is_any = false;
	struct vs_range *r, *old;
	uint64_t before;

	/* it churned, until now */
	if (__builtin_expect(pool->shelved_bytes > pool->kept.bytes, 0))
		is_any = clear_shelves(pool);
	before = pool->chunks.touches;
	while ((r = next_of_some(pool, before))) {
		is_any = true;
		if (was_slab(pool, r) || !vs_kept_wants(&pool->kept)) {
			vs_reuse_go_home(pool, r);
			continue;
		}
		while ((old = vs_kept_surplus(&pool->kept)))
			clear_away(pool, old);
		put_aside(pool, r);
		vs_kept_put(&pool->kept, r);
	}
	vs_reuse_show_pending(pool);
	return is_any;
}

/*
 * What was freed first, if it fits: a program that frees and allocates one size
 * in turn is spared the book-keeping of heap and views, half of the
 * instructions. To one that works a place is given by the heap's rule alone,
 * which packs better: this one, if nothing idle fits and nothing else is
 * pending.
 */
static struct vs_range *take_back(struct vs_pool *pool, enum vs_heap_kind kind,
				  uint64_t span)
{
	struct vs_range *r = TAILQ_FIRST(&pool->pending);

	if (!r || r->span != span || kind == VS_HEAP_SLABS ||
	    was_slab(pool, r) ||
	    (TAILQ_NEXT(r, link) && !pool->turnover.is_fast) ||
	    !next_done(pool))
		return NULL;
	vs_reuse_show_pending(pool);
	return resurrect(r);
}

/*
 * A range as it was freed, so many bytes larger at most, or NULL. Something is
 * on a shelf. Lock.
 */
static struct vs_range *take_whole(struct vs_pool *pool, enum vs_heap_kind kind,
				   uint64_t span, uint64_t waste)
{
	struct vs_range *r = NULL;

	if (kind != VS_HEAP_SLABS)
		r = vs_shelf_take(&pool->shelf[kind], span, waste);
	return r ? fetch(pool, r) : NULL;
}

/* What is done goes home, or is put aside; whether any did. Lock. */
static inline bool bring_in(struct vs_pool *pool)
{
	if (pool->turnover.is_fast)
		return vs_turnover_is_roomy(pool) ? shelve(pool)
						  : vs_reuse_harvest(pool);
	/* the count first: most have none, and are spared the calls */
	return pool->orders_left > 0 && !pool->is_trunk_first &&
			       vs_mark_spares_looks(pool) &&
			       !vs_mark_is_scarce(pool)
		       ? keep(pool)
		       : vs_reuse_harvest(pool);
}

/*
 * Nothing idle fits, but something is on a shelf. A program that churns, while
 * the pool holds much more than it needs, is handed what is larger rather than
 * that the shelf is merged, and then no more of what is smaller merges than
 * must. For others, where memory is scarce, and where one is to be cut, all of
 * that goes home, which packs best: what live blocks have too much is missing
 * in the end, and a block that stays should not lie anywhere. Lock.
 */
static __attribute__((noinline)) struct vs_range *
make_fit(struct vs_pool *pool, enum vs_heap_kind kind, uint64_t span)
{
	bool is_spare = pool->turnover.is_fast && vs_turnover_is_roomy(pool) &&
			!vs_mark_is_scarce(pool);
	uint64_t wasted = pool->live_spans - pool->live_bytes;
	struct vs_range *r = NULL, *old;

	if (is_spare && wasted + span / LAST_WASTE_OF_ONE <=
				pool->need / LAST_WASTE_OF_NEED)
		r = take_whole(pool, kind, span, span / LAST_WASTE_OF_ONE);
	while (!r && (old = any_aside(pool, kind))) {
		bool is_to_be_cut = old->span > span;

		clear_away(pool, old);
		if (!is_spare || is_to_be_cut)
			clear_shelf(pool, kind);
		r = vs_heap_take(pool, &pool->heap[kind], span, true);
	}
	vs_reuse_show_pending(pool);
	return r;
}

/*
 * The best fit; if there is none, what was put aside merges, and views are
 * woken. Lock.
 */
static inline struct vs_range *take_fit(struct vs_pool *pool,
					enum vs_heap_kind kind, uint64_t span)
{
	bool is_shelved = __builtin_expect(pool->shelved_bytes > 0, 0);
	struct vs_range *r = NULL;

	if (is_shelved)
		r = take_whole(pool, kind, span, span / SHELVED_WASTE_OF_ONE);
	if (!r)
		r = vs_heap_take(pool, &pool->heap[kind], span, true);
	if (!r && is_shelved && kind != VS_HEAP_SLABS)
		r = make_fit(pool, kind, span);
	return r ? r : wake_fit(pool, kind, span, true);
}

/*
 * Bytes that a kept block may be larger than a request. What a live block has
 * too much nobody gets back: all of them together have little. Nor is one that
 * counts as small made of a large one, nor one of Note [Whole] in pool/chunk
 * used in part. Lock.
 */
static inline uint64_t most_waste(struct vs_pool *pool, enum vs_heap_kind kind,
				  uint64_t span)
{
	uint64_t below =
		kind == VS_HEAP_MIDDLE ? VS_MIDDLE_MAX : VS_WHOLE_LEAST;
	uint64_t most = pool->need / WASTE_OF_NEED;
	uint64_t wasted = pool->live_spans - pool->live_bytes;

	if (wasted >= most || span >= below || vs_mark_is_scarce(pool))
		return 0;
	most -= wasted;
	if (most > span / WASTE_OF_ONE)
		most = span / WASTE_OF_ONE;
	return most < below - span ? most : below - span - 1;
}

struct vs_range *vs_reuse_find(struct vs_pool *pool, enum vs_heap_kind kind,
			       uint64_t span)
{
	struct vs_range *r;

	if (pool->kept.n > 0 && kind != VS_HEAP_SLABS) {
		r = vs_kept_take(&pool->kept, span,
				 most_waste(pool, kind, span));
		if (r)
			return fetch(pool, r);
	}
	/*
	 * Even while something fits: what is idle again in time lies in larger
	 * pieces, and a better fit is found (HACKING.md).
	 */
	if (!TAILQ_EMPTY(&pool->pending)) {
		vs_mark_at_alloc(pool);
		r = pool->turnover.is_fast ? take_back(pool, kind, span) : NULL;
		if (r)
			return r;
		bring_in(pool);
	}
	r = take_fit(pool, kind, span);
	/* with more to come home nothing else is to be done for it yet */
	if (r || TAILQ_EMPTY(&pool->pending) || is_more(pool, UINT64_MAX))
		return r;
	vs_mark_settle(pool);
	r = take_back(pool, kind, span);
	if (!r && bring_in(pool))
		r = take_fit(pool, kind, span);
	if (r && kind != VS_HEAP_SLABS)
		pool->turnover.is_spare_due =
			vs_turnover_wants_spare(pool, span);
	return r;
}

bool vs_reuse_unshelve(struct vs_pool *pool)
{
	bool is_any;

	pthread_mutex_lock(&pool->lock);
	is_any = clear_shelves(pool);
	pthread_mutex_unlock(&pool->lock);
	return is_any;
}

void vs_reuse_bring_home(struct vs_pool *pool)
{
	uint64_t done = atomic_load(&pool->fence.done);

	pthread_mutex_lock(&pool->lock);
	vs_reuse_harvest(pool);
	while (is_more(pool, done)) {
		vs_pool_let_in(pool);
		vs_reuse_harvest(pool);
	}
	pthread_mutex_unlock(&pool->lock);
}

/* Finds it at last, or nothing freed up to a tag is left to come home. Lock. */
static struct vs_range *find_at_last(struct vs_pool *pool,
				     enum vs_heap_kind kind, uint64_t span,
				     uint64_t tag)
{
	struct vs_range *r = vs_reuse_find(pool, kind, span);

	while (!r && is_more(pool, tag)) {
		vs_pool_let_in(pool);
		r = vs_reuse_find(pool, kind, span);
	}
	return r;
}

struct vs_range *vs_reuse_take(struct vs_pool *pool, enum vs_heap_kind kind,
			       uint64_t span)
{
	/* what others free meanwhile may never end */
	uint64_t tag = vs_fence_tag(&pool->fence);
	struct vs_range *r;

	pthread_mutex_lock(&pool->lock);
	r = find_at_last(pool, kind, span, tag);
	pthread_mutex_unlock(&pool->lock);
	return r;
}

struct vs_range *vs_reuse_rest(struct vs_pool *pool, enum vs_heap_kind kind,
			       uint64_t span)
{
	bool is_any;

	pthread_mutex_lock(&pool->lock);
	is_any = is_more(pool, UINT64_MAX);
	pthread_mutex_unlock(&pool->lock);
	return is_any ? vs_reuse_take(pool, kind, span) : NULL;
}
