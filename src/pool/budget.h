/* SPDX-License-Identifier: MIT
 *
 * budget: how much a pool may hold for what its program needs (Note [Need] in
 * pool/grow.h), before idle chunks are moved for a request.
 *
 * What comes and goes is laid out anew each time, and takes some slack; what
 * stays takes none. That counts where what stays fills most of the device:
 * others who do not run under the shim may want the rest (HACKING.md has the
 * measurement). So slack is no more than a part of what the program had freed
 * of its need at once, or of what it leaves of the device, if that is more.
 *
 * Guarded by the pool's lock.
 */
#ifndef VS_POOL_BUDGET_H
#define VS_POOL_BUDGET_H

#include "pool/state.h"

/*
 * Knob MEMORY_LIMIT for a device of `total` bytes, in whole granules;
 * UINT64_MAX: none. One line where it is less than can be had.
 */
uint64_t vs_budget_limit(uint64_t total);
/* Bytes; no more than knob MEMORY_LIMIT. May look at all threads' caches. */
uint64_t vs_budget(struct vs_pool *pool);

#endif
