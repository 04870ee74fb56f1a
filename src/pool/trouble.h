/* SPDX-License-Identifier: MIT
 *
 * trouble: what the calls of a context are answered whose kernel faulted, or
 * that is blamed for another's: an error of a stream is learned whichever
 * context is current. The driver words it; it is asked here.
 */
#ifndef VS_POOL_TROUBLE_H
#define VS_POOL_TROUBLE_H

#include "pool/state.h"

/*
 * An allocation of a context in trouble. If the driver serves, or has no more,
 * which may all be the pool's, another context was meant, and this one is in
 * trouble no longer. VS_PASS then, if it did not serve. No lock.
 */
CUresult vs_trouble_alloc(struct vs_pool *pool, struct vs_ctx *ctx, size_t size,
			  CUdeviceptr *out);
/*
 * There can be no markers, or no chunks: the driver serves. What the pool keeps
 * idle may be all that there is, and goes back first, then what was freed, once
 * it is seen complete. VS_PASS: it did not. No lock.
 */
CUresult vs_trouble_alloc_beside(struct vs_pool *pool, size_t size,
				 CUdeviceptr *out);
/*
 * A free while the current context is in trouble: the driver refuses those,
 * too, and keeps what they name. Who asks for its memory is told. CUDA_SUCCESS
 * if nothing is wrong there; the next allocation makes sure of it.
 */
CUresult vs_trouble_free(void);
/*
 * What contexts there are, or in what trouble, has changed, or whether memory
 * is short. Takes pool.lock.
 */
void vs_trouble_beware(struct vs_pool *pool);

#endif
