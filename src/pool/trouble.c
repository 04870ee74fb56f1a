/* SPDX-License-Identifier: MIT */
#include "pool/trouble.h"

#include "driver/real.h"
#include "pool/capture.h"
#include "pool/pool.h"
#include "pool/tcache.h"

void vs_trouble_beware(struct vs_pool *pool)
{
	struct vs_ctx_set set;
	bool is_wary = pool->is_fussy;

	pthread_mutex_lock(&pool->lock);
	is_wary |= atomic_load(&pool->n_short) > 0;
	if (vs_ctx_gather(&set, (uint64_t)1 << pool->dev.device)) {
		for (int i = 0; i < set.n; i++)
			is_wary |= atomic_load(&set.list[i]->trouble) != 0;
		vs_ctx_scatter(&set);
	} else {
		is_wary = true;
	}
	atomic_store(&pool->is_wary, is_wary);
	pthread_mutex_unlock(&pool->lock);
}

void vs_pool_broken(void)
{
	struct vs_ctx *ctx = vs_ctx_current();
	struct vs_pool *pool;

	if (!ctx ||
	    (atomic_fetch_or(&ctx->trouble, VS_CTX_BLAMED) & VS_CTX_BLAMED))
		return;
	pool = vs_pool_of(ctx->device);
	if (!pool)
		return;
	/* so that no allocation hits, and no free */
	vs_tcache_flush(pool);
	vs_trouble_beware(pool);
}

CUresult vs_trouble_alloc(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
			  CUdeviceptr *out)
{
	CUdeviceptr p;
	CUresult r = vs_capture_alloc_beside(&p, size);

	if (vs_real_is_for_good(r)) {
		vs_pool_broken(); /* a marker may have known it before */
		vs_pool_faulted(r);
		return r;
	}
	atomic_store(&ctx->trouble, 0);
	vs_trouble_beware(pool);
	if (r != CUDA_SUCCESS)
		return VS_PASS;
	vs_stat_add(&pool->stats, native, 1);
	*out = p;
	return CUDA_SUCCESS;
}

CUresult vs_trouble_alloc_beside(struct vs_pool *pool, size_t size,
				 CUdeviceptr *out)
{
	CUdeviceptr p;
	CUresult r = vs_capture_alloc_beside(&p, size);

	for (int i = 0; i < 2 && r == CUDA_ERROR_OUT_OF_MEMORY; i++) {
		if (vs_pool_relieve((uint64_t)1 << pool->dev.device,
				    i ? VS_RELIEF_LAST : VS_RELIEF_IDLE) > 0)
			r = vs_capture_alloc_beside(&p, size);
	}
	if (r != CUDA_SUCCESS)
		return VS_PASS; /* the driver words it */
	vs_stat_add(&pool->stats, native, 1);
	*out = p;
	return CUDA_SUCCESS;
}

CUresult vs_trouble_free(void)
{
	struct vs_ctx *ctx = vs_ctx_current();
	size_t unused, total;
	CUresult r;

	if (!ctx || !atomic_load(&ctx->trouble))
		return CUDA_SUCCESS;
	r = vs_real.cuMemGetInfo_v2(&unused, &total);
	if (!vs_real_is_for_good(r))
		return CUDA_SUCCESS;
	vs_pool_broken(); /* as above */
	vs_pool_faulted(r);
	return r;
}
