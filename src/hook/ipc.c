/* SPDX-License-Identifier: MIT
 *
 * ipc: legacy IPC. The driver has no such handles for VMM memory: asked for
 * one of the pool's allocations it answers CUDA_ERROR_INVALID_VALUE.
 */
#include "hook/hook.h"

#include "base/log.h"
#include "pool/pool.h"

VS_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle,
					     CUdeviceptr p)
{
	static _Atomic bool is_told;
	struct vs_span span;

	if (vs_enter(VS_API_cuIpcGetMemHandle) && vs_pool_find(p, &span) &&
	    !atomic_exchange(&is_told, true))
		vs_warn("cuIpcGetMemHandle fails for memory of the pool: set "
			"VMMSHIM_IPC=native for programs that share memory "
			"this way");
	return vs_seen(vs_real.cuIpcGetMemHandle(handle, p));
}

VS_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *out,
					      CUipcMemHandle handle,
					      unsigned int flags)
{
	vs_enter(VS_API_cuIpcOpenMemHandle);
	return vs_seen(vs_real.cuIpcOpenMemHandle(out, handle, flags));
}

VS_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *out,
						 CUipcMemHandle handle,
						 unsigned int flags)
{
	vs_enter(VS_API_cuIpcOpenMemHandle_v2);
	return vs_seen(vs_real.cuIpcOpenMemHandle_v2(out, handle, flags));
}

VS_EXPORT CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr p)
{
	vs_enter(VS_API_cuIpcCloseMemHandle);
	return vs_seen(vs_real.cuIpcCloseMemHandle(p));
}
