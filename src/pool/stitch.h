/* SPDX-License-Identifier: MIT
 *
 * stitch: serves a request by what is idle: the tail of a chunk, whole chunks,
 * the head of another, each mapped once more. Where an idle range is extended
 * to the left, whole chunks and a tail left of them. A part of pool/plan; the
 * same locks.
 */
#ifndef VS_POOL_STITCH_H
#define VS_POOL_STITCH_H

#include "pool/plan.h"

/*
 * Looks for a chunk in whose idle tail the block may begin, if that brings
 * more than extending a base of `base_span` bytes does; plan->lead is 0 if not.
 */
CUresult vs_stitch_tail(struct vs_pool *pool, struct vs_plan *plan,
			uint64_t base_span, enum vs_grow_how how);
/*
 * The rest of the block: idle chunks, the idle head of one (leftward: the
 * tail); new ones last.
 */
CUresult vs_stitch_rest(struct vs_pool *pool, struct vs_plan *plan,
			enum vs_grow_how how);

#endif
