/* SPDX-License-Identifier: MIT
 *
 * census: which caches (pool/tcache) threads have, and what the others handed
 * out and took back. Each slab miss, and each of a large block, adds up the
 * counters of all caches; those of a thousand threads that had ended took as
 * long as the rest. So the cache of an ended thread, which is empty, leaves the
 * list, and its counters, which nobody changes then, are part of the sums here;
 * until the next thread that has it enters it again. That both change at once
 * nobody sees but under the lock: who reads without it adds up the counters of
 * all caches that were ever made (VS_EVERY_TCACHE), and nothing of this.
 *
 * Part of struct vs_pool and guarded by its lock.
 */
#ifndef VS_POOL_CENSUS_H
#define VS_POOL_CENSUS_H

#include <bsd/sys/queue.h>
#include <stdint.h>

struct vs_tcache;

LIST_HEAD(vs_tcache_list, vs_tcache);

struct vs_census {
	struct vs_tcache_list listed; /* the newest first */
	uint64_t n_listed;
	/* of those that left, as in struct vs_tcache */
	uint64_t allocs, frees, alloc_spans;
	uint64_t live_bytes, live_spans;
};

/* A thread has it, as of now: one that is new, or that left. Lock. */
void vs_census_enter(struct vs_census *census, struct vs_tcache *tc);
/* Its thread ends; nobody uses it until it is entered again. Lock. */
void vs_census_leave(struct vs_census *census, struct vs_tcache *tc);

#endif
