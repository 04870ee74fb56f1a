/* SPDX-License-Identifier: MIT
 *
 * victim_callback [STEP]: a profiler's callback for driver calls asks what
 * memory is left, waits for the GPU and takes memory of its own, as a
 * subscriber of CUPTI may. Of the calls that a pool makes for itself it hears,
 * too, and the pool is to survive that. A real driver calls nobody back here.
 * Meanwhile (without a step: allocations and frees):
 *   contexts  contexts come, work, and go with what they have
 *   green     the same of green contexts
 *   fault     a kernel faults
 *   thread    a thread ends that has just freed much
 *   trim      the program itself trims
 *   peers     two devices are given access to each other's memory
 *   ipc       another process opens memory of this one
 *   join      while the pool's memory is opened to a peer, a second thread is
 *             told that it is open, and uses it
 *   rejoin    a second thread opens it again right after it was closed
 */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "victim_link.h"

enum { BLOCKS = 8, ROUNDS = 40 };

static __thread int is_inside;
static size_t wanted = 4096; /* by the callback; large: it has to be made */
static CUcontext second;     /* where it takes some, too */

/* What a pool does that does not allocate or free for the program alone. */
static int is_of_interest(const char *call)
{
	return strncmp(call, "cuEvent", 7) == 0 ||
	       strncmp(call, "cuCtxRecord", 11) == 0 ||
	       strncmp(call, "cuCtxWait", 9) == 0 ||
	       strncmp(call, "cuMemCreate", 11) == 0 ||
	       strncmp(call, "cuMemMap", 8) == 0 ||
	       strncmp(call, "cuMemUnmap", 10) == 0 ||
	       strncmp(call, "cuMemSetAccess", 14) == 0 ||
	       strncmp(call, "cuMemExport", 11) == 0 ||
	       strncmp(call, "cuMemGetInfo", 12) == 0;
}

/* After a fault nobody gets anything. */
static void take_some(void)
{
	CUdeviceptr p;

	if (cuMemAlloc(&p, wanted) == CUDA_SUCCESS)
		TRY(cuMemFree(p));
}

static void heard(const char *call)
{
	CUcontext current = NULL;
	size_t unused, total;

	if (is_inside || !is_of_interest(call))
		return;
	is_inside = 1;
	if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) {
		if (cuMemGetInfo(&unused, &total) == CUDA_SUCCESS)
			CHECK(unused <= total);
		cuCtxSynchronize();
		take_some();
	}
	if (second) {
		TRY(cuCtxPushCurrent(second));
		take_some();
		TRY(cuCtxPopCurrent(&current));
	}
	is_inside = 0;
}

static void listen(void (*callback)(const char *))
{
	sim_client_on_call(callback);
}

static void churn(void)
{
	CUdeviceptr p[BLOCKS];
	size_t unused, total;
	CUstream stream;
	int n_good = 0;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (size_t round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < BLOCKS; i++) {
			size_t size = (i % 2 ? 40 + i + round : 1) * MiB;

			p[i] = victim_alloc(size);
			TRY(cuMemsetD8Async(p[i], (unsigned char)i, MiB,
					    stream));
		}
		TRY(cuMemGetInfo(&unused, &total));
		TRY(cuStreamSynchronize(stream));
		for (size_t i = 0; i < BLOCKS; i++)
			n_good += victim_is_filled(p[i], MiB, (int)i);
		for (size_t i = 0; i < BLOCKS; i++) {
			usleep(100);
			victim_free(p[i]);
		}
	}
	TRY(cuStreamDestroy(stream));
	printf("good: %d of %d\n", n_good, BLOCKS * ROUNDS);
}

/* What a context has, and what it has freed. */
static void use(void)
{
	for (size_t i = 0; i < BLOCKS; i++) {
		CUdeviceptr p;

		TRY(cuMemAlloc(&p, (i % 2 ? 40 + i : 1) * MiB));
		TRY(cuMemsetD8Async(p, 1, MiB, NULL));
		if (i < BLOCKS / 2)
			TRY(cuMemFree(p));
	}
}

static void contexts(void)
{
	CUcontext here, ctx;
	CUdevice device;

	TRY(cuCtxGetDevice(&device));
	TRY(cuCtxGetCurrent(&here));
	use();
	for (int i = 0; i < 4; i++) {
		TRY(cuCtxCreate_v2(&ctx, 0, device));
		use();
		TRY(cuCtxDestroy(ctx));
		TRY(cuCtxSetCurrent(here));
	}
	printf("contexts came and went\n");
}

static void green(void)
{
	CUdevResourceDesc units;
	CUdevice device;

	TRY(cuCtxGetDevice(&device));
	units = victim_units(device);
	for (int i = 0; i < 4; i++) {
		CUgreenCtx handle;

		TRY(cuGreenCtxCreate(&handle, units, device,
				     CU_GREEN_CTX_DEFAULT_STREAM));
		use();
		TRY(cuGreenCtxDestroy(handle));
	}
	printf("green contexts came and went\n");
}

static void *free_much(void *ctx)
{
	CUdeviceptr p[40];

	TRY(cuCtxSetCurrent(ctx));
	for (int i = 0; i < 40; i++)
		TRY(cuMemAlloc(&p[i], MiB));
	for (int i = 0; i < 40; i++)
		TRY(cuMemFree(p[i]));
	return NULL;
}

static void thread(void)
{
	pthread_t other;
	CUcontext ctx;

	TRY(cuCtxGetCurrent(&ctx));
	for (int i = 0; i < 4; i++) {
		CHECK(pthread_create(&other, NULL, free_much, ctx) == 0);
		CHECK(pthread_join(other, NULL) == 0);
	}
	printf("threads came and went\n");
}

static void fault(void)
{
	CUdeviceptr nowhere = (CUdeviceptr)0x70 << 32, p[60];
	uint32_t value = 1;
	uint64_t n_words = 10;
	void *arguments[] = {&nowhere, &value, &n_words};
	CUfunction kernel = victim_kernel("vs_fill");
	CUresult r;

	for (int i = 0; i < 60; i++)
		TRY(cuMemAlloc(&p[i], i < 58 ? MiB : 2 * MiB));
	for (int i = 0; i < 60; i++)
		TRY(cuMemFree(p[i]));
	victim_launch(kernel, NULL, arguments);
	while ((r = cuStreamQuery(NULL)) == CUDA_ERROR_NOT_READY)
		usleep(1000);
	printf("query: %s\n", victim_name(r));
	printf("wait: %s\n", victim_name(cuStreamSynchronize(NULL)));
}

static void trim(void)
{
	uint64_t (*trim_all)(void);

	*(void **)&trim_all = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	for (int i = 0; i < 4; i++) {
		use();
		TRY(cuCtxSynchronize());
		if (trim_all)
			trim_all();
	}
	printf("trimmed\n");
}

static void CUDA_CB end_late(void *unused)
{
	(void)unused;
	usleep(100000);
}

/*
 * While what was freed is pending, one is made a peer, if it may be; then the
 * other one runs a copy of both's memory.
 */
static void peers(void)
{
	CUdeviceptr here = victim_alloc(MiB), there, p[BLOCKS];
	CUcontext ctx;
	CUstream stream;
	CUdevice device;

	TRY(cuDeviceGet(&device, 1));
	TRY(cuDevicePrimaryCtxRetain(&second, device));
	TRY(cuCtxPushCurrent(second));
	there = victim_alloc(MiB);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuMemsetD8Async(there, 6, MiB, stream));
	TRY(cuCtxPopCurrent(&ctx));
	TRY(cuLaunchHostFunc(NULL, end_late, NULL));
	for (int round = 0; round < 8; round++) {
		for (int i = 0; i < BLOCKS; i++)
			p[i] = victim_alloc(40 * MiB);
		for (int i = 0; i < BLOCKS; i++)
			victim_free(p[i]);
	}
	printf("peer: %s\n", victim_name(cuCtxEnablePeerAccess(second, 0)));
	TRY(cuMemcpyDtoDAsync(here, there, MiB, stream));
	TRY(cuStreamSynchronize(stream));
	printf("copied: %d\n", victim_is_filled(here, MiB, 6));
	victim_free(here);
	victim_free(there);
	listen(NULL);
	TRY(cuDevicePrimaryCtxRelease(device));
}

/* A second thread, which the first lets go on as far as it can. */
static struct {
	CUcontext owner;
	CUdeviceptr p;
	CUstream stream;
	pthread_t thread;
	bool has_begun, is_due;
	_Atomic bool is_done;
} joining;

static void set_it(int byte)
{
	CUresult r = cuMemsetD8Async(joining.p, (unsigned char)byte, MiB,
				     joining.stream);

	printf("set: %s\n", victim_name(r));
}

static void *enable_too(void *unused)
{
	CUresult r;

	TRY(cuCtxSetCurrent(second));
	r = cuCtxEnablePeerAccess(joining.owner, 0);
	printf("again: %s\n", victim_name(r));
	set_it(4);
	joining.is_done = true;
	return unused;
}

static void begin_joining(void)
{
	if (joining.has_begun)
		return;
	joining.has_begun = true;
	CHECK(!pthread_create(&joining.thread, NULL, enable_too, NULL));
	for (int i = 0; i < 100 && !joining.is_done; i++)
		usleep(1000);
}

static void open_pool(const char *call)
{
	if (strcmp(call, "cuMemSetAccess") == 0)
		begin_joining();
}

/* The first call behind it. */
static void close_pool(const char *call)
{
	if (joining.is_due)
		begin_joining();
	joining.is_due |= strcmp(call, "cuCtxDisablePeerAccess") == 0;
}

static void start_joining(void)
{
	CUdevice device;

	listen(NULL);
	TRY(cuCtxGetCurrent(&joining.owner));
	joining.p = victim_alloc(MiB);
	TRY(cuDeviceGet(&device, 1));
	TRY(cuDevicePrimaryCtxRetain(&second, device));
	TRY(cuCtxSetCurrent(second));
	TRY(cuStreamCreate(&joining.stream, CU_STREAM_NON_BLOCKING));
}

static void end_joining(void)
{
	begin_joining();
	CHECK(!pthread_join(joining.thread, NULL));
	listen(NULL);
	set_it(5);
	TRY(cuStreamSynchronize(joining.stream));
	TRY(cuCtxSetCurrent(joining.owner));
	printf("filled: %d\n", victim_is_filled(joining.p, MiB, 5));
	victim_free(joining.p);
}

static void join(void)
{
	start_joining();
	listen(open_pool);
	TRY(cuCtxEnablePeerAccess(joining.owner, 0));
	end_joining();
}

static void rejoin(void)
{
	start_joining();
	TRY(cuCtxEnablePeerAccess(joining.owner, 0));
	listen(close_pool);
	TRY(cuCtxDisablePeerAccess(joining.owner));
	end_joining();
}

/* The other process: what is opened by the handle on standard input. */
static void importer(void)
{
	CUipcMemHandle handle;
	CUdeviceptr p;

	CHECK(fread(&handle, sizeof(handle), 1, stdin) == 1);
	TRY(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	printf("opened: %d\n", victim_is_filled(p, MiB, 7));
	TRY(cuIpcCloseMemHandle(p));
}

static void ipc(void)
{
	CUdeviceptr p = victim_alloc(MiB);
	CUipcMemHandle handle;
	char command[64];
	FILE *other;

	TRY(cuCtxGetCurrent(&second));
	TRY(cuMemsetD8(p, 7, MiB));
	TRY(cuCtxSynchronize());
	TRY(cuIpcGetMemHandle(&handle, p));
	snprintf(command, sizeof(command), "exec /proc/%d/exe importer",
		 (int)getpid());
	other = popen(command, "w");
	CHECK(other && fwrite(&handle, sizeof(handle), 1, other) == 1);
	CHECK(pclose(other) == 0);
	victim_free(p);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*take)(void);
	} steps[] = {
		{"contexts", contexts}, {"green", green},
		{"fault", fault},	{"thread", thread},
		{"trim", trim},		{"peers", peers},
		{"ipc", ipc},		{"importer", importer},
		{"join", join},		{"rejoin", rejoin},
	};
	void (*step)(void) = churn;

	for (size_t i = 0; argc > 1 && i < sizeof(steps) / sizeof(steps[0]);
	     i++)
		if (!strcmp(argv[1], steps[i].name))
			step = steps[i].take;
	if (argc > 1)
		wanted = 100 * MiB;
	victim_start(0);
	listen(heard);
	step();
	listen(NULL);
	return 0;
}
