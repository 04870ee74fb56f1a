/* SPDX-License-Identifier: MIT
 *
 * owner: which range a pointer belongs to, without a lock.
 *
 * Ranges are larger than 1 MiB, so at most one live range begins in any page of
 * 1 MiB, which names it. One that began before the granule of an address is the
 * one over the granule's first byte, which the chunk table names for the heap's
 * sake (pool/chunk.h).
 *
 * So four entries may name the range over an address, and each may be stale:
 * what it names then fails the test of bounds and id. Written under the pool's
 * lock, before a range is handed out.
 */
#ifndef VS_POOL_OWNER_H
#define VS_POOL_OWNER_H

#include <cuda.h>
#include <stdbool.h>

#include "pool/pool.h"
#include "pool/slab.h"
#include "pool/state.h"

#define VS_OWNER_PAGE ((uint64_t)1 << 20)

/* Bytes of the table that vs_owner_init() takes, all zero. */
size_t vs_owner_table(const struct vs_pool *pool);
void vs_owner_init(struct vs_pool *pool, void *table);
/* Names a range where it begins; lock. */
void vs_owner_set(struct vs_pool *pool, struct vs_range *r);
/* The range that holds `p` (not of the slab heap), in any state; lock. */
struct vs_range *vs_owner_range(const struct vs_pool *pool, CUdeviceptr p);
/* The one that begins at `p` and is the program's, or NULL; lock. */
struct vs_range *vs_owner_live(const struct vs_pool *pool, CUdeviceptr p);

#endif
