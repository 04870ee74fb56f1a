/* SPDX-License-Identifier: MIT
 *
 * memops: for which allocations the program has set or cleared
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. The driver refuses it for VMM memory, but
 * offers the same for a whole context, as one of the flags that a program sets
 * and reads, too: it is put back, and not shown. Copies under other contexts
 * are waited for (hook/copy).
 */
#ifndef VS_HOOK_MEMOPS_H
#define VS_HOOK_MEMOPS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool/pool.h"

/*
 * Sets or clears it. Setting switches the allocation's whole context to
 * synchronizing copies (clearing leaves that), and the memory is not used again
 * after its free: whoever sets this is about to register it with a NIC. Errors:
 * STREAM_CAPTURE_UNSUPPORTED, as the driver's, where a capture forbids it.
 */
CUresult vs_memops_set(const struct vs_span *span, bool is_sync);
/* It was set or cleared for some allocation. Cheap. */
bool vs_memops_is_any(void);
/* What the program has set; false when it has not: the driver's default. */
bool vs_memops_get(const struct vs_span *span, uint64_t *value_out);

#endif
