/* SPDX-License-Identifier: MIT
 *
 * shelf: freed ranges whose work is done, as they are, by size. A range that
 * goes home to its heap is merged with its neighbours, and cut again for the
 * next request: more than half of the instructions of a large block, and most
 * of the cache lines. So for a program that churns, while it holds much more
 * than it needs (vs_turnover_is_roomy), they are kept whole, and handed out
 * again to requests that are hardly smaller, and where nothing else fits to
 * smaller ones (make_fit() in pool/reuse); for others the heap's own rule packs
 * better. What is on the shelf is in use as far as heap, views and chunks are
 * concerned: it goes home before its heap, or the pool, does without it
 * (pool/reuse).
 *
 * Part of struct vs_pool and guarded by its lock. No driver call is made here.
 */
#ifndef VS_POOL_SHELF_H
#define VS_POOL_SHELF_H

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
 * Takes one of at least `span` bytes off it, and `waste` more at most; NULL if
 * there is none on top of its bin, nor of the next that has any.
 */
struct vs_range *vs_shelf_take(struct vs_shelf *shelf, uint64_t span,
			       uint64_t waste);
/* Takes any; NULL: it is empty. */
struct vs_range *vs_shelf_any(struct vs_shelf *shelf);

#endif
