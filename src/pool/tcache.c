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
/* Serials taken at a time. */
#define SERIALS 4096
/* Objects that a bin's batch may hold at first. */
enum { FIRST_CAP = 2 };

static _Atomic uint64_t next_serial = 1;

static inline void spin_lock(struct vs_tcache *tc)
{
	/*
	 * The other side is a trim: rare, and it may have been preempted, by
	 * this very thread where that has a real-time priority. So it sleeps
	 * in the end: to yield would not let the other run.
	 */
	for (unsigned round = 0;
	     atomic_exchange_explicit(&tc->spin, 1, memory_order_acquire);
	     round++)
		vs_vmm_pause(round);
}

static inline void spin_unlock(struct vs_tcache *tc)
{
	atomic_store_explicit(&tc->spin, 0, memory_order_release);
}

static __attribute__((noinline)) void more_serials(struct vs_tcache *tc)
{
	tc->serial = atomic_fetch_add(&next_serial, SERIALS);
	tc->serial_end = tc->serial + SERIALS;
}

/*
 * Hot. Preconditions: the context of `tc` is current and alive as far as this
 * thread can know, 1 <= size <= VS_SMALL_MAX.
 */
CUdeviceptr vs_tcache_take(struct vs_tcache *tc, size_t size)
{
	struct vs_bin *bin = &tc->bin[vs_class_of(size)];
	struct vs_obj obj;

	spin_lock(tc);
	if (__builtin_expect(!bin->idle || bin->idle->n == 0, 0)) {
		spin_unlock(tc);
		return 0;
	}
	obj = bin->idle->obj[--bin->idle->n];
	if (__builtin_expect(tc->serial == tc->serial_end, 0))
		more_serials(tc);
	atomic_store_explicit(obj.word, VS_WORD(tc->serial++, size),
			      memory_order_release);
	spin_unlock(tc);
	vs_stat_bump(tc, allocs, 1);
	vs_stat_bump(tc, alloc_spans, vs_class_size(vs_class_of(size)));
	vs_stat_bump(tc, live_bytes, size);
	/* released: who sees it sees alloc_spans, too (vs_range_least) */
	atomic_store_explicit(&tc->live_spans,
			      vs_stat_get(tc, live_spans) +
				      vs_class_size(vs_class_of(size)),
			      memory_order_release);
	return obj.address;
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
	bin->cap = FIRST_CAP;
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
		bin->cap = FIRST_CAP;
	else if (bin->cap * 2 <= cap_limit(tc, bin, class))
		bin->cap *= 2;
	spin_unlock(tc);
	if (full) {
		pthread_mutex_lock(&pool->lock);
		if (atomic_load(&tc->ctx->is_dead))
			vs_meta_free(full, sizeof(*full));
		else
			vs_slab_return(pool, tc->slabs, class, full);
		pthread_mutex_unlock(&pool->lock);
	}
	vs_mark_wait_at_free(pool);
	spin_lock(tc);
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
	spin_lock(tc);
	if (__builtin_expect(!bin->freed || bin->freed->n >= bin->cap, 0) &&
	    !make_room(tc, class)) {
		spin_unlock(tc);
		put_beside(tc, slab, i);
	} else {
		add_freed(tc, bin, (struct vs_obj){p, &slab->words[i]});
		spin_unlock(tc);
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

	spin_lock(tc);
	if (bin->idle && !atomic_load(&tc->ctx->is_dead))
		is_filled = bin->idle->n > 0 || turn_round(tc, bin, class);
	spin_unlock(tc);
	return is_filled;
}

bool vs_tcache_refill(struct vs_tcache *tc, unsigned class)
{
	bool is_short = atomic_load(&tc->pool->n_short) > 0, is_filled;
	struct vs_bin *bin = &tc->bin[class];
	unsigned wanted, most;

	if (refill_own(tc, bin, class))
		return true;
	pthread_mutex_lock(&tc->pool->lock);
	spin_lock(tc);
	is_filled = !atomic_load(&tc->ctx->is_dead) && open_bin(bin);
	if (is_filled && bin->idle->n == 0) {
		wanted = bin->cap ? bin->cap : FIRST_CAP;
		most = is_short ? 1 : space(bin);
		if (wanted > most)
			wanted = most;
		is_filled = vs_slab_refill(tc->pool, tc->slabs, class, wanted,
					   most, bin->idle) > 0;
	}
	spin_unlock(tc);
	pthread_mutex_unlock(&tc->pool->lock);
	return is_filled;
}

/*
 * Empties one bin; pool.lock and spin held. Where there can be no marker a free
 * that hands a batch over waits at last; but a thread may end, or rest, before
 * its batches are full, time and again. So the next free here hands over, too.
 * What was freed stays where there is no host memory for it. Returns the bytes
 * of what left it.
 */
static uint64_t flush_bin(struct vs_pool *pool, struct vs_tcache *tc,
			  unsigned class, bool is_dying)
{
	struct vs_bin *bin = &tc->bin[class];
	uint64_t n;

	if (!bin->idle)
		return 0;
	n = bin->idle->n;
	for (unsigned i = 0; i < bin->idle->n && !is_dying; i++)
		vs_slab_put(pool, bin->idle->obj[i]);
	bin->idle->n = 0;
	if (bin->freed->n > 0 && !is_dying &&
	    !vs_slab_return_few(pool, tc->slabs, class, bin->freed->obj,
				bin->freed->n, bin->freed->tag))
		return n * vs_class_size(class);
	n += bin->freed->n;
	bin->freed->n = bin->n_old = 0;
	bin->cap = vs_fence_may_mark(&pool->fence) ? FIRST_CAP : 0;
	return n * vs_class_size(class);
}

/* pool.lock and spin held. `is_dying`: the objects go with their slabs. */
static uint64_t flush_bins(struct vs_pool *pool, struct vs_tcache *tc,
			   bool is_dying)
{
	uint64_t bytes = 0;

	for (unsigned c = 0; c < VS_N_CLASSES; c++)
		bytes += flush_bin(pool, tc, c, is_dying);
	return bytes;
}

static uint64_t flush_cache(struct vs_pool *pool, struct vs_tcache *tc,
			    bool is_dying)
{
	uint64_t bytes = 0;

	spin_lock(tc);
	if (is_dying || !atomic_load(&tc->ctx->is_dead))
		bytes = flush_bins(pool, tc, is_dying);
	spin_unlock(tc);
	return bytes;
}

/*
 * The empty batches of a thread that ends serve others: two of 4 KiB for each
 * class that it ever had anything of. What one could not be emptied of goes
 * home in it. pool.lock and spin held.
 */
static void close_bins(struct vs_pool *pool, struct vs_tcache *tc)
{
	for (unsigned c = 0; c < VS_N_CLASSES; c++) {
		struct vs_bin *bin = &tc->bin[c];
		bool is_empty = bin->idle && bin->freed->n == 0;

		/* cap 0: see flush_bin() */
		if (!bin->idle || (is_empty && bin->cap == 0))
			continue;
		if (is_empty)
			vs_meta_free(bin->freed, sizeof(*bin->freed));
		else
			vs_slab_return(pool, tc->slabs, c, bin->freed);
		vs_meta_free(bin->idle, sizeof(*bin->idle));
		bin->idle = bin->freed = NULL;
	}
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
	spin_lock(tc);
	/*
	 * What the cache holds of a context that is just dying goes with it.
	 * Its flush may be yet to come, and would not know the cache any more.
	 */
	if (tc->handle)
		flush_bins(pool, tc, true);
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
	spin_unlock(tc);
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

uint64_t vs_tcache_flush(struct vs_pool *pool, struct vs_ctx *ctx)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&pool->lock);
	VS_EACH_TCACHE (tc, pool) {
		if (!ctx || tc->ctx == ctx)
			bytes += flush_cache(pool, tc, ctx != NULL);
	}
	pthread_mutex_unlock(&pool->lock);
	return bytes;
}

void vs_tcache_flush_unused(struct vs_pool *pool)
{
	VS_EACH_TCACHE (tc, pool) {
		uint64_t calls = vs_stat_get(tc, allocs);

		calls += vs_stat_get(tc, frees);
		if (calls == tc->seen_calls && !tc->is_rested)
			flush_cache(pool, tc, false);
		tc->is_rested = calls == tc->seen_calls;
		tc->seen_calls = calls;
	}
}

/* The context may just be dying: what it still has here goes with it. */
static void retire(struct vs_pool *pool, struct vs_tcache *tc)
{
	pthread_mutex_lock(&pool->lock);
	spin_lock(tc);
	flush_bins(pool, tc, atomic_load(&tc->ctx->is_dead));
	close_bins(pool, tc);
	tc->handle = NULL;
	spin_unlock(tc);
	vs_census_leave(&pool->census, tc);
	pthread_mutex_unlock(&pool->lock);
}

void vs_tcache_exit(struct vs_thread *t)
{
	vs_thread_go_deeper(t);
	for (struct vs_tcache *tc = t->cache; tc; tc = tc->next) {
		if (tc->handle)
			retire(tc->pool, tc);
	}
	vs_thread_come_back(t);
}

uint64_t vs_serial_next(void)
{
	return atomic_fetch_add_explicit(&next_serial, 1, memory_order_relaxed);
}
