/* SPDX-License-Identifier: MIT
 *
 * ordered: memory is handed out before the host has seen it complete, and later
 * work waits for that on the device: policies ordered and stream of pool/fence,
 * which alone calls these two, under its lock and with captures shut out. What
 * others may call stands in pool/fence.h.
 */
#ifndef VS_POOL_ORDERED_H
#define VS_POOL_ORDERED_H

#include "pool/fence.h"

/*
 * Policy ordered: all that is given to the contexts from now on waits for the
 * first marker that covers the tag, and that for work before it alone. True if
 * memory with the tag may be handed out.
 */
bool vs_ordered_by(struct vs_fence *f, uint64_t tag);
/*
 * Policy stream: the same for the last marker that serves, whatever the tag, in
 * the only context that there is. Returns whether `done` moved.
 */
bool vs_ordered_strict(struct vs_fence *f, uint64_t tag);

#endif
