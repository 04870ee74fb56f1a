/* SPDX-License-Identifier: MIT
 *
 * arena: the addresses of a pool, reserved once, and what lies where in them.
 * For the making of a pool, by the one thread that makes it.
 */
#ifndef VS_POOL_ARENA_H
#define VS_POOL_ARENA_H

#include <stdbool.h>

struct vs_pool;

/*
 * Reserves the largest arena there is: 8 TiB at most, those of all devices half
 * of a process's 128 TiB, and a quarter of what is left. In a process with
 * limits some times the memory. False: not even twice the memory.
 */
bool vs_arena_reserve(struct vs_pool *pool);
/*
 * Slabs 1/16, middle ranges 3/16, the rest for large ones; with knob GUARD half
 * of it is not the heap's. With the tables over it. False without host memory.
 */
bool vs_arena_lay_out(struct vs_pool *pool);

#endif
