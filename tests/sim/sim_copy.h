/* SPDX-License-Identifier: MIT */
/*
 * Copy: what a copy's two ends are, whether it may be, and how it waits.
 */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "sim_work.h"

/* What the program said about an end of a copy. */
enum sim_side {
	SIM_ANY_SIDE, /* unified: look it up */
	SIM_HOST_SIDE,
	SIM_DEVICE_SIDE,
};

struct sim_transfer {
	struct sim_copy copy;
	enum sim_side dst, src;
	bool peer; /* cuMemcpyPeer: access is not asked */
	bool async;
};

CUresult sim_transfer(struct sim_transfer *transfer, CUstream stream);

/* Is [addr, addr + size) device memory that device may reach? */
bool sim_copy_check_device(uint64_t addr, uint64_t size, int device, bool write,
			   bool peer, struct sim_extent *extent);

#endif
