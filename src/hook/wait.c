/* SPDX-License-Identifier: MIT
 *
 * wait: calls by which the program waits for the GPU. What it freed before is
 * seen complete by them, too.
 */
#include "hook/hook.h"

#include "pool/pool.h"

/* Around a call by which the program waits for the GPU. */
static bool before_wait(enum vs_api api)
{
	return vs_enter(api) && vs_mark_freed_now();
}

static CUresult after_wait(bool is_open, CUresult result)
{
	vs_seen(result);
	if (is_open && vs_thread_go_within(vs_thread_self())) {
		vs_pool_synchronized();
		vs_thread_come_out(vs_thread_self());
	}
	return result;
}

VS_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
	bool is_open = before_wait(VS_API_cuCtxSynchronize);
	struct vs_pool_sync sync = {NULL, 0};
	CUresult result;

	if (is_open && vs_thread_go_within(vs_thread_self())) {
		vs_pool_sync_begins(&sync);
		vs_thread_come_out(vs_thread_self());
	}
	result = vs_real.cuCtxSynchronize();
	if (result == CUDA_SUCCESS)
		vs_pool_sync_ended(&sync);
	return after_wait(is_open, result);
}

#if CUDA_VERSION >= 13000
VS_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
	bool is_open = before_wait(VS_API_cuCtxSynchronize_v2);

	return after_wait(is_open, vs_real.cuCtxSynchronize_v2(ctx));
}
#endif

VS_EXPORT CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
	bool is_open = before_wait(VS_API_cuStreamSynchronize);

	return after_wait(is_open, vs_real.cuStreamSynchronize(stream));
}

VS_EXPORT CUresult CUDAAPI cuStreamSynchronize_ptsz(CUstream stream)
{
	bool is_open = before_wait(VS_API_cuStreamSynchronize_ptsz);

	return after_wait(is_open, vs_real.cuStreamSynchronize_ptsz(stream));
}
