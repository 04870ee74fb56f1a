/* SPDX-License-Identifier: MIT
 *
 * peer: cuCtxEnablePeerAccess covers the driver's allocations; the pool's
 * chunks must be told.
 */
#include "hook/hook.h"

#include "hook/ipc.h"
#include "pool/pool.h"

static CUresult tell_pool(CUcontext peer, bool is_enabled)
{
	CUcontext ctx;
	CUresult result = vs_real.cuCtxGetCurrent(&ctx);

	if (result == CUDA_SUCCESS)
		result = vs_pool_peer(ctx, peer, is_enabled);
	if (result == CUDA_SUCCESS)
		vs_ipc_peers_changed();
	return result;
}

VS_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer,
						 unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuCtxEnablePeerAccess);
	CUresult result = vs_real.cuCtxEnablePeerAccess(peer, flags);

	if (result != CUDA_SUCCESS || !is_open)
		return vs_seen(result);
	result = tell_pool(peer, true);
	if (result != CUDA_SUCCESS)
		vs_real.cuCtxDisablePeerAccess(peer);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
	bool is_open = vs_enter(VS_API_cuCtxDisablePeerAccess);
	CUresult result = vs_seen(vs_real.cuCtxDisablePeerAccess(peer));

	/* access that stays is harmless: the program cannot tell */
	if (result == CUDA_SUCCESS && is_open)
		tell_pool(peer, false);
	return result;
}
