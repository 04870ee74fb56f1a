/* SPDX-License-Identifier: MIT
 *
 * copy_graph: copies and sets that are nodes of a graph; see Note [Copies
 * between devices]. What a node reaches is opened before the
 * node is made: nothing says whether the driver looks at it then, or when the
 * graph is instantiated, or launched. Nor is it known whether it refuses a set
 * node on memory of a device that is no enabled peer: the shim does not. A node
 * of another kind may be short of memory: see hook/retry. And the launch of
 * graphs: Note [Graphs of several devices] in hook/copier.h.
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

/* Nodes of any device may be short of memory. */
#define LAUNCHED(api, exec, stream)                                            \
	__extension__({                                                        \
		struct vs_copier copier = {0};                                 \
		CUresult result;                                               \
                                                                               \
		if (VS_ENTER_WORK(api, stream) &&                              \
		    vs_unlikely(vs_pool_ctx_apart()) && vs_pool_count() > 0)   \
			vs_copier_begin_graph(&copier, stream);                \
		result = vs_real.api(exec, stream);                            \
		VS_AGAIN(VS_ANY_DEVICE, result, vs_real.api(exec, stream));    \
		if (vs_unlikely(copier.devices))                               \
			vs_copier_end_graph(&copier);                          \
		vs_seen(result);                                               \
	})

VS_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return LAUNCHED(cuGraphLaunch, exec, stream);
}

VS_EXPORT CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
	return LAUNCHED(cuGraphLaunch_ptsz, exec, stream);
}
