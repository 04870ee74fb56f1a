/* SPDX-License-Identifier: MIT
 *
 * cover: graphs whose nodes reach the block: of all kinds, of any context,
 * launched in a stream of any, and by the device.
 */
#include <cstring>

#include "cover.h"

/* --- kinds: what touches the block is of `context` ------------------------ */

static CUgraph build_work(CUcontext context)
{
	CUgraph graph = make_graph();

	add_kernel(graph, {}, WORK, context);
	return graph;
}

static CUgraph build_two(CUcontext of_gate, CUcontext of_touch)
{
	CUgraph graph = make_graph();
	CUgraphNode gate = add_kernel(graph, {}, GATE, of_gate);

	add_kernel(graph, {gate}, TOUCH, of_touch);
	return graph;
}

static CUgraph build_gate_of_a(CUcontext context)
{
	return build_two(w.a, context);
}

/* Of `context` is the gate alone. */
static CUgraph build_touch_of_a(CUcontext context)
{
	return build_two(context, w.a);
}

static void add_child(CUgraph graph, CUcontext context)
{
	CUgraph child = build_work(context);
	CUgraphNode node;

	TRY(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
	TRY(cuGraphDestroy(child));
}

static CUgraph build_child(CUcontext context)
{
	CUgraph graph = make_graph();

	add_child(graph, context);
	return graph;
}

/*
 * One copy or set is done before a free that waits for the gate alone has come
 * to unmap its end: so many take longer, one behind the other, and fault then.
 */
static const int REPEATED = 64;

static CUgraph build_set(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphNode before = add_kernel(graph, {}, GATE, w.a), node;
	CUDA_MEMSET_NODE_PARAMS p = {};

	p.dst = w.block;
	p.elementSize = 4;
	p.value = WRITTEN;
	p.width = block_size / 4;
	p.height = 1;
	p.pitch = block_size;
	for (int i = 0; i < REPEATED; i++, before = node)
		TRY(cuGraphAddMemsetNode(&node, graph, &before, 1, &p,
					 context));
	return graph;
}

static CUgraph build_copy(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphNode before = add_kernel(graph, {}, GATE, w.a), node;
	CUDA_MEMCPY3D c = {};

	c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = w.source;
	c.dstDevice = w.block;
	c.WidthInBytes = block_size;
	c.Height = c.Depth = 1;
	for (int i = 0; i < REPEATED; i++, before = node)
		TRY(cuGraphAddMemcpyNode(&node, graph, &before, 1, &c,
					 context));
	return graph;
}

/* The last of the bodies of a condition that is 1 at first. */
static CUgraph add_condition(CUgraph graph, CUcontext context,
			     CUgraphConditionalNodeType type, unsigned n_bodies,
			     CUgraphConditionalHandle *handle_out)
{
	CUgraphNodeParams p = {};
	CUgraphNode node;

	TRY(cuGraphConditionalHandleCreate(handle_out, graph, context, 1,
					   CU_GRAPH_COND_ASSIGN_DEFAULT));
	p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
	p.conditional.handle = *handle_out;
	p.conditional.ctx = context;
	p.conditional.type = type;
	p.conditional.size = n_bodies;
	TRY(cuGraphAddNode(&node, graph, NULL, NULL, 0, &p));
	return p.conditional.phGraph_out[n_bodies - 1];
}

static CUgraph build_if(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphConditionalHandle handle;

	add_kernel(add_condition(graph, context, CU_GRAPH_COND_TYPE_IF, 1,
				 &handle),
		   {}, WORK, context);
	return graph;
}

static CUgraph build_while(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphConditionalHandle handle;
	CUgraph body = add_condition(graph, context, CU_GRAPH_COND_TYPE_WHILE,
				     1, &handle);
	CUgraphNode work = add_kernel(body, {}, WORK, context);
	unsigned zero = 0;

	add_kernel(body, {work}, CONDITION, context, {&handle, &zero});
	return graph;
}

static CUgraph build_switch(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphConditionalHandle handle;

	add_child(add_condition(graph, context, CU_GRAPH_COND_TYPE_SWITCH, 2,
				&handle),
		  context);
	return graph;
}

static CUgraph build_host(CUcontext context)
{
	CUgraph graph = make_graph();
	CUDA_HOST_NODE_PARAMS p = {};
	CUgraphNode gate;

	p.fn = host_gate;
	TRY(cuGraphAddHostNode(&gate, graph, NULL, 0, &p));
	add_kernel(graph, {gate}, TOUCH, context);
	return graph;
}

static CUgraph build_operation(CUcontext context)
{
	CUgraph graph = make_graph();
	CUstreamBatchMemOpParams wait = wait_operation();
	CUDA_BATCH_MEM_OP_NODE_PARAMS p = {};
	CUgraphNode gate;

	p.ctx = context;
	p.count = 1;
	p.paramArray = &wait;
	TRY(cuGraphAddBatchMemOpNode(&gate, graph, NULL, 0, &p));
	add_kernel(graph, {gate}, TOUCH, context);
	return graph;
}

static CUgraph build_event_wait(CUcontext context)
{
	CUgraph graph = make_graph();
	CUcontext current;
	CUgraphNode gate;
	CUevent event;

	TRY(cuCtxGetCurrent(&current));
	use(w.a);
	launch(GATE, w.nb2);
	event = make_event();
	TRY(cuEventRecord(event, w.nb2));
	use(current);
	TRY(cuGraphAddEventWaitNode(&gate, graph, NULL, 0, event));
	add_kernel(graph, {gate}, TOUCH, context);
	return graph;
}

/* The second kernel ends before the first. */
static CUgraph build_dependent(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphNode first = add_kernel(graph, {}, FIRST, context), second;
	CUgraphEdgeData edge = {};
	CUgraphNodeParams p = {};

	edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
	edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
	p.type = CU_GRAPH_NODE_TYPE_KERNEL;
	p.kernel.kern = kernel_of(NOTHING);
	p.kernel.ctx = context;
	p.kernel.gridDimX = p.kernel.gridDimY = p.kernel.gridDimZ = 1;
	p.kernel.blockDimX = p.kernel.blockDimY = p.kernel.blockDimZ = 1;
	void *args[] = {&w.control_at, &w.block, &w.n};
	p.kernel.kernelParams = args;
	TRY(cuGraphAddNode(&second, graph, &first, &edge, 1, &p));
	return graph;
}

/* A long leaf, and a short one beside it. */
static CUgraph build_fork(CUcontext context)
{
	CUgraph graph = make_graph();
	CUgraphNode root = add_kernel(graph, {}, NOTHING, w.a);

	add_kernel(graph, {root}, WORK, context);
	add_kernel(graph, {root}, NOTHING, w.a);
	return graph;
}

/* Begun in a stream of a, which another one joins. */
static CUgraph build_captured(CUcontext context)
{
	CUcontext current;
	CUstream first, joined = w.g_nb;
	CUevent begin, end;
	CUgraph graph;

	TRY(cuCtxGetCurrent(&current));
	use(w.a);
	TRY(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	TRY(cuEventCreate(&begin, CU_EVENT_DISABLE_TIMING));
	use(context);
	if (context != w.g)
		TRY(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING));
	TRY(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
	use(w.a);
	TRY(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuEventRecord(begin, first));
	use(context);
	TRY(cuStreamWaitEvent(joined, begin, 0));
	launch(WORK, joined);
	TRY(cuEventRecord(end, joined));
	use(w.a);
	TRY(cuStreamWaitEvent(first, end, 0));
	TRY(cuStreamEndCapture(first, &graph));
	TRY(cuStreamDestroy(first));
	use(current);
	return graph;
}

static const struct kind {
	const char *name;
	CUgraph (*build)(CUcontext context);
	bool is_varied;	 /* with the executable gone and so on, too */
	bool needs_peer; /* of another device it cannot reach the block else */
} kinds[] = {
	{"work", build_work, true, true},
	{"gateA+tail", build_gate_of_a, false, true},
	{"gate+tailA", build_touch_of_a, false, false},
	{"child", build_child, false, true},
	{"memset", build_set, false, true},
	{"memcpy", build_copy, false, false},
	{"if", build_if, true, true},
	{"while", build_while, false, true},
	{"switch-child", build_switch, false, true},
	{"host+tail", build_host, false, true},
	{"memop+tail", build_operation, false, true},
	{"eventwait+tail", build_event_wait, false, true},
	{"pdl-outlives", build_dependent, true, true},
	{"fork-leaf", build_fork, false, true},
	{"captured", build_captured, false, true},
};

/* --- launched by the host ------------------------------------------------- */

enum variant { PLAIN, EXEC_GONE, UPLOADED };

/* Made while a is current. */
static void launch_kind(const kind &k, CUcontext of_nodes, const place &where,
			variant how)
{
	CUstream stream = where.stream();
	CUgraphExec exec;
	CUgraph graph;

	use(w.a);
	graph = k.build(of_nodes);
	use(*where.context);
	exec = instantiate(graph);
	if (how == UPLOADED)
		TRY(cuGraphUpload(exec, stream));
	TRY(cuGraphLaunch(exec, stream));
	TRY(cuGraphDestroy(graph));
	if (how == EXEC_GONE)
		TRY(cuGraphExecDestroy(exec));
	else
		w.undo.push_back([exec] { cuGraphExecDestroy(exec); });
}

static const struct {
	const char *name;
	variant how;
	bool is_capturing;
} variants[] = {
	{"", PLAIN, false},
	{", exec gone", EXEC_GONE, false},
	{", uploaded", UPLOADED, false},
	{", capture open", PLAIN, true},
};

/* Whose the nodes are that touch the block, and where the graph is launched. */
static const struct launch_place {
	const char *name;
	CUcontext *context;
	int where;
} launches[] = {
	{"A", &w.a, A_NB},     {"A", &w.a, A_LEGACY}, {"A", &w.a, B_NB},
	{"B", &w.b, CTX2_A},   {"B", &w.b, B_NB},     {"A", &w.a, G_STREAM},
	{"G", &w.g, GREEN_A},  {"G", &w.g, G_STREAM}, {"A", &w.a, D_NB},
	{"D", &w.d, DEV2_A},   {"D", &w.d, D_NB},     {"A", &w.a, NOPEER_D},
	{"D", &w.d, NOPEER_A}, {"D", &w.d, NOPEER_D}, {"A", &w.a, LATE_D},
	{"D", &w.d, LATE_A},   {"D", &w.d, LATE_D},
};

static void add_variants(const kind &k, const launch_place &l)
{
	std::string name = std::string("graph ") + k.name + " of " + l.name;
	const place &p = places[l.where];

	for (const auto &v : variants) {
		auto give = [&p, &k, &l, &v] {
			launch_kind(k, *l.context, p, v.how);
		};

		if (k.is_varied || !v.name[0])
			add_at(p, name + v.name, give, v.is_capturing);
	}
}

void add_graphs()
{
	for (const launch_place &l : launches)
		for (const kind &k : kinds)
			if (places[l.where].of != NOPEER || l.context != &w.d ||
			    !k.needs_peer)
				add_variants(k, l);
}

/* --- launched by the device ----------------------------------------------- */

/* The graph and its launcher, which is gone by then if `is_gone`. */
static void launch_on_device(CUcontext context, CUstream stream, int how,
			     bool is_gone)
{
	CUgraph graph, launcher;
	CUgraphExec exec, launcher_exec;

	use(context);
	graph = build_work(context);
	exec = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
	TRY(cuGraphUpload(exec, stream));
	TRY(cuStreamSynchronize(stream));
	launcher = make_graph();
	add_kernel(launcher, {}, LAUNCHER, context, {&exec, &how});
	launcher_exec = instantiate(launcher);
	TRY(cuGraphLaunch(launcher_exec, stream));
	TRY(cuGraphDestroy(launcher));
	TRY(cuGraphDestroy(graph));
	if (is_gone)
		TRY(cuGraphExecDestroy(launcher_exec));
	else
		w.undo.push_back([=] { cuGraphExecDestroy(launcher_exec); });
	w.undo.push_back([exec] { cuGraphExecDestroy(exec); });
}

static void launch_own(const place &p, int how)
{
	launch_on_device(*p.context, p.stream(), how, false);
}

static void launch_and_leave(const place &p, int how)
{
	launch_on_device(*p.context, p.stream(), how, true);
}

static void launch_of_a(const place &p, int how)
{
	launch_on_device(w.a, p.stream(), how, false);
}

static const unsigned ANY = at(A_LEGACY, A_NB, B_NB, G_STREAM, D_NB),
		      OWN = at(A_LEGACY, A_NB);

static const row by_device[] = {
	{"device graph fire-and-forget", ANY, launch_own, FORGOTTEN, false},
	{"device graph fire-and-forget, capture open", OWN, launch_own,
	 FORGOTTEN, true},
	{"device graph fire-and-forget, launcher gone", OWN, launch_and_leave,
	 FORGOTTEN, false},
	{"device graph tail", ANY, launch_own, BEHIND, false},
	{"device graph tail, capture open", OWN, launch_own, BEHIND, true},
	{"device graph tail, launcher gone", OWN, launch_and_leave, BEHIND,
	 false},
	{"device graph sibling", ANY, launch_own, SIBLING, false},
	{"device graph sibling, capture open", OWN, launch_own, SIBLING, true},
	{"device graph sibling, launcher gone", OWN, launch_and_leave, SIBLING,
	 false},
};

static const row of_a_by_device[] = {
	{"device graph of A fire-and-forget", at(B_NB), launch_of_a, FORGOTTEN,
	 false},
	{"device graph of A tail", at(B_NB), launch_of_a, BEHIND, false},
	{"device graph of A sibling", at(B_NB), launch_of_a, SIBLING, false},
};

void add_device_graphs()
{
	ADD_ROWS(by_device);
	ADD_ROWS(of_a_by_device);
}
