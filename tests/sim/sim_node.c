/* SPDX-License-Identifier: MIT */
/*
 * Nodes that copy, set and launch.  What one reaches is looked at when it is
 * added, set anew, instantiated and run, each time as strictly as by the call
 * of the same kind: which of these the hardware leaves out is not known.
 */
#include <string.h>

#include "sim_context.h"
#include "sim_copy.h"
#include "sim_graph.h"
#include "sim_handle.h"
#include "sim_module.h"

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

static CUresult prepare_kernel(const CUDA_KERNEL_NODE_PARAMS *params,
			       struct sim_context *ctx, struct sim_op *op)
{
	CUresult result;

	if (!params || !params->gridDimX || !params->gridDimY ||
	    !params->gridDimZ || !params->blockDimX || !params->blockDimY ||
	    !params->blockDimZ)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_kernel_prepare(
		params->func ? SIM_OF(params->func) : SIM_OF(params->kern),
		params->kernelParams, params->extra, ctx, op);
	op->ctx = ctx;
	return result;
}

/* What a node does: one of them. */
struct job {
	enum sim_op_kind kind;
	const CUDA_MEMCPY3D *copy;
	const CUDA_MEMSET_NODE_PARAMS *set;
	const CUDA_KERNEL_NODE_PARAMS *kernel;
};

static struct job copy_job(const CUDA_MEMCPY3D *copy)
{
	return (struct job){.kind = SIM_OP_COPY, .copy = copy};
}

static struct job set_job(const CUDA_MEMSET_NODE_PARAMS *set)
{
	return (struct job){.kind = SIM_OP_SET, .set = set};
}

static struct job kernel_job(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
	return (struct job){.kind = SIM_OP_KERNEL, .kernel = kernel};
}

static CUresult prepare(const struct job *job, struct sim_context *ctx,
			struct sim_op *op)
{
	if (job->kind == SIM_OP_COPY)
		return prepare_copy(job->copy, ctx, op);
	return job->kind == SIM_OP_SET ? prepare_set(job->set, ctx, op)
				       : prepare_kernel(job->kernel, ctx, op);
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

static CUresult add(CUgraphNode *out, CUgraph hGraph, const CUgraphNode *after,
		    size_t n_after, CUcontext hCtx, struct job job)
{
	struct sim_graph *graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));
	struct sim_context *ctx;
	struct sim_op op = {0};
	CUresult result;

	if (!out || !graph || !are_nodes(graph, after, n_after))
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_context_get_or_current(hCtx, &ctx);
	if (result == CUDA_SUCCESS)
		result = prepare(&job, ctx, &op);
	if (result != CUDA_SUCCESS)
		return result;
	sim_graph_add(graph, &op);
	*out = SIM_AS(CUgraphNode, sim_graph_node(graph, graph->n - 1)->handle);
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

/* `hCtx`: where the node moves; NULL: it stays. */
static CUresult set_anew(CUgraphNode hNode, const CUcontext *hCtx,
			 struct job job)
{
	struct sim_op *was = op_of(hNode, job.kind), op = {0};
	struct sim_context *ctx;
	CUresult result = CUDA_SUCCESS;

	if (!was)
		return CUDA_ERROR_INVALID_VALUE;
	ctx = was->ctx;
	if (hCtx)
		result = sim_context_get_or_current(*hCtx, &ctx);
	if (result == CUDA_SUCCESS)
		result = prepare(&job, ctx, &op);
	if (result == CUDA_SUCCESS)
		*was = op;
	return result;
}

/*
 * What an executable graph may change (cuda.h). A copy: one row before and
 * after, between the same places. A set: the height stays, and if there are
 * rows all but the value and place. A kernel: not its context.
 */
static bool may_change(enum sim_op_kind kind, const struct sim_op *was,
		       const struct sim_op *op)
{
	if (kind == SIM_OP_COPY)
		return is_row(was) && is_row(op) && is_at_home(op, was);
	if (kind == SIM_OP_KERNEL)
		return op->ctx == was->ctx;
	return is_at_home(op, was) && op->u.set.height == was->u.set.height &&
	       (op->u.set.height <= 1 ||
		(op->u.set.width == was->u.set.width &&
		 op->u.set.pitch == was->u.set.pitch &&
		 op->u.set.element == was->u.set.element));
}

static CUresult set_exec(CUgraphExec hExec, CUgraphNode hNode, CUcontext hCtx,
			 struct job job)
{
	struct sim_op *was = exec_op_of(hExec, hNode, job.kind), op = {0};
	struct sim_context *ctx;
	CUresult result;

	if (!was)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_context_get_or_current(hCtx, &ctx);
	if (result == CUDA_SUCCESS)
		result = prepare(&job, ctx, &op);
	if (result != CUDA_SUCCESS)
		return result;
	if (!may_change(job.kind, was, &op))
		return CUDA_ERROR_INVALID_VALUE;
	*was = op;
	return CUDA_SUCCESS;
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies,
				  size_t numDependencies,
				  const CUDA_MEMCPY3D *copyParams,
				  CUcontext ctx)
{
	return add(phGraphNode, hGraph, dependencies, numDependencies, ctx,
		   copy_job(copyParams));
}

CUresult sim_cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
				  const CUgraphNode *dependencies,
				  size_t numDependencies,
				  const CUDA_MEMSET_NODE_PARAMS *memsetParams,
				  CUcontext ctx)
{
	return add(phGraphNode, hGraph, dependencies, numDependencies, ctx,
		   set_job(memsetParams));
}

/* A node stays in the context that it was added for. */
CUresult sim_cuGraphMemcpyNodeSetParams(CUgraphNode hNode,
					const CUDA_MEMCPY3D *nodeParams)
{
	return set_anew(hNode, NULL, copy_job(nodeParams));
}

CUresult
sim_cuGraphMemsetNodeSetParams(CUgraphNode hNode,
			       const CUDA_MEMSET_NODE_PARAMS *nodeParams)
{
	return set_anew(hNode, NULL, set_job(nodeParams));
}

CUresult sim_cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec,
					    CUgraphNode hNode,
					    const CUDA_MEMCPY3D *copyParams,
					    CUcontext ctx)
{
	return set_exec(hGraphExec, hNode, ctx, copy_job(copyParams));
}

CUresult
sim_cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				   const CUDA_MEMSET_NODE_PARAMS *memsetParams,
				   CUcontext ctx)
{
	return set_exec(hGraphExec, hNode, ctx, set_job(memsetParams));
}

/* The context of a kernel's function is that of its module. */
static CUcontext ctx_of(const CUDA_KERNEL_NODE_PARAMS *params)
{
	return params && !params->func ? params->ctx : NULL;
}

CUresult sim_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
				     const CUgraphNode *dependencies,
				     size_t numDependencies,
				     const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return add(phGraphNode, hGraph, dependencies, numDependencies,
		   ctx_of(nodeParams), kernel_job(nodeParams));
}

CUresult
sim_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
				  const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return set_anew(hNode, NULL, kernel_job(nodeParams));
}

CUresult
sim_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
				      const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	return set_exec(hGraphExec, hNode, ctx_of(nodeParams),
			kernel_job(nodeParams));
}

/* ---- the same by a tagged union --------------------------------------- */

/* What a job points to that is not in the parameters as such. */
struct held {
	CUDA_MEMSET_NODE_PARAMS set;
	CUDA_MEMCPY3D row;
	CUDA_KERNEL_NODE_PARAMS kernel;
};

/* A node is one operation: so is a batch. */
static CUresult batch_job(const struct vs_batch_node *batch,
			  struct job *job_out, struct held *held)
{
	if (!batch->dsts || !batch->srcs || !batch->sizes)
		return CUDA_ERROR_INVALID_VALUE;
	if (batch->count != 1)
		return CUDA_ERROR_NOT_SUPPORTED;
	held->row = (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
				    .dstDevice = *batch->dsts,
				    .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
				    .srcDevice = *batch->srcs,
				    .WidthInBytes = *batch->sizes,
				    .Height = 1,
				    .Depth = 1};
	*job_out = copy_job(&held->row);
	return CUDA_SUCCESS;
}

/* NOT_SUPPORTED: of another kind. */
static CUresult job_of(const CUgraphNodeParams *params, struct job *job_out,
		       struct held *held, CUcontext *ctx_out)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *v2;

	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	if (params->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
		*job_out = copy_job(&params->memcpy.copyParams);
		*ctx_out = params->memcpy.copyCtx;
		return CUDA_SUCCESS;
	}
	if (params->type == VS_NODE_MEMCPY_BATCH) {
		const struct vs_batch_node *batch =
			(const void *)params->reserved1;

		*ctx_out = batch->ctx;
		return batch_job(batch, job_out, held);
	}
	if (params->type == CU_GRAPH_NODE_TYPE_KERNEL) {
		/* of the same layout; cuda.h has no name for that */
		memcpy(&held->kernel, &params->kernel, sizeof(held->kernel));
		*job_out = kernel_job(&held->kernel);
		*ctx_out = ctx_of(&held->kernel);
		return CUDA_SUCCESS;
	}
	if (params->type != CU_GRAPH_NODE_TYPE_MEMSET)
		return CUDA_ERROR_NOT_SUPPORTED;
	v2 = &params->memset;
	held->set = (CUDA_MEMSET_NODE_PARAMS){.dst = v2->dst,
					      .pitch = v2->pitch,
					      .value = v2->value,
					      .elementSize = v2->elementSize,
					      .width = v2->width,
					      .height = v2->height};
	*job_out = set_job(&held->set);
	*ctx_out = v2->ctx;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
			       const CUgraphNode *dependencies,
			       const CUgraphEdgeData *dependencyData,
			       size_t numDependencies,
			       CUgraphNodeParams *nodeParams)
{
	struct held held;
	CUcontext ctx;
	struct job job;
	CUresult result = job_of(nodeParams, &job, &held, &ctx);

	(void)dependencyData;
	if (result != CUDA_SUCCESS)
		return result;
	return add(phGraphNode, hGraph, dependencies, numDependencies, ctx,
		   job);
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
	struct held held;
	CUcontext ctx;
	struct job job;
	CUresult result = job_of(nodeParams, &job, &held, &ctx);

	return result == CUDA_SUCCESS ? set_anew(hNode, &ctx, job) : result;
}

CUresult sim_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
				      CUgraphNodeParams *nodeParams)
{
	struct held held;
	CUcontext ctx;
	struct job job;
	CUresult result = job_of(nodeParams, &job, &held, &ctx);

	if (result != CUDA_SUCCESS)
		return result;
	return set_exec(hGraphExec, hNode, ctx, job);
}
