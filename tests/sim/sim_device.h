/* SPDX-License-Identifier: MIT */
/*
 * Device: its budget of physical memory and its primary context.  Everything
 * that occupies device memory takes it here.  Guarded by the lock.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "sim_call.h"

struct sim_device {
	uint64_t memory; /* the budget */
	uint64_t used, peak;
	struct sim_context *primary; /* NULL: never retained */
	unsigned primary_refs;
	unsigned primary_flags;
	CUmemoryPool pool, default_pool; /* handles; NULL: not yet */
};

extern struct sim_device sim_devices[];

bool sim_device_valid(int device);
/* By SIM_PEER. */
bool sim_device_may_be_peers(int a, int b);
/* False if the budget does not allow it, also after trimming the pools. */
bool sim_device_take(int device, uint64_t bytes);
void sim_device_give(int device, uint64_t bytes);
/* Of this process, or with SIM_SHARED of all. */
uint64_t sim_device_used(int device);
void sim_device_reset(void);

#endif
