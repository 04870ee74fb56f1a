/* SPDX-License-Identifier: MIT */
#include "pool/budget.h"

#include "base/knob.h"
#include "base/log.h"
#include "pool/toll.h"
#include "pool/turnover.h"

enum {
	SLACK = 44,	/* of the need; 1/1000 */
	FALL_SHARE = 4, /* of what was freed of the need, at most ... */
	LEFT_SHARE = 8, /* ... or of what is left of the device */
};

static uint64_t most_slack(const struct vs_pool *pool)
{
	uint64_t fall = pool->fall_now > pool->fall_before ? pool->fall_now
							   : pool->fall_before;
	uint64_t need = pool->need, most = pool->most;
	uint64_t left = most > need ? (most - need) / LEFT_SHARE : 0;

	fall /= FALL_SHARE;
	return fall > left ? fall : left;
}

uint64_t vs_budget_limit(uint64_t total)
{
	uint64_t limit = vs_size_bytes(vs_knobs.memory_limit, total);

	if (limit == 0)
		return UINT64_MAX;
	if (limit < VS_GRANULE) {
		vs_warn("VMMSHIM_MEMORY_LIMIT: %llu bytes, but no chunk has "
			"less than 2M: allocations will fail",
			(unsigned long long)limit);
		return limit;
	}
	return limit - limit % VS_GRANULE; /* cuMemGetInfo tells of it */
}

uint64_t vs_budget(struct vs_pool *pool)
{
	uint64_t slack = pool->need / 1000 * SLACK, limit = most_slack(pool);
	uint64_t most;

	if (slack > limit)
		slack = limit;
	slack += pool->need / 1000 * vs_toll_slack(pool);
	most = pool->need + (slack < VS_FLOOR ? VS_FLOOR : slack);
	most += vs_turnover_extra(pool);
	return most < pool->memory_limit ? most : pool->memory_limit;
}
