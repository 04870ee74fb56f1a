/* SPDX-License-Identifier: MIT */
#include "pool/others.h"

#include "base/board.h"
#include "base/knob.h"
#include "pool/pool.h"

/* They may wait a second for what is pending there. */
#define PATIENCE_MS 1500
/*
 * Who asked in vain so often in a row leaves others alone for so long (ns): a
 * program that tries how much there is would make them give up all they have,
 * time and again. Fewer times tell nothing: they may have freed it just now.
 */
#define VAIN_MANY 8
#define VAIN_LASTS ((uint64_t)10000000)

uint64_t vs_pool_device_id(int i)
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
	uint64_t given;
	int n;

	if (!vs_knobs.neighbours || !may_have(pool, bytes))
		return 0;
	if (atomic_load(&pool->n_vain_asks) >= VAIN_MANY &&
	    vs_vmm_clock() - atomic_load(&pool->last_ask) < VAIN_LASTS)
		return 0;
	vs_stat_add(&pool->stats, asked, 1);
	given = vs_board_ask(pool->dev.id, PATIENCE_MS, &n);
	if (given > 0)
		atomic_store(&pool->n_vain_asks, 0);
	else
		atomic_fetch_add(&pool->n_vain_asks, 1);
	atomic_store(&pool->last_ask, vs_vmm_clock());
	/* they may have given it to another just before: try once more */
	return given + (n > 0);
}

uint64_t vs_pool_ask(CUdevice device)
{
	uint64_t given;
	int n;

	if (!vs_knobs.neighbours || vs_pool_of(device))
		return 0;
	given = vs_board_ask(vs_vmm_device_id(device), PATIENCE_MS, &n);
	return given + (n > 0);
}
