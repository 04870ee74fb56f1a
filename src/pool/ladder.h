/* SPDX-License-Identifier: MIT
 *
 * ladder: what is tried, and in which order, for a range that nothing idle
 * fits: growth within need, waits, moves, growth past it; then, when the driver
 * has no more memory, all that is idle, pending or with other processes.
 */
#ifndef VS_POOL_LADDER_H
#define VS_POOL_LADDER_H

#include <cuda.h>
#include <stdint.h>

#include "pool/state.h"

/*
 * Makes a live range of `span` bytes in a heap, a multiple of VS_RANGE_ALIGN,
 * which the caller hands out. OUT_OF_MEMORY after the last step; else what the
 * driver said. May wait: 0.1 s where that only saves memory, where that is much
 * up to 1.6 s, and 3 s for one marker (Note [Late] in ladder.c); 30 s where the
 * alternative is out of memory. Any thread, no lock held.
 */
CUresult vs_ladder_climb(struct vs_pool *pool, enum vs_heap_kind kind,
			 uint64_t span, struct vs_range **range_out);

/*
 * After a free of a context's memory: while another thread is out of memory
 * (n_short) it waits for that context's work before it, as the driver's would,
 * but for 30 s at most; see Note [Hoards] in ladder.c. No lock held.
 */
void vs_ladder_heed(struct vs_pool *pool, const struct vs_ctx *ctx);

#endif
