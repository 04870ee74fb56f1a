/* SPDX-License-Identifier: MIT
 *
 * newcomer: who comes to a pool's memory beside those that markers and waits on
 * the device went by so far: contexts, devices, other processes. What was
 * handed out before its work was seen complete (policies ordered and stream of
 * pool/fence) is not to be reached by them too early. And what other devices do
 * with it is noted. No lock of the pool held, any thread.
 */
#ifndef VS_POOL_NEWCOMER_H
#define VS_POOL_NEWCOMER_H

#include <cuda.h>

struct vs_pool;

/*
 * Policy ordered: the contexts of a device that comes to the memory, and is in
 * its `reach` by now, are told.
 */
void vs_newcomer_welcome(struct vs_pool *pool, CUdevice device);
/* Work of a device may reach the memory from now on. */
void vs_newcomer_reach(struct vs_pool *pool, CUdevice device);

#endif
