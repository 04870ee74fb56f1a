/* SPDX-License-Identifier: MIT */
#include "pool/greed.h"

#include "driver/vmm.h"
#include "pool/mark.h"
#include "pool/range.h"

/* Less is not worth the questions; ns. */
#define LEAST VS_FLOOR
#define LASTS ((uint64_t)60000000000)

bool vs_greed_is_beyond_all(struct vs_pool *pool, uint64_t span)
{
	uint64_t most = pool->most + VS_MISCOUNT;
	bool is_beyond;

	pthread_mutex_lock(&pool->lock);
	is_beyond = pool->live_spans + pool->small_bytes + span > most &&
		    vs_range_least(pool) + span > most;
	pthread_mutex_unlock(&pool->lock);
	if (!is_beyond)
		return false;
	/* beyond knob MEMORY_LIMIT the driver may have enough */
	if (pool->memory_limit == UINT64_MAX)
		vs_mark_refused(pool);
	return true;
}

static bool can_create(struct vs_pool *pool, uint64_t bytes)
{
	CUmemGenericAllocationHandle handle;
	CUresult r;

	r = vs_vmm_create(&pool->dev, vs_granules_up(bytes), &handle);
	if (r == CUDA_SUCCESS)
		vs_vmm_release(handle);
	return r != CUDA_ERROR_OUT_OF_MEMORY;
}

bool vs_greed_is_vain(struct vs_pool *pool, uint64_t span)
{
	uint64_t lacking = span >= LEAST ? vs_mark_lacking(pool, span) : 0;

	if (lacking == 0 || can_create(pool, lacking))
		return false;
	vs_mark_refused(pool);
	pthread_mutex_lock(&pool->lock);
	pool->greed_span = span;
	pool->greed_since = vs_vmm_clock();
	pthread_mutex_unlock(&pool->lock);
	return true;
}

bool vs_greed_is_vain_again(struct vs_pool *pool, uint64_t span)
{
	bool is_alike;

	pthread_mutex_lock(&pool->lock);
	is_alike = pool->greed_span > 0 && span >= pool->greed_span / 2 &&
		   vs_vmm_clock() - pool->greed_since < LASTS;
	pthread_mutex_unlock(&pool->lock);
	return is_alike && vs_greed_is_vain(pool, span);
}
