/* SPDX-License-Identifier: MIT
 *
 * repack: slabs of a device that was full are filled from the first again.
 *
 * Note [Scattered]: small objects that were freed are handed out again in the
 * order of their frees. So a class whose slabs were all full and emptied lies
 * in each of them again long before it has as many objects, and no other class
 * gets one of these slabs. Once a class runs dry all that is free is gathered,
 * but by then each slab has live objects again. Random sizes of up to 1 MiB
 * filled 2 GiB to 95 %, and, emptied in any order time and again, to 86 to 94
 * later. So once no slab was to be had, what was freed goes home before any is
 * handed out, each time an eighth of the slabs came back, until all have.
 */
#ifndef VS_POOL_REPACK_H
#define VS_POOL_REPACK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/stat.h"
#include "pool/state.h"

/* No slab was to be had. Takes the lock. */
void vs_repack_soon(struct vs_pool *pool);
/* Some of what is due, in .3 ms but for a flush. No lock held. */
void vs_repack_now(struct vs_pool *pool);

static inline bool vs_repack_is_due(const struct vs_pool *pool)
{
	uint64_t at = vs_stat_get(&pool->repack, at);

	return __builtin_expect(at > 0, 0) &&
	       vs_stat_get(&pool->repack, returned) >= at;
}

/* Before a small object is handed out in another than the hot way. As above. */
static inline void vs_repack(struct vs_pool *pool)
{
	if (vs_repack_is_due(pool))
		vs_repack_now(pool);
}

#endif
