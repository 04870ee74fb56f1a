/* SPDX-License-Identifier: MIT
 *
 * trim: giving memory back: by signal, age and need, and what there is to give.
 * Its other functions are in pool/pool.h.
 */
#ifndef VS_POOL_TRIM_H
#define VS_POOL_TRIM_H

#include <stdint.h>

#include "pool/state.h"

/*
 * Gives back to the driver what is idle, and what is seen complete now; bytes.
 * Waits for no work. Takes pool.grow and the locks after it.
 */
uint64_t vs_trim(struct vs_pool *pool);

#endif
