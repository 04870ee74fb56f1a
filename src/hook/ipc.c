/* SPDX-License-Identifier: MIT */
#include "hook/ipc.h"

#include "base/cancel.h"
#include "base/log.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "hook/hook.h"
#include "hook/ipc_export.h"
#include "hook/ipc_fetch.h"
#include "hook/ipc_import.h"
#include "hook/ipc_wire.h"

VS_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle,
					     CUdeviceptr p)
{
	CUresult result = VS_PASS;
	struct vs_span span;
	int cancel;

	if (vs_enter(VS_API_cuIpcGetMemHandle) && handle &&
	    vs_pool_find(p, &span) && vs_vmm_is_current_alive()) {
		cancel = vs_cancel_hold();
		result = vs_ipc_export(&span, handle);
		vs_cancel_let(cancel);
	}
	return result != VS_PASS
		       ? result
		       : vs_seen(vs_real.cuIpcGetMemHandle(handle, p));
}

/* Opens a handle of the shim's; VS_PASS for one that is not. */
static CUresult open_once(CUdeviceptr *out, const CUipcMemHandle *handle,
			  unsigned int flags)
{
	struct vs_ipc_handle h;
	CUdevice device;
	CUresult result;
	int cancel;

	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return VS_PASS;
	if (!vs_ipc_unseal(handle, &h)) {
		if (vs_ipc_is_of_another(handle))
			vs_warn("cuIpcOpenMemHandle: the handle is of another "
				"version of libvmmshim; both processes need "
				"the same");
		return VS_PASS;
	}
	if (vs_vmm_current_device(&device) != CUDA_SUCCESS)
		return VS_PASS;
	/* as the driver says to whom the memory belongs */
	if (vs_ipc_is_own_key(h.key))
		return CUDA_ERROR_INVALID_CONTEXT;
	cancel = vs_cancel_hold();
	result = vs_ipc_import(&h, vs_pool_ctx_owning(vs_vmm_current()), device,
			       out);
	vs_cancel_let(cancel);
	return result;
}

/* What is idle may be in the way of page tables, and of no descriptor. */
static CUresult open_shared(CUdeviceptr *out, const CUipcMemHandle *handle,
			    unsigned int flags)
{
	CUresult result = open_once(out, handle, flags);

	VS_AGAIN(VS_ANY_DEVICE, result, open_once(out, handle, flags));
	return result == VS_IPC_SHORT ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

VS_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *out,
					      CUipcMemHandle handle,
					      unsigned int flags)
{
	CUresult result = VS_PASS;

	if (vs_enter(VS_API_cuIpcOpenMemHandle))
		result = open_shared(out, &handle, flags);
	return result != VS_PASS ? result
				 : vs_seen(vs_real.cuIpcOpenMemHandle(
					   out, handle, flags));
}

VS_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *out,
						 CUipcMemHandle handle,
						 unsigned int flags)
{
	CUresult result = VS_PASS;

	if (vs_enter(VS_API_cuIpcOpenMemHandle_v2))
		result = open_shared(out, &handle, flags);
	return result != VS_PASS ? result
				 : vs_seen(vs_real.cuIpcOpenMemHandle_v2(
					   out, handle, flags));
}

VS_EXPORT CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr p)
{
	CUresult result = VS_PASS;

	if (vs_enter(VS_API_cuIpcCloseMemHandle) &&
	    atomic_load(&vs_ipc_n_imports) > 0 && vs_vmm_is_current_alive())
		result = vs_ipc_close(p);
	return result != VS_PASS ? result
				 : vs_seen(vs_real.cuIpcCloseMemHandle(p));
}

void vs_ipc_forked(void)
{
	vs_ipc_export_forked();
	vs_ipc_import_forked();
}
