/* SPDX-License-Identifier: MIT
 *
 * golden: asks a driver all there is to ask of memory, and prints the answers
 * so that they are the same in every run: addresses as places in named blocks,
 * ids as new ones or those of a name. What it prints must be the same with and
 * without the shim; lines that begin with "overrun" may differ where README.md
 * says so.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "victim.h"

#if CUDA_VERSION >= 13000
/* What cuda.h no longer names; there are no such functions here. */
CUresult batch_12080(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		     size_t count, CUmemcpyAttributes *attributes,
		     size_t *indices, size_t n_attributes, size_t *failed,
		     CUstream stream);
CUresult batch_3d_12080(size_t n, CUDA_MEMCPY3D_BATCH_OP *copies,
			size_t *failed, unsigned long long flags,
			CUstream stream);
#define GOLDEN_NEW(X)                                                          \
	X(batch_12080, "cuMemcpyBatchAsync", 12080)                            \
	X(batch_3d_12080, "cuMemcpy3DBatchAsync", 12080)                       \
	X(cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", 13000)                  \
	X(cuMemcpy3DBatchAsync_v2, "cuMemcpy3DBatchAsync", 13000)              \
	X(cuGraphAddNode_v2, "cuGraphAddNode", 12030)                          \
	X(cuGraphNodeSetParams, "cuGraphNodeSetParams", 12020)                 \
	X(cuGraphExecNodeSetParams, "cuGraphExecNodeSetParams", 12020)
#else
#define GOLDEN_NEW(X)
#endif

/* symbol, name and version to ask cuGetProcAddress for */
#define GOLDEN_CALLS(X)                                                        \
	X(cuInit, "cuInit", 2000)                                              \
	X(cuGetErrorName, "cuGetErrorName", 6000)                              \
	X(cuDeviceGetCount, "cuDeviceGetCount", 2000)                          \
	X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000)                \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)          \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                            \
	X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                          \
	X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000)                \
	X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000)              \
	X(cuStreamCreate, "cuStreamCreate", 2000)                              \
	X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                    \
	X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010)              \
	X(cuStreamEndCapture, "cuStreamEndCapture", 10000)                     \
	X(cuGraphCreate, "cuGraphCreate", 10000)                               \
	X(cuGraphDestroy, "cuGraphDestroy", 10000)                             \
	X(cuGraphAddMemcpyNode, "cuGraphAddMemcpyNode", 10000)                 \
	X(cuGraphAddMemsetNode, "cuGraphAddMemsetNode", 10000)                 \
	X(cuGraphMemcpyNodeSetParams, "cuGraphMemcpyNodeSetParams", 10000)     \
	X(cuGraphMemsetNodeSetParams, "cuGraphMemsetNodeSetParams", 10000)     \
	X(cuGraphExecMemcpyNodeSetParams, "cuGraphExecMemcpyNodeSetParams",    \
	  10020)                                                               \
	X(cuGraphExecMemsetNodeSetParams, "cuGraphExecMemsetNodeSetParams",    \
	  10020)                                                               \
	X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040)   \
	X(cuGraphLaunch, "cuGraphLaunch", 10000)                               \
	X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000)                     \
	X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                   \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020)                         \
	X(cuMemFree_v2, "cuMemFree", 3020)                                     \
	X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                           \
	X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                             \
	X(cuMemAllocManaged, "cuMemAllocManaged", 6000)                        \
	X(cuMemHostAlloc, "cuMemHostAlloc", 2020)                              \
	X(cuMemFreeHost, "cuMemFreeHost", 2000)                                \
	X(cuMemGetInfo_v2, "cuMemGetInfo", 3020)                               \
	X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020)               \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000)   \
	X(cuMemRelease, "cuMemRelease", 10020)                                 \
	X(cuMemGetAccess, "cuMemGetAccess", 10020)                             \
	X(cuMemCreate, "cuMemCreate", 10020)                                   \
	X(cuMemMap, "cuMemMap", 10020)                                         \
	X(cuMemUnmap, "cuMemUnmap", 10020)                                     \
	X(cuMemSetAccess, "cuMemSetAccess", 10020)                             \
	X(cuMemAddressFree, "cuMemAddressFree", 10020)                         \
	X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange",      \
	  11070)                                                               \
	X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000)                \
	X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000)              \
	X(cuPointerSetAttribute, "cuPointerSetAttribute", 6000)                \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                        \
	X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000)                  \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)                    \
	X(cuMemsetD8_v2, "cuMemsetD8", 3020)                                   \
	X(cuMemsetD16_v2, "cuMemsetD16", 3020)                                 \
	X(cuMemsetD32_v2, "cuMemsetD32", 3020)                                 \
	X(cuMemsetD2D8_v2, "cuMemsetD2D8", 3020)                               \
	X(cuMemsetD2D32_v2, "cuMemsetD2D32", 3020)                             \
	X(cuMemsetD8Async, "cuMemsetD8Async", 3020)                            \
	X(cuMemsetD32Async, "cuMemsetD32Async", 3020)                          \
	X(cuMemcpy, "cuMemcpy", 4000)                                          \
	X(cuMemcpyAsync, "cuMemcpyAsync", 4000)                                \
	X(cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020)                               \
	X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020)                     \
	X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020)                               \
	X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020)                     \
	X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020)                               \
	X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020)                     \
	X(cuMemcpy2D_v2, "cuMemcpy2D", 3020)                                   \
	X(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020)                 \
	X(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020)                         \
	X(cuMemcpy3D_v2, "cuMemcpy3D", 3020)                                   \
	X(cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", 3020)                         \
	X(cuMemcpyPeer, "cuMemcpyPeer", 4000)                                  \
	X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000)                        \
	X(cuMemcpy3DPeer, "cuMemcpy3DPeer", 4000)                              \
	X(cuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync", 4000)                    \
	GOLDEN_NEW(X)

struct golden_calls {
#define X(symbol, name, since) __typeof__(symbol) *symbol;
	GOLDEN_CALLS(X)
#undef X
};

/* A member may be NULL: this driver has no such function. */
extern struct golden_calls cu;
/* The same by their twins for the per-thread default stream, where there are
 * such. */
extern struct golden_calls cu_pt;

/* The primary contexts of the first devices; NULL: none yet. */
extern CUcontext golden_ctx[2];

const char *golden_code(CUresult result);
/* Gives the bytes at `base` a name, of one word; again: moves it. */
void golden_name(const char *name, CUdeviceptr base, size_t size);
/* "A+0x200", "0", or "elsewhere". */
const char *golden_place(CUdeviceptr p);

CUdeviceptr golden_alloc(const char *name, size_t size);
/* All that can be asked about one pointer. */
void golden_describe(const char *what, CUdeviceptr p);
/* All that can be done to it that answers with a code. */
void golden_codes(const char *what, CUdeviceptr p);
/* A handle for the whole pages of an allocation, as for a network card. */
void golden_pages(const char *what, CUdeviceptr p, size_t size);
/*
 * The same of calls for mappings, of which memory of cuMemAlloc is none: on all
 * 2 MiB around an allocation.
 */
void golden_mapping(const char *what, CUdeviceptr p, size_t size);

/* The ends of one copy, and how the driver is asked. */
struct golden_job {
	CUdeviceptr dst, src;
	CUcontext dst_ctx, src_ctx;
	CUcontext here, other; /* the current one, and the other device's */
	CUstream stream;
	const struct golden_calls *calls;
};

/* Bytes at either end. */
#define GOLDEN_SIZE (3 * MiB)

struct golden_kind {
	const char *name;
	CUresult (*run)(const struct golden_job *j);
	bool needs_peers; /* devices that can be (README.md, Limits) */
};

extern const struct golden_kind golden_nodes[];
extern const size_t golden_n_nodes;

/* Two devices and more. */
void golden_devices(void);

#endif
