/* SPDX-License-Identifier: MIT
 *
 * fake_pool: pools that are nothing but numbers, for the tests of report/.
 */
#ifndef TESTS_UNIT_FAKE_POOL_H
#define TESTS_UNIT_FAKE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/stat.h"

#define FAKE_POOLS 64

extern _Atomic int fake_n_pools;
extern struct vs_stats fake_stats[FAKE_POOLS];

/* Calls so far. */
extern _Atomic int fake_n_trims, fake_n_ticks, fake_n_refreshes;
extern _Atomic int fake_n_relaxes;

/* What vs_pool_device_id says of every pool, and vs_pool_give_way gives. */
extern _Atomic uint64_t fake_id, fake_given;

/* What vs_pool_ending was told; what vs_pool_is_waiting says of every pool. */
extern _Atomic bool fake_is_ending, fake_is_waiting;

/* Run inside each vs_pool_trim and vs_pool_refresh, if set. */
extern void (*_Atomic fake_in_trim)(void);
extern void (*_Atomic fake_in_refresh)(void);

/* Gives each number of pool `i` a value of its own. */
void fake_fill(int i);

#endif
