/* SPDX-License-Identifier: MIT
 *
 * wake: finds views that are asleep (Note [Asleep] in pool/view.h) and beside
 * each other have room for a range. Guarded by the pool's lock; no driver call
 * is made here.
 */
#ifndef VS_POOL_WAKE_H
#define VS_POOL_WAKE_H

#include <stdbool.h>
#include <stdint.h>

struct vs_pool;
struct vs_heap;

/*
 * No idle range of a heap has `span` bytes, but views sleep there: puts on
 * those that make the best fit, if any do; whether it put on any. Without host
 * memory it puts on some, or none.
 */
bool vs_wake(struct vs_pool *pool, struct vs_heap *h, uint64_t span);

#endif
