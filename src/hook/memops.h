/* SPDX-License-Identifier: MIT
 *
 * memops: which allocations have CU_POINTER_ATTRIBUTE_SYNC_MEMOPS set. The
 * driver refuses it for VMM memory, but offers the same for a whole context.
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
 * after its free: whoever sets this is about to register it with a NIC.
 */
CUresult vs_memops_set(const struct vs_span *span, bool is_sync);
/* 1 when it is set, else 0. */
uint64_t vs_memops_is_sync(const struct vs_span *span);

#endif
