/* SPDX-License-Identifier: MIT
 *
 * ipc: legacy IPC (cuIpc*MemHandle) over memory of the pool, between processes
 * under the shim. ipc.c has the hooks, ipc_export the side that owns the
 * memory, ipc_import the side that opens it; this is what other hooks call.
 *
 * Note [Whom a handle serves]: a handle of the shim's names an allocation, and
 * the importer's shim fetches the chunks from the exporter's. To a process
 * without the shim it is nonsense, and the driver says so; a handle that the
 * driver made goes to the driver. A job of both kinds wants VMMSHIM_IPC=native.
 */
#ifndef VS_HOOK_IPC_H
#define VS_HOOK_IPC_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "pool/pool.h"

/* Imports mapped in this process. */
extern _Atomic int vs_ipc_n_imports;
/* All that ever were lie in between; grows before they are counted. */
extern _Atomic CUdeviceptr vs_ipc_low, vs_ipc_high;

/* The two below, when there are imports. */
bool vs_ipc_find_import(CUdeviceptr p, struct vs_span *span_out);
bool vs_ipc_is_over_import(CUdeviceptr p);

static inline bool vs_ipc_has_imports(void)
{
	return __builtin_expect(atomic_load_explicit(&vs_ipc_n_imports,
						     memory_order_relaxed) != 0,
				0);
}

/*
 * `p` may be an import's. Without a lock: copies ask it of each address of the
 * host, in every thread.
 */
static inline bool vs_ipc_may_be(CUdeviceptr p)
{
	return vs_ipc_has_imports() &&
	       p >= atomic_load_explicit(&vs_ipc_low, memory_order_relaxed) &&
	       p < atomic_load_explicit(&vs_ipc_high, memory_order_relaxed);
}

/* The import that `p` points into: base and size of the exported allocation. */
static inline bool vs_ipc_find(CUdeviceptr p, struct vs_span *span_out)
{
	return vs_ipc_may_be(p) && vs_ipc_find_import(p, span_out);
}

/* The pool's allocation, or the import, that `p` points into. */
static inline bool vs_ipc_find_either(CUdeviceptr p, struct vs_span *span_out)
{
	return vs_pool_find(p, span_out) || vs_ipc_find(p, span_out);
}

/* `p` lies where the chunks of an import are mapped, open or not. */
static inline bool vs_ipc_is_inside(CUdeviceptr p)
{
	return vs_ipc_may_be(p) && vs_ipc_is_over_import(p);
}

/*
 * The context is about to be destroyed or reset: closes what it has open. Call
 * before the driver's function, and once more when vs_pool_ctx_dying() was:
 * none is opened from then on.
 */
void vs_ipc_ctx_dying(CUcontext ctx);
/* A copy on `device` touches `p`: gives it access, if `p` is an import's. */
CUresult vs_ipc_reach(CUdeviceptr p, CUdevice device);
/*
 * A peer copy that `devices` (bits) run touches `p`, which it needs no access
 * for: it is waited for before an import there is unmapped.
 */
void vs_ipc_note_copy(CUdeviceptr p, uint64_t devices);
/*
 * Peer access was switched on: opened memory must be reached, too. The driver's
 * error if that failed for any.
 */
CUresult vs_ipc_peers_changed(void);
/* In a forked child: forgets all, and closes what would look alive. */
void vs_ipc_forked(void);

#endif
