/* SPDX-License-Identifier: MIT */
#include "pool/others.h"

#include "base/board.h"
#include "base/knob.h"
#include "pool/pool.h"

/* They may wait a second for what is pending there. */
#define PATIENCE_MS 1500

uint64_t vs_pool_id(int i)
{
	struct vs_pool *pool = vs_pool_by_index(i);

	return pool && vs_knobs.neighbours ? pool->dev.id : 0;
}

/* The driver's memory is short, not what the pool may have. */
static bool may_have(struct vs_pool *pool, uint64_t bytes)
{
	uint64_t held;

	pthread_mutex_lock(&pool->lock);
	held = pool->chunks.held;
	pthread_mutex_unlock(&pool->lock);
	return bytes <= pool->dev.total && held <= pool->memory_limit &&
	       bytes <= pool->memory_limit - held;
}

uint64_t vs_others_ask(struct vs_pool *pool, uint64_t bytes)
{
	if (!vs_knobs.neighbours || !may_have(pool, bytes))
		return 0;
	vs_stat_add(&pool->stats, asked, 1);
	return vs_board_ask(pool->dev.id, PATIENCE_MS);
}
