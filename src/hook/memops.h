/* SPDX-License-Identifier: MIT
 *
 * memops: for which allocations the program has set or cleared
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. The driver refuses it for VMM memory. So
 * copies and sets that are to be synchronous, of memory for which it is set,
 * are waited for here. (The driver offers the same for a whole context, as one
 * of its flags: then copies of other memory wait, too, and for good.)
 */
#ifndef VS_HOOK_MEMOPS_H
#define VS_HOOK_MEMOPS_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/pool.h"

/*
 * Sets or clears it. Once it was set the memory is not used again after its
 * free: whoever does that is about to register it with a NIC. Errors:
 * STREAM_CAPTURE_UNSUPPORTED, as the driver's, where a capture forbids it.
 */
CUresult vs_memops_set(const struct vs_span *span, bool is_sync);
/* What the program has set; false when it has not: the driver's default. */
bool vs_memops_get(const struct vs_span *span, uint64_t *value_out);

/* Allocations for which it was set or cleared; see vs_memops_is_any(). */
extern _Atomic int vs_memops_count;

/* It was set or cleared for some allocation. */
static inline bool vs_memops_is_any(void)
{
	return atomic_load_explicit(&vs_memops_count, memory_order_relaxed) > 0;
}

/* It is set for the memory that `p` points into. */
bool vs_memops_is_set(CUdeviceptr p) __attribute__((cold));

#endif
