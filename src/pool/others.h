/* SPDX-License-Identifier: MIT
 *
 * others: what other processes hold idle, when this one is out of memory. They
 * are found by base/board; their service threads answer by vs_pool_give_way.
 */
#ifndef VS_POOL_OTHERS_H
#define VS_POOL_OTHERS_H

#include <stdint.h>

#include "pool/state.h"

/*
 * Asks them, for a request of so many bytes that the driver had no memory for;
 * waits for their answers, a second and a half at most. Returns the bytes that
 * went back to the driver, which anyone may take first. 0 also where asking is
 * vain: a limit forbids the request, or no device could hold it. No lock.
 */
uint64_t vs_others_ask(struct vs_pool *pool, uint64_t bytes);

#endif
