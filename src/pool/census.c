/* SPDX-License-Identifier: MIT */
#include "pool/census.h"

#include "base/stat.h"
#include "pool/tcache.h"

/* All that a cache counts, times 1 or, as sums wrap, minus 1. */
static void add(struct vs_census *census, const struct vs_tcache *tc,
		uint64_t times)
{
	census->allocs += times * vs_stat_get(tc, allocs);
	census->frees += times * vs_stat_get(tc, frees);
	census->alloc_spans += times * vs_stat_get(tc, alloc_spans);
	census->live_bytes += times * vs_stat_get(tc, live_bytes);
	census->live_spans += times * vs_stat_get(tc, live_spans);
}

void vs_census_enter(struct vs_census *census, struct vs_tcache *tc)
{
	LIST_INSERT_HEAD(&census->listed, tc, listed);
	census->n_listed++;
	add(census, tc, (uint64_t)-1);
}

void vs_census_leave(struct vs_census *census, struct vs_tcache *tc)
{
	LIST_REMOVE(tc, listed);
	census->n_listed--;
	add(census, tc, 1);
}
