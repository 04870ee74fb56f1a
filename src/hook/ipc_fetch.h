/* SPDX-License-Identifier: MIT
 *
 * ipc_fetch: the importer's talk with the exporter: brings the pieces of an
 * allocation into address space of this process. No lock.
 */
#ifndef VS_HOOK_IPC_FETCH_H
#define VS_HOOK_IPC_FETCH_H

#include <cuda.h>
#include <stdint.h>

#include "hook/ipc_wire.h"

/*
 * File descriptors, or memory of the host, ran out here or at the exporter:
 * what the pool gives up is no help, and who waits for it waits in vain.
 */
#define VS_IPC_SHORT CUDA_ERROR_OPERATING_SYSTEM

/*
 * Reserves and maps all pieces of the allocation; nothing may access them yet.
 * The errors are those of vs_ipc_import.
 */
CUresult vs_ipc_fetch(const struct vs_ipc_handle *h, CUdeviceptr *base_out,
		      uint64_t *bytes_out);
/* Unmaps the first `mapped` bytes and gives the reservation back. */
void vs_ipc_unmap(CUdeviceptr base, uint64_t bytes, uint64_t mapped);

#endif
