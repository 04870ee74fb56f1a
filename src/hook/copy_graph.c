/* SPDX-License-Identifier: MIT
 *
 * copy_graph: copies and sets that are nodes of a graph, and batches of copies;
 * see Note [Copies between devices]. What a node reaches is opened before the
 * node is made: nothing says whether the driver looks at it then, or when the
 * graph is instantiated, or launched. Nor is it known whether it refuses a set
 * node on memory of a device that is no enabled peer: the shim does not. A node
 * of another kind may be short of memory: see hook/retry.
 */
#include "hook/copy.h"

static void open_copy(bool is_open, const CUDA_MEMCPY3D *c, CUcontext ctx)
{
	if (is_open && c && vs_pool_count() > 0)
		vs_copy_open_node(c, ctx);
}

static void open_moved(bool is_open, const CUDA_MEMCPY3D *c)
{
	if (is_open && c && vs_pool_count() > 0)
		vs_copy_open_moved(c);
}

static void open_set(bool is_open, const CUDA_MEMSET_NODE_PARAMS *set,
		     CUcontext ctx)
{
	if (is_open && set && vs_pool_count() > 0)
		vs_copy_open_set(set->dst, ctx);
}

/* For the devices of nodes so far: its context may be a green one's handle. */
static void open_batch_node(const struct vs_batch_node *b)
{
	for (size_t i = 0; i < b->count && b->dsts && b->srcs && b->sizes;
	     i++) {
		CUDA_MEMCPY3D copy =
			vs_copy_row(b->dsts[i], b->srcs[i], b->sizes[i]);

		vs_copy_open_moved(&copy);
	}
}

static void open_node(bool is_open, const CUgraphNodeParams *node)
{
	if (!is_open || !node || vs_pool_count() == 0)
		return;
	if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
		vs_copy_open_node(&node->memcpy.copyParams,
				  node->memcpy.copyCtx);
	else if (node->type == CU_GRAPH_NODE_TYPE_MEMSET)
		vs_copy_open_set(node->memset.dst, node->memset.ctx);
	else if (node->type == VS_NODE_MEMCPY_BATCH)
		open_batch_node((const void *)node->reserved1);
}

VS_EXPORT CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph,
						const CUgraphNode *after,
						size_t n_after,
						const CUDA_MEMCPY3D *copy,
						CUcontext ctx)
{
	bool is_open = vs_enter(VS_API_cuGraphAddMemcpyNode);

	if (is_open && copy && vs_copy_is_beyond(copy))
		return vs_seen(CUDA_ERROR_INVALID_VALUE);
	open_copy(is_open, copy, ctx);
	return vs_seen(vs_real.cuGraphAddMemcpyNode(out, graph, after, n_after,
						    copy, ctx));
}

VS_EXPORT CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode node,
						      const CUDA_MEMCPY3D *copy)
{
	bool is_open = vs_enter(VS_API_cuGraphMemcpyNodeSetParams);

	open_moved(is_open, copy);
	return vs_seen(vs_real.cuGraphMemcpyNodeSetParams(node, copy));
}

VS_EXPORT CUresult CUDAAPI
cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
			       const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	bool is_open = vs_enter(VS_API_cuGraphExecMemcpyNodeSetParams);

	open_copy(is_open, copy, ctx);
	return vs_seen(
		vs_real.cuGraphExecMemcpyNodeSetParams(exec, node, copy, ctx));
}

VS_EXPORT CUresult CUDAAPI cuGraphAddMemsetNode(
	CUgraphNode *out, CUgraph graph, const CUgraphNode *after,
	size_t n_after, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext ctx)
{
	bool is_open = vs_enter(VS_API_cuGraphAddMemsetNode);

	if (is_open && set &&
	    vs_copy_leaves(set->dst,
			   vs_set_extent(set->pitch,
					 set->width * set->elementSize,
					 set->height)))
		return vs_seen(CUDA_ERROR_INVALID_VALUE);
	open_set(is_open, set, ctx);
	return vs_seen(vs_real.cuGraphAddMemsetNode(out, graph, after, n_after,
						    set, ctx));
}

VS_EXPORT CUresult CUDAAPI
cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *set)
{
	bool is_open = vs_enter(VS_API_cuGraphMemsetNodeSetParams);

	if (is_open && set && vs_pool_count() > 0)
		vs_copy_open_set_moved(set->dst);
	return vs_seen(vs_real.cuGraphMemsetNodeSetParams(node, set));
}

VS_EXPORT CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(
	CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *set,
	CUcontext ctx)
{
	bool is_open = vs_enter(VS_API_cuGraphExecMemsetNodeSetParams);

	open_set(is_open, set, ctx);
	return vs_seen(
		vs_real.cuGraphExecMemsetNodeSetParams(exec, node, set, ctx));
}

VS_EXPORT CUresult CUDAAPI cuGraphAddNode(CUgraphNode *out, CUgraph graph,
					  const CUgraphNode *after,
					  size_t n_after,
					  CUgraphNodeParams *params)
{
	bool is_open = vs_enter(VS_API_cuGraphAddNode);

	open_node(is_open, params);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuGraphAddNode, out, graph, after,
			 n_after, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph,
					     const CUgraphNode *after,
					     const CUgraphEdgeData *edges,
					     size_t n_after,
					     CUgraphNodeParams *params)
{
	bool is_open = vs_enter(VS_API_cuGraphAddNode_v2);

	open_node(is_open, params);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuGraphAddNode_v2, out, graph, after,
			 edges, n_after, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph,
					     const CUgraphNode *after,
					     const CUgraphEdgeData *edges,
					     size_t n_after,
					     CUgraphNodeParams *params)
{
	bool is_open = vs_enter(VS_API_cuGraphAddNode_v3);

	open_node(is_open, params);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuGraphAddNode_v3, out, graph, after,
			 edges, n_after, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode node,
						CUgraphNodeParams *params)
{
	bool is_open = vs_enter(VS_API_cuGraphNodeSetParams);

	open_node(is_open, params);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuGraphNodeSetParams, node, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphNodeSetParams_v2(CUgraphNode node,
						   CUgraphNodeParams *params)
{
	bool is_open = vs_enter(VS_API_cuGraphNodeSetParams_v2);

	open_node(is_open, params);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuGraphNodeSetParams_v2, node, params);
}

VS_EXPORT CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec exec,
						    CUgraphNode node,
						    CUgraphNodeParams *params)
{
	bool is_open = vs_enter(VS_API_cuGraphExecNodeSetParams);

	open_node(is_open, params);
	VS_RETURN_ANSWER(VS_ANY_DEVICE, cuGraphExecNodeSetParams, exec, node,
			 params);
}

#if CUDA_VERSION >= 12080
static bool open_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		       size_t count, struct vs_way way) __attribute__((cold));

static bool open_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		       size_t count, struct vs_way way)
{
	bool is_opened = false;

	for (size_t i = 0; i < count && dsts && srcs && sizes; i++) {
		is_opened |= vs_copy_open_at(dsts[i], sizes[i], way);
		is_opened |= vs_copy_open_at(srcs[i], sizes[i], way);
	}
	return is_opened;
}

/* See Note [Bounds]. `failed_out`, unless NULL, gets the number of the copy. */
static bool is_batch_beyond(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
			    size_t count, size_t *failed_out)
{
	for (size_t i = 0; i < count && dsts && srcs && sizes; i++) {
		if (!vs_row_is_beyond(dsts[i], srcs[i], sizes[i]))
			continue;
		if (failed_out)
			*failed_out = i;
		return true;
	}
	return false;
}

/* See Note [Copies of peers]. */
static void note_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t count,
		       CUstream stream)
{
	struct vs_runners by = {.stream = stream};

	for (size_t i = 0; vs_copy_may_be_of_peer() && i < count; i++) {
		if (dsts)
			vs_copy_note(dsts[i], &by);
		if (srcs)
			vs_copy_note(srcs[i], &by);
	}
}

static bool open_operand(const CUmemcpy3DOperand *o, struct vs_way way)
{
	return o->type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
	       vs_copy_open_at(o->op.ptr.ptr, 1, way);
}

static void note_operand(const CUmemcpy3DOperand *o, struct vs_runners *by)
{
	if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
		vs_copy_note(o->op.ptr.ptr, by);
}

static void note_batch_3d(CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			  CUstream stream)
{
	struct vs_runners by = {.stream = stream};

	for (size_t i = 0; vs_copy_may_be_of_peer() && copies && i < n; i++) {
		note_operand(&copies[i].dst, &by);
		note_operand(&copies[i].src, &by);
	}
}

static bool open_batch_3d(CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			  struct vs_way way) __attribute__((cold));

static bool open_batch_3d(CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			  struct vs_way way)
{
	bool is_opened = false;

	for (size_t i = 0; i < n && copies; i++) {
		is_opened |= open_operand(&copies[i].dst, way);
		is_opened |= open_operand(&copies[i].src, way);
	}
	return is_opened;
}

/* Between pointers, where an element is a byte. */
static bool operand_leaves(const CUmemcpy3DOperand *o, const CUextent3D *e)
{
	size_t row = o->op.ptr.rowLength, layer = o->op.ptr.layerHeight;

	row = row ? row : e->width;
	layer = layer ? layer : e->height;
	return vs_copy_leaves(o->op.ptr.ptr,
			      ((e->depth - 1) * layer + e->height - 1) * row +
				      e->width);
}

/* The same for boxes; a copy of nothing is the driver's to refuse. */
static bool is_batch_3d_beyond(const CUDA_MEMCPY3D_BATCH_OP *copies, size_t n,
			       size_t *failed_out)
{
	for (size_t i = 0; copies && i < n; i++) {
		const CUDA_MEMCPY3D_BATCH_OP *c = &copies[i];

		if (c->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
		    c->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
		    !c->extent.width || !c->extent.height || !c->extent.depth ||
		    (!operand_leaves(&c->dst, &c->extent) &&
		     !operand_leaves(&c->src, &c->extent)))
			continue;
		if (failed_out)
			*failed_out = i;
		return true;
	}
	return false;
}

/*
 * How, where the number of a copy that fails goes or NULL, and the driver's
 * arguments; the rest is by the wrapper's names.
 */
#define COPIED_BATCH(api, how, failed_out, ...)                                \
	VS_COPIED(api, how,                                                    \
		  is_batch_beyond(dsts, srcs, sizes, count, failed_out),       \
		  note_batch(dsts, srcs, count, stream),                       \
		  open_batch(dsts, srcs, sizes, count, way),                   \
		  CUDA_ERROR_INVALID_VALUE, __VA_ARGS__)
#define COPIED_BATCH_3D(api, how, failed_out, ...)                             \
	VS_COPIED(api, how, is_batch_3d_beyond(copies, n, failed_out),         \
		  note_batch_3d(copies, n, stream),                            \
		  open_batch_3d(copies, n, way), CUDA_ERROR_INVALID_VALUE,     \
		  __VA_ARGS__)

VS_EXPORT CUresult CUDAAPI cuMemcpyBatchAsync(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes,
	size_t *failed, CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync, VS_ASYNC(stream), failed, dsts,
			    srcs, sizes, count, attributes, indices,
			    n_attributes, failed, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyBatchAsync_ptsz(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes,
	size_t *failed, CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync_ptsz, VS_ASYNC_PT(stream),
			    failed, dsts, srcs, sizes, count, attributes,
			    indices, n_attributes, failed, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t n,
						CUDA_MEMCPY3D_BATCH_OP *copies,
						size_t *failed,
						unsigned long long flags,
						CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync, VS_ASYNC(stream), failed,
			       n, copies, failed, flags, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpy3DBatchAsync_ptsz(
	size_t n, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
	unsigned long long flags, CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync_ptsz, VS_ASYNC_PT(stream),
			       failed, n, copies, failed, flags, stream);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *copies,
			      unsigned long long flags, CUstream stream)
{
	const size_t n = 1;

	return COPIED_BATCH_3D(cuMemcpy3DWithAttributesAsync, VS_ASYNC(stream),
			       NULL, copies, flags, stream);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *copies,
				   unsigned long long flags, CUstream stream)
{
	const size_t n = 1;

	return COPIED_BATCH_3D(cuMemcpy3DWithAttributesAsync_ptsz,
			       VS_ASYNC_PT(stream), NULL, copies, flags,
			       stream);
}
#endif

#if CUDA_VERSION >= 13000
VS_EXPORT CUresult CUDAAPI
cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
		      size_t count, CUmemcpyAttributes *attributes,
		      size_t *indices, size_t n_attributes, CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync_v2, VS_ASYNC(stream), NULL, dsts,
			    srcs, sizes, count, attributes, indices,
			    n_attributes, stream);
}

VS_EXPORT CUresult CUDAAPI cuMemcpyBatchAsync_v2_ptsz(
	CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes,
	CUstream stream)
{
	return COPIED_BATCH(cuMemcpyBatchAsync_v2_ptsz, VS_ASYNC_PT(stream),
			    NULL, dsts, srcs, sizes, count, attributes, indices,
			    n_attributes, stream);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP *copies,
			unsigned long long flags, CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync_v2, VS_ASYNC(stream), NULL,
			       n, copies, flags, stream);
}

VS_EXPORT CUresult CUDAAPI
cuMemcpy3DBatchAsync_v2_ptsz(size_t n, CUDA_MEMCPY3D_BATCH_OP *copies,
			     unsigned long long flags, CUstream stream)
{
	return COPIED_BATCH_3D(cuMemcpy3DBatchAsync_v2_ptsz,
			       VS_ASYNC_PT(stream), NULL, n, copies, flags,
			       stream);
}
#endif
