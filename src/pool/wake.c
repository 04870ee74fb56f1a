/* SPDX-License-Identifier: MIT */
#include "pool/wake.h"

#include "pool/state.h"
#include "pool/view.h"

/*
 * Views looked at in all, and on either side of each; chunks sorted before. At
 * most some .1 ms: what would take longer is not worth it, nor is it for others
 * that wait for the lock.
 */
enum { LOOKS = 256, SIDE_MOST = 16, SORTED_MOST = 1024 };

/* What would be idle side by side. */
struct run {
	struct vs_view *first;
	uint64_t span;
	bool is_asleep; /* one of them is */
};

static bool is_in(const struct vs_heap *h, const struct vs_view *v)
{
	return vs_view_is_had(v) && v->at >= h->base && v->at < h->end;
}

static bool is_idle(const struct vs_view *v)
{
	return v->chunk->used == 0;
}

/* Idle bytes of a view, from one end on. */
static uint64_t idle_at(const struct vs_view *v, enum vs_chunk_end end)
{
	return is_idle(v) ? v->chunk->size : vs_chunk_idle_at(v->chunk, end);
}

/* That at an address in the same region, or NULL. */
static struct vs_view *neighbour(const struct vs_pool *pool,
				 const struct vs_heap *h,
				 const struct vs_view *v, CUdeviceptr p)
{
	struct vs_view *w =
		p >= h->base && p < h->end ? vs_view_at(pool, p) : NULL;

	return w && w->region == v->region && vs_view_is_had(w) ? w : NULL;
}

static struct vs_view *left_of(const struct vs_pool *pool,
			       const struct vs_heap *h, const struct vs_view *v)
{
	return neighbour(pool, h, v, v->at - 1);
}

static struct vs_view *right_of(const struct vs_pool *pool,
				const struct vs_heap *h,
				const struct vs_view *v)
{
	return neighbour(pool, h, v, vs_view_end(v));
}

/* With what is idle left of its first. */
static void go_left(const struct vs_pool *pool, const struct vs_heap *h,
		    struct run *run)
{
	for (int i = 0; i < SIDE_MOST; i++) {
		struct vs_view *v = left_of(pool, h, run->first);
		uint64_t n = v ? idle_at(v, VS_CHUNK_TAIL) : 0;

		if (n == 0)
			return;
		run->first = v;
		run->span += n;
		run->is_asleep |= v->is_asleep;
		if (n < v->chunk->size)
			return;
	}
}

/* With what is idle right of a view, its last. */
static void go_right(const struct vs_pool *pool, const struct vs_heap *h,
		     const struct vs_view *last, struct run *run)
{
	for (int i = 0; i < SIDE_MOST; i++) {
		const struct vs_view *v = right_of(pool, h, last);
		uint64_t n = v ? idle_at(v, VS_CHUNK_HEAD) : 0;

		if (n == 0)
			return;
		run->span += n;
		run->is_asleep |= v->is_asleep;
		if (n < v->chunk->size)
			return;
		last = v;
	}
}

/* What is idle beside a view and, itself, in it: all, or its tail. */
static void look(const struct vs_pool *pool, const struct vs_heap *h,
		 struct vs_view *v, uint64_t span, struct run *best)
{
	struct run run = {v, idle_at(v, VS_CHUNK_TAIL), v->is_asleep};

	if (is_idle(v) && !pool->is_contiguous)
		go_left(pool, h, &run);
	if (!pool->is_contiguous)
		go_right(pool, h, v, &run);
	/* without one that is asleep it was there before, and is not to be */
	if (run.is_asleep && run.span >= span &&
	    (!best->first || run.span < best->span))
		*best = run;
}

/* From the views of a chunk on; returns how many there are. */
static int look_at_all(const struct vs_pool *pool, const struct vs_heap *h,
		       const struct vs_chunk *c, uint64_t span,
		       struct run *best)
{
	struct vs_view *v;

	TAILQ_FOREACH (v, &c->views, link) {
		if (is_in(h, v))
			look(pool, h, v, span, best);
	}
	return c->n_had;
}

/*
 * An idle chunk is in each run, or one that begins with the tail of a chunk
 * ends with the head of the next.
 */
static struct run find(struct vs_pool *pool, const struct vs_heap *h,
		       uint64_t span)
{
	struct run best = {NULL, 0, false};
	uint64_t idle = pool->chunks.idle_bytes - pool->chunks.cached_bytes;
	struct vs_chunk *tail, *c;
	uint64_t head;
	int looks = 0;

	vs_chunks_refresh_some(pool, SORTED_MOST);
	tail = vs_chunk_end_last(pool, VS_CHUNK_TAIL);
	c = vs_chunk_end_last(pool, VS_CHUNK_HEAD);
	head = c ? c->head : 0;
	if (idle + head + (tail ? tail->tail : 0) < span)
		return best;
	TAILQ_FOREACH (c, &pool->chunks.idle, link) {
		if (looks >= LOOKS)
			return best;
		looks += look_at_all(pool, h, c, span, &best);
	}
	for (c = tail; c && c->tail + head >= span && looks < LOOKS;
	     c = vs_chunk_end_prev(c, VS_CHUNK_TAIL))
		looks += look_at_all(pool, h, c, span, &best);
	return best;
}

bool vs_wake(struct vs_pool *pool, struct vs_heap *h, uint64_t span)
{
	struct run run;
	bool is_any = false;
	uint64_t n = 0;

	if (h->vain_touches == pool->chunks.touches && span >= h->vain_span)
		return false;
	run = find(pool, h, span);
	/* as many as must, from the left on */
	for (struct vs_view *v = run.first; v && n < span;
	     v = right_of(pool, h, v)) {
		n += idle_at(v, v == run.first ? VS_CHUNK_TAIL : VS_CHUNK_HEAD);
		if (!v->is_asleep)
			continue;
		if (!vs_view_on(pool, v))
			break;
		is_any = true;
	}
	if (!run.first) {
		h->vain_touches = pool->chunks.touches;
		h->vain_span = span;
	}
	return is_any;
}
