/* SPDX-License-Identifier: MIT
 *
 * share: what another process needs to map an allocation of the pool. All that
 * legacy IPC knows of chunks is here. With pool.h and capture.h the face of
 * the room; vs_pool_pin() of pool.h is here, too.
 *
 * A piece is a physical chunk: a process can map it only whole (cuMemMap). The
 * pieces behind an allocation, side by side in its order, hold it at an offset
 * from the start of the first.
 */
#ifndef VS_POOL_SHARE_H
#define VS_POOL_SHARE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/pool.h"

struct vs_share {
	uint64_t offset; /* of the allocation in the first piece */
	uint64_t bytes;	 /* of all pieces */
	unsigned n;	 /* pieces */
};

/*
 * Describes the allocation that starts at `base`. False when it is not the
 * one named `id` any more, or when chunks of its device cannot travel.
 */
bool vs_share_describe(CUdeviceptr base, uint64_t id,
		       struct vs_share *share_out);

/*
 * Makes file descriptors for at most `max` pieces from number `first` on;
 * they are the caller's to close. Returns how many; below what there is when
 * the driver gave no more: *result_out is its answer to the last call. Holds
 * the pool's grow lock, so that no chunk goes away meanwhile.
 */
unsigned vs_share_export(CUdeviceptr base, uint64_t id, unsigned first,
			 unsigned max, int *fds, uint64_t *sizes,
			 CUresult *result_out);

/* Chunks of the device can travel to another process, as far as is known. */
bool vs_share_is_capable(CUdevice device);

/* A name for an allocation that is not the pool's, for struct vs_span. */
uint64_t vs_share_serial(void);

/*
 * Waits for all work submitted so far in `ctx` (NULL: there is none), and for
 * that of the other contexts of these devices (bits) at most `patience_ns`
 * (before CUDA 12.5 as long as it takes): it may wait for this very thread.
 * False if some of it is not done by then; at once while a capture is open,
 * which such a wait would kill, and without host memory.
 */
bool vs_share_settle(uint64_t devices, CUcontext ctx, uint64_t patience_ns);

#endif
