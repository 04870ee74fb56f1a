/* SPDX-License-Identifier: MIT */
/*
 * Pool: the stream-ordered allocator.  Freed memory stays with its pool up to
 * the release threshold, applied when the host synchronizes, and gives way
 * when other allocations need it.  Guarded by the lock.
 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "sim_call.h"
#include "sim_memory.h"

struct sim_pool;

bool sim_pool_accessible(const struct sim_pool *pool, int device);
uint64_t sim_pool_handle(const struct sim_pool *pool);
/* cuMemFree of pool memory, and the end of cuMemFreeAsync. */
void sim_pool_free(struct sim_memory *memory);
/* Give up what is not in use: everything, or what is over the threshold. */
void sim_pool_trim_device(int device);
void sim_pool_synchronized(int device);
void sim_pool_reset(void);

#endif
