/* SPDX-License-Identifier: MIT */
#include "heap_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/owner.h"
#include "pool/state.h"

#define PAGE VS_RANGE_ALIGN

#define CHECK(what)                                                            \
	do {                                                                   \
		if (!(what))                                                   \
			wrong(#what, __LINE__);                                \
	} while (0)

static void wrong(const char *what, int line)
{
	fprintf(stderr, "heap_check:%d: not so: %s\n", line, what);
	abort();
}

/* What the walk saw of a chunk. */
struct seen {
	struct seen *next;
	struct vs_chunk *chunk;
	unsigned char *owners, *idles; /* views with a page in use, idle */
	unsigned n_on, n_had, n_views, n_guests;
	uint64_t dead;
	uint64_t used, run; /* the last run of views of one region it is in */
};

enum { BUCKETS = 1024 };
static struct seen *table[BUCKETS];

static struct seen *seen_of(struct vs_chunk *c)
{
	struct seen **link = &table[(uintptr_t)c / 64 % BUCKETS];
	size_t pages = c->size / PAGE;

	while (*link && (*link)->chunk != c)
		link = &(*link)->next;
	if (!*link) {
		*link = calloc(1, sizeof(**link));
		(*link)->chunk = c;
		(*link)->owners = calloc(pages, 1);
		(*link)->idles = calloc(pages, 1);
	}
	return *link;
}

static int is_in_use(const struct vs_range *r)
{
	return r->state == VS_RANGE_LIVE || r->state == VS_RANGE_PENDING ||
	       r->state == VS_RANGE_BUSY || r->state == VS_RANGE_DEAD ||
	       r->state == VS_RANGE_SHELVED;
}

/* One range, as far as it lies over a view that is on. */
static uint64_t look_at_part(struct vs_view *v, struct seen *s,
			     struct vs_range *r)
{
	CUdeviceptr from = r->base > v->at ? r->base : v->at;
	CUdeviceptr to = r->base + r->span, end = v->at + v->chunk->size;

	if (to > end)
		to = end;
	CHECK(r->state != VS_RANGE_HOLE);
	for (CUdeviceptr p = from; p < to; p += PAGE) {
		s->owners[(p - v->at) / PAGE] += is_in_use(r);
		s->idles[(p - v->at) / PAGE] += r->state == VS_RANGE_IDLE;
	}
	if (r->state == VS_RANGE_DEAD)
		s->dead += to - from;
	if (is_in_use(r) && r->span == to - from)
		s->n_guests += vs_chunk_is_guest(v->chunk, r->span);
	if (r->state == VS_RANGE_SHADOW)
		CHECK(r->base >= v->at && r->base + r->span <= end);
	return is_in_use(r) ? to - from : 0;
}

/* A view and the ranges over it; returns the range that its end lies in. */
static struct vs_range *look_at_view(struct vs_view *v, struct vs_range *r)
{
	struct seen *s = seen_of(v->chunk);
	CUdeviceptr end = v->at + v->chunk->size;
	uint64_t used = 0;

	s->n_views++;
	s->n_on += v->is_on;
	s->n_had += vs_view_is_had(v);
	CHECK(!(v->is_on && v->is_asleep));
	if (!v->is_on) {
		CHECK(r->state == VS_RANGE_BUSY && r->base == v->at &&
		      r->base + r->span == end && v->used == 0);
		return r->next;
	}
	for (;; r = r->next) {
		used += look_at_part(v, s, r);
		if (r->base + r->span >= end)
			break;
	}
	CHECK(v->used == used);
	s->used += used;
	return r->base + r->span == end ? r->next : r;
}

static uint64_t n_runs;

static uint64_t n_shelved; /* in the address space of one heap */

static bool is_in(const struct vs_heap *h, const struct vs_range *r)
{
	return r->base >= h->base && r->base < h->end;
}

/* Those of one heap; returns their bytes. */
static uint64_t look_at_kept(const struct vs_heap *h,
			     const struct vs_kept *kept, uint64_t *n_out)
{
	uint64_t bytes = 0;

	CHECK(kept->n <= VS_KEPT_MOST);
	for (unsigned i = 0; i < kept->n; i++) {
		const struct vs_range *r = kept->range[i];

		CHECK(r->state == VS_RANGE_SHELVED);
		CHECK(r->span == kept->span[i]);
		if (!is_in(h, r))
			continue;
		bytes += r->span;
		(*n_out)++;
	}
	return bytes;
}

/* The same of one shelf: its ranges lie in their bins. */
static uint64_t look_at_shelf(const struct vs_heap *h,
			      const struct vs_shelf *shelf, uint64_t *n_out)
{
	uint64_t bytes = 0;

	for (unsigned bin = 0; bin < VS_RANGE_BINS; bin++) {
		const struct vs_range *r = shelf->top[bin];

		CHECK(vs_bins_from(&shelf->filled, bin) == bin || !r);
		CHECK(vs_bins_from(&shelf->filled, bin) != bin || r);
		for (; r; r = r->below) {
			CHECK(r->state == VS_RANGE_SHELVED);
			CHECK(vs_bin_of(r->span) == bin);
			if (!is_in(h, r))
				continue;
			bytes += r->span;
			(*n_out)++;
		}
	}
	return bytes;
}

/*
 * All that is put aside of one heap, as much as it has; returns its bytes. A
 * shelf is for a size: where memory was scarce a large block may lie among the
 * middle ones.
 */
static uint64_t look_aside(const struct vs_pool *pool, const struct vs_heap *h)
{
	uint64_t n = 0, bytes = look_at_kept(h, &pool->kept, &n);

	for (int k = 0; k < VS_HEAP_SLABS; k++)
		bytes += look_at_shelf(h, &pool->shelf[k], &n);
	CHECK(n == n_shelved);
	return bytes;
}

/* Everything mapped in a heap, view by view. */
static void look_at_views(struct vs_pool *pool, struct vs_heap *h)
{
	struct vs_range *r = h->first;
	struct vs_view *last = NULL;
	CUdeviceptr p = h->base;
	uint64_t n_asleep = 0;

	while (r) {
		struct vs_view *v;
		struct seen *s;

		if (r->state == VS_RANGE_HOLE) {
			CHECK(!vs_view_at(pool, r->base));
			CHECK(!vs_view_at(pool, r->base + r->span - 1));
			p = r->base + r->span;
			r = r->next;
			last = NULL;
			continue;
		}
		v = vs_view_at(pool, p);
		CHECK(v && v->at == p);
		p += v->chunk->size;
		CHECK(vs_view_at(pool, p - 1) == v);
		CHECK(vs_view_at(pool, v->at + v->chunk->size / 3) == v);
		s = seen_of(v->chunk);
		if (!last || !last->is_on || last->region != v->region)
			n_runs++;
		CHECK(!v->is_on || s->run != n_runs);
		s->run = n_runs;
		last = v;
		n_asleep += v->is_asleep;
		r = look_at_view(v, r);
	}
	CHECK(h->n_asleep == n_asleep);
}

/* A range is found by each of its bytes. */
static void look_at_names(struct vs_pool *pool, struct vs_range *r)
{
	uint64_t step = r->span / 37 + 1;

	for (uint64_t at = 0; at < r->span; at += step)
		CHECK(vs_heap_at(pool, r->base + at) == r);
	CHECK(vs_heap_at(pool, r->base + r->span - 1) == r);
}

/* A block of the program's is found without the lock, too (pool/owner). */
static void look_at_owner(const struct vs_pool *pool, const struct vs_range *r)
{
	uint64_t id = atomic_load(&r->id), size = atomic_load(&r->size);
	struct vs_span span;

	if (id == 0)
		return;
	CHECK(vs_owner_live(pool, r->base) == r);
	for (uint64_t at = 0; at < size; at += size / 5 + 1)
		CHECK(vs_pool_find(r->base + at, &span) && span.id == id);
	CHECK(vs_pool_find(r->base + size - 1, &span) && span.id == id);
}

static void look_at_ranges(struct vs_pool *pool, struct vs_heap *h)
{
	struct vs_range *r, *last = NULL;
	CUdeviceptr p = h->base;
	size_t n_idle = 0, n_holes = 0, n_idle_tree = 0, n_hole_tree = 0;

	for (r = h->first; r; last = r, r = r->next) {
		CHECK(r->base == p && r->span > 0 && r->span % PAGE == 0);
		CHECK(r->prev == last);
		if (r->state != VS_RANGE_HOLE)
			look_at_names(pool, r);
		look_at_owner(pool, r);
		CHECK(r->state == VS_RANGE_LIVE || atomic_load(&r->id) == 0);
		/* in hands that are to give it to a context yet */
		CHECK(r->state != VS_RANGE_LIVE || atomic_load(&r->id) != 0 ||
		      !r->ctx);
		if (last && last->state == r->state &&
		    r->state == VS_RANGE_HOLE && p != h->trunk_end)
			wrong("two holes side by side", __LINE__);
		if (last && last->state == r->state &&
		    r->state == VS_RANGE_IDLE)
			CHECK(!vs_views_join(pool, p));
		n_idle += r->state == VS_RANGE_IDLE;
		n_shelved += r->state == VS_RANGE_SHELVED;
		n_holes += r->state == VS_RANGE_HOLE;
		p += r->span;
	}
	CHECK(p == h->end && h->last == last);
	for (int part = VS_AWAY; part < VS_N_PARTS; part++) {
		r = vs_heap_below(h, part, UINT64_MAX);
		for (; r; r = vs_heap_smaller(h, r)) {
			CHECK(r->state == VS_RANGE_IDLE);
			CHECK((r->base < h->trunk_end) == (part == VS_TRUNK));
			n_idle_tree++;
		}
		r = vs_heap_hole(h, part, 0);
		for (; r; r = vs_heap_hole(h, part, r->span + 1)) {
			CHECK(r->state == VS_RANGE_HOLE);
			CHECK((r->base < h->trunk_end) == (part == VS_TRUNK));
			n_hole_tree++;
		}
	}
	CHECK(n_idle == n_idle_tree);
	CHECK(n_hole_tree <= n_holes);
}

/* Its last bytes died, but the driver did not let it go. */
static bool is_spent(struct vs_pool *pool, const struct vs_chunk *chunk)
{
	struct vs_chunk *c;

	TAILQ_FOREACH (c, &pool->spent, link) {
		if (c == chunk)
			return true;
	}
	return false;
}

/* What each page is at its several addresses, and the chunk's own sums. */
static void look_at_chunk(struct vs_pool *pool, struct seen *s)
{
	struct vs_chunk *c = s->chunk;
	uint64_t owned = 0, head = 0, tail = 0, pages = c->size / PAGE;

	for (uint64_t i = 0; s->n_on > 0 && i < pages; i++) {
		if (s->owners[i] == 0)
			CHECK(s->idles[i] == s->n_on);
		else
			CHECK(s->owners[i] == 1 && s->idles[i] == 0);
		owned += s->owners[i] ? PAGE : 0;
	}
	CHECK(owned == c->used && s->used == c->used);
	CHECK(!c->is_whole || owned == 0 || owned == c->size);
	CHECK(s->dead == c->dead);
	CHECK(s->n_on == c->n_on && s->n_had == c->n_had);
	CHECK((c->n_had > 0) == (c->n_on > 0));
	CHECK(s->n_guests == c->n_guests);
	if (is_spent(pool, c))
		CHECK(c->place == VS_CHUNK_NOWHERE && !c->used && !c->n_on);
	else
		CHECK(c->place == (c->used   ? VS_CHUNK_NOWHERE
				   : c->n_on ? VS_CHUNK_IDLE
					     : VS_CHUNK_CACHED));
	vs_chunks_refresh(pool);
	if (c->used) {
		while (s->idles[head / PAGE])
			head += PAGE;
		while (s->idles[pages - 1 - tail / PAGE])
			tail += PAGE;
	}
	CHECK(c->head == head && c->tail == tail);
}

static uint64_t sum(struct vs_chunk_list *list, enum vs_chunk_place place,
		    uint64_t *unseen_out)
{
	uint64_t bytes = 0;
	struct vs_chunk *c;

	TAILQ_FOREACH (c, list, link) {
		CHECK(c->place == place && c->used == 0 && c->handle);
		bytes += c->size;
		if (TAILQ_EMPTY(&c->views))
			*unseen_out += c->size;
	}
	return bytes;
}

void heap_check(struct vs_pool *pool)
{
	struct vs_chunks *cs = &pool->chunks;
	uint64_t held = 0, shelved = 0, idle, cached;
	struct vs_chunk *c;

	n_runs = 0;
	for (int k = 0; k < VS_N_HEAPS; k++) {
		n_shelved = 0;
		look_at_ranges(pool, &pool->heap[k]);
		shelved += look_aside(pool, &pool->heap[k]);
		CHECK(k < VS_HEAP_SLABS || n_shelved == 0);
		look_at_views(pool, &pool->heap[k]);
	}
	for (int i = 0; i < BUCKETS; i++) {
		struct seen *s;

		while ((s = table[i])) {
			table[i] = s->next;
			look_at_chunk(pool, s);
			held += s->chunk->size;
			free(s->owners);
			free(s->idles);
			free(s);
		}
	}
	idle = sum(&cs->idle, VS_CHUNK_IDLE, &held);
	cached = sum(&cs->cached, VS_CHUNK_CACHED, &held);
	TAILQ_FOREACH (c, &pool->spent, link)
		held += TAILQ_EMPTY(&c->views) ? c->size : 0;
	CHECK(cs->cached_bytes == cached);
	CHECK(cs->idle_bytes == idle + cached);
	CHECK(cs->held == held);
	CHECK(pool->shelved_bytes == shelved);
	CHECK(vs_stat_get(&pool->stats, idle) == cs->idle_bytes);
	CHECK(vs_stat_get(&pool->stats, reserved) == cs->held);
}
