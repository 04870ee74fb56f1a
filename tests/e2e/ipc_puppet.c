/* SPDX-License-Identifier: MIT
 *
 * ipc_puppet: a CUDA program that does what it is told, a line at a time, and
 * answers each line with one: "ok ..." or the name of the error. ipc.py has
 * two of them, under the shim or not, pass memory to each other.
 */
#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "../sim/sim.h"
#include "ipc_puppet.h"
#include "victim_link.h"

#define PART (4 * MiB)

static CUcontext contexts[8];
static int n_contexts;

/* Answers; an error ends the line's work. */
static bool is_fine(CUresult result)
{
	if (result == CUDA_SUCCESS)
		return true;
	printf("%s\n", victim_name(result));
	return false;
}

static void pattern(uint64_t *words, size_t n, uint64_t seed, size_t at)
{
	for (size_t i = 0; i < n; i++)
		words[i] = (seed << 40) ^ (at / sizeof(*words) + i) *
						  UINT64_C(0x9e3779b97f4a7c15);
}

/* Copies the pattern of `seed` to device memory, or compares (is_check). */
static void data(CUdeviceptr p, size_t size, uint64_t seed, bool is_check)
{
	uint64_t *want = malloc(PART), *got = malloc(PART);
	bool is_same = true;

	CHECK(want && got);
	for (size_t at = 0; at < size; at += PART) {
		size_t n = size - at < PART ? size - at : PART;

		pattern(want, PART / sizeof(*want), seed, at);
		if (!is_fine(is_check ? cuMemcpyDtoH(got, p + at, n)
				      : cuMemcpyHtoD(p + at, want, n)))
			goto out;
		if (is_check)
			is_same &= memcmp(got, want, n) == 0;
	}
	/* a copy from pageable memory may return before it is done */
	if (is_fine(cuCtxSynchronize()))
		printf(is_same ? "ok\n" : "different\n");
out:
	free(want);
	free(got);
}

static void print_handle(const CUipcMemHandle *handle)
{
	printf("ok ");
	for (size_t i = 0; i < sizeof(*handle); i++)
		printf("%02x", (unsigned char)handle->reserved[i]);
	printf("\n");
}

CUipcMemHandle puppet_handle(const char *text)
{
	CUipcMemHandle handle;

	for (size_t i = 0; i < sizeof(handle); i++) {
		unsigned byte = 0;

		sscanf(text + 2 * i, "%2x", &byte);
		handle.reserved[i] = (char)byte;
	}
	return handle;
}

static int count_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* handles, physical memory, mappings, reservations, descriptors, violations */
static void print_books(void)
{
	void (*books)(int, struct sim_books *);
	unsigned long (*trim)(void);
	struct sim_books b = {0};

	*(void **)&trim = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	if (trim) {
		cuCtxSynchronize();
		trim();
		trim();
	}
	*(void **)&books = dlsym(RTLD_DEFAULT, "sim_books");
	if (books)
		books(-1, &b);
	printf("ok %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %d %ld\n",
	       b.n_handles, b.n_physical, b.n_mappings, b.n_reservations,
	       count_files(), sim_client_violations());
}

/* Absent before CUDA 12.8. */
static int is_decompressible(CUdeviceptr p)
{
	int is = 0;

#if CUDA_VERSION >= 12080
	cuPointerGetAttribute(&is,
			      CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, p);
#else
	(void)p;
#endif
	return is;
}

static void print_attributes(CUdeviceptr p)
{
	CUdeviceptr base = 0, start = 0;
	size_t size = 0, range = 0;
	unsigned type = 0;
	int is_capable = 0, is_mapped = 0, ordinal = -1;
	CUcontext ctx = NULL;
	CUmemGenericAllocationHandle handle;
	unsigned long long id = 0;

	if (!is_fine(cuMemGetAddressRange(&base, &size, p)) ||
	    !is_fine(cuPointerGetAttribute(
		    &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p)) ||
	    !is_fine(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT,
					   p)) ||
	    !is_fine(cuPointerGetAttribute(
		    &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p)) ||
	    !is_fine(cuPointerGetAttribute(
		    &range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p)) ||
	    !is_fine(cuPointerGetAttribute(
		    &is_capable,
		    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p)) ||
	    !is_fine(cuPointerGetAttribute(&is_mapped,
					   CU_POINTER_ATTRIBUTE_MAPPED, p)) ||
	    !is_fine(cuPointerGetAttribute(
		    &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p)) ||
	    !is_fine(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
					   p)))
		return;
	printf("ok %llx %zu type %u context %d start %d range %d mapped %d "
	       "capable %d ordinal %d id %d decompressible %d retain %s\n",
	       base, size, type, ctx == contexts[0], start == base,
	       range == size, is_mapped, is_capable, ordinal, id != 0,
	       is_decompressible(p),
	       victim_name(cuMemRetainAllocationHandle(&handle,
						       (void *)(uintptr_t)p)));
}

/* A green context of the first device, made and current, or destroyed. */
static void change_green(bool is_wanted)
{
	static CUgreenCtx green;
	CUdevResourceDesc units;
	CUdevResource resource;
	CUdevice device = 0;

	if (!is_wanted) {
		if (is_fine(cuGreenCtxDestroy(green)))
			printf("ok\n");
		return;
	}
	if (is_fine(cuDeviceGetDevResource(device, &resource,
					   CU_DEV_RESOURCE_TYPE_SM)) &&
	    is_fine(cuDevResourceGenerateDesc(&units, &resource, 1)) &&
	    is_fine(cuGreenCtxCreate(&green, units, device,
				     CU_GREEN_CTX_DEFAULT_STREAM)) &&
	    is_fine(cuCtxFromGreenCtx(&contexts[n_contexts], green)) &&
	    is_fine(cuCtxSetCurrent(contexts[n_contexts])))
		printf("ok %d\n", n_contexts++);
}

static void change_context(const char *word)
{
	CUcontext ctx;
	CUdevice device = 0;

	if (strcmp(word, "green") == 0 || strcmp(word, "ungreen") == 0) {
		change_green(*word == 'g');
	} else if (strcmp(word, "new") == 0) {
#if CUDA_VERSION >= 13000
		if (!is_fine(cuCtxCreate(&ctx, NULL, 0, device)))
			return;
#else
		if (!is_fine(cuCtxCreate(&ctx, 0, device)))
			return;
#endif
		contexts[n_contexts++] = ctx;
		printf("ok\n");
	} else if (strcmp(word, "destroy") == 0) {
		if (is_fine(cuCtxDestroy(contexts[--n_contexts])))
			printf("ok\n");
	} else if (strcmp(word, "reset") == 0) {
		if (is_fine(cuDevicePrimaryCtxReset(device)))
			printf("ok\n");
	} else if (strcmp(word, "none") == 0) {
		if (is_fine(cuCtxSetCurrent(NULL)))
			printf("ok\n");
	} else if (strcmp(word, "retain") == 0) {
		contexts[0] = victim_start(0);
		printf("ok\n");
	} else if (strncmp(word, "device", strlen("device")) == 0) {
		device = atoi(word + strlen("device"));
		contexts[n_contexts++] = victim_start(device);
		printf("ok\n");
	} else {
		if (is_fine(cuCtxSetCurrent(contexts[atoi(word)])))
			printf("ok\n");
	}
}

/* By the function of that version of CUDA. */
static void open_handle(const char *text, unsigned flags, int version)
{
	CUresult(CUDAAPI * open)(CUdeviceptr *, CUipcMemHandle, unsigned int);
	CUipcMemHandle handle = puppet_handle(text);
	CUdriverProcAddressQueryResult found;
	CUdeviceptr p;

	TRY(cuGetProcAddress_v2("cuIpcOpenMemHandle", (void **)&open, version,
				0, &found));
	if (is_fine(open(&p, handle, flags)))
		printf("ok %llx\n", p);
}

/* Both calls, with nowhere to put what they say. */
static void try_nowhere(const char *text, CUdeviceptr p)
{
	CUresult got = cuIpcGetMemHandle(NULL, p);

	printf("%s %s\n", victim_name(got),
	       victim_name(
		       cuIpcOpenMemHandle(NULL, puppet_handle(text),
					  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
}

/* An open in a thread of its own, until "join" asks what came of it. */
static struct {
	pthread_t thread;
	CUipcMemHandle handle;
	CUdeviceptr p;
	CUresult result;
} beside;

static void *open_in_thread(void *unused)
{
	(void)unused;
	TRY(cuCtxSetCurrent(contexts[0]));
	beside.result = cuIpcOpenMemHandle(&beside.p, beside.handle,
					   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	return NULL;
}

static void open_beside(const char *text)
{
	beside.handle = puppet_handle(text);
	CHECK(pthread_create(&beside.thread, NULL, open_in_thread, NULL) == 0);
	puppet_n_beside++;
	printf("ok\n");
}

static void join_open(void)
{
	CHECK(pthread_join(beside.thread, NULL) == 0);
	puppet_n_beside--;
	if (is_fine(beside.result))
		printf("ok %llx\n", beside.p);
}

static void info(void)
{
	size_t unused, total;

	if (is_fine(cuMemGetInfo(&unused, &total)))
		printf("ok %zu %zu\n", unused, total);
}

/* Opens and closes, again and again; answers how often that went well. */
static void cycle(const char *text, size_t n)
{
	CUipcMemHandle handle = puppet_handle(text);
	size_t n_good = 0;
	uint64_t word;

	for (size_t i = 0; i < n; i++) {
		CUdeviceptr p;

		if (cuIpcOpenMemHandle(&p, handle,
				       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
		    CUDA_SUCCESS)
			continue;
		if (!is_fine(cuMemcpyDtoH(&word, p, sizeof(word))) ||
		    !is_fine(cuIpcCloseMemHandle(p)))
			return;
		n_good++;
	}
	printf("ok %zu\n", n_good);
}

static CUstream captured;

/* A capture that what comes until its end must not kill. */
static void begin_capture(int mode)
{
	if (is_fine(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING)) &&
	    is_fine(cuStreamBeginCapture(captured, (CUstreamCaptureMode)mode)))
		printf("ok\n");
}

static void end_capture(void)
{
	CUgraph graph;

	if (is_fine(cuStreamEndCapture(captured, &graph)) &&
	    is_fine(cuGraphDestroy(graph)) &&
	    is_fine(cuStreamDestroy(captured)))
		printf("ok\n");
}

/* Work on a stream of its own that is not waited for. */
static void work(CUdeviceptr p, size_t size)
{
	CUstream stream;

	if (is_fine(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) &&
	    is_fine(cuMemsetD8Async(p, 0, size, stream)))
		printf("ok\n");
}

static void alloc_async(size_t size)
{
	CUdeviceptr p;

	if (is_fine(cuMemAllocAsync(&p, size, 0)))
		printf("ok %llx\n", p);
}

/* Physical memory of a device, be there a context of it or not. */
static void create(CUdevice device, size_t size)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUmemGenericAllocationHandle handle;

	if (is_fine(cuMemCreate(&handle, size, &prop, 0)))
		printf("ok\n");
}

static struct {
	pthread_barrier_t barrier;
	CUmemAllocationProp prop;
	size_t size;
} pair;

static void *create_one(void *result)
{
	CUmemGenericAllocationHandle handle;

	pthread_barrier_wait(&pair.barrier);
	*(CUresult *)result = cuMemCreate(&handle, pair.size, &pair.prop, 0);
	return NULL;
}

/* The same twice, by two threads at once. */
static void create_both(CUdevice device, size_t size)
{
	pthread_t threads[2];
	CUresult results[2];

	pair.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	pair.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	pair.prop.location.id = device;
	pair.size = size;
	pthread_barrier_init(&pair.barrier, NULL, 2);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, create_one, &results[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	if (is_fine(results[0]) && is_fine(results[1]))
		printf("ok\n");
}

/* Of a pool of a device, in a stream of the current context. */
static void alloc_from(CUdevice device, size_t size)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUmemoryPool pool;
	CUdeviceptr p;

	if (is_fine(cuMemPoolCreate(&pool, &props)) &&
	    is_fine(cuMemAllocFromPoolAsync(&p, size, pool, 0)))
		printf("ok %llx\n", p);
}

static void leave_some_idle(void)
{
	CUdeviceptr p;

	if (cuMemAlloc(&p, 8 * MiB) == CUDA_SUCCESS)
		cuMemFree(p);
}

/* By each call for physical memory some is idle again, as of another thread. */
static void hear_create(const char *call)
{
	static __thread bool is_inside;

	if (is_inside || strcmp(call, "cuMemCreate") != 0)
		return;
	is_inside = true;
	leave_some_idle();
	is_inside = false;
}

static sem_t given_back;

static void hear_release(const char *call)
{
	if (strcmp(call, "cuMemRelease") == 0)
		sem_post(&given_back);
}

static void *leave_idle(void *ctx)
{
	TRY(cuCtxSetCurrent(ctx));
	for (;;) {
		leave_some_idle();
		while (sem_wait(&given_back) != 0)
			;
	}
	return NULL;
}

/* What is given back of device 0 is had again, and idle. */
static void refill(const char *how)
{
	pthread_t thread;

	if (strcmp(how, "creating") == 0) {
		sim_client_on_call(hear_create);
	} else {
		sem_init(&given_back, 0, 0);
		sim_client_on_call(hear_release);
		pthread_create(&thread, NULL, leave_idle, contexts[0]);
	}
	printf("ok\n");
}

static void peers(void)
{
	if (is_fine(cuCtxSetCurrent(contexts[1])) &&
	    is_fine(cuCtxEnablePeerAccess(contexts[0], 0)))
		printf("ok\n");
}

static bool obey_memory(const char *verb, const char *text, CUdeviceptr p,
			size_t size, uint64_t seed)
{
	CUipcMemHandle handle;

	if (strcmp(verb, "alloc") == 0) {
		if (is_fine(cuMemAlloc(&p, strtoull(text, NULL, 0))))
			printf("ok %llx\n", p);
	} else if (strcmp(verb, "free") == 0) {
		if (is_fine(cuMemFree(p)))
			printf("ok\n");
	} else if (strcmp(verb, "fill") == 0) {
		data(p, size, seed, false);
	} else if (strcmp(verb, "check") == 0) {
		data(p, size, seed, true);
	} else if (strcmp(verb, "get") == 0) {
		if (is_fine(cuIpcGetMemHandle(&handle, p)))
			print_handle(&handle);
	} else if (strcmp(verb, "open") == 0) {
		open_handle(text, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 11000);
	} else if (strcmp(verb, "older") == 0) {
		open_handle(text, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 10000);
	} else if (strcmp(verb, "open0") == 0) {
		open_handle(text, 0, 11000);
	} else if (strcmp(verb, "nowhere") == 0) {
		try_nowhere(text, cuMemAlloc(&p, MiB) ? 0 : p);
	} else if (strcmp(verb, "beside") == 0) {
		open_beside(text);
	} else if (strcmp(verb, "join") == 0) {
		join_open();
	} else if (strcmp(verb, "copy") == 0) {
		if (is_fine(cuMemcpy(p, seed, size)) &&
		    is_fine(cuCtxSynchronize()))
			printf("ok\n");
	} else if (strcmp(verb, "close") == 0) {
		if (is_fine(cuIpcCloseMemHandle(p)))
			printf("ok\n");
	} else {
		return false;
	}
	return true;
}

static void obey(char *line)
{
	char verb[32] = "", text[256] = "";
	unsigned long long seed = 0, size = 0;
	CUdeviceptr p;

	sscanf(line, "%31s %255s %llu %llu", verb, text, &size, &seed);
	p = strtoull(text, NULL, 16);
	if (obey_memory(verb, text, p, size, seed) ||
	    puppet_obey_process(verb, text))
		return;
	if (strcmp(verb, "context") == 0)
		change_context(text);
	else if (strcmp(verb, "books") == 0)
		print_books();
	else if (strcmp(verb, "attributes") == 0)
		print_attributes(p);
	else if (strcmp(verb, "info") == 0)
		info();
	else if (strcmp(verb, "cycle") == 0)
		cycle(text, size);
	else if (strcmp(verb, "capture") == 0)
		begin_capture(atoi(text));
	else if (strcmp(verb, "captured") == 0)
		end_capture();
	else if (strcmp(verb, "busy") == 0)
		work(p, size);
	else if (strcmp(verb, "async") == 0)
		alloc_async(strtoull(text, NULL, 0));
	else if (strcmp(verb, "create") == 0)
		create(atoi(text), size);
	else if (strcmp(verb, "both") == 0)
		create_both(atoi(text), size);
	else if (strcmp(verb, "from") == 0)
		alloc_from(atoi(text), size);
	else if (strcmp(verb, "refill") == 0)
		refill(text);
	else if (strcmp(verb, "peers") == 0)
		peers();
	else
		printf("what is %s?\n", verb);
}

int main(void)
{
	char line[512];

	setvbuf(stdout, NULL, _IOLBF, 0);
	contexts[n_contexts++] = victim_start(0);
	printf("ok %d\n", (int)getpid());
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
