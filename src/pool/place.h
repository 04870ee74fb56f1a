/* SPDX-License-Identifier: MIT
 *
 * place: at which addresses the chunks of a plan are mapped: beside an idle
 * range, which they extend, or in a region of their own. A part of pool/plan;
 * the same locks.
 */
#ifndef VS_POOL_PLACE_H
#define VS_POOL_PLACE_H

#include "pool/plan.h"

/*
 * The hole beside the base is too small for what was found; no hole of the heap
 * is large enough. No CUresult has these values: a kernel's fault, which any
 * driver call may tell, is not to be taken for one.
 */
#define VS_PLACE_NO_ROOM ((CUresult)-3)
#define VS_PLACE_NO_SPACE ((CUresult)-2)

/*
 * Away from the trunk, the largest idle range below the request, of `least`
 * bytes or more, that a hole lies beside, or NULL; *is_leftward_out: the hole
 * is left of it, and not right. Only what was a block, if the plan is_alone.
 */
struct vs_range *vs_place_base(struct vs_pool *pool, const struct vs_plan *plan,
			       uint64_t least, bool *is_leftward_out);
/*
 * The idle range that new chunks within need extend, of `least` bytes or more,
 * or NULL: what lies before the trunk's room, if it has any. But a
 * buffer that grows little by little, and was moved, has its last place and
 * room beside it: away from the trunk one with half of the request comes first.
 */
struct vs_range *vs_place_within(struct vs_pool *pool,
				 const struct vs_plan *plan, uint64_t least,
				 bool *is_leftward_out);
/* The plan extends `base`, which is busy from now on. */
CUresult vs_place_extend(struct vs_pool *pool, struct vs_plan *plan,
			 struct vs_range *base, bool is_leftward);
/*
 * Gives each step its place. VS_PLACE_NO_ROOM, VS_PLACE_NO_SPACE, or
 * OUT_OF_MEMORY: no host memory.
 */
CUresult vs_place_steps(struct vs_pool *pool, struct vs_plan *plan);
/* Where the block begins, when all steps have their place. */
CUdeviceptr vs_place_of_block(const struct vs_plan *plan);

#endif
