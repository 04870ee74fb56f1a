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

/* Of each device: asks in vain, the last ones in a row; clock of the last, ns.
 */
static struct vain {
	_Atomic uint64_t last;
	_Atomic unsigned n;
} vain_at[VS_MAX_DEVICES];

uint64_t vs_pool_device_id(int i)
{
	struct vs_pool *pool = vs_pool_by_index(i);

	return pool && vs_knobs.neighbours ? pool->dev.id : 0;
}

const unsigned char *vs_pool_uuid(int i)
{
	const struct vs_vmm_device *dev = &vs_pool_by_index(i)->dev;

	return dev->id ? dev->uuid : NULL;
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

/* Of a device; `stats` NULL: there is no pool of it. */
static uint64_t ask(CUdevice device, uint64_t id, struct vs_stats *stats)
{
	struct vain *v = &vain_at[device];
	uint64_t given;
	int n;

	if (atomic_load(&v->n) >= VAIN_MANY &&
	    vs_vmm_clock() - atomic_load(&v->last) < VAIN_LASTS)
		return 0;
	if (stats)
		vs_stat_add(stats, asked, 1);
	given = vs_board_ask(id, PATIENCE_MS, &n);
	if (given > 0)
		atomic_store(&v->n, 0);
	else
		atomic_fetch_add(&v->n, 1);
	atomic_store(&v->last, vs_vmm_clock());
	/* they may have given it to another just before: try once more */
	return given + (n > 0);
}

uint64_t vs_others_ask(struct vs_pool *pool, uint64_t bytes)
{
	if (!vs_knobs.neighbours || !may_have(pool, bytes))
		return 0;
	return ask(pool->dev.device, pool->dev.id, &pool->stats);
}

uint64_t vs_others_ask_of(CUdevice device)
{
	struct vs_pool *pool = vs_pool_of(device);

	if (pool)
		return vs_others_ask(pool, 0);
	if (!vs_knobs.neighbours || device < 0 || device >= VS_MAX_DEVICES)
		return 0;
	return ask(device, vs_vmm_device_id(device), NULL);
}
