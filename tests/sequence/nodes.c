/* SPDX-License-Identifier: MIT
 *
 * nodes: graphs that are built node by node, and nodes that are changed.
 */
#include "sequence.h"

/* Of its own context; what another's is to a node is nowhere said. */
static bool is_here(const struct block *b)
{
	return is_linear(b) && b->ctx == current();
}

static CUDA_MEMSET_NODE_PARAMS set_params(const struct action *a)
{
	return (CUDA_MEMSET_NODE_PARAMS){.dst = blocks[a->to].p + a->dst.at,
					 .elementSize = a->unit,
					 .value = a->value,
					 .width = a->width / a->unit,
					 .height = 1};
}

static CUDA_MEMCPY3D copy_params(const struct action *a)
{
	return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = blocks[a->from].p + a->src.at,
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstDevice = blocks[a->to].p + a->dst.at,
			       .WidthInBytes = a->width,
			       .Height = 1,
			       .Depth = 1};
}

/* One of a kind; false: there is none. */
static bool some_action(bool is_copy, struct action *a)
{
	struct block *to = some_block(is_here);
	struct block *from = is_copy ? some_block(is_here) : NULL;
	size_t most, n;

	if (!to || (is_copy && (!from || from == to)))
		return false;
	most = from && from->size < to->size ? from->size : to->size;
	n = 1 + chance((uint32_t)most);
	printf(" %zu", n);
	*a = is_copy ? copy_of(to, to->size - n, from, 0, n)
		     : set_of(to, 0, n, chance(256), 1);
	return true;
}

static CUresult add_node(CUgraph graph, const struct action *a,
			 const CUgraphNode *before, CUgraphNode *node)
{
	CUDA_MEMSET_NODE_PARAMS set = set_params(a);
	CUcontext ctx = contexts[current()].handle;
	CUDA_MEMCPY3D copy;

	if (a->from < 0)
		return cuGraphAddMemsetNode(node, graph, before, before != NULL,
					    &set, ctx);
	copy = copy_params(a);
	return cuGraphAddMemcpyNode(node, graph, before, before != NULL, &copy,
				    ctx);
}

/* One after the other; one that runs past an end is refused. */
void op_graph_build(void)
{
	struct graph *g = graphs;
	struct recording *r;
	struct action a;

	while (g < graphs + N_GRAPHS && g->graph)
		g++;
	if (g == graphs + N_GRAPHS || current() < 0 || current() == GREEN)
		return;
	*g = (struct graph){.ctx = current()};
	r = &g->does;
	if (say(cuGraphCreate(&g->graph, 0)) != CUDA_SUCCESS)
		return;
	for (uint32_t i = 1 + chance(4); i > 0; i--) {
		bool is_past = chance(8) == 0;

		if (!some_action(chance(2), &a))
			continue;
		if (is_past)
			a.width = blocks[a.to].size + 1;
		if (say(add_node(g->graph, &a,
				 r->n ? &g->nodes[r->n - 1] : NULL,
				 &g->nodes[r->n])) == CUDA_SUCCESS)
			r->actions[r->n++] = a;
	}
	g->is_built = true;
}

static CUresult change(const struct graph *g, CUgraphNode node,
		       const struct action *a)
{
	CUDA_MEMSET_NODE_PARAMS set = set_params(a);
	CUcontext ctx = contexts[g->ctx].handle;
	CUDA_MEMCPY3D copy;

	if (a->from < 0)
		return g->exec ? cuGraphExecMemsetNodeSetParams(g->exec, node,
								&set, ctx)
			       : cuGraphMemsetNodeSetParams(node, &set);
	copy = copy_params(a);
	return g->exec ? cuGraphExecMemcpyNodeSetParams(g->exec, node, &copy,
							ctx)
		       : cuGraphMemcpyNodeSetParams(node, &copy);
}

/*
 * Between memory of cuMemAlloc alone, and within it (README.md, Limits: what a
 * copy node can be given else, and what runs past an end).
 */
void op_graph_change(void)
{
	struct graph *g = some_graph();
	struct action a;
	uint32_t i;

	if (!g || !g->is_built || g->does.n == 0 || current() != g->ctx)
		return;
	i = chance((uint32_t)g->does.n);
	if (!some_action(g->does.actions[i].from >= 0, &a) ||
	    say(change(g, g->nodes[i], &a)) != CUDA_SUCCESS)
		return;
	g->does.actions[i] = a;
	g->is_changed = g->exec != NULL;
}
