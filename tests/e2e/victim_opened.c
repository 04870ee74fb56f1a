/* SPDX-License-Identifier: MIT
 *
 * victim_opened: what one device has opened by legacy IPC, and another device
 * reaches, at the end of it.
 *
 *   close, destroy     while the other device's work waits for the host, which
 *                      lets it go on behind the close of the memory, or the end
 *                      of its context
 *   copy HOW [WHERE]   while the other device copies it, the context ends. HOW:
 *                      one, two (that are open), peer (by a peer copy); WHERE:
 *                      captured (beside a capture)
 *   enable [race]      peer access is enabled behind the opening, or meanwhile;
 *                      the driver fails at first
 *   short              the driver is short of memory in the middle of the
 *                      opening, once, and much is idle in the pool
 *   asked              the opener is told of it, though it is on another device
 *   apart              peer access of a device that cannot reach the memory
 *   called             the driver calls the program back in the middle
 *   within CALL        and that opens the same memory, and the other
 *   meanwhile          another thread asks of memory of the host in the middle
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim_link.h"

#define SIZE (20 * MiB)
#define TOO_LONG 60 /* seconds */

static CUcontext ctx[2]; /* the primary ones */
static CUipcMemHandle handles[2];
static pid_t second;
static int ending; /* the second process ends when this is closed */

/* The second process: two blocks of ones and twos, until it is told to end. */
static int export_two(int in, int out)
{
	CUdeviceptr p;
	char end;

	victim_start(0);
	for (int i = 0; i < 2; i++) {
		p = victim_alloc(SIZE);
		TRY(cuMemsetD8(p, (unsigned char)(i + 1), SIZE));
		TRY(cuCtxSynchronize());
		TRY(cuIpcGetMemHandle(&handles[i], p));
	}
	CHECK(write(out, handles, sizeof(handles)) == sizeof(handles));
	CHECK(read(in, &end, 1) == 0);
	return 0;
}

static void start_second(char *self)
{
	int from;

	second = victim_start_second(self, &ending, &from);
	CHECK(read(from, handles, sizeof(handles)) == sizeof(handles));
}

static CUdeviceptr open_block(int i)
{
	CUdeviceptr p;

	TRY(cuIpcOpenMemHandle(&p, handles[i],
			       CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	return p;
}

static CUstream stream_of(int ordinal)
{
	CUstream stream;

	TRY(cuCtxSetCurrent(ctx[ordinal]));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static _Atomic bool may_go;

static void end_beside_work(bool is_destroyed)
{
	CUstream stream = stream_of(1);
	CUcontext own = NULL;
	CUdeviceptr p;

	TRY(cuCtxEnablePeerAccess(ctx[0], 0));
	TRY(cuCtxSetCurrent(ctx[0]));
	if (is_destroyed)
		TRY(cuCtxCreate_v2(&own, 0, 0));
	p = open_block(0);
	TRY(cuLaunchHostFunc(stream, victim_wait_for, &may_go));
	if (is_destroyed)
		TRY(cuCtxDestroy(own));
	else
		TRY(cuIpcCloseMemHandle(p));
	printf("came back\n");
	may_go = true;
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamSynchronize(stream));
	if (is_destroyed)
		return;
	/* what was put off does not stand in the way of another */
	TRY(cuCtxSetCurrent(ctx[0]));
	p = open_block(0);
	printf("opened again: %d\n", victim_is_filled(p, SIZE, 1));
	TRY(cuIpcCloseMemHandle(p));
}

static void copy_and_end(const char *how, bool is_captured)
{
	CUstream stream = stream_of(1), captured = NULL;
	CUdeviceptr to = victim_alloc(SIZE), p[2];
	bool is_two = strcmp(how, "two") == 0;
	CUcontext own;
	int last;

	TRY(cuCtxCreate_v2(&own, 0, 0));
	p[0] = open_block(0);
	p[1] = is_two ? open_block(1) : 0;
	last = p[1] > p[0];
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuLaunchHostFunc(stream, victim_nap, NULL));
	if (strcmp(how, "peer") == 0)
		TRY(cuMemcpyPeerAsync(to, ctx[1], p[last], own, SIZE, stream));
	else
		TRY(cuMemcpyDtoDAsync(to, p[last], SIZE, stream));
	if (is_captured) {
		TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
	}
	TRY(cuCtxDestroy(own));
	if (is_captured)
		victim_end_capture(captured);
	printf("copy: %s", victim_name(cuStreamSynchronize(stream)));
	printf(" %d\n", victim_is_filled(to, SIZE, last + 1));
}

static pthread_t opener;
static _Atomic bool is_at_access, is_enabled, is_answered, is_in_time;

/* The simulator's: in the middle of the opening. */
static void hear(const char *call)
{
	if (!pthread_equal(pthread_self(), opener) ||
	    strcmp(call, "cuMemSetAccess") != 0 || is_at_access)
		return;
	is_at_access = true;
	for (int i = 0; i < 300 && !is_enabled && !is_answered; i++)
		usleep(1000);
	is_in_time = is_answered;
}

static void *enable_meanwhile(void *unused)
{
	(void)unused;
	TRY(cuCtxSetCurrent(ctx[1]));
	for (int i = 0; i < 300 && !is_at_access; i++)
		usleep(1000);
	TRY(cuCtxEnablePeerAccess(ctx[0], 0));
	is_enabled = true;
	return NULL;
}

static void open_and_enable_at_once(CUdeviceptr *out)
{
	pthread_t thread;

	opener = pthread_self();
	sim_client_on_call(hear);
	CHECK(pthread_create(&thread, NULL, enable_meanwhile, NULL) == 0);
	*out = open_block(0);
	pthread_join(thread, NULL);
	sim_client_on_call(NULL);
}

/* A failure that lasts for both tries of the shim, and not for the third. */
static void enable_behind(void)
{

	TRY(cuCtxSetCurrent(ctx[1]));
	for (unsigned long n = 1; n <= 2; n++)
		sim_client_fail("cuMemSetAccess", n, CUDA_ERROR_OUT_OF_MEMORY);
	if (cuCtxEnablePeerAccess(ctx[0], 0) != CUDA_SUCCESS) {
		sim_client_fail_clear();
		TRY(cuCtxEnablePeerAccess(ctx[0], 0));
	}
}

/*
 * What has peer access reaches what the other device opened; the simulated
 * driver's own imports are not for kernels of peers, so it is not asked.
 */
static void reach(bool is_race)
{
	unsigned value = 9;
	size_t n = 1000;
	CUdeviceptr p;
	void *args[] = {&p, &value, &n};

	victim_free(victim_alloc(MiB));
	if (is_race) {
		open_and_enable_at_once(&p);
	} else {
		p = open_block(0);
		enable_behind();
	}
	TRY(cuCtxSetCurrent(ctx[1]));
	if (dlsym(RTLD_DEFAULT, "vmmshim_version")) {
		TRY(cuLaunchKernel(victim_kernel("vs_fill"), 64, 1, 1, 256, 1,
				   1, 0, NULL, args, NULL));
		TRY(cuCtxSynchronize());
	}
	printf("enabled\n");
}

static void open_when_short(void)
{
	static const char *const calls[] = {"cuMemImportFromShareableHandle",
					    "cuMemMap", "cuMemSetAccess"};
	CUdeviceptr idle[8], p;

	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < 8; k++)
			idle[k] = victim_alloc(SIZE);
		for (int k = 0; k < 8; k++)
			victim_free(idle[k]);
		TRY(cuCtxSynchronize());
		sim_client_fail(calls[i], 1, CUDA_ERROR_OUT_OF_MEMORY);
		p = open_block(0);
		printf("opened: %d\n", victim_is_filled(p, SIZE, 1));
		TRY(cuIpcCloseMemHandle(p));
	}
}

static void ask_there(const char *who, CUdeviceptr p)
{
	CUdeviceptr base = 0, at = 0;
	CUresult result;
	size_t size = 0;

	result = cuMemGetAddressRange(&base, &size, p + MiB);
	printf("%s: range %s %d %zu", who, victim_name(result), base == p,
	       size);
	result = cuPointerGetAttribute(&at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
				       p);
	printf(", address %s %d\n", victim_name(result), at == p);
}

/* It is on device 0, whose memory device 1 has no peer access to. */
static void ask_of_opened(void)
{
	CUcontext own;
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(ctx[1]));
	p = open_block(0);
	ask_there("opener", p);
	TRY(cuCtxCreate_v2(&own, 0, 1));
	ask_there("another context of its device", p);
	TRY(cuCtxDestroy(own));
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuIpcCloseMemHandle(p));
}

/* Devices 0 and 1 may be peers, and 1 and 2, but not 0 and 2. */
static void enable_apart(void)
{
	TRY(cuCtxSetCurrent(ctx[1]));
	open_block(0);
	victim_start(2);
	TRY(cuCtxEnablePeerAccess(ctx[1], 0));
	TRY(cuCtxSetCurrent(ctx[1]));
	open_block(1);
	printf("enabled\n");
}

static void *ask_meanwhile(void *unused)
{
	int of_host = 0;
	CUmemorytype type;

	(void)unused;
	TRY(cuCtxSetCurrent(ctx[0]));
	for (int i = 0; i < 300 && !is_at_access; i++)
		usleep(1000);
	cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
			      (CUdeviceptr)(uintptr_t)&of_host);
	is_answered = true;
	return NULL;
}

/* The driver's access call may take long; nobody waits for it but who opens. */
static void open_and_ask_at_once(void)
{
	pthread_t thread;

	open_block(0);
	opener = pthread_self();
	sim_client_on_call(hear);
	CHECK(pthread_create(&thread, NULL, ask_meanwhile, NULL) == 0);
	open_block(1);
	sim_client_on_call(NULL);
	pthread_join(thread, NULL);
	printf("answered meanwhile: %d\n", is_in_time || !is_at_access);
}

static CUdeviceptr first;
static _Atomic int n_answers;

/* As a profiler's, which wants to know of its memory; the simulator's. */
static void ask_of_first(const char *call)
{
	CUmemorytype type;

	if (strcmp(call, "cuMemSetAccess") == 0 &&
	    cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				  first) == CUDA_SUCCESS)
		n_answers++;
}

static void open_and_be_called(void)
{

	first = open_block(0);
	sim_client_on_call(ask_of_first);
	open_block(1);
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuCtxEnablePeerAccess(ctx[0], 0));
	sim_client_on_call(NULL);
	/* without the shim there is no such call to be called from */
	CHECK(n_answers > 0 || !dlsym(RTLD_DEFAULT, "vmmshim_version"));
	printf("opened both\n");
}

static const char *opened_in; /* a call that is made in the middle */
static CUdeviceptr inner[2];

static void open_both(const char *call)
{
	if (inner[0] || strcmp(call, opened_in) != 0)
		return;
	inner[0] = 1; /* not from within that */
	for (int i = 0; i < 2; i++)
		inner[i] = open_block(i);
}

static void open_within(void)
{
	CUdeviceptr p;

	sim_client_on_call(open_both);
	p = open_block(0);
	sim_client_on_call(NULL);
	/* without the shim there is no such call to be called from */
	if (!dlsym(RTLD_DEFAULT, "vmmshim_version"))
		open_both(opened_in);
	printf("one mapping: %d\n", p == inner[0]);
	TRY(cuIpcCloseMemHandle(p));
	for (int i = 0; i < 2; i++) {
		printf("open still: %d\n",
		       victim_is_filled(inner[i], SIZE, i + 1));
		TRY(cuIpcCloseMemHandle(inner[i]));
	}
	printf("closed: %s\n", victim_name(cuIpcCloseMemHandle(p)));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	const char *how = argc > 2 ? argv[2] : "";

	if (strcmp(what, "second") == 0)
		return export_two(atoi(argv[2]), atoi(argv[3]));
	start_second(argv[0]);
	alarm(TOO_LONG);
	opened_in = how;
	if (strcmp(what, "short") != 0)
		ctx[1] = victim_start(1);
	ctx[0] = victim_start(0);
	if (strcmp(what, "copy") == 0)
		copy_and_end(how, argc > 3);
	else if (strcmp(what, "short") == 0)
		open_when_short();
	else if (strcmp(what, "asked") == 0)
		ask_of_opened();
	else if (strcmp(what, "apart") == 0)
		enable_apart();
	else if (strcmp(what, "called") == 0)
		open_and_be_called();
	else if (strcmp(what, "within") == 0)
		open_within();
	else if (strcmp(what, "meanwhile") == 0)
		open_and_ask_at_once();
	else if (strcmp(what, "enable") == 0)
		reach(strcmp(how, "race") == 0);
	else
		end_beside_work(strcmp(what, "destroy") == 0);
	close(ending);
	waitpid(second, NULL, 0);
	printf("violations: %d\n", sim_client_violations() > 0);
	return 0;
}
