/* SPDX-License-Identifier: MIT
 *
 * shelf: freed ranges above 1 MiB whose work is done, as they are. A range that
 * goes home to the heap is merged with its neighbours, and cut again for the
 * next request: more than half of the instructions of a large block, and most
 * of the cache lines. So for a program that churns (pool/turnover) what fits
 * hardly worse than a cut is kept whole, and handed out again; for others the
 * heap's own rule packs better. What is on the shelf is in use as far as heap,
 * views and chunks are concerned: it goes home before the pool does without it
 * (vs_range_harvest).
 *
 * Part of struct vs_pool and guarded by its lock. No driver call is made here.
 */
#ifndef VS_POOL_SHELF_H
#define VS_POOL_SHELF_H

#include <stdbool.h>
#include <stdint.h>

#include "pool/heap.h"

struct vs_shelf {
	/* the last one of each bin that was put there, and so on down */
	struct vs_range *top[VS_RANGE_BINS];
	struct vs_bins filled;
};

/* A range in nobody's hands comes onto the shelf. */
void vs_shelf_put(struct vs_shelf *shelf, struct vs_range *r);
/*
 * Takes one of at least `span` bytes, and a quarter more at most, off it; NULL
 * if there is none on top of its bin.
 */
struct vs_range *vs_shelf_take(struct vs_shelf *shelf, uint64_t span);
/* The smallest on top from the bin of `least` bytes on; NULL: there is none. */
struct vs_range *vs_shelf_from(struct vs_shelf *shelf, uint64_t least);

static inline bool vs_shelf_is_empty(const struct vs_shelf *shelf)
{
	return shelf->filled.words == 0;
}

#endif
