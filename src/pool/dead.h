/* SPDX-License-Identifier: MIT
 *
 * dead: memory that is not to be used again after its free, since somebody
 * else may still reach it: it was exported to another process or registered
 * with a device. A dead range keeps its bytes in use; a chunk that nothing but
 * dead ranges uses is unmapped and released once all work that may touch it is
 * complete. It never becomes idle on the way, at none of its addresses.
 */
#ifndef VS_POOL_DEAD_H
#define VS_POOL_DEAD_H

#include <stdint.h>

#include "pool/state.h"

/* A range that was live, or a slab, is dead from now on. Lock. */
void vs_dead_bury(struct vs_pool *pool, struct vs_range *r);
/* Of a chunk, idle bytes aside, only dead ranges are left. Lock. */
void vs_dead_note(struct vs_pool *pool, struct vs_chunk *c);
/* Tag of the last one buried that is not yet retired; 0: none. Lock. */
uint64_t vs_dead_newest(struct vs_pool *pool);
/*
 * Releases the chunks that only dead memory is left of. Never waits. Called
 * with pool.grow held and pool.lock not held. Returns bytes released.
 */
uint64_t vs_dead_retire(struct vs_pool *pool);

#endif
