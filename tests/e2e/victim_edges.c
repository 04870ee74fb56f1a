/* SPDX-License-Identifier: MIT
 *
 * victim_edges: two more facts of cuCtxWaitEvent beside those of victim_held,
 * on which policies stream and ordered rest. A stream that has no work is
 * neither busy behind it nor waited for, so that a thread which does nothing
 * with one but wait goes on. And a kernel that may begin while the one before
 * it in the stream runs (programmatic dependent launch) does not begin if the
 * wait came between the two.
 */
#include <pthread.h>
#include <unistd.h>

#include "victim_link.h"

enum { LONG_ENOUGH_MS = 200 };

static CUcontext ctx;
static CUevent event;
static _Atomic uint32_t *flag; /* [0]: the first may end; [1]: the next began */
static CUdeviceptr at;
static int status; /* 70: the driver is not what the shim relies on */

static void wait_behind(void)
{
	TRY(cuCtxRecordEvent(ctx, event));
	TRY(cuCtxWaitEvent(ctx, event));
}

static CUstream idle;
static _Atomic bool is_through;

static void *wait_for_it(void *stream)
{
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamSynchronize(stream));
	is_through = true;
	return NULL;
}

static void see_idle(const char *name, CUfunction spin, CUstream busy,
		     CUstream stream)
{
	void *arguments[] = {&at};
	pthread_t thread;
	CUresult r;

	*flag = 0;
	is_through = false;
	victim_launch(spin, busy, arguments);
	wait_behind();
	r = cuStreamQuery(stream);
	CHECK(pthread_create(&thread, NULL, wait_for_it, stream) == 0);
	for (int ms = 0; ms < LONG_ENOUGH_MS && !is_through; ms++)
		usleep(1000);
	printf("%s: %s, %s\n", name, r == CUDA_SUCCESS ? "idle" : "NOT IDLE",
	       is_through ? "left alone" : "NOT LEFT ALONE");
	if (r != CUDA_SUCCESS || !is_through)
		status = 70;
	*flag = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	TRY(cuCtxSynchronize());
}

/* `first` lets the next begin at once, and runs until the flag is raised. */
static const char ptx[] =
	".version 7.8\n.target sm_90\n.address_size 64\n"
	".visible .entry first(.param .u64 flag)\n{\n"
	".reg .u64 %rd<2>;\n.reg .u32 %r<2>;\n.reg .pred %p<2>;\n"
	"griddepcontrol.launch_dependents;\n"
	"ld.param.u64 %rd1, [flag];\n"
	"again:\nld.volatile.global.u32 %r1, [%rd1];\n"
	"setp.eq.u32 %p1, %r1, 0;\n@%p1 bra again;\nret;\n}\n"
	".visible .entry next(.param .u64 word)\n{\n"
	".reg .u64 %rd<2>;\n.reg .u32 %r<2>;\n"
	"ld.param.u64 %rd1, [word];\nmov.u32 %r1, 1;\n"
	"st.volatile.global.u32 [%rd1], %r1;\nmembar.sys;\n"
	"griddepcontrol.wait;\nret;\n}\n";

static void launch_pair(CUfunction first, CUfunction next, CUstream stream,
			bool waits)
{
	CUlaunchAttribute attribute = {
		.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		.value.programmaticStreamSerializationAllowed = 1};
	CUlaunchConfig config = {.gridDimX = 1,
				 .gridDimY = 1,
				 .gridDimZ = 1,
				 .blockDimX = 1,
				 .blockDimY = 1,
				 .blockDimZ = 1,
				 .hStream = stream,
				 .attrs = &attribute,
				 .numAttrs = 1};
	CUdeviceptr word = at + sizeof(*flag);
	void *first_arguments[] = {&at}, *next_arguments[] = {&word};

	flag[1] = 0;
	TRY(cuLaunchKernel(first, 1, 1, 1, 1, 1, 1, 0, stream, first_arguments,
			   NULL));
	if (waits)
		wait_behind();
	TRY(cuLaunchKernelEx(&config, next, next_arguments, NULL));
	usleep(LONG_ENOUGH_MS * 1000);
}

static void see_dependent(CUstream stream)
{
	static const char *const names[] = {"a dependent kernel, no wait",
					    "a dependent kernel, a wait"};
	CUfunction first, next;
	CUmodule module;

	/* before Hopper, and where there is no GPU, there are none */
	if (cuModuleLoadData(&module, ptx) != CUDA_SUCCESS) {
		puts("no dependent kernels");
		return;
	}
	TRY(cuModuleGetFunction(&first, module, "first"));
	TRY(cuModuleGetFunction(&next, module, "next"));
	/* both are loaded by the first pair */
	for (int i = -1; i < 2; i++) {
		*flag = i < 0;
		launch_pair(first, next, stream, i > 0);
		if (i >= 0)
			printf("%s: %s\n", names[i],
			       !flag[1] ? "held"
			       : i == 0 ? "begins"
					: "NOT HELD");
		if (i > 0 && flag[1])
			status = 70;
		*flag = 1;
		TRY(cuStreamSynchronize(stream));
	}
	TRY(cuModuleUnload(module));
}

int main(void)
{
	CUfunction spin;
	CUstream busy;

	ctx = victim_start(0);
	TRY(cuMemHostAlloc((void **)&flag, 2 * sizeof(*flag),
			   CU_MEMHOSTALLOC_DEVICEMAP));
	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	TRY(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
	spin = victim_kernel("vs_spin_flag");
	see_idle("a stream", spin, busy, idle);
	see_idle("the NULL stream", spin, busy, CU_STREAM_LEGACY);
	see_idle("a thread's own", spin, busy, CU_STREAM_PER_THREAD);
	see_dependent(busy);
	return status;
}
