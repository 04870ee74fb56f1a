/* SPDX-License-Identifier: MIT
 *
 * mark: when what a pool freed gets a marker (pool/fence), and when the markers
 * are looked at. The policy; fence has the means. All under the pool's lock;
 * no call waits.
 *
 * A wait is for the oldest marker, so several in flight make it a wait for
 * little work. A free makes no driver call, unless it is one of many over some
 * time: it leaves the marker to the next allocation.
 */
#ifndef VS_POOL_MARK_H
#define VS_POOL_MARK_H

#include "pool/state.h"

/* So many bytes were freed (are pending or dead) that no marker covers. */
void vs_mark_freed(struct vs_pool *pool, uint64_t bytes);
/* After a free: a marker, if the last one is long ago. */
void vs_mark_at_free(struct vs_pool *pool);
/* Before an allocation, while memory is pending: a marker and a look, if due.
 */
void vs_mark_at_alloc(struct vs_pool *pool);
/* Sees to it that a marker covers all that is pending or dead. */
void vs_mark_all(struct vs_pool *pool);
/* The same, and looks at the markers: something is needed now. */
void vs_mark_settle(struct vs_pool *pool);

#endif
