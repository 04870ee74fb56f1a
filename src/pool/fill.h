/* SPDX-License-Identifier: MIT
 *
 * fill: knobs ZERO and JUNK: writes over memory before it is handed out and
 * after it was freed, on a stream of the shim's own. Slow by nature.
 */
#ifndef VS_POOL_FILL_H
#define VS_POOL_FILL_H

#include <stdbool.h>
#include <stddef.h>

#include "pool/ctx.h"
#include "pool/pool.h"

/* The patterns of VMMSHIM_JUNK: memory never written, memory freed. */
#define VS_JUNK_FRESH 0xa5
#define VS_JUNK_FREED 0x5a

/*
 * Sets, or reads, memory of a context on a stream of its own and waits for that
 * stream only, so that a kernel of the program that never ends does not matter.
 * CUDA_ERROR_CONTEXT_IS_DESTROYED, and nothing done, for a dead one.
 */
CUresult vs_fill_set(struct vs_ctx *ctx, CUdeviceptr p, unsigned char value,
		     size_t size);
CUresult vs_fill_get(struct vs_ctx *ctx, void *to, CUdeviceptr p, size_t size);

/* Whether any of the two knobs is on. */
bool vs_fill_is_on(void);
/*
 * By the knobs clears, or fills with junk, what is about to be handed out;
 * waits. An error if it is not cleared; what has no junk in it is told once.
 */
CUresult vs_fill_fresh(struct vs_ctx *ctx, CUdeviceptr p, size_t size);
/*
 * Junk over an allocation that is about to be freed, after all work submitted
 * so far (a use after free then reads junk). Skipped while a capture is open.
 */
void vs_fill_freed(struct vs_pool *pool, const struct vs_span *span);

#endif
