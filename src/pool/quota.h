/* SPDX-License-Identifier: MIT
 *
 * quota: how much a thread's batches of small objects (pool/tcache) may hold
 * where there are many threads.
 *
 * Note [Quota]: full batches of many threads may be more than is held for what
 * the program needs. Then whoever needs a slab empties the caches of all
 * (gather_small() in pool/ladder), and what they fetch again asks for the next
 * slab. So when that would take up much of the time, batches may hold half as
 * much; and twice as much again some time after. Of 16 threads that did nothing
 * but pairs of 1 MiB, in batches of 64, 9 million pairs a second came, and 53
 * with half of that; of 64 threads 8 and 20 (H200, 16 processors). On one
 * processor, where threads do not meet, it costs less to fill caches again than
 * to have smaller ones.
 */
#ifndef VS_POOL_QUOTA_H
#define VS_POOL_QUOTA_H

#include <stdatomic.h>
#include <stdint.h>

struct vs_pool;

/* Written under the pool's lock. */
struct vs_quota {
	_Atomic unsigned halved;   /* times that batches are; read anywhere */
	uint64_t changed, emptied; /* last; clock, ns */
};

/*
 * So many `bytes` left the caches for a slab that a thread wanted since `began`
 * (clock, ns); see Note [Quota]. Takes pool.lock.
 */
void vs_quota_emptied(struct vs_pool *pool, uint64_t bytes, uint64_t began);
/*
 * A thread is out of memory: batches hold as little as they ever do, for some
 * time. Takes pool.lock.
 */
void vs_quota_least(struct vs_pool *pool);
/* Batches may be larger again; in a tick. `now`: clock, ns. Lock. */
void vs_quota_relax(struct vs_pool *pool, uint64_t now);

#endif
