/* SPDX-License-Identifier: MIT
 *
 * blocks: what a program can learn of the pool that serves it.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmmshim/vmmshim.h"

/* What it tells of device 0, zeros where it cannot; false without the shim. */
static inline bool pool_stats(struct vmmshim_stats *stats)
{
	int (*ask)(int, struct vmmshim_stats *);

	*stats = (struct vmmshim_stats){.struct_size = sizeof(*stats)};
	*(void **)&ask = dlsym(RTLD_DEFAULT, "vmmshim_stats");
	if (!ask)
		return false;
	if (ask(0, stats) != 0)
		*stats = (struct vmmshim_stats){0};
	return true;
}

/* Live blocks of the pool of device 0, -1 without the shim. */
static inline long pool_blocks(void)
{
	struct vmmshim_stats stats;

	return pool_stats(&stats) ? (long)stats.blocks : -1;
}

/* Bytes that it holds, 0 without the shim. */
static inline uint64_t pool_reserved(void)
{
	struct vmmshim_stats stats;

	return pool_stats(&stats) ? stats.reserved : 0;
}

#endif
