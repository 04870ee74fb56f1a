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
 * went back to the driver, which anyone may take first; 1 if there were none,
 * but the request is worth one more try, as another process may just have been
 * given some. 0 where nobody was asked, also since that is vain: it was too
 * often, a limit forbids the request, or no device could hold it. No lock.
 */
uint64_t vs_others_ask(struct vs_pool *pool, uint64_t bytes);
/* The same for a device, be there a pool of it or not; for any request. */
uint64_t vs_others_ask_of(CUdevice device);

#endif
