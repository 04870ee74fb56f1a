/* SPDX-License-Identifier: MIT
 *
 * cover: contexts, streams and memory of a process, and what ways share.
 */
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cover.h"

/* cuda.h has newer ones by this name alone. */
extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);

struct world w;
size_t block_size = (size_t)32 << 20;
bool is_simulated, is_native;
std::string note;
int tell_to = 1, tell_of = -1;

#define SETUP_NAME(id, name) name,
const char *const setup_names[N_SETUPS] = {SETUPS(SETUP_NAME)};

#define PLACE_ROW(id, setup, name, context, stream)                            \
	{setup, name, &w.context, [] { return (CUstream)(stream); }},
const place places[N_PLACES] = {PLACES(PLACE_ROW)};

/* --- time, words and errors ----------------------------------------------- */

double now()
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

void nap(double seconds)
{
	usleep((useconds_t)(seconds * 1e6));
}

bool is_open()
{
	return *(volatile uint32_t *)&w.control[OPEN];
}

/* By one write: others may be under way in the same process. */
void tell(const char *format, ...)
{
	char line[600];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (write(tell_to, line, std::min(n, (int)sizeof(line) - 1)) < 0)
		_exit(9);
}

const char *name_of(CUresult result)
{
	static const char prefix[] = "CUDA_ERROR_";
	const char *name = "?";

	if (result == CUDA_SUCCESS)
		return "ok";
	cuGetErrorName(result, &name);
	if (strncmp(name, prefix, strlen(prefix)) == 0)
		name += strlen(prefix);
	return name;
}

void fail(const char *what, const char *why)
{
	tell("R %d %s ERR(%.*s: %s)\n", tell_of, note.c_str(),
	     (int)strcspn(what, "("), what, why);
	_exit(3);
}

void try_call(CUresult result, const char *call)
{
	if (result != CUDA_SUCCESS)
		fail(call, name_of(result));
}

void try_call(cudaError_t result, const char *call)
{
	if (result != cudaSuccess)
		fail(call, cudaGetErrorName(result));
}

/* --- what ways share ------------------------------------------------------ */

void use(CUcontext context)
{
	TRY(cuCtxSetCurrent(context));
}

CUevent make_event()
{
	CUevent event;

	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	w.undo.push_back([event] { cuEventDestroy(event); });
	return event;
}

void follow(CUcontext from, CUstream before, CUcontext to, CUstream after)
{
	CUcontext current;
	CUevent event;

	TRY(cuCtxGetCurrent(&current));
	use(from);
	event = make_event();
	TRY(cuEventRecord(event, before));
	use(to);
	TRY(cuStreamWaitEvent(after, event, 0));
	use(current);
}

void wait_in_stream(CUstream stream)
{
	TRY(cuStreamWaitValue32(stream, w.control_at, 1,
				CU_STREAM_WAIT_VALUE_GEQ));
}

CUstreamBatchMemOpParams wait_operation()
{
	CUstreamBatchMemOpParams p = {};

	p.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	p.waitValue.address = w.control_at;
	p.waitValue.value = 1;
	p.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
	return p;
}

void wait_by_batch(CUstream stream)
{
	CUstreamBatchMemOpParams p = wait_operation();

	TRY(cuStreamBatchMemOp(stream, 1, &p, 0));
}

CUgraph make_graph()
{
	CUgraph graph;

	TRY(cuGraphCreate(&graph, 0));
	return graph;
}

CUgraphExec instantiate(CUgraph graph, unsigned long long flags)
{
	CUgraphExec exec;

	TRY(cuGraphInstantiate(&exec, graph, flags));
	return exec;
}

void launch_once(CUgraph graph, CUstream stream)
{
	CUgraphExec exec = instantiate(graph);

	TRY(cuGraphLaunch(exec, stream));
	w.undo.push_back([exec, graph] {
		cuGraphExecDestroy(exec);
		cuGraphDestroy(graph);
	});
}

/* --- the process ---------------------------------------------------------- */

void settle()
{
	for (CUcontext context : {w.a, w.b, w.g, w.d}) {
		CUresult result;

		if (!context)
			continue;
		use(context);
		result = cuCtxSynchronize();
		/* as some say of a green context */
		if (result && result != CUDA_ERROR_NOT_SUPPORTED) {
			use(w.a);
			fail("sync", name_of(result));
		}
	}
	use(w.a);
}

static CUstream make_stream(unsigned flags)
{
	CUstream stream;

	TRY(cuStreamCreate(&stream, flags));
	return stream;
}

static void start_second()
{
	TRY(cuCtxCreate_v2(&w.b, 0, w.devices[0]));
	use(w.b);
	w.b_nb = make_stream(CU_STREAM_NON_BLOCKING);
	use(w.a);
}

/* Of 16 multiprocessors, where they can be split; and the current one is a. */
static void start_green()
{
	CUdevResource all, part;
	CUdevResourceDesc description;
	CUgreenCtx green;
	unsigned n_parts = 1;

	TRY(cuDeviceGetDevResource(w.devices[0], &all,
				   CU_DEV_RESOURCE_TYPE_SM));
	if (is_simulated ||
	    cuDevSmResourceSplitByCount(&part, &n_parts, &all, NULL, 0, 16))
		part = all;
	TRY(cuDevResourceGenerateDesc(&description, &part, 1));
	TRY(cuGreenCtxCreate(&green, description, w.devices[0],
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuCtxFromGreenCtx(&w.g, green));
	TRY(cuGreenCtxStreamCreate(&w.g_nb, green, CU_STREAM_NON_BLOCKING, 0));
	use(w.a);
}

static void start_other_device(setup of)
{
	TRY(cuDeviceGet(&w.devices[1], 1));
	TRY(cuDevicePrimaryCtxRetain(&w.d, w.devices[1]));
	use(w.d);
	w.d_nb = make_stream(CU_STREAM_NON_BLOCKING);
	if (of != NOPEER) {
		TRY(cuCtxEnablePeerAccess(w.a, 0));
		use(w.a);
		TRY(cuCtxEnablePeerAccess(w.d, 0));
	}
	use(w.a);
}

static void start_streams()
{
	int least, most;

	w.nb = make_stream(CU_STREAM_NON_BLOCKING);
	w.blocking = make_stream(CU_STREAM_DEFAULT);
	w.nb2 = make_stream(CU_STREAM_NON_BLOCKING);
	w.judge = make_stream(CU_STREAM_NON_BLOCKING);
	w.captured = make_stream(CU_STREAM_NON_BLOCKING);
	TRY(cuCtxGetStreamPriorityRange(&least, &most));
	TRY(cuStreamCreateWithPriority(&w.high, CU_STREAM_NON_BLOCKING, most));
	TRY(cuStreamCreateWithPriority(&w.low, CU_STREAM_NON_BLOCKING, least));
}

static void start_memory()
{
	CUDA_ARRAY_DESCRIPTOR d = {};
	CUdeviceptr unused;

	TRY(cuMemHostAlloc((void **)&w.control, 256,
			   CU_MEMHOSTALLOC_DEVICEMAP |
				   CU_MEMHOSTALLOC_PORTABLE));
	TRY(cuMemHostGetDevicePointer(&w.control_at, w.control, 0));
	TRY(cuMemHostAlloc((void **)&w.pinned, block_size,
			   CU_MEMHOSTALLOC_PORTABLE));
	TRY(cuMemHostAlloc((void **)&w.seen, block_size,
			   CU_MEMHOSTALLOC_PORTABLE));
	w.pageable = (uint32_t *)malloc(block_size);
	memset(w.pageable, 1, block_size);
	memset(w.control, 0, 256);
	w.n = block_size / 4;
	TRY(cuMemAlloc(&w.source, block_size));
	if (w.d) { /* a pool on each */
		use(w.d);
		TRY(cuMemAlloc(&unused, 1 << 20));
		use(w.a);
	}
	if (is_simulated)
		return;
	d.Width = ARRAY_PITCH / 4;
	d.Height = ARRAY_ROWS;
	d.Format = CU_AD_FORMAT_UNSIGNED_INT32;
	d.NumChannels = 1;
	TRY(cuArrayCreate(&w.array, &d));
	TRY(cuMemAllocManaged(&w.managed, 4 * ARRAY_WORDS,
			      CU_MEM_ATTACH_GLOBAL));
}

static void load_in(CUcontext context, CUstream stream, bool is_own)
{
	use(context);
	if (is_own)
		TRY(cuMemsetD32Async(w.block + 65536, 1, 1024, stream));
	for (kernel what : {WORK, GATE, TOUCH, NOTHING, FIRST, DEPENDENT})
		launch(what, stream);
	for (int how = IN_DEFAULT; how <= IN_CREATED; how++)
		launch(PARENT, stream, {}, {&how});
	int how = FIRE_AND_FORGET;
	launch(GRAND, stream, {}, {&how});
	TRY(cuStreamSynchronize(stream));
}

/* Each kernel in each context, before any waits for the host. */
static void load_kernels(setup of)
{
	const struct {
		CUcontext context;
		CUstream stream;
	} all[] = {{w.a, w.nb}, {w.b, w.b_nb}, {w.g, w.g_nb}, {w.d, w.d_nb}};
	unsigned long long n = w.n;

	TRY(cuMemAlloc(&w.block, 1 << 20));
	TRY(cuMemsetD32(w.block, BEFORE, 1 << 18));
	w.n = 1024;
	w.control[OPEN] = 1;
	for (auto &one : all)
		if (one.context && !(one.context == w.d && of == NOPEER))
			load_in(one.context, one.stream, one.context != w.d);
	settle();
	w.n = n;
	TRY(cuMemFree(w.block));
	w.block = 0;
}

static std::atomic<bool> is_late_over;

static void CUDA_CB wait_for_late(void *)
{
	double begin = now();

	while (!is_late_over && now() - begin < 4)
		nap(.001);
}

/* Device 1 waits for the host for more than a second, while a allocates. */
static void be_late()
{
	size_t n_free, n_all, size;
	CUdeviceptr p;

	TRY(cuMemGetInfo(&n_free, &n_all));
	use(w.d);
	TRY(cuLaunchHostFunc(w.d_nb, wait_for_late, NULL));
	use(w.a);
	size = std::min(n_all / 2, (size_t)6 << 30);
	for (int i = 0; i < 6; i++) {
		TRY(cuMemAlloc(&p, size + ((size_t)i << 20)));
		TRY(cuMemsetD8Async(p, i, 1 << 20, w.nb));
		TRY(cuStreamSynchronize(w.nb));
		TRY(cuMemFree(p));
	}
	is_late_over = true;
	use(w.d);
	TRY(cuStreamSynchronize(w.d_nb));
	use(w.a);
}

bool start(setup of)
{
	int n;

	TRY(cuInit(0));
	TRY(cuDeviceGetCount(&n));
	if (of >= DEV2 && n < 2)
		return false;
	TRY(cuDeviceGet(&w.devices[0], 0));
	TRY(cuDevicePrimaryCtxRetain(&w.a, w.devices[0]));
	use(w.a);
	if (of == CTX2)
		start_second();
	else if (of == GREEN)
		start_green();
	else if (of >= DEV2)
		start_other_device(of);
	start_streams();
	start_memory();
	if (!is_simulated)
		load_kernels(of);
	if (of == LATE && !is_native)
		be_late();
	return true;
}
