/* SPDX-License-Identifier: MIT
 *
 * process: one of several CUDA programs that processes.py has take turns. It
 * reads a line, "THREAD VERB WORD...", makes the driver's call in that thread
 * and answers with a line: the result, and what else the call has told. Memory
 * goes by names, blocks b0, b1 ... and opened ones o0, o1 ..., with an offset
 * behind ("b3+512"). No address, identifier or time is told; a handle comes
 * last, behind "#".
 */
#include <pthread.h>

#include "../e2e/victim_link.h"

enum { N_NAMES = 64, GREEN = 4, N_CTX, N_THREADS = 2, N_WORDS = 8 };

static CUdeviceptr blocks[N_NAMES], opened[N_NAMES];
static CUcontext contexts[N_CTX];
static CUstream streams[N_CTX]; /* of these, once one is needed */
static CUgreenCtx green;	/* of contexts[GREEN] */

static char *words[N_WORDS];

static CUresult say(CUresult result)
{
	printf(" %s", victim_name(result));
	return result;
}

static uint64_t number(int i)
{
	return strtoull(words[i] ? words[i] : "0", NULL, 0);
}

/* The place that a word names. */
static CUdeviceptr *slot(int i)
{
	int n = atoi(words[i] + 1);

	CHECK(n >= 0 && n < N_NAMES);
	return words[i][0] == 'b' ? &blocks[n] : &opened[n];
}

static CUdeviceptr address(int i)
{
	const char *plus = strchr(words[i], '+');

	return *slot(i) + (plus ? strtoull(plus + 1, NULL, 0) : 0);
}

/* ---- contents ------------------------------------------------------------ */

static void fill(CUdeviceptr p, size_t size, uint64_t seed)
{
	unsigned char *host = malloc(size);
	CUresult result;

	CHECK(host);
	for (size_t i = 0; i < size; i++)
		host[i] = (unsigned char)(victim_random(&seed) >> 5);
	result = cuMemcpyHtoD(p, host, size);
	/* a copy from pageable memory may return before it is done */
	if (say(result) == CUDA_SUCCESS)
		say(cuCtxSynchronize());
	free(host);
}

static void sum(CUdeviceptr p, size_t size)
{
	unsigned char *host = malloc(size);

	CHECK(host);
	if (say(cuMemcpyDtoH(host, p, size)) == CUDA_SUCCESS)
		printf(" %016" PRIx64, victim_hash(HASH_START, host, size));
	free(host);
}

static CUstream stream_here(void)
{
	CUcontext ctx = NULL;

	cuCtxGetCurrent(&ctx);
	for (int i = 0; ctx && i < N_CTX; i++) {
		if (contexts[i] != ctx)
			continue;
		if (!streams[i])
			say(cuStreamCreate(&streams[i],
					   CU_STREAM_NON_BLOCKING));
		return streams[i];
	}
	return NULL;
}

/* Of the context of a device that has that memory; any, if there is none. */
static CUcontext context_of(CUdeviceptr p)
{
	CUcontext ctx = NULL;

	if (cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, p) !=
		    CUDA_SUCCESS ||
	    !ctx)
		cuCtxGetCurrent(&ctx);
	return ctx;
}

/* Behind the call, which has succeeded. */
static void wait_here(CUresult result)
{
	if (result == CUDA_SUCCESS)
		say(cuCtxSynchronize());
}

static void set(CUdeviceptr p, size_t size, unsigned value)
{
	if (strcmp(words[1], "set8") == 0)
		wait_here(say(cuMemsetD8(p, (unsigned char)value, size)));
	else if (strcmp(words[1], "set32") == 0)
		wait_here(say(cuMemsetD32(p, value, size / 4)));
	else if (strcmp(words[1], "set2d") == 0)
		wait_here(say(cuMemsetD2D8(p, 256, (unsigned char)value, 100,
					   size / 256)));
	else /* nobody waits for it */
		say(cuMemsetD8Async(p, (unsigned char)value, size,
				    stream_here()));
}

/* A copy as a node, launched twice. */
static void copy_by_graph(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	CUDA_MEMCPY3D what = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			      .srcDevice = from,
			      .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			      .dstDevice = to,
			      .WidthInBytes = size,
			      .Height = 1,
			      .Depth = 1};
	CUcontext ctx = NULL;
	CUgraphExec exec;
	CUgraphNode node;
	CUgraph graph;

	cuCtxGetCurrent(&ctx);
	if (say(cuGraphCreate(&graph, 0)) != CUDA_SUCCESS)
		return;
	if (say(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &what, ctx)) ==
		    CUDA_SUCCESS &&
	    say(cuGraphInstantiate(&exec, graph, 0)) == CUDA_SUCCESS) {
		say(cuGraphLaunch(exec, stream_here()));
		wait_here(say(cuGraphLaunch(exec, stream_here())));
		say(cuGraphExecDestroy(exec));
	}
	say(cuGraphDestroy(graph));
}

static void copy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	const CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
				    .srcDevice = from,
				    .srcPitch = 512,
				    .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
				    .dstDevice = to,
				    .dstPitch = 512,
				    .WidthInBytes = 300,
				    .Height = size / 512};
	CUstream stream;

	if (strcmp(words[1], "copy") == 0) {
		wait_here(say(cuMemcpy(to, from, size)));
	} else if (strcmp(words[1], "copyd") == 0) {
		wait_here(say(cuMemcpyDtoD(to, from, size)));
	} else if (strcmp(words[1], "copy2d") == 0) {
		wait_here(say(cuMemcpy2D(&rows)));
	} else if (strcmp(words[1], "copypeer") == 0) {
		wait_here(say(cuMemcpyPeer(to, context_of(to), from,
					   context_of(from), size)));
	} else if (strcmp(words[1], "copygraph") == 0) {
		copy_by_graph(to, from, size);
	} else {
		stream = stream_here();
		wait_here(say(cuMemcpyDtoDAsync(to, from, size, stream)));
	}
}

/* ---- what the driver says of memory -------------------------------------- */

static void show(CUpointer_attribute what, uint64_t value, CUdeviceptr p)
{
	int i = 0;

	switch (what) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		while (i < N_CTX && contexts[i] != (CUcontext)(uintptr_t)value)
			i++;
		printf(value ? " c%d" : " none", i);
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		printf(" %+" PRId64, (int64_t)(value - p));
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		printf(value ? " some" : " none");
		break;
	default:
		printf(" %" PRIu64, value);
	}
}

/* What a driver says of these for opened memory is not known. */
static bool is_known(CUpointer_attribute what)
{
	return what != CU_POINTER_ATTRIBUTE_P2P_TOKENS &&
	       (words[2][0] == 'b' ||
		(what != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
		 what != CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE));
}

/* As of CUDA 12.5. */
#define LAST_ATTRIBUTE CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID

static void ask(CUdeviceptr p)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr base = 0;
	size_t size = 0;
	uint64_t value;

	if (say(cuMemGetAddressRange(&base, &size, p)) == CUDA_SUCCESS)
		printf(" %+" PRId64 " %zu", (int64_t)(base - p), size);
	for (int a = 1; a <= LAST_ATTRIBUTE; a++) {
		CUpointer_attribute what = (CUpointer_attribute)a;

		if (!is_known(what))
			continue;
		value = 0;
		printf("; %d", a);
		if (say(cuPointerGetAttribute(&value, what, p)) == CUDA_SUCCESS)
			show(what, value, p);
	}
	printf("; retain");
	say(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p));
}

/* ---- memory -------------------------------------------------------------- */

static void alloc(CUdeviceptr *p, size_t size, const char *kind)
{
	size_t pitch;

	if (strcmp(kind, "async") == 0)
		say(cuMemAllocAsync(p, size, stream_here()));
	else if (strcmp(kind, "managed") == 0)
		say(cuMemAllocManaged(p, size, CU_MEM_ATTACH_GLOBAL));
	else if (strcmp(kind, "pitch") == 0)
		say(cuMemAllocPitch(p, &pitch, 512, size / 512, 16));
	else
		say(cuMemAlloc(p, size));
}

static void get(CUdeviceptr p)
{
	CUipcMemHandle handle;

	if (say(cuIpcGetMemHandle(&handle, p)) != CUDA_SUCCESS)
		return;
	printf(" #");
	for (size_t i = 0; i < sizeof(handle); i++)
		printf("%02x", (unsigned char)handle.reserved[i]);
}

/* Tells whether it is where something else is open. */
static void open_handle(CUdeviceptr *out, const char *text, unsigned flags)
{
	CUipcMemHandle handle;
	CUdeviceptr p = 0;

	for (size_t i = 0; i < sizeof(handle); i++) {
		unsigned byte = 0;

		sscanf(text + 2 * i, "%2x", &byte);
		handle.reserved[i] = (char)byte;
	}
	if (say(cuIpcOpenMemHandle(&p, handle, flags)) != CUDA_SUCCESS)
		return;
	for (int i = 0; i < N_NAMES; i++)
		if (opened[i] == p && out != &opened[i])
			printf(" o%d", i);
	*out = p;
}

/* ---- contexts ------------------------------------------------------------ */

static CUcontext context(int i)
{
	return words[i][0] == '-' ? NULL : contexts[number(i) % N_CTX];
}

static void create_green(CUdevice device)
{
	CUdevResourceDesc units = victim_units(device);

	streams[GREEN] = NULL;
	if (say(cuGreenCtxCreate(&green, units, device,
				 CU_GREEN_CTX_DEFAULT_STREAM)) != CUDA_SUCCESS)
		return;
	say(cuCtxFromGreenCtx(&contexts[GREEN], green));
	say(cuCtxSetCurrent(contexts[GREEN]));
}

static void change_context(const char *verb)
{
	CUdevice device = (CUdevice)number(3);
	unsigned n = (unsigned)(number(2) % N_CTX);
	CUcontext popped;

	if (strcmp(verb, "current") == 0) {
		say(cuCtxSetCurrent(context(2)));
	} else if (strcmp(verb, "create") == 0) {
		/* in place of what is current, not above it */
		streams[n] = NULL;
		if (say(cuCtxCreate_v2(&contexts[n], 0, device)) ==
		    CUDA_SUCCESS) {
			say(cuCtxPopCurrent(&popped));
			say(cuCtxSetCurrent(contexts[n]));
		}
	} else if (strcmp(verb, "destroy") == 0) {
		say(cuCtxDestroy(contexts[n]));
		contexts[n] = NULL;
	} else if (strcmp(verb, "retain") == 0) {
		streams[n] = NULL;
		if (say(cuDevicePrimaryCtxRetain(&contexts[n], device)) ==
		    CUDA_SUCCESS)
			say(cuCtxSetCurrent(contexts[n]));
	} else if (strcmp(verb, "release") == 0) {
		say(cuDevicePrimaryCtxRelease(device));
	} else if (strcmp(verb, "reset") == 0) {
		say(cuDevicePrimaryCtxReset(device));
	} else if (strcmp(verb, "green") == 0) {
		create_green(device);
	} else if (strcmp(verb, "ungreen") == 0) {
		say(cuGreenCtxDestroy(green));
		contexts[GREEN] = NULL;
	} else {
		printf(" what is %s?", verb);
	}
}

static void obey(void)
{
	const char *verb = words[1];

	if (strcmp(verb, "alloc") == 0)
		alloc(slot(2), number(3), words[4]);
	else if (strcmp(verb, "free") == 0)
		say(cuMemFree(address(2)));
	else if (strcmp(verb, "freeasync") == 0)
		say(cuMemFreeAsync(address(2), stream_here()));
	else if (strcmp(verb, "get") == 0)
		get(address(2));
	else if (strcmp(verb, "open") == 0)
		open_handle(slot(2), words[3], (unsigned)number(4));
	else if (strcmp(verb, "close") == 0)
		say(cuIpcCloseMemHandle(address(2)));
	else if (strcmp(verb, "forget") == 0)
		*slot(2) = 0;
	else if (strcmp(verb, "fill") == 0)
		fill(address(2), number(3), number(4));
	else if (strcmp(verb, "sum") == 0)
		sum(address(2), number(3));
	else if (strncmp(verb, "set", 3) == 0)
		set(address(2), number(3), (unsigned)number(4));
	else if (strncmp(verb, "copy", 4) == 0)
		copy(address(2), address(3), number(4));
	else if (strcmp(verb, "ask") == 0)
		ask(address(2));
	else if (strcmp(verb, "exec") == 0)
		execl("/proc/self/exe", "process", "again", (char *)NULL);
	else if (strcmp(verb, "sync") == 0)
		say(cuCtxSynchronize());
	else
		change_context(verb);
}

/* ---- turns --------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passed = PTHREAD_COND_INITIALIZER;
static int turn = -1; /* the thread that is to obey; lock */

static void *thread(void *self)
{
	pthread_mutex_lock(&lock);
	for (;;) {
		if (turn == (int)(intptr_t)self) {
			obey();
			turn = -1;
			pthread_cond_broadcast(&passed);
		}
		pthread_cond_wait(&passed, &lock);
	}
	return NULL;
}

static void split(char *line)
{
	char *rest = NULL, *word = strtok_r(line, " \n", &rest);

	for (int i = 0; i < N_WORDS; i++) {
		words[i] = word;
		word = word ? strtok_r(NULL, " \n", &rest) : NULL;
	}
}

int main(int argc, char **argv)
{
	char line[512];

	TRY(cuInit(0));
	if (argc > 1) {
		printf("%s\n", argv[1]);
		fflush(stdout);
	}
	for (intptr_t i = 0; i < N_THREADS; i++) {
		pthread_t id;

		CHECK(pthread_create(&id, NULL, thread, (void *)i) == 0);
	}
	while (fgets(line, sizeof(line), stdin)) {
		split(line);
		CHECK(words[0] && words[1]);
		pthread_mutex_lock(&lock);
		turn = (int)(number(0) % N_THREADS);
		pthread_cond_broadcast(&passed);
		while (turn >= 0)
			pthread_cond_wait(&passed, &lock);
		pthread_mutex_unlock(&lock);
		printf("\n");
		fflush(stdout);
	}
	printf("%ld\n", sim_client_violations());
	return 0;
}
