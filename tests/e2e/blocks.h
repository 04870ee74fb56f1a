/* SPDX-License-Identifier: MIT
 *
 * blocks: what a program can learn of the pool that serves it.
 */
#ifndef BLOCKS_H
#define BLOCKS_H

#include <dlfcn.h>

#include "vmmshim/vmmshim.h"

/* Live blocks of the pool of device 0, -1 without the shim. */
static inline long pool_blocks(void)
{
	struct vmmshim_stats stats = {.struct_size = sizeof(stats)};
	int (*ask)(int, struct vmmshim_stats *);

	*(void **)&ask = dlsym(RTLD_DEFAULT, "vmmshim_stats");
	if (!ask)
		return -1;
	return ask(0, &stats) == 0 ? (long)stats.blocks : 0;
}

/* Bytes that it holds, 0 without the shim. */
static inline uint64_t pool_reserved(void)
{
	struct vmmshim_stats stats = {.struct_size = sizeof(stats)};
	int (*ask)(int, struct vmmshim_stats *);

	*(void **)&ask = dlsym(RTLD_DEFAULT, "vmmshim_stats");
	return ask && ask(0, &stats) == 0 ? stats.reserved : 0;
}

#endif
