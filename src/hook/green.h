/* SPDX-License-Identifier: MIT
 *
 * green: a green context has the memory of its device's primary one, which it
 * retains until it is destroyed; the end of the primary one is its own, too.
 *
 * The list of them is green.c's. Its lock guards that, and nothing is called
 * under it: any thread may ask, whatever it holds.
 */
#ifndef VS_HOOK_GREEN_H
#define VS_HOOK_GREEN_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>

/* One has been made; never false again. */
extern _Atomic bool vs_green_was_made;

static inline bool vs_green_is_any(void)
{
	return atomic_load_explicit(&vs_green_was_made, memory_order_relaxed);
}

/* The context was made of a green one. */
bool vs_green_is(CUcontext ctx);
/* The primary context of that; NULL: `ctx` was made of none. */
CUcontext vs_green_primary(CUcontext ctx);
/* That of any green context; NULL: there is none. */
CUcontext vs_green_any_primary(void);
/*
 * One lives, and holds the device's primary context: the driver lets nobody
 * reset that, nor release it for the last time (an H200).
 */
bool vs_green_holds(CUdevice device);
/* A primary context is about to end (`ctx` NULL: that of `device`). */
void vs_green_ending(CUcontext ctx, CUdevice device);

#endif
