/* SPDX-License-Identifier: MIT
 *
 * ipc_export: makes handles and serves their memory to importers.
 *
 * The first handle makes the process's key, its socket, and one thread, which
 * only answers requests for allocations that have a handle. A process that
 * makes no handle has none of these. All signals are blocked in the thread.
 */
#ifndef VS_HOOK_IPC_EXPORT_H
#define VS_HOOK_IPC_EXPORT_H

#include <cuda.h>
#include <stdbool.h>

#include "pool/pool.h"

/*
 * The handle of a live allocation of the pool. VS_PASS, logged once, when it
 * cannot be shared: then the driver refuses, as all memory that is not its
 * own.
 */
CUresult vs_ipc_export(const struct vs_span *span, CUipcMemHandle *out);

/* `key` is this process's. */
bool vs_ipc_is_own_key(const unsigned char key[16]);

void vs_ipc_export_forked(void);

#endif
