/* SPDX-License-Identifier: MIT
 *
 * greed: requests for more than there is. No lock held.
 *
 * Note [Too much]: programs try how much there is: all of the device, and a MiB
 * less each time until that is had, or half of it. The pool took all that was
 * left of the device for such a request, chunk by chunk, twice, and gave it
 * back with what had been idle: 55 ms (modelled; 70 of 139 GiB were left) in
 * which nobody else found memory, where the driver says no after 4 (an H200).
 * So what could not be had were all work complete is refused, and nothing given
 * up for it: at once, if the live blocks leave less; else when the driver has
 * no more; and one of half as much, for a while after that, before anything is
 * taken. The driver may have more than it says, as it gives up managed memory
 * that lies there (the same): so it is tried by one create.
 */
#ifndef VS_POOL_GREED_H
#define VS_POOL_GREED_H

#include <stdbool.h>
#include <stdint.h>

#include "pool/state.h"

/* What is live leaves less of all there is at most. */
bool vs_greed_is_beyond_all(struct vs_pool *pool, uint64_t span);
/* It cannot be had by what is pending and idle, and all that is unused. */
bool vs_greed_is_vain(struct vs_pool *pool, uint64_t span);
/* The same, asked only if one like it was, a moment ago. */
bool vs_greed_is_vain_again(struct vs_pool *pool, uint64_t span);

#endif
