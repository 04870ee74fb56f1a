/* SPDX-License-Identifier: MIT
 *
 * work: what a stream is given beside kernels, copies and sets, and may take
 * long: functions of the host, and waits for what the host, another device or
 * another process does. Nothing is done to them: what was freed gets its marker
 * before (Note [Before work] in pool/mark.h).
 */
#include "hook/hook.h"

#define RETURN_WORK(call, ...)                                                 \
	do {                                                                   \
		VS_ENTER_WORK(call, stream);                                   \
		return vs_seen(vs_real.call(__VA_ARGS__));                     \
	} while (0)

VS_EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn fn,
					    void *data)
{
	RETURN_WORK(cuLaunchHostFunc, stream, fn, data);
}

VS_EXPORT CUresult CUDAAPI cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn fn,
						 void *data)
{
	RETURN_WORK(cuLaunchHostFunc_ptsz, stream, fn, data);
}

VS_EXPORT CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream stream, CUhostFn fn,
					       void *data,
					       unsigned int sync_mode)
{
	RETURN_WORK(cuLaunchHostFunc_v2, stream, fn, data, sync_mode);
}

VS_EXPORT CUresult CUDAAPI cuLaunchHostFunc_v2_ptsz(CUstream stream,
						    CUhostFn fn, void *data,
						    unsigned int sync_mode)
{
	RETURN_WORK(cuLaunchHostFunc_v2_ptsz, stream, fn, data, sync_mode);
}

VS_EXPORT CUresult CUDAAPI cuStreamAddCallback(CUstream stream,
					       CUstreamCallback callback,
					       void *data, unsigned int flags)
{
	RETURN_WORK(cuStreamAddCallback, stream, callback, data, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamAddCallback_ptsz(CUstream stream,
						    CUstreamCallback callback,
						    void *data,
						    unsigned int flags)
{
	RETURN_WORK(cuStreamAddCallback_ptsz, stream, callback, data, flags);
}

/* Of another process's event, even. */
VS_EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event,
					     unsigned int flags)
{
	RETURN_WORK(cuStreamWaitEvent, stream, event, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitEvent_ptsz(CUstream stream,
						  CUevent event,
						  unsigned int flags)
{
	RETURN_WORK(cuStreamWaitEvent_ptsz, stream, event, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr at,
					       cuuint32_t value,
					       unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue32, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue32_ptsz(CUstream stream,
						    CUdeviceptr at,
						    cuuint32_t value,
						    unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue32_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream,
						  CUdeviceptr at,
						  cuuint32_t value,
						  unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue32_v2, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue32_v2_ptsz(CUstream stream,
						       CUdeviceptr at,
						       cuuint32_t value,
						       unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue32_v2_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr at,
					       cuuint64_t value,
					       unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue64, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue64_ptsz(CUstream stream,
						    CUdeviceptr at,
						    cuuint64_t value,
						    unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue64_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue64_v2(CUstream stream,
						  CUdeviceptr at,
						  cuuint64_t value,
						  unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue64_v2, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWaitValue64_v2_ptsz(CUstream stream,
						       CUdeviceptr at,
						       cuuint64_t value,
						       unsigned int flags)
{
	RETURN_WORK(cuStreamWaitValue64_v2_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int n,
					      CUstreamBatchMemOpParams *ops,
					      unsigned int flags)
{
	RETURN_WORK(cuStreamBatchMemOp, stream, n, ops, flags);
}

VS_EXPORT CUresult CUDAAPI
cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int n,
			CUstreamBatchMemOpParams *ops, unsigned int flags)
{
	RETURN_WORK(cuStreamBatchMemOp_ptsz, stream, n, ops, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamBatchMemOp_v2(CUstream stream,
						 unsigned int n,
						 CUstreamBatchMemOpParams *ops,
						 unsigned int flags)
{
	RETURN_WORK(cuStreamBatchMemOp_v2, stream, n, ops, flags);
}

VS_EXPORT CUresult CUDAAPI
cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int n,
			   CUstreamBatchMemOpParams *ops, unsigned int flags)
{
	RETURN_WORK(cuStreamBatchMemOp_v2_ptsz, stream, n, ops, flags);
}

VS_EXPORT CUresult CUDAAPI
cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *semaphores,
			      const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params,
			      unsigned int n, CUstream stream)
{
	RETURN_WORK(cuWaitExternalSemaphoresAsync, semaphores, params, n,
		    stream);
}

VS_EXPORT CUresult CUDAAPI cuWaitExternalSemaphoresAsync_ptsz(
	const CUexternalSemaphore *semaphores,
	const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned int n,
	CUstream stream)
{
	RETURN_WORK(cuWaitExternalSemaphoresAsync_ptsz, semaphores, params, n,
		    stream);
}

/* Between nodes, which may be slow. */
VS_EXPORT CUresult CUDAAPI
cuFabricCpyBatchAsync(size_t n, CUDA_FABRIC_COPY_BATCH_OP *copies,
		      unsigned long long flags, CUstream stream)
{
	RETURN_WORK(cuFabricCpyBatchAsync, n, copies, flags, stream);
}

VS_EXPORT CUresult CUDAAPI
cuFabricCpyBatchAsync_ptsz(size_t n, CUDA_FABRIC_COPY_BATCH_OP *copies,
			   unsigned long long flags, CUstream stream)
{
	RETURN_WORK(cuFabricCpyBatchAsync_ptsz, n, copies, flags, stream);
}

/* Behind what the graphics have drawn so far. */
VS_EXPORT CUresult CUDAAPI cuGraphicsMapResources(unsigned int n,
						  CUgraphicsResource *resources,
						  CUstream stream)
{
	RETURN_WORK(cuGraphicsMapResources, n, resources, stream);
}

VS_EXPORT CUresult CUDAAPI cuGraphicsMapResources_ptsz(
	unsigned int n, CUgraphicsResource *resources, CUstream stream)
{
	RETURN_WORK(cuGraphicsMapResources_ptsz, n, resources, stream);
}

#if CUDA_VERSION >= 12080
VS_EXPORT CUresult CUDAAPI cuMemBatchDecompressAsync(
	CUmemDecompressParams *params, size_t n, unsigned int flags,
	size_t *error_index, CUstream stream)
{
	RETURN_WORK(cuMemBatchDecompressAsync, params, n, flags, error_index,
		    stream);
}

VS_EXPORT CUresult CUDAAPI cuMemBatchDecompressAsync_ptsz(
	CUmemDecompressParams *params, size_t n, unsigned int flags,
	size_t *error_index, CUstream stream)
{
	RETURN_WORK(cuMemBatchDecompressAsync_ptsz, params, n, flags,
		    error_index, stream);
}
#endif
