/* SPDX-License-Identifier: MIT
 *
 * capture: where stream captures begin and end; pool/capture counts them. What
 * comes without a mode is of the strictest one, as in the driver.
 */
#include "hook/capture.h"

#include "driver/vmm.h"
#include "hook/alloc.h"
#include "hook/hook.h"
#include "pool/capture.h"
#include "pool/pool.h"

/* Asks with a block of the driver's own: the shim could only guess. */
static CUresult ask(void)
{
	CUdeviceptr block;
	CUresult result = vs_real.cuMemAlloc_v2(&block, 1);

	if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		return result;
	/* other errors, as that of no context, say nothing of captures */
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
		return VS_PASS;
	/* it ended unseen; each such free waits for the whole context */
	vs_capture_allows();
	if (result == CUDA_SUCCESS)
		vs_real.cuMemFree_v2(block);
	return VS_PASS;
}

CUresult vs_capture_refusal(CUcontext ctx)
{
	bool is_pushed = false;
	CUresult result;

	if (vs_likely(!vs_capture_forbids()))
		return VS_PASS;
	if (ctx && vs_vmm_push(ctx, &is_pushed) != CUDA_SUCCESS)
		return VS_PASS;
	result = ask();
	vs_vmm_pop(is_pushed);
	return result;
}

static void after_begin(CUstream stream, bool is_per_thread,
			CUstreamCaptureMode mode, CUresult result)
{
	vs_capture_after_begin(stream, is_per_thread, mode,
			       result == CUDA_SUCCESS);
	vs_alloc_watch();
}

/*
 * A capture that the driver's function of this row begins on `stream`, with its
 * arguments; its answer.
 */
#define BEGUN(api, is_per_thread, mode, ...)                                   \
	__extension__({                                                        \
		bool is_open = vs_enter(VS_API_##api);                         \
		CUresult result;                                               \
                                                                               \
		if (is_open) {                                                 \
			vs_mark_freed_now();                                   \
			vs_capture_before_begin(stream);                       \
		}                                                              \
		result = vs_seen(vs_real.api(__VA_ARGS__));                    \
		if (is_open)                                                   \
			after_begin(stream, is_per_thread, mode, result);      \
		result;                                                        \
	})

VS_EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
	return BEGUN(cuStreamBeginCapture, false, CU_STREAM_CAPTURE_MODE_GLOBAL,
		     stream);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
	return BEGUN(cuStreamBeginCapture_ptsz, true,
		     CU_STREAM_CAPTURE_MODE_GLOBAL, stream);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream,
						   CUstreamCaptureMode mode)
{
	return BEGUN(cuStreamBeginCapture_v2, false, mode, stream, mode);
}

VS_EXPORT CUresult CUDAAPI
cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return BEGUN(cuStreamBeginCapture_v2_ptsz, true, mode, stream, mode);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph(
	CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *edges, size_t n_dependencies,
	CUstreamCaptureMode mode)
{
	return BEGUN(cuStreamBeginCaptureToGraph, false, mode, stream, graph,
		     dependencies, edges, n_dependencies, mode);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(
	CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
	const CUgraphEdgeData *edges, size_t n_dependencies,
	CUstreamCaptureMode mode)
{
	return BEGUN(cuStreamBeginCaptureToGraph_ptsz, true, mode, stream,
		     graph, dependencies, edges, n_dependencies, mode);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginRecaptureToGraph(
	CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
	CUgraphRecaptureCallback on_mismatch, void *data)
{
	return BEGUN(cuStreamBeginRecaptureToGraph, false, mode, stream, mode,
		     graph, on_mismatch, data);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(
	CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
	CUgraphRecaptureCallback on_mismatch, void *data)
{
	return BEGUN(cuStreamBeginRecaptureToGraph_ptsz, true, mode, stream,
		     mode, graph, on_mismatch, data);
}

/*
 * Into a command list of a graphics API; cuda.h calls it alike to the relaxed
 * mode. Whether a marker of the context harms it is not known: none is set.
 */
VS_EXPORT CUresult CUDAAPI
cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *params)
{
	return BEGUN(cuStreamBeginCaptureToCig, false,
		     CU_STREAM_CAPTURE_MODE_RELAXED, stream, params);
}

VS_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(
	CUstream stream, CUstreamCigCaptureParams *params)
{
	return BEGUN(cuStreamBeginCaptureToCig_ptsz, true,
		     CU_STREAM_CAPTURE_MODE_RELAXED, stream, params);
}

/*
 * A failing cuStreamEndCapture may have ended an invalid capture, or may have
 * refused because the call was wrong.
 */
static bool has_ended(CUresult result, CUstream stream,
		      __typeof__(cuStreamIsCapturing) *is_capturing)
{
	CUstreamCaptureStatus status;

	if (result == CUDA_SUCCESS || !is_capturing)
		return true;
	return is_capturing(stream, &status) == CUDA_SUCCESS &&
	       status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/*
 * The end of a capture by the driver's function of this row, with its
 * arguments; its answer. The driver's `is_capturing` sees the stream as it
 * does.
 */
#define ENDED(api, is_per_thread, is_capturing, ...)                           \
	__extension__({                                                        \
		bool is_open = vs_enter(VS_API_##api);                         \
		CUresult result = vs_seen(vs_real.api(__VA_ARGS__));           \
                                                                               \
		if (is_open &&                                                 \
		    has_ended(result, stream, vs_real.is_capturing))           \
			vs_capture_ended(stream, is_per_thread);               \
		result;                                                        \
	})

VS_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream stream,
					      CUgraph *graph_out)
{
	return ENDED(cuStreamEndCapture, false, cuStreamIsCapturing, stream,
		     graph_out);
}

VS_EXPORT CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream,
						   CUgraph *graph_out)
{
	return ENDED(cuStreamEndCapture_ptsz, true, cuStreamIsCapturing_ptsz,
		     stream, graph_out);
}

VS_EXPORT CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream stream)
{
	return ENDED(cuStreamEndCaptureToCig, false, cuStreamIsCapturing,
		     stream);
}

VS_EXPORT CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
	return ENDED(cuStreamEndCaptureToCig_ptsz, true,
		     cuStreamIsCapturing_ptsz, stream);
}

/* The end of a stream by the driver's function of this row; its answer. */
#define DESTROYED(api)                                                         \
	__extension__({                                                        \
		bool is_open = vs_enter(VS_API_##api);                         \
		uint64_t last = is_open ? vs_capture_begun() : 0;              \
		CUresult result = vs_seen(vs_real.api(stream));                \
                                                                               \
		if (last > 0 && result == CUDA_SUCCESS)                        \
			vs_capture_destroyed(stream, last);                    \
		result;                                                        \
	})

VS_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
	return DESTROYED(cuStreamDestroy);
}

VS_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
	return DESTROYED(cuStreamDestroy_v2);
}
