/* SPDX-License-Identifier: MIT */
/*
 * Nodes that copy and set.  What one reaches is looked at when it is added, set
 * anew, instantiated and run, each time as strictly as by the call of the same
 * kind: which of these the hardware leaves out is not known.
 */
#include "sim_context.h"
#include "sim_copy.h"
#include "sim_graph.h"
#include "sim_handle.h"

/* Operations of no bytes are no nodes (cuda.h, of the setters). */
static CUresult prepare_copy(const CUDA_MEMCPY3D *params,
			     struct sim_context *ctx, struct sim_op *op)
{
	struct sim_transfer t = {.async = true};
	CUresult result;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_copy_describe(params, &t);
	if (result == CUDA_SUCCESS)
		result = sim_copy_prepare(&t, ctx, op);
	if (result == CUDA_SUCCESS && !op->n_touch)
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

static CUresult prepare_set(const CUDA_MEMSET_NODE_PARAMS *params,
			    struct sim_context *ctx, struct sim_op *op)
{
	struct sim_set set;
	CUresult result;

	if (!params || (params->elementSize != 1 && params->elementSize != 2 &&
			params->elementSize != 4))
		return CUDA_ERROR_INVALID_VALUE;
	set = (struct sim_set){.dst = params->dst,
			       .value = params->value,
			       .element = params->elementSize,
			       .pitch = params->pitch,
			       .width = params->width,
			       .height = params->height};
	result = sim_set_prepare(&set, ctx, op);
	if (result == CUDA_SUCCESS && !op->n_touch)
		result = CUDA_ERROR_INVALID_VALUE;
	return result;
}

/* Each is a node of the graph, and none comes twice. */
static bool are_nodes(const struct sim_graph *graph, const CUgraphNode *nodes,
		      size_t n)
{
	size_t i, j;

	if (n && !nodes)
		return false;
	for (i = 0; i < n; i++) {
		const struct sim_node *node =
			sim_handle_get(SIM_GRAPH_NODE, SIM_OF(nodes[i]));

		if (!node || node->graph != graph)
			return false;
		for (j = 0; j < i; j++)
			if (nodes[j] == nodes[i])
				return false;
	}
	return true;
}

/* Of a node to come. */
struct place {
	CUgraphNode *out;
	struct sim_graph *graph;
	struct sim_context *ctx;
};

static CUresult find_place(CUgraphNode *out, CUgraph hGraph,
			   const CUgraphNode *after, size_t n_after,
			   CUcontext hCtx, struct place *place)
{
	place->out = out;
	place->graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));
	if (!out || !place->graph || !are_nodes(place->graph, after, n_after))
		return CUDA_ERROR_INVALID_VALUE;
	return sim_context_get_or_current(hCtx, &place->ctx);
}

static CUresult add(const struct place *place, const struct sim_op *op)
{
	struct sim_graph *graph = place->graph;

	sim_graph_add(graph, op);
	*place->out = SIM_AS(CUgraphNode,
			     sim_graph_node(graph, graph->n - 1)->handle);
	return CUDA_SUCCESS;
}

/* The operation that a node names, if it is of that kind. */
static struct sim_op *op_of(CUgraphNode hNode, enum sim_op_kind kind)
{
	struct sim_node *node = sim_handle_get(SIM_GRAPH_NODE, SIM_OF(hNode));
	struct sim_op *op = node ? &node->graph->ops[node->at] : NULL;

	return op && op->kind == kind ? op : NULL;
}

/* The same in an executable graph. */
static struct sim_op *exec_op_of(CUgraphExec hExec, CUgraphNode hNode,
				 enum sim_op_kind kind)
{
	struct sim_graph_exec *exec =
		sim_handle_get(SIM_GRAPH_EXEC, SIM_OF(hExec));
	struct sim_node *node = sim_handle_get(SIM_GRAPH_NODE, SIM_OF(hNode));

	if (!exec || !node || exec->graph != node->graph->handle ||
	    node->at >= exec->n || exec->ops[node->at].kind != kind)
		return NULL;
	return &exec->ops[node->at];
}

/* Memory of the same devices, or of the host, as before. */
static bool is_at_home(const struct sim_op *op, const struct sim_op *was)
{
	unsigned i;

	for (i = 0; i < op->n_touch; i++)
		if (op->touch[i].home != was->touch[i].home)
			return false;
	return true;
}

static bool is_row(const struct sim_op *op)
{
	return op->u.copy.height == 1 && op->u.copy.depth == 1;
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies,
				  size_t numDependencies,
				  const CUDA_MEMCPY3D *copyParams,
				  CUcontext ctx)
{
	struct place place;
	struct sim_op op = {0};
	CUresult result = find_place(phGraphNode, hGraph, dependencies,
				     numDependencies, ctx, &place);

	if (result == CUDA_SUCCESS)
		result = prepare_copy(copyParams, place.ctx, &op);
	return result == CUDA_SUCCESS ? add(&place, &op) : result;
}

CUresult sim_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies,
				  size_t numDependencies,
				  const CUDA_MEMSET_NODE_PARAMS *memsetParams,
				  CUcontext ctx)
{
	struct place place;
	struct sim_op op = {0};
	CUresult result = find_place(phGraphNode, hGraph, dependencies,
				     numDependencies, ctx, &place);

	if (result == CUDA_SUCCESS)
		result = prepare_set(memsetParams, place.ctx, &op);
	return result == CUDA_SUCCESS ? add(&place, &op) : result;
}

/* A node stays in the context that it was added for. */
CUresult sim_cuGraphMemcpyNodeSetParams(CUgraphNode hNode,
					const CUDA_MEMCPY3D *nodeParams)
{
	struct sim_op *was = op_of(hNode, SIM_OP_COPY), op = {0};
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (was)
		result = prepare_copy(nodeParams, was->ctx, &op);
	if (result == CUDA_SUCCESS)
		*was = op;
	return result;
}

CUresult
sim_cuGraphMemsetNodeSetParams(CUgraphNode hNode,
			       const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	struct sim_op *was = op_of(hNode, SIM_OP_SET), op = {0};
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (was)
		result = prepare_set(nodeParams, was->ctx, &op);
	if (result == CUDA_SUCCESS)
		*was = op;
	return result;
}

/* One row before and after, between the same places (cuda.h). */
CUresult sim_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec,
					    CUgraphNode hNode,
					    const CUDA_MEMCPY3D *copyParams,
					    CUcontext ctx)
{
	struct sim_op *was = exec_op_of(hGraphExec, hNode, SIM_OP_COPY),
		      op = {0};
	struct sim_context *context;
	CUresult result = sim_context_get_or_current(ctx, &context);

	if (!was)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = prepare_copy(copyParams, context, &op);
	if (result != CUDA_SUCCESS)
		return result;
	if (!is_row(was) || !is_row(&op) || !is_at_home(&op, was))
		return CUDA_ERROR_INVALID_VALUE;
	*was = op;
	return CUDA_SUCCESS;
}

/* The height stays, and if there are rows all but the value and place. */
CUresult
sim_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				   const CUDA_MEMSET_NODE_PARAMS *memsetParams,
				   CUcontext ctx)
{
	struct sim_op *was = exec_op_of(hGraphExec, hNode, SIM_OP_SET),
		      op = {0};
	struct sim_context *context;
	CUresult result = sim_context_get_or_current(ctx, &context);

	if (!was)
		return CUDA_ERROR_INVALID_VALUE;
	if (result == CUDA_SUCCESS)
		result = prepare_set(memsetParams, context, &op);
	if (result != CUDA_SUCCESS)
		return result;
	if (!is_at_home(&op, was) || op.u.set.height != was->u.set.height)
		return CUDA_ERROR_INVALID_VALUE;
	if (op.u.set.height > 1 && (op.u.set.width != was->u.set.width ||
				    op.u.set.pitch != was->u.set.pitch ||
				    op.u.set.element != was->u.set.element))
		return CUDA_ERROR_INVALID_VALUE;
	*was = op;
	return CUDA_SUCCESS;
}

/* ---- the same by a tagged union --------------------------------------- */

static CUDA_MEMSET_NODE_PARAMS set_of(const CUgraphNodeParams *params)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *set = &params->memset;

	return (CUDA_MEMSET_NODE_PARAMS){.dst = set->dst,
					 .pitch = set->pitch,
					 .value = set->value,
					 .elementSize = set->elementSize,
					 .width = set->width,
					 .height = set->height};
}

CUresult sim_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
			       const CUgraphNode *dependencies,
			       const CUgraphEdgeData *dependencyData,
			       size_t numDependencies,
			       CUgraphNodeParams *nodeParams)
{
	CUDA_MEMSET_NODE_PARAMS set;

	(void)dependencyData;
	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEMCPY)
		return sim_cuGraphAddMemcpyNode(phGraphNode, hGraph,
						dependencies, numDependencies,
						&nodeParams->memcpy.copyParams,
						nodeParams->memcpy.copyCtx);
	if (nodeParams->type != CU_GRAPH_NODE_TYPE_MEMSET)
		return CUDA_ERROR_NOT_SUPPORTED;
	set = set_of(nodeParams);
	return sim_cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies,
					numDependencies, &set,
					nodeParams->memset.ctx);
}

CUresult sim_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph,
			    const CUgraphNode *dependencies,
			    size_t numDependencies,
			    CUgraphNodeParams *nodeParams)
{
	return sim_cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, NULL,
				     numDependencies, nodeParams);
}

/* Here the parameters name a context, so the node may move. */
CUresult sim_cuGraphNodeSetParams(CUgraphNode hNode,
				  CUgraphNodeParams *nodeParams)
{
	CUDA_MEMSET_NODE_PARAMS set;
	struct sim_context *ctx;
	struct sim_op *was, op = {0};
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
		was = op_of(hNode, SIM_OP_COPY);
		if (was)
			result = sim_context_get_or_current(
				nodeParams->memcpy.copyCtx, &ctx);
		if (result == CUDA_SUCCESS)
			result = prepare_copy(&nodeParams->memcpy.copyParams,
					      ctx, &op);
	} else if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEMSET) {
		was = op_of(hNode, SIM_OP_SET);
		set = set_of(nodeParams);
		if (was)
			result = sim_context_get_or_current(
				nodeParams->memset.ctx, &ctx);
		if (result == CUDA_SUCCESS)
			result = prepare_set(&set, ctx, &op);
	} else {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (result == CUDA_SUCCESS)
		*was = op;
	return result;
}

CUresult sim_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				      CUgraphNodeParams *nodeParams)
{
	CUDA_MEMSET_NODE_PARAMS set;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	if (nodeParams->type == CU_GRAPH_NODE_TYPE_MEMCPY)
		return sim_cuGraphExecMemcpyNodeSetParams(
			hGraphExec, hNode, &nodeParams->memcpy.copyParams,
			nodeParams->memcpy.copyCtx);
	if (nodeParams->type != CU_GRAPH_NODE_TYPE_MEMSET)
		return CUDA_ERROR_NOT_SUPPORTED;
	set = set_of(nodeParams);
	return sim_cuGraphExecMemsetNodeSetParams(hGraphExec, hNode, &set,
						  nodeParams->memset.ctx);
}
