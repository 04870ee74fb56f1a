/* SPDX-License-Identifier: MIT
 *
 * copies: copies and sets of the memory by other devices, and the graphs that
 * they launch, each with an event of its own behind it.
 *
 * Note [Copies one by one]: while markers go by the devices that count (Note
 * [Peers] in pool/fence.h), one that copies in every step, and in each has a
 * kernel that waits for its other half on this device, would count for good. So
 * there a copy in a stream that the program made is followed by an event there,
 * and its device does not count for it: a marker is complete when these are,
 * too, up to its epoch. Where such an event cannot be had the device counts
 * until a marker behind the copy is complete, which comes at once (pool/mark).
 *
 * Part of the fence; its lock guards all of it.
 */
#ifndef VS_POOL_COPIES_H
#define VS_POOL_COPIES_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct vs_ctx;
struct vs_event;
struct vs_fence;

/* In flight. */
#define VS_COPIES 256

struct vs_copies {
	struct vs_copy {
		uint64_t tag; /* what is freed later has this one, or more */
		struct vs_event *event;
		CUdevice device; /* the stream's */
	} list[VS_COPIES];	 /* by tag */
	unsigned n;
	uint64_t swept; /* the epoch when all of a full list were asked */
	_Atomic uint64_t devices; /* of those; read anywhere */
};

/*
 * Work that copies or sets the memory, or a graph, was given to `stream`, of
 * another device, before the call. True if an event follows it; else the
 * devices that may run it are to count. Takes the fence's lock, and calls the
 * driver under it.
 */
bool vs_copies_add(struct vs_fence *f, CUstream stream);
/* Whether those up to an epoch are complete. Capture mode relaxed. */
bool vs_copies_are_done(struct vs_fence *f, uint64_t epoch);
/* A context is idle and about to die. */
void vs_copies_forget(struct vs_fence *f, const struct vs_ctx *ctx);

#endif
