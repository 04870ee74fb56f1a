/* SPDX-License-Identifier: MIT
 *
 * ipc_import: opens allocations of other processes under the shim.
 *
 * One mapping a handle and context, counted. The pieces lie in a reservation
 * of their own; the exporter's end does not touch it. One thread at a time asks
 * an exporter, so that two opens of a handle are one mapping; it takes the
 * table's lock in its turn. Driver calls that do not wait for the GPU may be
 * made in both.
 */
#ifndef VS_HOOK_IPC_IMPORT_H
#define VS_HOOK_IPC_IMPORT_H

#include <cuda.h>

#include "hook/ipc_wire.h"

/*
 * Opens for the context `ctx`: the current one, or where that is green the
 * primary one, since the green one may be destroyed before the memory is
 * closed; on the current `device`. Never VS_PASS. Waits for the
 * exporter some seconds at most. Errors, as the driver's:
 *   INVALID_HANDLE  the exporter has ended, or cannot be reached; open in
 *                   another context of the device
 *   INVALID_VALUE   the allocation was freed; the exporter does not answer, or
 *                   refuses
 *   CONTEXT_IS_DESTROYED  another thread ends `ctx` meanwhile
 *   PEER_ACCESS_UNSUPPORTED  the current device cannot reach the memory
 *   MAP_FAILED, OUT_OF_MEMORY  what importing and mapping ended in
 * and VS_IPC_SHORT (ipc_fetch.h), which the program is to see as OUT_OF_MEMORY.
 */
CUresult vs_ipc_import(const struct vs_ipc_handle *h, CUcontext ctx,
		       CUdevice device, CUdeviceptr *out);

/*
 * Counts down; at 0 waits for the context's work and unmaps. VS_PASS when `p`
 * is not what an open returned.
 */
CUresult vs_ipc_close(CUdeviceptr p);

void vs_ipc_import_forked(void);

#endif
