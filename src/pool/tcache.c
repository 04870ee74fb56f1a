/* SPDX-License-Identifier: MIT */
#include "pool/tcache.h"

#include <pthread.h>
#include <string.h>

#include "base/meta.h"
#include "driver/vmm.h"
#include "pool/mark.h"
#include "pool/pool.h"

/*
 * Bytes that a bin's batch may hold. A marker serves a batch, and where it is
 * most of the cost batches are larger for the next turns: when threads meet at
 * the fence (1 us alone, 3 us where four do it, on an H200), and when a bin has
 * had one just before: then its thread does nothing but allocate and free,
 * since a framework takes some us for each launch alone.
 */
#define BIN_BYTES ((size_t)16 << 20)
enum { WIDE_TURNS = 64 }; /* of 8, two threads had half as many a marker */
/* Ticks; or so many for each free of the thread's since. */
#define JUST_BEFORE ((uint64_t)8000)
#define EACH_FREE ((uint64_t)2000)
/*
 * ns: for so long none is looked for again, since the driver is asked for four
 * of its chunks before it is known that there is none.
 */
#define LARGER_LASTS ((uint64_t)20000000)
/*
 * Objects of near classes, at most, for each look that brought none of the own:
 * with a GPU 10 ms behind a churn asked the driver .39 times an allocation, and
 * .09 so. With 15 another one held 355 MiB for 324 (2 ms; counting driver).
 */
enum { NEAR_MOST = 7 };
/* Serials taken at a time. */
#define SERIALS 4096

static _Atomic uint64_t next_serial = 1;

static __attribute__((noinline)) void more_serials(struct vs_tcache *tc)
{
	tc->serial = atomic_fetch_add(&next_serial, SERIALS);
	tc->serial_end = tc->serial + SERIALS;
}

/* Hot. `size` bytes of an object of a class; 0 if its bin is empty. */
static inline __attribute__((always_inline)) CUdeviceptr
take(struct vs_tcache *tc, unsigned class, size_t size)
{
	struct vs_bin *bin = &tc->bin[class];
	struct vs_obj obj;

	vs_tcache_lock(tc);
	if (__builtin_expect(!bin->idle || bin->idle->n == 0, 0)) {
		vs_tcache_unlock(tc);
		return 0;
	}
	obj = bin->idle->obj[--bin->idle->n];
	if (__builtin_expect(tc->serial == tc->serial_end, 0))
		more_serials(tc);
	atomic_store_explicit(obj.word, VS_WORD(tc->serial++, size),
			      memory_order_release);
	vs_tcache_unlock(tc);
	vs_stat_bump(tc, allocs, 1);
	vs_stat_bump(tc, alloc_spans, vs_class_size(class));
	vs_stat_bump(tc, live_bytes, size);
	/* released: who sees it sees alloc_spans, too (vs_range_least) */
	atomic_store_explicit(&tc->live_spans,
			      vs_stat_get(tc, live_spans) +
				      vs_class_size(class),
			      memory_order_release);
	return obj.address;
}

/*
 * Hot. Preconditions: the context of `tc` is current and alive as far as this
 * thread can know, 1 <= size <= VS_SMALL_MAX.
 */
CUdeviceptr vs_tcache_take(struct vs_tcache *tc, size_t size)
{
	return take(tc, vs_class_of(size), size);
}

static unsigned cap_limit(const struct vs_tcache *tc, const struct vs_bin *bin,
			  unsigned class)
{
	size_t share = VS_WIDE_BIN_BYTES >>
		       atomic_load_explicit(&tc->pool->quota.halved,
					    memory_order_relaxed);
	size_t bytes = bin->wide ? VS_WIDE_BIN_BYTES : BIN_BYTES;
	size_t n = (bytes < share ? bytes : share) / vs_class_size(class);

	return n > VS_BATCH ? VS_BATCH : (unsigned)n;
}

/* Both batches or none: what is in one of a closed bin would be forgotten. */
static bool open_bin(struct vs_bin *bin)
{
	struct vs_batch *freed, *idle;

	if (bin->idle)
		return true;
	freed = vs_meta_alloc(sizeof(*freed));
	idle = vs_meta_alloc(sizeof(*idle));
	if (!freed || !idle) {
		vs_meta_free(freed, sizeof(*freed));
		vs_meta_free(idle, sizeof(*idle));
		return false;
	}
	bin->freed = freed;
	bin->idle = idle;
	bin->cap = VS_FIRST_CAP;
	return true;
}

/* What the bin has freed, as it is; the bin has a new page. NULL: no memory. */
static struct vs_batch *take_freed(struct vs_bin *bin)
{
	struct vs_batch *full = bin->freed;
	struct vs_batch *next = vs_meta_alloc_dirty(sizeof(*next));

	if (!next)
		return NULL;
	next->tag = full->tag;
	next->n = bin->n_old = 0;
	bin->freed = next;
	return full;
}

/*
 * Makes room for one more freed object: hands a full batch to the pool (that of
 * a bin that was flushed is empty, and stays), and lets the next one grow. None
 * of it lies on the stack, which may be small: the driver is called. Without
 * host memory a batch goes on to the end of its page. Spin held, given up
 * inside. False: no host memory.
 */
static __attribute__((noinline)) bool make_room(struct vs_tcache *tc,
						unsigned class)
{
	struct vs_bin *bin = &tc->bin[class];
	struct vs_pool *pool = tc->pool;
	struct vs_batch *full = NULL;

	if (!open_bin(bin))
		return false;
	if (bin->freed->n < bin->cap)
		return true;
	if (bin->freed->n > 0 && !(full = take_freed(bin)))
		return bin->freed->n < VS_BATCH;
	if (bin->cap == 0)
		bin->cap = VS_FIRST_CAP;
	else if (bin->cap * 2 <= cap_limit(tc, bin, class))
		bin->cap *= 2;
	vs_tcache_unlock(tc);
	if (full) {
		pthread_mutex_lock(&pool->lock);
		if (atomic_load(&tc->ctx->is_dead))
			vs_meta_free(full, sizeof(*full));
		else
			vs_slab_return(pool, tc->slabs, class, full);
		pthread_mutex_unlock(&pool->lock);
	}
	vs_mark_wait_at_free(pool);
	vs_tcache_lock(tc);
	return true;
}

/* The word of the object whose base `p` is; 0: it is none, or not live. */
static inline uint64_t word_of(struct vs_slab *slab, CUdeviceptr p,
			       unsigned *index_out)
{
	unsigned i = vs_slab_object(slab, p);
	uint64_t word;

	if (i >= slab->n_objects)
		return 0;
	*index_out = i;
	word = atomic_load_explicit(&slab->words[i], memory_order_acquire);
	/* after the word: it may be that of another place by now */
	return vs_slab_base(slab) + i * vs_class_size(slab->class) == p ? word
									: 0;
}

/*
 * Ends the life that the object had when its word was read. No two lives have
 * the same: it may have ended meanwhile, and the slab be another context's.
 */
static inline bool end_life(struct vs_slab *slab, unsigned i, uint64_t word)
{
	return atomic_compare_exchange_strong_explicit(&slab->words[i], &word,
						       0, memory_order_acq_rel,
						       memory_order_relaxed);
}

/* There is room for it. Spin. */
static inline void add_freed(struct vs_tcache *tc, struct vs_bin *bin,
			     struct vs_obj obj)
{
	uint64_t tag = vs_fence_tag(&tc->pool->fence);

	/* else one before it was noted with this tag */
	if (tag != bin->freed->tag) {
		vs_fence_note(&tc->pool->fence.bare, tag);
		bin->n_old = bin->freed->n;
		bin->tag_old = bin->freed->tag;
		bin->freed->tag = tag;
	}
	bin->freed->obj[bin->freed->n++] = obj;
}

/* There is no host memory for it in the cache. */
static __attribute__((noinline)) void
put_beside(struct vs_tcache *tc, struct vs_slab *slab, unsigned i)
{
	pthread_mutex_lock(&tc->pool->lock);
	if (!atomic_load(&tc->ctx->is_dead))
		vs_slab_return_one(tc->pool, slab, i);
	pthread_mutex_unlock(&tc->pool->lock);
}

/*
 * Hot. Whose the slab is counts as of when the object was live. Once that is in
 * the cache another thread may empty the cache, and the slab may be gone.
 */
CUresult vs_tcache_put(struct vs_tcache *tc, struct vs_slab *slab,
		       CUdeviceptr p)
{
	unsigned class = slab->class, i;
	struct vs_bin *bin = &tc->bin[class];
	uint64_t word = word_of(slab, p, &i);

	if (__builtin_expect(word == 0 || vs_slab_caches(slab) != tc->ctx ||
				     !end_life(slab, i, word),
			     0))
		return VS_PASS;
	vs_tcache_lock(tc);
	if (__builtin_expect(!bin->freed || bin->freed->n >= bin->cap, 0) &&
	    !make_room(tc, class)) {
		vs_tcache_unlock(tc);
		put_beside(tc, slab, i);
	} else {
		add_freed(tc, bin, (struct vs_obj){p, &slab->words[i]});
		vs_tcache_unlock(tc);
	}
	vs_stat_bump(tc, frees, 1);
	vs_stat_bump(tc, live_bytes, -VS_WORD_SIZE(word));
	vs_stat_bump(tc, live_spans, -vs_class_size(class));
	return CUDA_SUCCESS;
}

/* All that was freed is idle: the two batches change places. Spin. */
static void take_all(struct vs_bin *bin)
{
	struct vs_batch *freed = bin->freed;

	bin->freed = bin->idle;
	bin->idle = freed;
	bin->n_old = 0;
}

/* The first `n_old` that were freed are idle. Spin. */
static void take_old(struct vs_bin *bin)
{
	struct vs_batch *freed = bin->freed;
	unsigned n = bin->n_old;

	memcpy(bin->idle->obj, freed->obj, n * sizeof(freed->obj[0]));
	bin->idle->n = n;
	freed->n -= n;
	memmove(freed->obj, freed->obj + n, freed->n * sizeof(freed->obj[0]));
	bin->n_old = 0;
}

/* Takes what is done by what the host has seen so far. Spin. */
static bool take_done(struct vs_tcache *tc, struct vs_bin *bin)
{
	struct vs_fence *f = &tc->pool->fence;

	if (vs_fence_is_done(f, bin->freed->tag))
		take_all(bin);
	else if (bin->n_old > 0 && vs_fence_is_done(f, bin->tag_old))
		take_old(bin);
	else
		return false;
	return true;
}

/* Has a marker cover the bin's batch, and notes whether it was dear. */
static void settle(struct vs_tcache *tc, struct vs_bin *bin)
{
	struct vs_fence *f = &tc->pool->fence;
	uint64_t before =
		atomic_load_explicit(&f->crowded, memory_order_relaxed);
	uint64_t now = vs_vmm_ticks();
	uint64_t frees = vs_stat_get(tc, frees);
	uint64_t apart = now - bin->settled;
	uint64_t n = frees - bin->settled_frees;
	bool is_just_before = apart < JUST_BEFORE || apart < n * EACH_FREE;

	bin->settled = now;
	bin->settled_frees = frees;
	vs_fence_settle(f, bin->freed->tag);
	if (is_just_before ||
	    atomic_load_explicit(&f->crowded, memory_order_relaxed) != before)
		bin->wide = WIDE_TURNS;
	else if (bin->wide > 0)
		bin->wide--;
}

/* So many are not worth a marker, if there are others to be had. */
static unsigned few(const struct vs_bin *bin)
{
	return bin->wide && bin->cap > 0 ? bin->cap - bin->cap / 8 - 1
					 : bin->cap / 2;
}

/*
 * So many more make a batch full. With more than that a thread in a loop would
 * hand a full batch to the pool and fetch another one, each time round.
 */
static unsigned space(const struct vs_bin *bin)
{
	unsigned n = bin->freed->n;

	return bin->wide && n > 0 && n <= few(bin) ? bin->cap - n : VS_BATCH;
}

/*
 * The thread's own freed objects become idle when their tag is done; that is
 * the cycle of a program that allocates and frees in a loop. Each time round
 * the bin may hold twice as much, so that one marker serves more frees; and
 * first it is tried whether the markers of others serve.
 * Precondition: no idle object. Spin held.
 */
static bool turn_round(struct vs_tcache *tc, struct vs_bin *bin, unsigned class)
{
	struct vs_fence *f = &tc->pool->fence;
	unsigned limit = cap_limit(tc, bin, class);
	bool is_done;

	if (bin->freed->n == 0)
		return false;
	is_done = take_done(tc, bin);
	if (!is_done && bin->n_old > 0) {
		vs_fence_glance(f);
		is_done = take_done(tc, bin);
	}
	if (!is_done) {
		if (bin->freed->n < limit && bin->freed->n <= few(bin))
			return false;
		settle(tc, bin);
		is_done = take_done(tc, bin);
	}
	limit = cap_limit(tc, bin, class);
	if (is_done)
		bin->cap = bin->cap * 2 < limit ? bin->cap * 2 : limit;
	return is_done;
}

/* Without the pool's lock: the thread's own objects, if their work is done. */
static bool refill_own(struct vs_tcache *tc, struct vs_bin *bin, unsigned class)
{
	bool is_filled = false;

	vs_tcache_lock(tc);
	if (bin->idle && !atomic_load(&tc->ctx->is_dead))
		is_filled = bin->idle->n > 0 || turn_round(tc, bin, class);
	vs_tcache_unlock(tc);
	return is_filled;
}

bool vs_tcache_refill(struct vs_tcache *tc, unsigned class)
{
	bool is_short = atomic_load(&tc->pool->n_short) > 0, is_filled;
	struct vs_bin *bin = &tc->bin[class];
	unsigned wanted, most;

	if (refill_own(tc, bin, class)) {
		bin->near_most = 0;
		return true;
	}
	pthread_mutex_lock(&tc->pool->lock);
	vs_tcache_lock(tc);
	is_filled = !atomic_load(&tc->ctx->is_dead) && open_bin(bin);
	if (is_filled && bin->idle->n == 0) {
		wanted = bin->cap ? bin->cap : VS_FIRST_CAP;
		most = is_short ? 1 : space(bin);
		if (wanted > most)
			wanted = most;
		is_filled = vs_slab_refill(tc->pool, tc->slabs, class, wanted,
					   most, bin->idle) > 0;
		if (is_filled)
			bin->near_most = 0;
	}
	vs_tcache_unlock(tc);
	pthread_mutex_unlock(&tc->pool->lock);
	return is_filled;
}

static CUdeviceptr take_larger(struct vs_tcache *tc, size_t size)
{
	CUdeviceptr p = 0;

	for (unsigned c = vs_class_of(size) + 1; !p && c < VS_N_CLASSES; c++)
		if (vs_tcache_refill(tc, c))
			p = take(tc, c, size);
	return p;
}

CUdeviceptr vs_tcache_take_larger(struct vs_tcache *tc, size_t size)
{
	CUdeviceptr p = take_larger(tc, size);

	if (p) {
		tc->larger_until = vs_vmm_clock() + LARGER_LASTS;
		tc->larger_frees = vs_stat_get(tc, frees);
	}
	return p;
}

/* Nor has this thread freed any, or anybody what slabs could be made of. */
static bool is_as_short(struct vs_tcache *tc)
{
	const struct vs_stats *stats = &tc->pool->stats;

	return vs_vmm_clock() < tc->larger_until &&
	       vs_stat_get(tc, frees) == tc->larger_frees &&
	       vs_stat_get(stats, idle) == 0 &&
	       vs_stat_get(stats, pending) == 0;
}

/*
 * To a program that churns an idle object up to half as large again, or 0. It
 * needs each class's objects now and then for the most that it ever had pending
 * of them, and each new chunk takes some 300 us beside its kernels (H200).
 */
static CUdeviceptr take_near(struct vs_tcache *tc, size_t size)
{
	unsigned class = vs_class_of(size);
	size_t most = vs_class_size(class) / 2 * 3;
	CUdeviceptr p = 0;

	if (!vs_turnover_was_fast(&tc->pool->turnover))
		return 0;
	while (!p && ++class < VS_N_CLASSES && vs_class_size(class) <= most)
		p = take(tc, class, size);
	return p;
}

CUdeviceptr vs_tcache_take_near_again(struct vs_tcache *tc, size_t size)
{
	struct vs_bin *bin = &tc->bin[vs_class_of(size)];

	if (bin->near_left == 0)
		return 0;
	bin->near_left--;
	return take_near(tc, size);
}

CUdeviceptr vs_tcache_take_instead(struct vs_tcache *tc, size_t size)
{
	struct vs_bin *bin = &tc->bin[vs_class_of(size)];
	CUdeviceptr p = take_near(tc, size);

	if (p) {
		if (bin->near_most < NEAR_MOST)
			bin->near_most = bin->near_most * 2 + 1; /* 1, 3, 7 */
		bin->near_left = bin->near_most;
		return p;
	}
	if (tc->larger_until > 0 && is_as_short(tc))
		return take_larger(tc, size);
	tc->larger_until = 0;
	return 0;
}

struct vs_tcache *vs_tcache_find(struct vs_thread *t, CUcontext handle)
{
	struct vs_tcache *tc;

	for (tc = t->cache; tc; tc = tc->next) {
		if (tc->handle == handle && !atomic_load(&tc->ctx->is_dead))
			return tc;
	}
	return NULL;
}

/*
 * A cache of this thread whose context has died serves the new one; so does one
 * of the thread that had this one's struct.
 */
static struct vs_tcache *reuse(struct vs_thread *t, struct vs_pool *pool)
{
	struct vs_tcache *tc;

	for (tc = t->cache; tc; tc = tc->next) {
		if (tc->pool == pool &&
		    (!tc->handle || atomic_load(&tc->ctx->is_dead)))
			return tc;
	}
	return NULL;
}

struct vs_tcache *vs_tcache_make(struct vs_thread *t, struct vs_pool *pool,
				 struct vs_ctx *ctx)
{
	struct vs_tcache *tc = reuse(t, pool);
	bool is_new = !tc;

	if (is_new)
		tc = vs_meta_alloc(sizeof(*tc));
	if (!tc)
		return NULL;
	pthread_mutex_lock(&pool->lock);
	vs_tcache_lock(tc);
	/*
	 * What the cache holds of a context that is just dying goes with it.
	 * Its flush may be yet to come, and would not know the cache any more.
	 */
	if (tc->handle)
		vs_tcache_empty(pool, tc, true);
	/* slabs that a dead one was given now would stay for ever */
	tc->slabs = atomic_load(&ctx->is_dead) ? NULL : vs_slabs_of(pool, ctx);
	if (tc->slabs) {
		if (!tc->handle)
			vs_census_enter(&pool->census, tc);
		tc->pool = pool;
		tc->ctx = ctx;
		tc->handle = ctx->handle;
		tc->small_max = pool->is_fussy ? 0 : VS_SMALL_MAX;
		if (is_new) {
			tc->next_made = atomic_load(&pool->tcaches);
			atomic_store_explicit(&pool->tcaches, tc,
					      memory_order_release);
			tc->next = t->cache;
			t->cache = tc;
		}
	}
	vs_tcache_unlock(tc);
	pthread_mutex_unlock(&pool->lock);
	if (is_new && !tc->slabs) {
		vs_meta_free(tc, sizeof(*tc));
		return NULL;
	}
	return tc->slabs ? tc : NULL;
}

CUresult vs_tcache_put_elsewhere(struct vs_pool *pool, struct vs_ctx *current,
				 struct vs_slab *slab, CUdeviceptr p)
{
	uint64_t word = 0;
	unsigned i = 0;

	pthread_mutex_lock(&pool->lock);
	/*
	 * Its context may just have ended, and the slab be another's,
	 * elsewhere, whose stock must not get this object.
	 */
	if (!atomic_load(&current->is_dead) && vs_slab_at(pool, p) == slab)
		word = word_of(slab, p, &i);
	if (word == 0 || !end_life(slab, i, word)) {
		pthread_mutex_unlock(&pool->lock);
		return VS_PASS;
	}
	vs_slab_return_one(pool, slab, i);
	vs_stat_bump(pool, odd_frees, 1);
	vs_stat_bump(pool, odd_free_bytes, VS_WORD_SIZE(word));
	vs_stat_bump(pool, odd_free_spans, vs_class_size(slab->class));
	pthread_mutex_unlock(&pool->lock);
	vs_mark_wait_at_free(pool);
	return CUDA_SUCCESS;
}

uint64_t vs_serial_next(void)
{
	return atomic_fetch_add_explicit(&next_serial, 1, memory_order_relaxed);
}
