/* SPDX-License-Identifier: MIT */
/*
 * Physical: device memory made by cuMemCreate, as a file without a name.  It
 * lives as long as a handle or a mapping refers to it.  Guarded by the lock.
 */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "sim_call.h"

struct sim_physical {
	struct sim_physical *next, *prev;
	uint64_t handle; /* 0: no reference by handle */
	unsigned handle_refs;
	unsigned n_mappings;
	uint64_t size;
	uint64_t serial;
	uint64_t inode; /* of the file, 0 without */
	int fd;		/* -1 without backing */
	int device;
	bool imported; /* another process paid for it */
	CUmemAllocationProp prop;
};

struct sim_physical *sim_physical_get(CUmemGenericAllocationHandle handle);
void sim_physical_map(struct sim_physical *physical);
void sim_physical_unmap(struct sim_physical *physical);
/* One more reference by handle. */
CUmemGenericAllocationHandle sim_physical_hold(struct sim_physical *physical);

struct sim_physical_sums {
	uint64_t n_handles, n_physical, bytes;
};

void sim_physical_sum(int device, struct sim_physical_sums *sums);
void sim_physical_reset(void);

#endif
