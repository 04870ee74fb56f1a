/* SPDX-License-Identifier: MIT
 *
 * marked: what a stream is given that comes right behind the work before it:
 * records of events, writes of a value, signals. Nothing waits for them that
 * does not wait for that work, so what was freed needs no marker; but a kernel
 * of another stream may wait for them: this one is in use, too (Note [Two
 * feeders] in base/stream.h).
 */
#include "hook/hook.h"

#define RETURN_SEEN(call, ...)                                                 \
	do {                                                                   \
		VS_ENTER_STREAM(call, stream);                                 \
		return vs_seen(vs_real.call(__VA_ARGS__));                     \
	} while (0)

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
