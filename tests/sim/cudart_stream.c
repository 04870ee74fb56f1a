/* SPDX-License-Identifier: MIT */
/* The runtime's streams, events, captures and graphs. */
#include "cudart.h"

#define DRIVER cudart_driver

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuStreamCreate(pStream, flags));
}

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
	return cudaStreamCreateWithFlags(pStream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuStreamDestroy_v2(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuStreamQuery(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
				unsigned int flags)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(
			       DRIVER.cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
				   enum cudaStreamCaptureMode mode)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuStreamBeginCapture_v2(
			       stream, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuStreamEndCapture(stream, pGraph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
				  enum cudaStreamCaptureStatus *pCaptureStatus)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuStreamIsCapturing(
			       stream,
			       (CUstreamCaptureStatus *)pCaptureStatus));
}

cudaError_t
cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuThreadExchangeStreamCaptureMode(
			       (CUstreamCaptureMode *)mode));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuEventRecord(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuEventSynchronize(event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuEventDestroy_v2(event));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
				 unsigned long long flags)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuGraphInstantiateWithFlags(
			       pGraphExec, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuGraphLaunch(graphExec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	cudaError_t error = cudart_enter();

	return error ? error : cudart_code(DRIVER.cuGraphDestroy(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
	cudaError_t error = cudart_enter();

	return error ? error
		     : cudart_code(DRIVER.cuGraphExecDestroy(graphExec));
}
