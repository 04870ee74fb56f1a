/* SPDX-License-Identifier: MIT */
#include "sim_graph.h"

#include <stdlib.h>
#include <string.h>

#include "sim_base.h"
#include "sim_capture.h"
#include "sim_copy.h"
#include "sim_handle.h"
#include "sim_stream.h"

struct sim_graph *sim_graph_new(void)
{
	struct sim_graph *graph = sim_zalloc(sizeof(*graph));

	graph->handle = sim_handle_new(SIM_GRAPH, graph);
	return graph;
}

void sim_graph_add(struct sim_graph *graph, const struct sim_op *op)
{
	if (graph->n == graph->max) {
		graph->max = graph->max ? 2 * graph->max : 8;
		graph->ops = sim_realloc(graph->ops,
					 graph->max * sizeof(*graph->ops));
		graph->nodes = sim_realloc(
			graph->nodes, graph->max * sizeof(struct sim_node *));
	}
	graph->nodes[graph->n] = NULL;
	graph->ops[graph->n++] = *op;
}

struct sim_node *sim_graph_node(struct sim_graph *graph, unsigned at)
{
	struct sim_node *node = graph->nodes[at];

	if (node)
		return node;
	node = sim_zalloc(sizeof(*node));
	node->graph = graph;
	node->at = at;
	node->handle = sim_handle_new(SIM_GRAPH_NODE, node);
	graph->nodes[at] = node;
	return node;
}

void sim_graph_clear(struct sim_graph *graph)
{
	unsigned i;

	for (i = 0; i < graph->n; i++) {
		if (!graph->nodes[i])
			continue;
		sim_handle_free(graph->nodes[i]->handle);
		free(graph->nodes[i]);
	}
	graph->n = 0;
}

void sim_graph_free(struct sim_graph *graph)
{
	sim_graph_clear(graph);
	sim_handle_free(graph->handle);
	free(graph->ops);
	free(graph->nodes);
	free(graph);
}

static void exec_free(struct sim_graph_exec *exec)
{
	sim_handle_free(exec->handle);
	free(exec->ops);
	free(exec);
}

static void drop_graph(void *object, void *arg)
{
	(void)arg;
	sim_graph_free(object);
}

static void drop_exec(void *object, void *arg)
{
	(void)arg;
	exec_free(object);
}

void sim_graph_reset(void)
{
	sim_handle_each(SIM_GRAPH, drop_graph, NULL);
	sim_handle_each(SIM_GRAPH_EXEC, drop_exec, NULL);
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
	if (!phGraph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*phGraph = SIM_AS(CUgraph, sim_graph_new()->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphDestroy(CUgraph hGraph)
{
	struct sim_graph *graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));

	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	sim_graph_free(graph);
	return CUDA_SUCCESS;
}

static CUgraphNode node_handle(struct sim_graph *graph, size_t at)
{
	return SIM_AS(CUgraphNode, sim_graph_node(graph, (unsigned)at)->handle);
}

CUresult sim_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes,
			     size_t *numNodes)
{
	struct sim_graph *graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));
	size_t i;

	if (!graph || !numNodes)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; nodes && i < *numNodes; i++)
		nodes[i] = i < graph->n ? node_handle(graph, i) : NULL;
	*numNodes = graph->n;
	return CUDA_SUCCESS;
}

/* Copies and sets are looked at once more. */
static bool may_run(const struct sim_graph *graph)
{
	const struct sim_op *op;

	for (op = graph->ops; op < graph->ops + graph->n; op++)
		if ((op->kind == SIM_OP_COPY && !sim_copy_may_run(op)) ||
		    (op->kind == SIM_OP_SET && !sim_set_may_run(op)))
			return false;
	return true;
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec,
					 CUgraph hGraph,
					 unsigned long long flags)
{
	struct sim_graph *graph = sim_handle_get(SIM_GRAPH, SIM_OF(hGraph));
	struct sim_graph_exec *exec;

	(void)flags;
	if (!phGraphExec || !graph || !may_run(graph))
		return CUDA_ERROR_INVALID_VALUE;
	exec = sim_zalloc(sizeof(*exec));
	exec->graph = graph->handle;
	exec->n = graph->n;
	if (graph->n) {
		exec->ops = sim_zalloc(graph->n * sizeof(*exec->ops));
		memcpy(exec->ops, graph->ops, graph->n * sizeof(*exec->ops));
	}
	exec->handle = sim_handle_new(SIM_GRAPH_EXEC, exec);
	*phGraphExec = SIM_AS(CUgraphExec, exec->handle);
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
				   CUgraphNode *phErrorNode, char *logBuffer,
				   size_t bufferSize)
{
	if (phErrorNode)
		*phErrorNode = NULL;
	if (logBuffer && bufferSize)
		*logBuffer = '\0';
	return sim_cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

CUresult sim_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
				CUgraphNode *phErrorNode, char *logBuffer,
				size_t bufferSize)
{
	return sim_cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode,
					 logBuffer, bufferSize);
}

CUresult sim_cuGraphInstantiateWithParams(
	CUgraphExec *phGraphExec, CUgraph hGraph,
	CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	CUresult result;

	if (!instantiateParams)
		return CUDA_ERROR_INVALID_VALUE;
	result = sim_cuGraphInstantiateWithFlags(phGraphExec, hGraph,
						 instantiateParams->flags);
	instantiateParams->hErrNode_out = NULL;
	instantiateParams->result_out = result == CUDA_SUCCESS
						? CUDA_GRAPH_INSTANTIATE_SUCCESS
						: CUDA_GRAPH_INSTANTIATE_ERROR;
	return result;
}

CUresult sim_cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!sim_handle_get(SIM_GRAPH_EXEC, SIM_OF(hGraphExec)))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
{
	struct sim_graph_exec *exec =
		sim_handle_get(SIM_GRAPH_EXEC, SIM_OF(hGraphExec));
	struct sim_stream *stream;
	CUresult result = sim_stream_get(hStream, &stream);

	if (result != CUDA_SUCCESS)
		return result;
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_submit(stream, exec->ops, exec->n);
}

CUresult sim_cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct sim_graph_exec *exec =
		sim_handle_get(SIM_GRAPH_EXEC, SIM_OF(hGraphExec));

	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	exec_free(exec);
	return CUDA_SUCCESS;
}
