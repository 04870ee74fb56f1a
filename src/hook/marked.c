/* SPDX-License-Identifier: MIT
 *
 * marked: what a stream is given that comes right behind the work before it:
 * records of events, writes of a value, signals, copies of arrays, what is done
 * to managed memory. None of it waits for more than that work, so what was
 * freed needs no marker; but a kernel of another stream may wait for them: this
 * one is in use, too (Note [Two feeders] in base/stream.h).
 */
#include "hook/hook.h"

#define RETURN_SEEN_IN(call, stream, ...)                                      \
	do {                                                                   \
		VS_ENTER_STREAM(call, stream);                                 \
		return vs_seen(vs_real.call(__VA_ARGS__));                     \
	} while (0)
#define RETURN_SEEN(call, ...) RETURN_SEEN_IN(call, stream, __VA_ARGS__)

VS_EXPORT CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream)
{
	RETURN_SEEN(cuEventRecord, event, stream);
}

VS_EXPORT CUresult CUDAAPI cuEventRecord_ptsz(CUevent event, CUstream stream)
{
	RETURN_SEEN(cuEventRecord_ptsz, event, stream);
}

VS_EXPORT CUresult CUDAAPI cuEventRecordWithFlags(CUevent event,
						  CUstream stream,
						  unsigned int flags)
{
	RETURN_SEEN(cuEventRecordWithFlags, event, stream, flags);
}

VS_EXPORT CUresult CUDAAPI cuEventRecordWithFlags_ptsz(CUevent event,
						       CUstream stream,
						       unsigned int flags)
{
	RETURN_SEEN(cuEventRecordWithFlags_ptsz, event, stream, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr at,
						cuuint32_t value,
						unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue32, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue32_ptsz(CUstream stream,
						     CUdeviceptr at,
						     cuuint32_t value,
						     unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue32_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream,
						   CUdeviceptr at,
						   cuuint32_t value,
						   unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue32_v2, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue32_v2_ptsz(CUstream stream,
							CUdeviceptr at,
							cuuint32_t value,
							unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue32_v2_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr at,
						cuuint64_t value,
						unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue64, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue64_ptsz(CUstream stream,
						     CUdeviceptr at,
						     cuuint64_t value,
						     unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue64_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue64_v2(CUstream stream,
						   CUdeviceptr at,
						   cuuint64_t value,
						   unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue64_v2, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamWriteValue64_v2_ptsz(CUstream stream,
							CUdeviceptr at,
							cuuint64_t value,
							unsigned int flags)
{
	RETURN_SEEN(cuStreamWriteValue64_v2_ptsz, stream, at, value, flags);
}

VS_EXPORT CUresult CUDAAPI cuSignalExternalSemaphoresAsync(
	const CUexternalSemaphore *semaphores,
	const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned int n,
	CUstream stream)
{
	RETURN_SEEN(cuSignalExternalSemaphoresAsync, semaphores, params, n,
		    stream);
}

VS_EXPORT CUresult CUDAAPI cuSignalExternalSemaphoresAsync_ptsz(
	const CUexternalSemaphore *semaphores,
	const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned int n,
	CUstream stream)
{
	RETURN_SEEN(cuSignalExternalSemaphoresAsync_ptsz, semaphores, params, n,
		    stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoA_v2(CUarray dst, size_t offset,
					   const void *src, size_t size)
{
	RETURN_SEEN_IN(cuMemcpyHtoA_v2, NULL, dst, offset, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoA_v2_ptds(CUarray dst, size_t offset,
						const void *src, size_t size)
{
	RETURN_SEEN_IN(cuMemcpyHtoA_v2_ptds, NULL, dst, offset, src, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoH_v2(void *dst, CUarray src,
					   size_t offset, size_t size)
{
	RETURN_SEEN_IN(cuMemcpyAtoH_v2, NULL, dst, src, offset, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoH_v2_ptds(void *dst, CUarray src,
						size_t offset, size_t size)
{
	RETURN_SEEN_IN(cuMemcpyAtoH_v2_ptds, NULL, dst, src, offset, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoA_v2(CUarray dst, size_t dst_offset,
					   CUarray src, size_t src_offset,
					   size_t size)
{
	RETURN_SEEN_IN(cuMemcpyAtoA_v2, NULL, dst, dst_offset, src, src_offset,
		       size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoA_v2_ptds(CUarray dst, size_t dst_offset,
						CUarray src, size_t src_offset,
						size_t size)
{
	RETURN_SEEN_IN(cuMemcpyAtoA_v2_ptds, NULL, dst, dst_offset, src,
		       src_offset, size);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoAAsync_v2(CUarray dst, size_t offset,
						const void *src, size_t size,
						CUstream stream)
{
	RETURN_SEEN(cuMemcpyHtoAAsync_v2, dst, offset, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyHtoAAsync_v2_ptsz(CUarray dst, size_t offset,
						     const void *src,
						     size_t size,
						     CUstream stream)
{
	RETURN_SEEN(cuMemcpyHtoAAsync_v2_ptsz, dst, offset, src, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoHAsync_v2(void *dst, CUarray src,
						size_t offset, size_t size,
						CUstream stream)
{
	RETURN_SEEN(cuMemcpyAtoHAsync_v2, dst, src, offset, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyAtoHAsync_v2_ptsz(void *dst, CUarray src,
						     size_t offset, size_t size,
						     CUstream stream)
{
	RETURN_SEEN(cuMemcpyAtoHAsync_v2_ptsz, dst, src, offset, size, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr p, size_t size,
					      CUdevice device, CUstream stream)
{
	RETURN_SEEN(cuMemPrefetchAsync, p, size, device, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t size,
						   CUdevice device,
						   CUstream stream)
{
	RETURN_SEEN(cuMemPrefetchAsync_ptsz, p, size, device, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr p, size_t size,
						 CUmemLocation location,
						 unsigned int flags,
						 CUstream stream)
{
	RETURN_SEEN(cuMemPrefetchAsync_v2, p, size, location, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p,
						      size_t size,
						      CUmemLocation location,
						      unsigned int flags,
						      CUstream stream)
{
	RETURN_SEEN(cuMemPrefetchAsync_v2_ptsz, p, size, location, flags,
		    stream);
}

VS_EXPORT CUresult CUDAAPI cuStreamAttachMemAsync(CUstream stream,
						  CUdeviceptr p, size_t size,
						  unsigned int flags)
{
	RETURN_SEEN(cuStreamAttachMemAsync, stream, p, size, flags);
}

VS_EXPORT CUresult CUDAAPI cuStreamAttachMemAsync_ptsz(CUstream stream,
						       CUdeviceptr p,
						       size_t size,
						       unsigned int flags)
{
	RETURN_SEEN(cuStreamAttachMemAsync_ptsz, stream, p, size, flags);
}

VS_EXPORT CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo *list,
					      unsigned int n, CUstream stream)
{
	RETURN_SEEN(cuMemMapArrayAsync, list, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list,
						   unsigned int n,
						   CUstream stream)
{
	RETURN_SEEN(cuMemMapArrayAsync_ptsz, list, n, stream);
}

VS_EXPORT CUresult CUDAAPI cuGraphicsUnmapResources(
	unsigned int n, CUgraphicsResource *resources, CUstream stream)
{
	RETURN_SEEN(cuGraphicsUnmapResources, n, resources, stream);
}

VS_EXPORT CUresult CUDAAPI cuGraphicsUnmapResources_ptsz(
	unsigned int n, CUgraphicsResource *resources, CUstream stream)
{
	RETURN_SEEN(cuGraphicsUnmapResources_ptsz, n, resources, stream);
}

/* All streams. */
VS_EXPORT CUresult CUDAAPI cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
	if (vs_enter(VS_API_cuCtxRecordEvent))
		vs_stream_give_up();
	return vs_seen(vs_real.cuCtxRecordEvent(ctx, event));
}

VS_EXPORT CUresult CUDAAPI cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
	if (vs_enter(VS_API_cuCtxWaitEvent))
		vs_stream_give_up();
	return vs_seen(vs_real.cuCtxWaitEvent(ctx, event));
}

#if CUDA_VERSION >= 13000
VS_EXPORT CUresult CUDAAPI cuMemPrefetchBatchAsync(
	CUdeviceptr *list, size_t *sizes, size_t n, CUmemLocation *locations,
	size_t *indices, size_t n_locations, unsigned long long flags,
	CUstream stream)
{
	RETURN_SEEN(cuMemPrefetchBatchAsync, list, sizes, n, locations, indices,
		    n_locations, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemPrefetchBatchAsync_ptsz(
	CUdeviceptr *list, size_t *sizes, size_t n, CUmemLocation *locations,
	size_t *indices, size_t n_locations, unsigned long long flags,
	CUstream stream)
{
	RETURN_SEEN(cuMemPrefetchBatchAsync_ptsz, list, sizes, n, locations,
		    indices, n_locations, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemDiscardBatchAsync(CUdeviceptr *list,
						  size_t *sizes, size_t n,
						  unsigned long long flags,
						  CUstream stream)
{
	RETURN_SEEN(cuMemDiscardBatchAsync, list, sizes, n, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemDiscardBatchAsync_ptsz(CUdeviceptr *list,
						       size_t *sizes, size_t n,
						       unsigned long long flags,
						       CUstream stream)
{
	RETURN_SEEN(cuMemDiscardBatchAsync_ptsz, list, sizes, n, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemDiscardAndPrefetchBatchAsync(
	CUdeviceptr *list, size_t *sizes, size_t n, CUmemLocation *locations,
	size_t *indices, size_t n_locations, unsigned long long flags,
	CUstream stream)
{
	RETURN_SEEN(cuMemDiscardAndPrefetchBatchAsync, list, sizes, n,
		    locations, indices, n_locations, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemDiscardAndPrefetchBatchAsync_ptsz(
	CUdeviceptr *list, size_t *sizes, size_t n, CUmemLocation *locations,
	size_t *indices, size_t n_locations, unsigned long long flags,
	CUstream stream)
{
	RETURN_SEEN(cuMemDiscardAndPrefetchBatchAsync_ptsz, list, sizes, n,
		    locations, indices, n_locations, flags, stream);
}
#endif
