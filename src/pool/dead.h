/* SPDX-License-Identifier: MIT
 *
 * dead: freed memory that somebody else may still reach: it was exported to
 * another process or registered with a device. It keeps its bytes in use, and a
 * chunk that nothing but dead ranges uses is unmapped and released once all
 * work that may touch it is complete. It never becomes idle on the way, at none
 * of its addresses.
 *
 * Note [Dead, not for ever]: a dead range may share its chunk with a live one
 * of 4 KiB. So the oldest are used again, when their work is complete, while
 * there are more than a share of the memory; and all of them before an
 * allocation fails, after what is pending (climb_until in ladder.c). That is
 * safe for whoever keeps to CUDA's rules: to free what an importer has open is
 * undefined (cuIpcOpenMemHandle, cuIpcCloseMemHandle), what is registered with
 * a NIC is deregistered before its free, and the driver gives freed memory to
 * others at once. To be dead is a grace for the others: what they read or write
 * too late is nobody's for as long as there is other memory. The share is for
 * what the pool cannot give back when another call of the driver's, or another
 * process, needs memory: ranges beside live ones, dead or idle.
 *
 * Note [No more than it must]: to release 4,096 chunks of 2 MiB takes 130 ms of
 * the driver's time (counting driver), and one miss did that, while all others
 * that needed memory waited. So one that grows within what the program needs
 * releases some of them, and leaves the rest to later ones, trims and ticks of
 * the service thread, which let others grow in between. One that fails to
 * releases all, and tries again.
 */
#ifndef VS_POOL_DEAD_H
#define VS_POOL_DEAD_H

#include <stdint.h>

#include "pool/state.h"

/* A range that was live, or a slab, is dead from now on. Lock. */
void vs_dead_bury(struct vs_pool *pool, struct vs_range *r);
/* Brings the gauge up to date; for pool/slab, which has dead objects. Lock. */
void vs_dead_show(struct vs_pool *pool);
/* Of a chunk, idle bytes aside, only dead ranges are left. Lock. */
void vs_dead_note(struct vs_pool *pool, struct vs_chunk *c);
/* Tag of the last one buried that is still dead; 0: none. Lock. */
uint64_t vs_dead_newest(struct vs_pool *pool);
/*
 * Releases the chunks that only dead memory is left of. Never waits. Called
 * with pool.grow held and pool.lock not held. Returns bytes released.
 */
uint64_t vs_dead_retire(struct vs_pool *pool);
/*
 * The same of some of them, until `stop`, unless that is NULL, is true; whether
 * there may be more. Adds the bytes released to *bytes.
 */
bool vs_dead_retire_some(struct vs_pool *pool, uint64_t *bytes,
			 const _Atomic bool *stop);
/*
 * Of what was buried up to a tag the oldest becomes idle (small objects: goes
 * back to its slab), until so many bytes are dead or it is not complete yet.
 * Never waits. Returns bytes. Lock. See Note [Dead, not for ever].
 */
uint64_t vs_dead_revive(struct vs_pool *pool, uint64_t tag, uint64_t keep);
/* The same for all that is more than its share. Takes the lock. */
void vs_dead_thin(struct vs_pool *pool);

#endif
