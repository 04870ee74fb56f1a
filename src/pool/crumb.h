/* SPDX-License-Identifier: MIT
 *
 * crumb: which chunks are better made anew than moved once more; for pool/grow,
 * which does it. Called with pool.grow and pool.lock held.
 *
 * Note [Crumbs]: a program that had its memory in small blocks once, and has
 * large ones since, had each of those mapped of hundreds of chunks of 2 MiB,
 * for ever, for more than the driver takes (figures in HACKING.md). So when a
 * request would move so many of them they are released, and as much is made
 * anew, in large ones. Not those that were moved less than twice: what small
 * and large blocks have in turn would be made anew for each.
 *
 * Beyond need (Note [Need] in pool/grow.h) that is so of what was made for
 * slabs alone: where some small blocks stay, more than need is held for as long
 * as they do, and no more for that. Middle blocks and large ones in turn would
 * hold more.
 *
 * So it is with what grows little by little: for each step there is a chunk
 * more, as small as the step. What was moved so often that to make it anew
 * would have been cheaper is crumbs as well, whatever it was made for, unless
 * it is larger than the usual of today.
 *
 * Note [Dust]: a program that had small, middle and huge blocks in turn paid
 * for moving, and so was allowed more memory (pool/toll), by which what it
 * needed next was made anew in small chunks. Soon it held a third more than it
 * needs in thousands of these: enough for any request twice over, each of
 * hundreds of them. So where more is allowed for that, and the largest that are
 * idle would be many for a request, the others are crumbs whatever they were
 * made for and however much is idle. As much is made anew: no more is held for
 * it.
 */
#ifndef VS_POOL_CRUMB_H
#define VS_POOL_CRUMB_H

#include "pool/state.h"

/*
 * The crumbs to release before a request is moved for, VS_CRUMBS_MOST at most;
 * they stay where they are. Returns how many: 0, if it will do without them, or
 * they are too few.
 */
unsigned vs_crumbs_for(struct vs_pool *pool, enum vs_heap_kind kind,
		       uint64_t span, struct vs_chunk **crumbs);

#endif
