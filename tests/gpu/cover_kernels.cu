/* SPDX-License-Identifier: MIT
 *
 * cover: the kernels, and how they are launched. On the simulated driver, which
 * knows some kernels by their names alone, only GATE, TOUCH and both together.
 */
#include <map>
#include <utility>

#include "cover.h"
#include "kernels_ptx.h"

/* For how long a gate waits for the host at most. */
static const unsigned long long PATIENCE_NS = 2000000000ull;
/* What comes behind a gate takes so long that a free for the gate shows. */
static const unsigned long long TAIL_NS = 20000000ull;

#define EACH(i, n)                                                             \
	for (unsigned long long i = threadIdx.x * (unsigned long long)STRIDE;  \
	     i < (n); i += blockDim.x * (unsigned long long)STRIDE)

__device__ static unsigned long long now_ns()
{
	unsigned long long now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	return now;
}

__device__ static void gate(volatile uint32_t *control)
{
	if (threadIdx.x == 0) {
		unsigned long long begin;

		control[STARTED] = 1;
		__threadfence_system();
		begin = now_ns();
		while (!control[OPEN])
			if (now_ns() - begin > PATIENCE_NS) {
				control[TIMEOUT] = 1;
				break;
			}
	}
	__syncthreads();
}

__device__ static void end(volatile uint32_t *control)
{
	__syncthreads();
	if (threadIdx.x == 0)
		control[ENDED] = 1;
}

__device__ static void touch(volatile uint32_t *control,
			     volatile uint32_t *block, unsigned long long n)
{
	EACH(i, n)
	{
		if (block[i] != BEFORE)
			control[WRONG] = block[i];
		block[i] = WRITTEN;
	}
	__threadfence_system();
	end(control);
}

/* Of a cluster the first block alone. */
__global__ void k_work(uint32_t *control, uint32_t *block, unsigned long long n)
{
	if (blockIdx.x)
		return;
	gate(control);
	touch(control, block, n);
}

__global__ void k_gate(uint32_t *control, uint32_t *, unsigned long long)
{
	gate(control);
}

__global__ void k_touch(uint32_t *control, uint32_t *block,
			unsigned long long n)
{
	unsigned long long begin = now_ns();

	while (now_ns() - begin < TAIL_NS)
		;
	touch(control, block, n);
}

__global__ void k_nothing(uint32_t *, uint32_t *, unsigned long long)
{
}

__global__ void k_first(uint32_t *control, uint32_t *block,
			unsigned long long n)
{
	asm volatile("griddepcontrol.launch_dependents;");
	gate(control);
	touch(control, block, n);
}

__global__ void k_dependent(uint32_t *, uint32_t *, unsigned long long)
{
	asm volatile("griddepcontrol.wait;");
}

__global__ void k_read_tex(uint32_t *control, uint32_t *, unsigned long long n,
			   cudaTextureObject_t texture)
{
	gate(control);
	EACH(i, n)
	{
		uint32_t value = tex1Dfetch<unsigned>(texture, (int)i);

		if (value != BEFORE)
			((volatile uint32_t *)control)[WRONG] = value;
	}
	end(control);
}

__global__ void k_parent(uint32_t *control, uint32_t *block,
			 unsigned long long n, int how)
{
	cudaStream_t stream = NULL;

	if (how == FIRE_AND_FORGET)
		stream = cudaStreamFireAndForget;
	else if (how == TAIL)
		stream = cudaStreamTailLaunch;
	else if (how == IN_CREATED)
		cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	k_work<<<1, 256, 0, stream>>>(control, block, n);
	if (how == IN_CREATED)
		cudaStreamDestroy(stream);
}

__global__ void k_grand(uint32_t *control, uint32_t *block,
			unsigned long long n, int how)
{
	k_parent<<<1, 1, 0,
		   how == FIRE_AND_FORGET ? cudaStreamFireAndForget
					  : cudaStreamTailLaunch>>>(
		control, block, n, how);
}

__global__ void k_launcher(uint32_t *, uint32_t *, unsigned long long,
			   cudaGraphExec_t exec, int how)
{
	if (how == FORGOTTEN)
		cudaGraphLaunch(exec, cudaStreamGraphFireAndForget);
	else if (how == BEHIND)
		cudaGraphLaunch(exec, cudaStreamGraphTailLaunch);
	else
		cudaGraphLaunch(exec, cudaStreamGraphFireAndForgetAsSibling);
}

__global__ void k_condition(uint32_t *, uint32_t *, unsigned long long,
			    cudaGraphConditionalHandle handle, unsigned value)
{
	cudaGraphSetConditional(handle, value);
}

/* Indexed by `enum kernel`. */
static const struct {
	const void *function;
	unsigned threads;
	bool has_end;
} kernels[N_KERNELS] = {
	{(const void *)k_work, 256, true},
	{(const void *)k_gate, 256, false},
	{(const void *)k_touch, 256, true},
	{(const void *)k_nothing, 1, false},
	{(const void *)k_first, 256, true},
	{(const void *)k_dependent, 1, false},
	{(const void *)k_read_tex, 256, true},
	{(const void *)k_parent, 1, true},
	{(const void *)k_grand, 1, true},
	{(const void *)k_launcher, 1, false},
	{(const void *)k_condition, 1, false},
};

CUkernel kernel_of(kernel what)
{
	cudaKernel_t found;

	TRY(cudaGetKernel(&found, kernels[what].function));
	return (CUkernel)found;
}

/* The driver copies what they point to before a call returns. */
static arguments all_arguments(const arguments &more)
{
	arguments all = {&w.control_at, &w.block, &w.n};

	all.insert(all.end(), more.begin(), more.end());
	return all;
}

CUlaunchAttribute attribute(CUlaunchAttributeID id)
{
	CUlaunchAttribute a = {};

	a.id = id;
	if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
		a.value.programmaticStreamSerializationAllowed = 1;
	else if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
		a.value.cooperative = 1;
	else if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
		a.value.clusterDim = {2, 1, 1};
	else if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN)
		a.value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
	else if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
		a.value.priority = -1;
	return a;
}

/* --- on the simulator ----------------------------------------------------- */

/* Of the current context. */
static CUfunction simulated(const char *name)
{
	static std::map<std::pair<CUcontext, std::string>, CUfunction> found;
	CUcontext context;
	CUmodule module;

	TRY(cuCtxGetCurrent(&context));
	CUfunction &function = found[{context, name}];
	if (!function) {
		TRY(cuModuleLoadData(&module, vs_kernels_ptx));
		TRY(cuModuleGetFunction(&function, module, name));
	}
	return function;
}

/* The simulator's kernels that stand for one. */
static void simulate(kernel what,
		     const std::function<void(CUfunction, void **)> &run)
{
	uint32_t value = WRITTEN;
	void *flag[] = {&w.control_at}, *fill[] = {&w.block, &value, &w.n};

	if (what != WORK && what != GATE && what != TOUCH)
		fail("kernel", "SIM");
	if (what != TOUCH)
		run(simulated("vs_spin_flag"), flag);
	if (what != GATE)
		run(simulated("vs_fill"), fill);
}

static CUgraphNode add_simulated(CUgraph graph, std::vector<CUgraphNode> behind,
				 kernel what, CUcontext context)
{
	CUcontext before;
	CUgraphNode node = NULL;

	TRY(cuCtxGetCurrent(&before));
	use(context);
	simulate(what, [&](CUfunction function, void **args) {
		CUDA_KERNEL_NODE_PARAMS p = {};

		p.func = function;
		p.kernelParams = args;
		p.gridDimX = 64;
		p.blockDimX = 256;
		p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1;
		TRY(cuGraphAddKernelNode(&node, graph, behind.data(),
					 behind.size(), &p));
		behind = {node};
	});
	use(before);
	return node;
}

/* --- both ----------------------------------------------------------------- */

void launch(kernel what, CUstream stream, const attributes &how,
	    const arguments &more)
{
	CUlaunchConfig config = {};
	arguments args = all_arguments(more);

	w.has_end |= kernels[what].has_end;
	if (is_simulated) {
		simulate(what, [=](CUfunction function, void **given) {
			TRY(cuLaunchKernel(function, 64, 1, 1, 256, 1, 1, 0,
					   stream, given, NULL));
		});
		return;
	}
	config.gridDimX = config.gridDimY = config.gridDimZ = 1;
	config.blockDimX = kernels[what].threads;
	config.blockDimY = config.blockDimZ = 1;
	for (const CUlaunchAttribute &a : how)
		if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			config.gridDimX = 2;
	config.hStream = stream;
	config.attrs = (CUlaunchAttribute *)how.data();
	config.numAttrs = how.size();
	TRY(cuLaunchKernelEx(&config, (CUfunction)kernel_of(what), args.data(),
			     NULL));
}

void launch_by_runtime(CUstream stream)
{
	if (is_simulated)
		fail("runtime", "SIM");
	w.has_end = true;
	k_work<<<1, 256, 0, stream>>>((uint32_t *)w.control_at,
				      (uint32_t *)w.block, w.n);
	TRY(cudaGetLastError());
}

CUgraphNode add_kernel(CUgraph graph, std::vector<CUgraphNode> behind,
		       kernel what, CUcontext context, const arguments &more)
{
	CUgraphNodeParams p = {};
	CUgraphNode node;
	arguments args = all_arguments(more);

	w.has_end |= kernels[what].has_end;
	if (is_simulated)
		return add_simulated(graph, behind, what, context);
	p.type = CU_GRAPH_NODE_TYPE_KERNEL;
	p.kernel.kern = kernel_of(what);
	p.kernel.ctx = context;
	p.kernel.gridDimX = p.kernel.gridDimY = p.kernel.gridDimZ = 1;
	p.kernel.blockDimX = kernels[what].threads;
	p.kernel.blockDimY = p.kernel.blockDimZ = 1;
	p.kernel.kernelParams = args.data();
	TRY(cuGraphAddNode(&node, graph, behind.data(), NULL, behind.size(),
			   &p));
	return node;
}

void CUDA_CB host_gate(void *)
{
	double begin = now();

	w.control[STARTED] = 1;
	while (!is_open() && now() - begin < PATIENCE_NS * 1e-9)
		nap(.0005);
}
