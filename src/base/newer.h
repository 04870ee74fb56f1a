/* SPDX-License-Identifier: MIT
 *
 * newer: functions of drivers that may be newer than the toolkit at hand (CUDA
 * 13.1 to 13.5), for api.def. A library built with an older toolkit stands in
 * front of them all the same: a capture that it does not see begin is one that
 * the pool's markers destroy. Declared as cuda.h of CUDA 13.5 does; where the
 * toolkit has them, too, the compiler holds the two against each other.
 * And those that make contexts of cudaGL.h and cudaVDPAU.h, which want headers
 * of other libraries.
 */
#ifndef VS_BASE_NEWER_H
#define VS_BASE_NEWER_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#if CUDA_VERSION < 13010
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
#endif

#if CUDA_VERSION < 13030
typedef enum { VS_RECAPTURE_ELIGIBLE_FOR_UPDATE } CUgraphRecaptureStatus;
typedef CUresult(CUDA_CB *CUgraphRecaptureCallback)(
	void *data, CUgraphNode node, const CUgraphNodeParams *original,
	const CUgraphNodeParams *recaptured, CUgraphRecaptureStatus status);
#endif

#if CUDA_VERSION < 13050
typedef struct CUDA_FABRIC_COPY_BATCH_OP_st CUDA_FABRIC_COPY_BATCH_OP;
#endif

/*
 * CUDA_MEMCPY_BATCH_NODE_PARAMS: a node's parameters, of the type below. `ctx`
 * may be a CUgreenCtx.
 */
struct vs_batch_node {
	size_t count;
	CUdeviceptr *dsts, *srcs;
	size_t *sizes;
	void *attributes;
	size_t *indices, n_attributes;
	CUcontext ctx;
};

#if CUDA_VERSION >= 13040
#define VS_NODE_MEMCPY_BATCH CU_GRAPH_NODE_TYPE_MEMCPY_BATCH
_Static_assert(sizeof(struct vs_batch_node) ==
		       sizeof(CUDA_MEMCPY_BATCH_NODE_PARAMS),
	       "the parameters of a node that copies a batch");
#else
#define VS_NODE_MEMCPY_BATCH ((CUgraphNodeType)14)
#endif

CUresult CUDAAPI cuStreamBeginRecaptureToGraph(
	CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
	CUgraphRecaptureCallback on_mismatch, void *data);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(
	CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
	CUgraphRecaptureCallback on_mismatch, void *data);
CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream stream,
					   CUstreamCigCaptureParams *params);
CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(
	CUstream stream, CUstreamCigCaptureParams *params);
CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream stream);
CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream stream);

CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream stream, CUhostFn fn, void *data,
				     unsigned int sync_mode);
CUresult CUDAAPI cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn fn,
					  void *data, unsigned int sync_mode);

CUresult CUDAAPI cuFabricCpyBatchAsync(size_t n,
				       CUDA_FABRIC_COPY_BATCH_OP *copies,
				       unsigned long long flags,
				       CUstream stream);
CUresult CUDAAPI cuFabricCpyBatchAsync_ptsz(size_t n,
					    CUDA_FABRIC_COPY_BATCH_OP *copies,
					    unsigned long long flags,
					    CUstream stream);

CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph,
				   const CUgraphNode *after,
				   const CUgraphEdgeData *edges, size_t n_after,
				   CUgraphNodeParams *params);
CUresult CUDAAPI cuGraphNodeSetParams_v2(CUgraphNode node,
					 CUgraphNodeParams *params);

CUresult CUDAAPI cuGLCtxCreate(CUcontext *ctx, unsigned int flags,
			       CUdevice device);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *ctx, unsigned int flags,
				  CUdevice device);
/* VdpDevice is a uint32_t, VdpGetProcAddress a function */
CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *ctx, unsigned int flags,
				  CUdevice device, uint32_t vdp_device,
				  void *vdp_proc_address);
CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *ctx, unsigned int flags,
				     CUdevice device, uint32_t vdp_device,
				     void *vdp_proc_address);

CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast,
					CUdevice device, size_t offset,
					CUdeviceptr p, size_t size,
					unsigned long long flags);
/* CUlogicalEndpointId is a cuuint32_t */
CUresult CUDAAPI cuLogicalEndpointBindAddr(cuuint32_t endpoint, CUdevice device,
					   cuuint64_t offset, void *address,
					   cuuint64_t size,
					   unsigned long long flags);

#if CUDA_VERSION >= 12080
CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src,
					     size_t size,
					     CUmemcpyAttributes *attributes,
					     CUstream stream);
CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(
	CUdeviceptr dst, CUdeviceptr src, size_t size,
	CUmemcpyAttributes *attributes, CUstream stream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *copy,
					       unsigned long long flags,
					       CUstream stream);
CUresult CUDAAPI
cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *copy,
				   unsigned long long flags, CUstream stream);
#endif

#endif
