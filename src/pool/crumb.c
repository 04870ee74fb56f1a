/* SPDX-License-Identifier: MIT */
#include "pool/crumb.h"

#include "pool/plan.h"

struct crumb_rule {
	unsigned share; /* a crumb has such a part of the usual size at most, */
	unsigned moves; /* and was moved so often */
	unsigned n, most; /* so many at least, and at once */
	bool is_small;	  /* only what was made for small blocks */
};

static const struct crumb_rule crumb_rules[] = {
	{8, 2, 16, VS_CRUMBS_MOST, true},
	{1, 8, 8, 64, false},
};

/* A request of more chunks is made of many: 1 to 3 ms of the driver's time. */
enum { FEW = 32 };

/* See Note [Dust] in pool/crumb.h. */
static bool is_of_many(struct vs_pool *pool, uint64_t span)
{
	struct vs_chunk *c;
	uint64_t bytes = 0;

	if (pool->toll.level == 0)
		return false;
	c = vs_chunk_free_last(pool);
	for (int i = 0; c && i < FEW && bytes < span; i++) {
		bytes += c->is_whole ? 0 : c->size;
		c = vs_chunk_free_prev(c);
	}
	return bytes < span;
}

/* Beyond need after twice as many moves, and of slabs alone, but `is_dust`. */
static bool is_crumb(struct vs_pool *pool, const struct vs_chunk *c,
		     const struct crumb_rule *rule, bool is_beyond,
		     bool is_dust)
{
	unsigned moves = is_beyond ? 2 * rule->moves : rule->moves;

	return !c->is_whole && (c->is_small || !rule->is_small) &&
	       (c->is_of_slabs || !is_beyond || is_dust) &&
	       c->n_moved >= moves && vs_chunk_is_quiet(pool, c);
}

/* By one rule. */
static unsigned choose(struct vs_pool *pool, enum vs_heap_kind kind,
		       uint64_t span, const struct crumb_rule *rule,
		       struct vs_chunk **crumbs)
{
	uint64_t most = vs_plan_crumb(pool, kind) / rule->share, bytes = 0;
	uint64_t loose = vs_chunks_loose(&pool->chunks);
	bool is_beyond = vs_plan_beyond(pool, 0) > 0, is_dust;
	unsigned n = 0;

	if (most == 0 || loose < span)
		return 0;
	is_dust = is_of_many(pool, span);
	/* so much will do without them, however many they are */
	if (!is_dust && loose >= 2 * span + most)
		return 0;
	vs_chunks_refresh(pool);
	for (struct vs_chunk *c = vs_chunk_free_from(pool, 1);
	     c && c->size <= most && n < rule->most && bytes < span;
	     c = vs_chunk_free_next(c)) {
		if (!is_crumb(pool, c, rule, is_beyond, is_dust))
			continue;
		crumbs[n++] = c;
		bytes += c->size;
	}
	return n < rule->n || (!is_dust && loose - bytes >= span) ? 0 : n;
}

unsigned vs_crumbs_for(struct vs_pool *pool, enum vs_heap_kind kind,
		       uint64_t span, struct vs_chunk **crumbs)
{
	unsigned n = choose(pool, kind, span, &crumb_rules[0], crumbs);

	return n > 0 ? n : choose(pool, kind, span, &crumb_rules[1], crumbs);
}
