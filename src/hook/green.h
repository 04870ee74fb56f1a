/* SPDX-License-Identifier: MIT
 *
 * green: a green context has the memory of its device's primary one, which it
 * retains until it is destroyed; the end of the primary one is its own, too.
 */
#ifndef VS_HOOK_GREEN_H
#define VS_HOOK_GREEN_H

#include <cuda.h>
#include <stdbool.h>

/* The context was made of a green one. */
bool vs_green_is(CUcontext ctx);
/*
 * One lives, and holds the device's primary context: the driver lets nobody
 * reset that, nor release it for the last time (an H200).
 */
bool vs_green_holds(CUdevice device);
/* A primary context is about to end (`ctx` NULL: that of `device`). */
void vs_green_ending(CUcontext ctx, CUdevice device);

#endif
