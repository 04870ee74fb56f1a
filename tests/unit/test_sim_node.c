/* SPDX-License-Identifier: MIT */
/* Copies and sets as nodes of graphs, and batches of copies. */
#include "../sim/sim_test.h"

static struct kernels k;

static int fresh(void **state)
{
	(void)state;
	boot("SIM_DEVICES=2");
	load_kernels(&k);
	return 0;
}

static CUDA_MEMCPY3D row(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstDevice = dst,
			       .srcMemoryType = CU_MEMORYTYPE_DEVICE,
			       .srcDevice = src,
			       .WidthInBytes = size,
			       .Height = 1,
			       .Depth = 1};
}

static CUDA_MEMSET_NODE_PARAMS word(CUdeviceptr dst, unsigned value)
{
	return (CUDA_MEMSET_NODE_PARAMS){.dst = dst,
					 .value = value,
					 .elementSize = 4,
					 .width = 1,
					 .height = 1};
}

static CUgraph new_graph(void)
{
	CUgraph graph;

	OK(cuGraphCreate(&graph, 0));
	return graph;
}

static CUgraphExec instantiated(CUgraph graph)
{
	CUgraphExec exec;

	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static void launch_graph(CUgraphExec exec)
{
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
}

/* Memory of the other device, of either sort, filled with a word. */
static CUdeviceptr theirs(bool is_legacy, unsigned value, CUcontext *ctx_out)
{
	CUcontext ctx;
	CUdeviceptr p;

	OK(cuCtxGetCurrent(&ctx));
	*ctx_out = use_device(1);
	p = is_legacy ? new_legacy(8) : new_mapping(1, 2 * MIB);
	OK(cuMemsetD32(p, value, 1));
	OK(cuCtxSynchronize());
	OK(cuCtxSetCurrent(ctx));
	return p;
}

/* ---- nodes ------------------------------------------------------------ */

static void nodes_run_at_each_launch(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	CUDA_MEMSET_NODE_PARAMS set = word(p, 7);
	CUDA_MEMCPY3D copy = row(q, p, 4);
	CUgraph graph = new_graph();
	CUgraphNode first, second, found[3];
	CUgraphExec exec;
	size_t n = 3;

	(void)state;
	OK(cuMemsetD32(q, 1, 1));
	OK(cuGraphAddMemsetNode(&first, graph, NULL, 0, &set, NULL));
	OK(cuGraphAddMemcpyNode(&second, graph, &first, 1, &copy, NULL));
	OK(cuGraphGetNodes(graph, found, &n));
	assert_int_equal(n, 2);
	assert_ptr_equal(found[0], first);
	assert_ptr_equal(found[1], second);
	exec = instantiated(graph);
	assert_int_equal(read_word(q), 1);
	launch_graph(exec);
	assert_int_equal(read_word(q), 7);
	OK(cuMemsetD32(q, 1, 1));
	launch_graph(exec);
	assert_int_equal(read_word(q), 7);
}

static void nodes_copy_layers_and_host_memory(void **state)
{
	CUdeviceptr p = new_legacy(64 * 4);
	char in[] = "ab..cd..", out[4] = "";
	CUDA_MEMCPY3D up = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			    .srcHost = in,
			    .srcPitch = 4,
			    .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			    .dstDevice = p,
			    .dstPitch = 64,
			    .WidthInBytes = 2,
			    .Height = 2,
			    .Depth = 1};
	CUDA_MEMCPY3D down = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			      .srcDevice = p,
			      .srcPitch = 64,
			      .dstMemoryType = CU_MEMORYTYPE_HOST,
			      .dstHost = out,
			      .WidthInBytes = 2,
			      .Height = 2,
			      .Depth = 1};
	CUgraph graph = new_graph();
	CUgraphNode node;

	(void)state;
	OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &up, NULL));
	OK(cuGraphAddMemcpyNode(&node, graph, &node, 1, &down, NULL));
	launch_graph(instantiated(graph));
	assert_memory_equal(out, "abcd", 4);
}

static void bad_nodes_are_refused(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	CUDA_MEMCPY3D copy = row(q, p, 4), nothing = row(q, p, 0);
	CUDA_MEMCPY3D beyond = row(q, p, 5);
	CUDA_MEMSET_NODE_PARAMS set = word(p, 7);
	CUgraph graph = new_graph(), other = new_graph();
	CUgraphNode node, twice[2], foreign;
	size_t n = 0;

	(void)state;
#define REFUSED(call) GIVES(call, CUDA_ERROR_INVALID_VALUE)
	REFUSED(cuGraphAddMemcpyNode(NULL, graph, NULL, 0, &copy, NULL));
	REFUSED(cuGraphAddMemcpyNode(&node, NULL, NULL, 0, &copy, NULL));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, NULL, 1, &copy, NULL));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, NULL, 0, NULL, NULL));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &nothing, NULL));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &beyond, NULL));
	set.elementSize = 3;
	REFUSED(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, NULL));
	set.elementSize = 4;
	set.width = 2;
	REFUSED(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, NULL));
	OK(cuGraphGetNodes(graph, NULL, &n));
	assert_int_equal(n, 0);
	OK(cuGraphAddMemcpyNode(&foreign, other, NULL, 0, &copy, NULL));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, &foreign, 1, &copy, NULL));
	OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, NULL));
	twice[0] = twice[1] = node;
	REFUSED(cuGraphAddMemcpyNode(&node, graph, twice, 2, &copy, NULL));
	/* a copy is no set */
	set.width = 1;
	REFUSED(cuGraphMemsetNodeSetParams(node, &set));
}

static void nodes_take_new_parameters(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4), r = new_legacy(4);
	CUDA_MEMCPY3D copy = row(q, p, 4);
	CUDA_MEMSET_NODE_PARAMS set = word(p, 7);
	CUgraph graph = new_graph();
	CUgraphNode node, copies;
	CUgraphExec exec, later;

	(void)state;
	OK(cuMemsetD32(r, 1, 1));
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, NULL));
	OK(cuGraphAddMemcpyNode(&copies, graph, &node, 1, &copy, NULL));
	exec = instantiated(graph);
	set.value = 8;
	OK(cuGraphMemsetNodeSetParams(node, &set));
	copy = row(r, p, 4);
	OK(cuGraphMemcpyNodeSetParams(copies, &copy));
	/* what was instantiated stays as it was */
	launch_graph(exec);
	assert_int_equal(read_word(q), 7);
	assert_int_equal(read_word(r), 1);
	later = instantiated(graph);
	launch_graph(later);
	assert_int_equal(read_word(r), 8);
	/* and the other way round */
	set.value = 9;
	OK(cuGraphExecMemsetNodeSetParams(exec, node, &set, NULL));
	OK(cuGraphExecMemcpyNodeSetParams(exec, copies, &copy, NULL));
	launch_graph(exec);
	assert_int_equal(read_word(r), 9);
	launch_graph(later);
	assert_int_equal(read_word(r), 8);
}

static void executable_nodes_stay_what_they_were(void **state)
{
	CUdeviceptr p = new_legacy(64), q = new_legacy(64);
	CUDA_MEMCPY3D copy = row(q, p, 4), rows = row(q, p, 4), moved;
	CUDA_MEMSET_NODE_PARAMS set = word(p, 7);
	CUgraph graph = new_graph(), other = new_graph();
	CUgraphNode node, sets, elsewhere;
	CUgraphExec exec;
	CUcontext ctx;

	(void)state;
	OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, NULL));
	OK(cuGraphAddMemsetNode(&sets, graph, NULL, 0, &set, NULL));
	OK(cuGraphAddMemcpyNode(&elsewhere, other, NULL, 0, &copy, NULL));
	exec = instantiated(graph);
	rows.Height = 2;
	REFUSED(cuGraphExecMemcpyNodeSetParams(exec, node, &rows, NULL));
	moved = row(q, theirs(true, 1, &ctx), 4);
	REFUSED(cuGraphExecMemcpyNodeSetParams(exec, node, &moved, NULL));
	REFUSED(cuGraphExecMemcpyNodeSetParams(exec, elsewhere, &copy, NULL));
	set.height = 2;
	set.pitch = 8;
	REFUSED(cuGraphExecMemsetNodeSetParams(exec, sets, &set, NULL));
	OK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, NULL));
	OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, NULL));
	REFUSED(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, NULL));
}

static void nodes_of_any_kind(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	CUgraphNodeParams set = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	CUgraphNodeParams copy = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUgraphNodeParams empty = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUgraph graph = new_graph();
	CUgraphNode node, copies;
	CUgraphExec exec;

	(void)state;
	set.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = p,
						  .value = 5,
						  .elementSize = 4,
						  .width = 1,
						  .height = 1};
	copy.memcpy.copyParams = row(q, p, 4);
	OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &set));
	OK(cuGraphAddNode(&copies, graph, &node, NULL, 1, &copy));
	GIVES(cuGraphAddNode(&node, graph, NULL, NULL, 0, &empty),
	      CUDA_ERROR_NOT_SUPPORTED);
	exec = instantiated(graph);
	launch_graph(exec);
	assert_int_equal(read_word(q), 5);
	set.memset.value = 6;
	OK(cuGraphNodeSetParams(node, &set));
	launch_graph(instantiated(graph));
	assert_int_equal(read_word(q), 6);
	set.memset.value = 7;
	OK(cuGraphExecNodeSetParams(exec, node, &set));
	launch_graph(exec);
	assert_int_equal(read_word(q), 7);
}

static void nodes_are_judged_like_copies(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_mapping(0, 2 * MIB);
	CUDA_MEMCPY3D copy = row(q, p, 4);
	CUgraph graph = new_graph();
	CUgraphExec exec;
	CUgraphNode node;

	(void)state;
	OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, NULL));
	exec = instantiated(graph);
	OK(cuMemFree(p));
	REFUSED(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, NULL));
	GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
	OK(cuGraphDestroy(graph));
	REFUSED(cuGraphMemcpyNodeSetParams(node, &copy));
	expect_violation(SIM_V_STALE);
}

/* ---- two devices (two H200) ------------------------------------------- */

static void nodes_need_access_as_calls_do(void **state)
{
	CUcontext ctx0, ctx1;
	CUdeviceptr vmm = theirs(false, 4, &ctx1), p = new_mapping(0, 2 * MIB);
	CUdeviceptr legacy = theirs(true, 5, &ctx1);
	CUDA_MEMCPY3D copy = row(p, vmm, 4), old = row(p, legacy, 4);
	CUDA_MEMSET_NODE_PARAMS set = word(legacy, 6), set_vmm = word(vmm, 6);
	CUgraph graph = new_graph();
	CUgraphNode node;

	(void)state;
	OK(cuCtxGetCurrent(&ctx0));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, ctx0));
	REFUSED(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, ctx1));
	REFUSED(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, ctx0));
	REFUSED(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set_vmm, ctx0));
	/* it runs where it is told to */
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set_vmm, ctx1));
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, ctx1));
	OK(cuGraphAddMemcpyNode(&node, graph, &node, 1, &old, ctx0));
	launch_graph(instantiated(graph));
	assert_int_equal(read_word(p), 6);
	assert_int_equal(read_word(legacy), 6);
	/* SetParams leaves it where it was added */
	REFUSED(cuGraphMemcpyNodeSetParams(node, &copy));
	OK(cuCtxSetCurrent(ctx1));
	REFUSED(cuGraphMemcpyNodeSetParams(node, &copy));
	OK(cuCtxSetCurrent(ctx0));
	OK(grant(vmm, 2 * MIB, 0));
	OK(cuGraphMemcpyNodeSetParams(node, &copy));
	OK(cuCtxEnablePeerAccess(ctx1, 0));
	OK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &set, ctx0));
	OK(cuCtxDisablePeerAccess(ctx1));
	REFUSED(cuGraphInstantiateWithFlags(&(CUgraphExec){0}, graph, 0));
}

/* ---- batches ------------------------------------------------------------ */

static CUmemcpyAttributes order(CUmemcpySrcAccessOrder order)
{
	return (CUmemcpyAttributes){.srcAccessOrder = order};
}

#define STREAM CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
#define DURING CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL

static CUresult one(CUdeviceptr dst, CUdeviceptr src, size_t size,
		    CUmemcpySrcAccessOrder how, CUstream s)
{
	CUmemcpyAttributes attributes = order(how);
	size_t from = 0;

	return cuMemcpyBatchAsync(&dst, &src, &size, 1, &attributes, &from, 1,
				  s);
}

static void batches_copy_all_or_nothing(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(8), q = new_mapping(0, 2 * MIB);
	uint32_t in = 3;
	CUdeviceptr dsts[3] = {q, q + 64, q + 128};
	CUdeviceptr srcs[3] = {p, p + 4, (CUdeviceptr)&in};
	size_t sizes[3] = {4, 4, 4}, from[2] = {0, 2};
	CUmemcpyAttributes how[2] = {order(STREAM), order(DURING)};

	(void)state;
	OK(cuMemsetD32(p, 1, 1));
	OK(cuMemsetD32(p + 4, 2, 1));
	OK(cuMemsetD8(q, 0, 256));
	OK(cuCtxSynchronize());
	sizes[1] = 5;
	REFUSED(cuMemcpyBatchAsync(dsts, srcs, sizes, 3, how, from, 2, s));
	OK(cuStreamSynchronize(s));
	assert_int_equal(read_word(q), 0);
	sizes[1] = 4;
	OK(cuMemcpyBatchAsync(dsts, srcs, sizes, 3, how, from, 2, s));
	in = 4;
	OK(cuStreamSynchronize(s));
	assert_int_equal(read_word(q), 1);
	assert_int_equal(read_word(q + 64), 2);
	assert_int_equal(read_word(q + 128), 3);
}

static void batches_keep_the_order_of_the_stream(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	uint32_t *flag = new_flag(), *in = new_flag(), out = 0;

	(void)state;
	*in = 5;
	OK(spin(&k, s, flag));
	OK(one(p, (CUdeviceptr)in, 4, DURING, s));
	*in = 6;
	OK(one(q, p, 4, STREAM, s));
	GIVES(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	raise_flag(flag);
	/* to memory of the host that is not page-locked: waits */
	OK(one((CUdeviceptr)&out, q, 4, STREAM, s));
	assert_int_equal(out, 5);
}

static void bad_batches_are_refused(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr dsts[2], srcs[2];
	size_t sizes[2] = {4, 4}, from[2] = {0, 1};
	CUmemcpyAttributes how[2] = {order(STREAM), order(STREAM)};

	(void)state;
	dsts[0] = dsts[1] = new_legacy(4);
	srcs[0] = srcs[1] = new_legacy(4);
#define BATCH(n, n_how)                                                        \
	cuMemcpyBatchAsync(dsts, srcs, sizes, n, how, from, n_how, s)
	OK(BATCH(2, 2));
	REFUSED(BATCH(0, 1));
	REFUSED(BATCH(2, 0));
	REFUSED(BATCH(1, 2));
	from[1] = 0;
	REFUSED(BATCH(2, 2));
	from[1] = 2;
	REFUSED(BATCH(2, 2));
	from[0] = 1;
	REFUSED(BATCH(2, 1));
	from[0] = 0;
	how[0] = order(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID);
	REFUSED(BATCH(2, 1));
	REFUSED(one(dsts[0], srcs[0], 4, STREAM, NULL));
	OK(one(dsts[0], srcs[0], 4, STREAM, CU_STREAM_PER_THREAD));
#undef BATCH
}

static void older_batches_tell_which_failed(void **state)
{
	__typeof__(CUresult(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
			    CUmemcpyAttributes *, size_t *, size_t, size_t *,
			    CUstream)) *batch;
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(4), dsts[2] = {p, p}, srcs[2] = {p, p + 1};
	size_t sizes[2] = {4, 4}, from = 0, failed = 7;
	CUmemcpyAttributes how = order(STREAM);

	(void)state;
	OK(cuGetProcAddress("cuMemcpyBatchAsync", (void **)&batch, 12080, 0,
			    NULL));
	REFUSED(batch(dsts, srcs, sizes, 2, &how, &from, 1, &failed, s));
	assert_int_equal(failed, 1);
	REFUSED(batch(dsts, srcs, sizes, 2, &how, &from, 0, &failed, s));
	assert_true(failed == SIZE_MAX);
}

static CUDA_MEMCPY3D_BATCH_OP box(CUdeviceptr dst, CUdeviceptr src,
				  size_t width, size_t height, size_t row)
{
	CUDA_MEMCPY3D_BATCH_OP op = {.extent = {width, height, 1},
				     .srcAccessOrder = STREAM};

	op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
	op.src.op.ptr.ptr = src;
	op.src.op.ptr.rowLength = row;
	op.dst.op.ptr.ptr = dst;
	return op;
}

static void batches_copy_boxes(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(32), q = new_legacy(16);
	CUDA_MEMCPY3D_BATCH_OP ops[2];
	char out[8] = "";

	(void)state;
	OK(cuMemcpyHtoD(p, "ab..cd..ef..gh..", 16));
	OK(cuCtxSynchronize()); /* the copy may still be under way */
	ops[0] = box(q, p, 2, 2, 4);
	ops[1] = box(q + 4, p + 8, 2, 2, 4);
	OK(cuMemcpy3DBatchAsync(2, ops, 0, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(out, q, 8));
	assert_memory_equal(out, "abcdefgh", 8);
	REFUSED(cuMemcpy3DBatchAsync(2, ops, 1, s));
	REFUSED(cuMemcpy3DBatchAsync(0, ops, 0, s));
	REFUSED(cuMemcpy3DBatchAsync(2, ops, 0, NULL));
	ops[1] = box(q, p, 2, 0, 4);
	REFUSED(cuMemcpy3DBatchAsync(2, ops, 0, s));
	ops[1] = box(q, p, 2, 2, 1);
	REFUSED(cuMemcpy3DBatchAsync(2, ops, 0, s));
	ops[1] = box(q, p, 2, 2, 4);
	ops[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
	GIVES(cuMemcpy3DBatchAsync(2, ops, 0, s), CUDA_ERROR_NOT_SUPPORTED);
}

static void batches_need_access_as_calls_do(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUcontext ctx1;
	CUdeviceptr vmm = theirs(false, 4, &ctx1), p = new_mapping(0, 2 * MIB);
	CUdeviceptr legacy = theirs(true, 5, &ctx1);
	CUDA_MEMCPY3D_BATCH_OP op = box(p, vmm, 4, 1, 0);

	(void)state;
	REFUSED(one(p, vmm, 4, STREAM, s));
	REFUSED(cuMemcpy3DBatchAsync(1, &op, 0, s));
	OK(one(p, legacy, 4, STREAM, s));
	OK(cuStreamSynchronize(s));
	assert_int_equal(read_word(p), 5);
	OK(grant(vmm, 2 * MIB, 0));
	OK(cuMemcpy3DBatchAsync(1, &op, 0, s));
	OK(cuStreamSynchronize(s));
	assert_int_equal(read_word(p), 4);
}

static void batches_are_judged_like_copies(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(4), q = new_mapping(0, 2 * MIB);
	uint32_t *flag = new_flag();

	(void)state;
	OK(spin(&k, s, flag));
	OK(one(q, p, 4, STREAM, s));
	OK(cuMemUnmap(q, 2 * MIB));
	expect_violation(SIM_V_BUSY);
	raise_flag(flag);
	GIVES(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_violation(SIM_V_ILLEGAL);
}

static void batches_are_captured(void **state)
{
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	CUgraph graph;

	(void)state;
	OK(cuMemsetD32(p, 9, 1));
	OK(cuMemsetD32(q, 1, 1));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(one(q, p, 4, STREAM, s));
	OK(cuStreamEndCapture(s, &graph));
	assert_int_equal(read_word(q), 1);
	launch_graph(instantiated(graph));
	assert_int_equal(read_word(q), 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(nodes_run_at_each_launch),
		SIM_TEST(nodes_copy_layers_and_host_memory),
		SIM_TEST(bad_nodes_are_refused),
		SIM_TEST(nodes_take_new_parameters),
		SIM_TEST(executable_nodes_stay_what_they_were),
		SIM_TEST(nodes_of_any_kind),
		SIM_TEST(nodes_are_judged_like_copies),
		SIM_TEST(nodes_need_access_as_calls_do),
		SIM_TEST(batches_copy_all_or_nothing),
		SIM_TEST(batches_keep_the_order_of_the_stream),
		SIM_TEST(bad_batches_are_refused),
		SIM_TEST(older_batches_tell_which_failed),
		SIM_TEST(batches_copy_boxes),
		SIM_TEST(batches_need_access_as_calls_do),
		SIM_TEST(batches_are_judged_like_copies),
		SIM_TEST(batches_are_captured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
