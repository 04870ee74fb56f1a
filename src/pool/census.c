/* SPDX-License-Identifier: MIT */
#include "pool/census.h"

#include "base/stat.h"
#include "pool/tcache.h"

void vs_census_enter(struct vs_census *census, struct vs_tcache *tc)
{
	LIST_INSERT_HEAD(&census->listed, tc, listed);
	census->allocs -= vs_stat_get(tc, allocs);
	census->frees -= vs_stat_get(tc, frees);
	census->alloc_spans -= vs_stat_get(tc, alloc_spans);
	census->live_bytes -= vs_stat_get(tc, live_bytes);
	census->live_spans -= vs_stat_get(tc, live_spans);
}

void vs_census_leave(struct vs_census *census, struct vs_tcache *tc)
{
	LIST_REMOVE(tc, listed);
	census->allocs += vs_stat_get(tc, allocs);
	census->frees += vs_stat_get(tc, frees);
	census->alloc_spans += vs_stat_get(tc, alloc_spans);
	census->live_bytes += vs_stat_get(tc, live_bytes);
	census->live_spans += vs_stat_get(tc, live_spans);
}
