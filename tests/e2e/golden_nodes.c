/* SPDX-License-Identifier: MIT
 *
 * golden_nodes: copies and sets between two devices by nodes of graphs, and
 * copies by batches.
 */
#include "golden.h"

#define SIZE GOLDEN_SIZE
#define HALF (SIZE / 2)

static CUDA_MEMCPY3D row(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = src,
			       .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .dstDevice = dst,
			       .WidthInBytes = size,
			       .Height = 1,
			       .Depth = 1};
}

static CUDA_MEMSET_NODE_PARAMS bytes(CUdeviceptr dst, unsigned value)
{
	return (CUDA_MEMSET_NODE_PARAMS){.dst = dst,
					 .value = value,
					 .elementSize = 1,
					 .width = SIZE,
					 .height = 1};
}

static CUgraph new_graph(void)
{
	CUgraph graph;

	TRY(cu.cuGraphCreate(&graph, 0));
	return graph;
}

static CUresult launch(const struct golden_job *j, CUgraphExec exec)
{
	CUresult result = j->calls->cuGraphLaunch(exec, j->stream);

	TRY(j->calls->cuStreamSynchronize(j->stream));
	TRY(cu.cuGraphExecDestroy(exec));
	return result;
}

/* Runs the graph, if `result` says that it is whole, and destroys it. */
static CUresult run(const struct golden_job *j, CUgraph graph, CUresult result)
{
	CUgraphExec exec;

	if (result == CUDA_SUCCESS)
		result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
	if (result == CUDA_SUCCESS)
		result = launch(j, exec);
	TRY(cu.cuGraphDestroy(graph));
	return result;
}

/* A node that is somewhere else before it is what it shall be. */
static CUresult copy_moved(const struct golden_job *j)
{
	CUdeviceptr own = j->other == j->dst_ctx ? j->dst : j->src;
	CUDA_MEMCPY3D was = row(own, own + HALF, HALF);
	CUDA_MEMCPY3D c = row(j->dst, j->src, HALF);
	CUgraph graph = new_graph();
	CUgraphNode node;

	TRY(cu.cuGraphAddMemcpyNode(&node, graph, NULL, 0, &was, j->other));
	return run(j, graph, cu.cuGraphMemcpyNodeSetParams(node, &c));
}

/* Where it runs is not where the program is. */
static CUresult set_moved(const struct golden_job *j)
{
	CUDA_MEMSET_NODE_PARAMS was = bytes(j->dst, 10), set = was;
	CUgraph graph = new_graph();
	CUgraphNode node;

	set.value = 11;
	TRY(cu.cuGraphAddMemsetNode(&node, graph, NULL, 0, &was, j->dst_ctx));
	return run(j, graph, cu.cuGraphMemsetNodeSetParams(node, &set));
}

/* Layers, and a row after them. */
static CUresult copy_in(const struct golden_job *j, CUcontext ctx)
{
	CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			   .srcDevice = j->src,
			   .srcPitch = 4096,
			   .srcHeight = 16,
			   .srcZ = 1,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = j->dst,
			   .dstPitch = 4096,
			   .dstHeight = 16,
			   .dstXInBytes = 16,
			   .WidthInBytes = 1000,
			   .Height = 15,
			   .Depth = 3};
	CUDA_MEMCPY3D last = row(j->dst + HALF, j->src, 4096);
	CUgraph graph = new_graph();
	CUgraphNode node, next;
	CUresult result;

	result = cu.cuGraphAddMemcpyNode(&node, graph, NULL, 0, &c, ctx);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphAddMemcpyNode(&next, graph, &node, 1, &last,
						 ctx);
	return run(j, graph, result);
}

static CUresult copy_here(const struct golden_job *j)
{
	return copy_in(j, j->here);
}

static CUresult copy_there(const struct golden_job *j)
{
	return copy_in(j, j->other);
}

/* The executable graph is changed, not the graph. */
static CUresult copy_changed(const struct golden_job *j)
{
	CUDA_MEMCPY3D was = row(j->dst, j->src, HALF);
	CUDA_MEMCPY3D c = row(j->dst + HALF, j->src, HALF);
	CUgraph graph = new_graph();
	CUgraphExec exec;
	CUgraphNode node;
	CUresult result;

	result = cu.cuGraphAddMemcpyNode(&node, graph, NULL, 0, &was, j->here);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphExecMemcpyNodeSetParams(exec, node, &c,
							   j->here);
	if (result == CUDA_SUCCESS)
		result = launch(j, exec);
	TRY(cu.cuGraphDestroy(graph));
	return result;
}

static CUresult set_changed(const struct golden_job *j)
{
	CUDA_MEMSET_NODE_PARAMS was = bytes(j->dst, 12), set = was;
	CUgraph graph = new_graph();
	CUgraphExec exec;
	CUgraphNode node;
	CUresult result;

	set.value = 13;
	TRY(cu.cuGraphAddMemsetNode(&node, graph, NULL, 0, &was, j->dst_ctx));
	TRY(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
	result =
		cu.cuGraphExecMemsetNodeSetParams(exec, node, &set, j->dst_ctx);
	if (result == CUDA_SUCCESS)
		result = launch(j, exec);
	TRY(cu.cuGraphDestroy(graph));
	return result;
}

#if CUDA_VERSION >= 13000
/* A node of any kind, which is other before it is instantiated, and after. */
static CUresult any(const struct golden_job *j, CUgraphNodeParams params[3])
{
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;
	CUresult result;

	if (!cu.cuGraphAddNode_v2)
		return CUDA_ERROR_NOT_FOUND;
	graph = new_graph();
	result = cu.cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params[0]);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphNodeSetParams(node, &params[1]);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
	if (result == CUDA_SUCCESS)
		result = cu.cuGraphExecNodeSetParams(exec, node, &params[2]);
	if (result == CUDA_SUCCESS)
		result = launch(j, exec);
	TRY(cu.cuGraphDestroy(graph));
	return result;
}

static CUresult copy_any(const struct golden_job *j)
{
	CUgraphNodeParams params[3] = {0};

	for (size_t i = 0; i < 3; i++) {
		params[i].type = CU_GRAPH_NODE_TYPE_MEMCPY;
		params[i].memcpy.copyCtx = j->here;
		params[i].memcpy.copyParams =
			row(j->dst + i * 4096, j->src, HALF);
	}
	return any(j, params);
}

#define PARTS 4
#define PART (SIZE / PARTS)

/* The parts of one block, backwards. */
static CUresult batch(const struct golden_job *j, bool is_old)
{
	CUdeviceptr dsts[PARTS], srcs[PARTS];
	CUmemcpyAttributes how = {.srcAccessOrder =
					  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t sizes[PARTS], from = 0, failed;

	if (!j->calls->batch_12080 || !j->calls->cuMemcpyBatchAsync_v2)
		return CUDA_ERROR_NOT_FOUND;
	for (size_t i = 0; i < PARTS; i++) {
		dsts[i] = j->dst + i * PART;
		srcs[i] = j->src + (PARTS - 1 - i) * PART;
		sizes[i] = PART;
	}
	return is_old ? j->calls->batch_12080(dsts, srcs, sizes, PARTS, &how,
					      &from, 1, &failed, j->stream)
		      : j->calls->cuMemcpyBatchAsync_v2(dsts, srcs, sizes,
							PARTS, &how, &from, 1,
							j->stream);
}

static CUresult batch_new(const struct golden_job *j)
{
	return batch(j, false);
}

static CUresult batch_old(const struct golden_job *j)
{
	return batch(j, true);
}

static CUDA_MEMCPY3D_BATCH_OP box(CUdeviceptr dst, CUdeviceptr src)
{
	CUDA_MEMCPY3D_BATCH_OP op = {.extent = {1000, 15, 3},
				     .srcAccessOrder =
					     CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

	op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op.src.op.ptr.ptr = src;
	op.src.op.ptr.rowLength = 4096;
	op.src.op.ptr.layerHeight = 16;
	op.dst.op.ptr.ptr = dst;
	return op;
}

static CUresult boxes(const struct golden_job *j, bool is_old)
{
	CUDA_MEMCPY3D_BATCH_OP ops[2] = {box(j->dst, j->src),
					 box(j->dst + HALF, j->src + HALF)};
	size_t failed;

	if (!j->calls->batch_3d_12080 || !j->calls->cuMemcpy3DBatchAsync_v2)
		return CUDA_ERROR_NOT_FOUND;
	return is_old ? j->calls->batch_3d_12080(2, ops, &failed, 0, j->stream)
		      : j->calls->cuMemcpy3DBatchAsync_v2(2, ops, 0, j->stream);
}

static CUresult boxes_new(const struct golden_job *j)
{
	return boxes(j, false);
}

static CUresult boxes_old(const struct golden_job *j)
{
	return boxes(j, true);
}
#endif

/* Those first that need not open memory which later ones may reach then. */
const struct golden_kind golden_nodes[] = {
	{"set node, moved", set_moved, false},
	{"set node, changed", set_changed, false},
	{"copy node, moved", copy_moved, true},
	{"copy node", copy_here, true},
	{"copy node of the other", copy_there, true},
	{"copy node, changed", copy_changed, true},
#if CUDA_VERSION >= 13000
	{"cuGraphAddNode, copy", copy_any, true},
	{"cuMemcpyBatchAsync", batch_new, true},
	{"cuMemcpyBatchAsync of 12.8", batch_old, true},
	{"cuMemcpy3DBatchAsync", boxes_new, true},
	{"cuMemcpy3DBatchAsync of 12.8", boxes_old, true},
#endif
};
const size_t golden_n_nodes = sizeof(golden_nodes) / sizeof(*golden_nodes);
