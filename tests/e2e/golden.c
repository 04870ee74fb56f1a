/* SPDX-License-Identifier: MIT
 *
 * golden: see golden.h; one device.
 */
#include "golden.h"

#include <dlfcn.h>
#include <unistd.h>

static bool find_calls(void)
{
	__typeof__(cuGetProcAddress_v2) *ask;
	CUdriverProcAddressQueryResult found;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return false;
	*(void **)&ask = dlsym(lib, "cuGetProcAddress_v2");
	CHECK(ask);
#define X(symbol, name, since)                                                 \
	ask(name, (void **)&cu.symbol, since, 0, &found);                      \
	ask(name, (void **)&cu_pt.symbol, since < 7000 ? 7000 : since,         \
	    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &found);
	GOLDEN_CALLS(X)
#undef X
	return true;
}

/* Every call that takes a pointer, where there is nothing to find. */
static void nowhere(const char *when, CUdeviceptr p)
{
	CUdeviceptr out = 7;
	size_t size = 7, total;
	unsigned value;
	void *data = &value;
	CUpointer_attribute type = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	CUmemGenericAllocationHandle handle;
	CUipcMemHandle ipc;
	CUmemLocation where = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	unsigned long long flags;
	unsigned yes = 1;

#define SAY(call) printf("%s: %s: %s\n", when, #call, golden_code(cu.call))
	SAY(cuMemAlloc_v2(&out, 512));
	SAY(cuMemAlloc_v2(&out, 0));
	SAY(cuMemAlloc_v2(NULL, 512));
	SAY(cuMemAllocPitch_v2(&out, &size, 100, 10, 4));
	SAY(cuMemAllocPitch_v2(&out, &size, 100, 10, 3));
	SAY(cuMemFree_v2(0));
	SAY(cuMemFree_v2((CUdeviceptr)(uintptr_t)&out));
	SAY(cuMemFreeAsync(0, NULL));
	SAY(cuMemGetInfo_v2(&size, &total));
	SAY(cuMemGetAddressRange_v2(&out, &size, p));
	SAY(cuPointerGetAttribute(&value, type, p));
	SAY(cuPointerGetAttributes(1, &type, &data, p));
	SAY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	SAY(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p));
	SAY(cuMemGetAccess(&flags, &where, p));
	SAY(cuIpcGetMemHandle(&ipc, p));
	SAY(cuMemsetD8_v2(p, 1, 16));
	SAY(cuMemcpy(p, p + 16, 16));
	printf("%s: out %s\n", when, out == 7 ? "kept" : "changed");
#undef SAY
}

static void bad_allocs(void)
{
	static const uint64_t sizes[] = {
		0,	    UINT64_C(1) << 50, UINT64_C(1) << 63,
		UINT64_MAX, UINT64_MAX - 510,  UINT64_MAX - (2 << 20)};
	static const struct {
		size_t width, height;
		unsigned element;
	} pitches[] = {{100, 10, 0},
		       {100, 10, 1},
		       {100, 10, 2},
		       {100, 10, 3},
		       {100, 10, 5},
		       {100, 10, 12},
		       {100, 10, 32},
		       {0, 10, 4},
		       {100, 0, 4},
		       {0, 0, 4},
		       {0, 10, 3},
		       {1, 1, 4},
		       {SIZE_MAX, 1, 4},
		       {1, SIZE_MAX, 4},
		       {SIZE_MAX / 2, 4, 4},
		       {512, 1 << 30, 4},
		       /* of so many bytes that it would be 512 again */
		       {512, SIZE_MAX / 512 + 2, 4}};
	CUdeviceptr out;
	CUresult result;
	size_t pitch;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		out = 7;
		result = cu.cuMemAlloc_v2(&out, sizes[i]);
		printf("alloc %#" PRIx64 ": %s, out %s\n", sizes[i],
		       golden_code(result), out == 7 ? "kept" : "changed");
	}
	printf("alloc to NULL: %s\n", golden_code(cu.cuMemAlloc_v2(NULL, 512)));
	for (size_t i = 0; i < sizeof(pitches) / sizeof(*pitches); i++) {
		out = 7;
		pitch = 7;
		result = cu.cuMemAllocPitch_v2(&out, &pitch, pitches[i].width,
					       pitches[i].height,
					       pitches[i].element);
		printf("pitch %#zx x %#zx of %u: %s, out %s, pitch %s\n",
		       pitches[i].width, pitches[i].height, pitches[i].element,
		       golden_code(result), out == 7 ? "kept" : "changed",
		       pitch == 7 ? "kept" : "changed");
		if (result == CUDA_SUCCESS)
			TRY(cu.cuMemFree_v2(out));
	}
	printf("pitch to NULL: %s\n",
	       golden_code(cu.cuMemAllocPitch_v2(NULL, &pitch, 100, 10, 4)));
	printf("NULL pitch: %s\n",
	       golden_code(cu.cuMemAllocPitch_v2(&out, NULL, 100, 10, 4)));
}

/* A line for each run of widths that get the same pitch. */
static void pitch_grid(unsigned element, size_t height)
{
	size_t first = 1, last_pitch = 0;

	for (size_t width = 1; width <= 4097; width++) {
		CUdeviceptr p = 0, base = 0;
		size_t pitch = 0, size = 0;

		TRY(cu.cuMemAllocPitch_v2(&p, &pitch, width, height, element));
		TRY(cu.cuMemGetAddressRange_v2(&base, &size, p));
		if (p % 512 || base != p || size != pitch * height)
			printf("pitch %zu of %u: %zu, %zu bytes, +%" PRIu64
			       "\n",
			       width, element, pitch, size, (uint64_t)p % 512);
		TRY(cu.cuMemFree_v2(p));
		if (last_pitch && pitch != last_pitch) {
			printf("widths %zu to %zu of %u: pitch %zu\n", first,
			       width - 1, element, last_pitch);
			first = width;
		}
		last_pitch = pitch;
	}
}

/* What a capture of this thread's own forbids. */
static void captured_allocs(void)
{
	CUresult result, end;
	CUgraph graph = NULL;
	CUstream stream;

	TRY(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int is_pitched = 0; is_pitched < 2; is_pitched++) {
		CUdeviceptr out = 7;
		size_t pitch = 7;

		TRY(cu.cuStreamBeginCapture_v2(stream,
					       CU_STREAM_CAPTURE_MODE_GLOBAL));
		result = is_pitched ? cu.cuMemAllocPitch_v2(&out, &pitch, 100,
							    10, 4)
				    : cu.cuMemAlloc_v2(&out, 3 * MiB);
		end = cu.cuStreamEndCapture(stream, &graph);
		printf("%s in a capture: %s, out %#" PRIx64
		       ", pitch %zu; end %s\n",
		       is_pitched ? "pitch" : "alloc", golden_code(result),
		       (uint64_t)out, pitch, golden_code(end));
	}
}

static void bad_frees(void)
{
	CUdeviceptr p = golden_alloc("F", 3 * MiB), small = 0, managed = 0;
	CUdeviceptr async = 0;
	void *host = NULL, *heap = malloc(4096);
	CUstream stream;

#define SAY(what, call) printf("free %s: %s\n", what, golden_code(cu.call))
	TRY(cu.cuMemAlloc_v2(&small, 512));
	TRY(cu.cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	TRY(cu.cuMemHostAlloc(&host, 4096, 0));
	TRY(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cu.cuMemAllocAsync(&async, 4096, stream));
	TRY(cu.cuStreamSynchronize(stream));
	SAY("0", cuMemFree_v2(0));
	SAY("0 async", cuMemFreeAsync(0, stream));
	SAY("interior", cuMemFree_v2(p + 512));
	SAY("interior async", cuMemFreeAsync(p + 512, stream));
	SAY("last byte", cuMemFree_v2(p + 3 * MiB - 1));
	SAY("end", cuMemFree_v2(p + 3 * MiB));
	SAY("interior of a small one", cuMemFree_v2(small + 256));
	SAY("stack", cuMemFree_v2((CUdeviceptr)(uintptr_t)&p));
	SAY("stack async", cuMemFreeAsync((CUdeviceptr)(uintptr_t)&p, stream));
	SAY("heap", cuMemFree_v2((CUdeviceptr)(uintptr_t)heap));
	SAY("host", cuMemFree_v2((CUdeviceptr)(uintptr_t)host));
	SAY("as host", cuMemFreeHost((void *)(uintptr_t)p));
	SAY("first", cuMemFree_v2(p));
	SAY("twice", cuMemFree_v2(p));
	SAY("twice, async", cuMemFreeAsync(p, stream));
	SAY("interior of a freed one", cuMemFree_v2(p + 512));
	SAY("small", cuMemFree_v2(small));
	SAY("small twice", cuMemFree_v2(small));
	SAY("small twice, async", cuMemFreeAsync(small, stream));
	SAY("managed", cuMemFree_v2(managed));
	SAY("managed twice", cuMemFree_v2(managed));
	SAY("async by cuMemFree", cuMemFree_v2(async));
	TRY(cu.cuMemAlloc_v2(&p, 3 * MiB));
	/* not twice: the driver says success, and crashes later (580.159) */
	SAY("by cuMemFreeAsync", cuMemFreeAsync(p, stream));
	TRY(cu.cuMemAlloc_v2(&p, 512));
	SAY("small by cuMemFreeAsync", cuMemFreeAsync(p, NULL));
	TRY(cu.cuStreamSynchronize(stream));
	TRY(cu.cuMemFreeHost(host));
	free(heap);
#undef SAY
}

/* All that the end of an allocation should stop. */
static void overruns(size_t size)
{
	CUdeviceptr p = golden_alloc("O", size), q = 0;
	unsigned char *host = calloc(1, size + 8 * MiB);
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			      .srcDevice = p,
			      .srcPitch = 512,
			      .dstMemoryType = CU_MEMORYTYPE_HOST,
			      .dstHost = host,
			      .dstPitch = 512,
			      .WidthInBytes = 512,
			      .Height = size / 512 + 1};

	CHECK(host);
	TRY(cu.cuMemAlloc_v2(&q, size + 8 * MiB));
#define SAY(call)                                                              \
	printf("overrun %zu: %s: %s\n", size, #call, golden_code(cu.call))
	SAY(cuMemsetD8_v2(p, 1, size + 1));
	SAY(cuMemsetD8_v2(p + size, 1, 1));
	SAY(cuMemsetD32_v2(p, 1, size / 4 + 1));
	SAY(cuMemcpyDtoH_v2(host, p, size + 1));
	SAY(cuMemcpyHtoD_v2(p, host, size + 1));
	SAY(cuMemcpyDtoD_v2(q, p, size + 1));
	SAY(cuMemcpy(q, p, size + 1));
	SAY(cuMemcpy2D_v2(&rows));
	SAY(cuMemcpyDtoH_v2(host, p, size + 4 * MiB));
#undef SAY
	TRY(cu.cuCtxSynchronize());
	TRY(cu.cuMemFree_v2(p));
	TRY(cu.cuMemFree_v2(q));
	free(host);
}

static void ipc(void)
{
	CUdeviceptr p = golden_alloc("A", 3 * MiB), q, out = 7;
	CUipcMemHandle a, again, inside, other;

	TRY(cu.cuMemAlloc_v2(&q, 512));
	printf("ipc: %s\n", golden_code(cu.cuIpcGetMemHandle(&a, p)));
	TRY(cu.cuIpcGetMemHandle(&again, p));
	TRY(cu.cuIpcGetMemHandle(&inside, p + 1000));
	TRY(cu.cuIpcGetMemHandle(&other, q));
	printf("ipc: again %s, interior %s, other %s\n",
	       memcmp(&a, &again, sizeof(a)) ? "differs" : "same",
	       memcmp(&a, &inside, sizeof(a)) ? "differs" : "same",
	       memcmp(&a, &other, sizeof(a)) ? "differs" : "same");
	printf("ipc: open one's own: %s\n",
	       golden_code(cu.cuIpcOpenMemHandle_v2(
		       &out, a, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
	printf("ipc: close a block: %s\n",
	       golden_code(cu.cuIpcCloseMemHandle(p)));
	printf("ipc: NULL: %s\n", golden_code(cu.cuIpcGetMemHandle(NULL, p)));
	TRY(cu.cuMemFree_v2(p));
	TRY(cu.cuMemFree_v2(q));
	printf("ipc: freed: %s\n", golden_code(cu.cuIpcGetMemHandle(&a, p)));
	printf("ipc: 0: %s\n", golden_code(cu.cuIpcGetMemHandle(&a, 0)));
}

/* In steps of 16 MiB: what else the driver takes is smaller. */
static long long steps(size_t before, size_t after)
{
	const long long step = 16 << 20;
	long long bytes = (long long)before - (long long)after;

	return (bytes + (bytes < 0 ? -step : step) / 2) / step;
}

/*
 * What the device says counts for all processes: a reading is taken again
 * while another process may have moved it, which a shim that is wrong stays.
 */
static void info(void)
{
	size_t free_before, free_live, free_after, total, total_after;
	long long take, keep;
	CUdeviceptr p;
	int tries = 10;

	do {
		TRY(cu.cuMemGetInfo_v2(&free_before, &total));
		TRY(cu.cuMemAlloc_v2(&p, 256 * MiB));
		TRY(cu.cuMemGetInfo_v2(&free_live, &total));
		TRY(cu.cuMemFree_v2(p));
		TRY(cu.cuMemGetInfo_v2(&free_after, &total_after));
		take = steps(free_before, free_live);
		keep = steps(free_before, free_after);
	} while ((take != 16 || keep != 0) && --tries > 0);
	printf("info: 256 MiB take %lld x 16 MiB, keep %lld; total %s\n", take,
	       keep, total == total_after ? "same" : "differs");
	printf("info: NULL: %s\n", golden_code(cu.cuMemGetInfo_v2(NULL, NULL)));
}

static void sizes(size_t size)
{
	CUdeviceptr p = golden_alloc("A", size);

	printf("== %zu bytes\n", size);
	golden_describe("base", p);
	golden_describe("interior", p + size / 2 + 1);
	golden_describe("last", p + size - 1);
	golden_describe("end", p + size);
	golden_codes("base", p);
	golden_pages("base", p, size);
	golden_codes("interior", p + size / 2 + 1);
	golden_codes("end", p + size);
	TRY(cu.cuMemFree_v2(p));
	golden_describe("freed", p);
	golden_describe("freed interior", p + size / 2 + 1);
	golden_codes("freed", p);
	golden_pages("freed", p, size);
	/* the same place, perhaps; another allocation */
	p = golden_alloc("A", size);
	golden_describe("next", p);
	TRY(cu.cuMemFree_v2(p));
}

static void mappings(void)
{
	CUdeviceptr p = golden_alloc("A", 2 * MiB);
	CUdeviceptr small = golden_alloc("B", 512);

	golden_mapping("mapping of 2 MiB", p, 2 * MiB);
	golden_mapping("mapping around 512 bytes", small, 512);
	TRY(cu.cuMemFree_v2(p));
	TRY(cu.cuMemFree_v2(small));
}

static void foreign(void)
{
	CUdeviceptr managed, async;
	CUstream stream;
	int local = 0;
	void *host;

	TRY(cu.cuMemAllocManaged(&managed, 3 * MiB, CU_MEM_ATTACH_GLOBAL));
	golden_name("managed", managed, 3 * MiB);
	TRY(cu.cuMemHostAlloc(&host, 4096, 0));
	golden_name("host", (CUdeviceptr)(uintptr_t)host, 4096);
	golden_name("local", (CUdeviceptr)(uintptr_t)&local, sizeof(local));
	TRY(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cu.cuMemAllocAsync(&async, 3 * MiB, stream));
	TRY(cu.cuStreamSynchronize(stream));
	golden_name("async", async, 3 * MiB);
	golden_describe("managed", managed + 512);
	golden_codes("managed", managed);
	golden_describe("host", (CUdeviceptr)(uintptr_t)host + 8);
	golden_codes("host", (CUdeviceptr)(uintptr_t)host);
	golden_describe("async", async + 512);
	golden_codes("async", async);
	golden_describe("stack", (CUdeviceptr)(uintptr_t)&local);
	golden_codes("stack", (CUdeviceptr)(uintptr_t)&local);
	golden_describe("NULL", 0);
	golden_codes("NULL", 0);
	golden_describe("nowhere", 0x1234567);
	TRY(cu.cuMemFree_v2(managed));
	TRY(cu.cuMemFreeAsync(async, stream));
	TRY(cu.cuStreamSynchronize(stream));
	TRY(cu.cuMemFreeHost(host));
}

/* A block that was made in a context, where there is none now. */
static void without_context(void)
{
	CUdeviceptr p = golden_alloc("A", 3 * MiB);
	CUdeviceptr q = golden_alloc("B", 512);

	TRY(cu.cuCtxSetCurrent(NULL));
	nowhere("no context", p);
	printf("no context: free inside: %s\n",
	       golden_code(cu.cuMemFree_v2(p + 512)));
	printf("no context: free: %s\n", golden_code(cu.cuMemFree_v2(p)));
	printf("no context: free twice: %s\n", golden_code(cu.cuMemFree_v2(p)));
	printf("no context: free async: %s\n",
	       golden_code(cu.cuMemFreeAsync(q, NULL)));
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
	printf("after that: free: %s\n", golden_code(cu.cuMemFree_v2(p)));
	printf("after that: free: %s\n", golden_code(cu.cuMemFree_v2(q)));
}

int main(void)
{
	int n = 0;

	/* where it stops can be seen */
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!find_calls()) {
		printf("no driver\n");
		return 0;
	}
	nowhere("before cuInit", 0x1234567);
	TRY(cu.cuInit(0));
	nowhere("before a context", 0x1234567);
	TRY(cu.cuDeviceGetCount(&n));
	printf("%s\n", n > 1 ? "two devices" : "one device");
	TRY(cu.cuDevicePrimaryCtxRetain(&golden_ctx[0], 0));
	TRY(cu.cuCtxSetCurrent(golden_ctx[0]));
	bad_allocs();
	captured_allocs();
	bad_frees();
	sizes(512);
	sizes(3 * MiB);
	sizes(64 * MiB);
	mappings();
	foreign();
	without_context();
	ipc();
	info();
	overruns(512);
	overruns(3 * MiB);
	overruns(64 * MiB);
	pitch_grid(4, 1);
	pitch_grid(8, 3);
	pitch_grid(16, 100);
	if (n > 1)
		golden_devices();
	printf("done\n");
	return 0;
}
