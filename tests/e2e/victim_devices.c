/* SPDX-License-Identifier: MIT
 *
 * victim_devices: memory of several devices, copied between them by plain and
 * by peer copies, before and after peer access is enabled. One device: says so.
 */
#include <string.h>
#include <unistd.h>

#include "victim_link.h"

#define SIZE (2 * MiB + 4096)

static CUcontext ctx[2];
static CUdeviceptr block[2];

static void fill(int i, int byte)
{
	TRY(cuCtxSetCurrent(ctx[i]));
	TRY(cuMemsetD8(block[i], (unsigned char)byte, SIZE));
	TRY(cuCtxSynchronize());
}

static void copy_both_ways(const char *when)
{
	CUdeviceptr third;

	for (int from = 0; from < 2; from++) {
		int to = 1 - from;

		for (int here = 0; here < 2; here++) {
			fill(from, 40 + from);
			fill(to, 0);
			TRY(cuCtxSetCurrent(ctx[here]));
			TRY(cuMemcpyDtoD(block[to], block[from], SIZE));
			TRY(cuCtxSynchronize());
			printf("%s: %d to %d on %d: %d\n", when, from, to, here,
			       victim_is_filled(block[to], SIZE, 40 + from));
			TRY(cuMemcpyPeer(block[from], ctx[from], block[to],
					 ctx[to], SIZE));
			TRY(cuCtxSynchronize());
		}
	}
	/* memory that is born after peers were enabled */
	TRY(cuCtxSetCurrent(ctx[0]));
	third = victim_alloc(SIZE);
	TRY(cuMemcpy(third, block[1], SIZE));
	TRY(cuCtxSynchronize());
	printf("%s: new block: %d\n", when, victim_is_filled(third, SIZE, 41));
	victim_free(third);
}

/* Some work of a device, then a set of its block. */
static void set_late(int i, int byte)
{
	TRY(cuCtxSetCurrent(ctx[i]));
	victim_delay();
	TRY(cuMemsetD8Async(block[i], (unsigned char)byte, SIZE, NULL));
}

/* Copies in the NULL stream of device 0 beside work of device 1. */
static void in_order(const char *when)
{
	static char host[SIZE];

	fill(1, 2);
	set_late(1, 7);
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuMemcpyDtoH(host, block[1], SIZE));
	printf("%s: to the host after a set: %d\n", when, host[SIZE - 1]);
	set_late(1, 8);
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuMemcpyDtoDAsync(block[0], block[1], SIZE, NULL));
	TRY(cuCtxSynchronize());
	printf("%s: between devices after a set: %d\n", when,
	       victim_is_filled(block[0], SIZE, 8));
	set_late(1, 9);
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuMemcpyHtoD(block[1], host, SIZE));
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuCtxSynchronize());
	printf("%s: from the host after a set: %d\n", when,
	       victim_is_filled(block[1], SIZE, 7));
	TRY(cuCtxSetCurrent(ctx[0]));
	victim_delay();
	TRY(cuMemcpyDtoDAsync(block[0], block[1], SIZE, NULL));
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuMemsetD8Async(block[1], 3, SIZE, NULL));
	TRY(cuCtxSynchronize());
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuCtxSynchronize());
	printf("%s: between devices before a set: %d\n", when,
	       victim_is_filled(block[0], SIZE, 7));
}

/* Neither loses the capture nor the order. */
static void in_order_beside_a_capture(void)
{
	unsigned char last = 0;
	CUstream stream;
	CUgraph graph;

	fill(1, 2);
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	set_late(1, 7);
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuMemcpyDtoH(&last, block[1] + SIZE - 1, 1));
	printf("beside a capture: %d %s\n", last,
	       victim_name(cuStreamEndCapture(stream, &graph)));
}

/* Of device 0, with a context of it in *out. */
static CUgreenCtx make_green(CUcontext *out)
{
	CUgreenCtx green;
	CUdevice device;

	TRY(cuDeviceGet(&device, 0));
	TRY(cuGreenCtxCreate(&green, victim_units(device), device,
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuCtxFromGreenCtx(out, green));
	return green;
}

/* What is in its NULL stream has no order with the other device's work. */
static void no_order_under_green(void)
{
	static _Atomic bool may_go;
	CUgreenCtx green;
	CUcontext here;
	bool is_done;

	fill(0, 0);
	fill(1, 7);
	green = make_green(&here);
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuLaunchHostFunc(NULL, victim_wait_for, &may_go));
	TRY(cuCtxSetCurrent(here));
	TRY(cuMemcpyDtoDAsync(block[0], block[1], SIZE, NULL));
	for (int i = 0; i < 5000 && cuStreamQuery(NULL) != CUDA_SUCCESS; i++)
		usleep(1000);
	is_done = cuStreamQuery(NULL) == CUDA_SUCCESS;
	may_go = true;
	TRY(cuCtxSynchronize());
	printf("under a green context, beside other work: %d %d\n", is_done,
	       victim_is_filled(block[0], SIZE, 7));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuGreenCtxDestroy(green));
}

/* It outlives the context that it was made in. */
static void copy_from_managed(void)
{
	CUdeviceptr managed;
	CUgreenCtx green;
	CUcontext here;

	green = make_green(&here);
	TRY(cuCtxSetCurrent(here));
	TRY(cuMemAllocManaged(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuGreenCtxDestroy(green));
	TRY(cuMemsetD8(managed, 6, SIZE));
	TRY(cuCtxSynchronize());
	printf("from managed memory: %s",
	       victim_name(cuMemcpy(block[1], managed, SIZE)));
	TRY(cuCtxSynchronize());
	TRY(cuCtxSetCurrent(ctx[1]));
	printf(" %d\n", victim_is_filled(block[1], SIZE, 6));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuMemFree(managed));
}

/* A peer copy names a context of the other device, and one that has ended. */
static void copy_misnamed(void)
{
	CUcontext ended;

	fill(1, 2);
	set_late(1, 8);
	TRY(cuCtxSetCurrent(ctx[0]));
	printf("of the other device: %s",
	       victim_name(cuMemcpyPeerAsync(block[0], ctx[0], block[1], ctx[0],
					     SIZE, NULL)));
	TRY(cuCtxSynchronize());
	printf(" %d\n", victim_is_filled(block[0], SIZE, 8));
	TRY(cuCtxCreate_v2(&ended, 0, 1));
	TRY(cuCtxDestroy(ended));
	TRY(cuCtxSetCurrent(ctx[0]));
	printf("ended: %s\n",
	       victim_name(cuMemcpyPeerAsync(block[0], ctx[0], block[1], ended,
					     SIZE, NULL)));
	TRY(cuCtxSynchronize());
}

/* What the contexts of device 0 are told of memory of device 1. */
static void ask(const char *when, CUcontext green)
{
	for (int i = 0; i < 2; i++) {
		CUdeviceptr base = 0, at = 0;
		size_t size = 0;

		TRY(cuCtxSetCurrent(i ? green : ctx[0]));
		printf("%s, %s: range %s", when, i ? "green" : "primary",
		       victim_name(
			       cuMemGetAddressRange(&base, &size, block[1])));
		printf(" %d, pointer %s", base == block[1] && size == SIZE,
		       victim_name(cuPointerGetAttribute(
			       &at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
			       block[1])));
		printf(" %d\n", at == block[1]);
	}
}

/* Peer access of a primary context and of a green one over it. */
static void peers_under_green(void)
{
	CUcontext here;
	CUgreenCtx green = make_green(&here);

	ask("enabled before", here);
	printf("disable: %s\n", victim_name(cuCtxDisablePeerAccess(ctx[1])));
	ask("disabled under green", here);
	printf("enable: %s\n", victim_name(cuCtxEnablePeerAccess(ctx[1], 0)));
	ask("enabled under green", here);
	TRY(cuCtxSetCurrent(ctx[0]));
	printf("enable twice: %s\n",
	       victim_name(cuCtxEnablePeerAccess(ctx[1], 0)));
	TRY(cuGreenCtxDestroy(green));
}

static _Atomic int is_reset;

static void CUDA_CB wait_for_reset(void *data)
{
	(void)data;
	for (int i = 0; i < 5000 && !is_reset; i++)
		usleep(1000);
	printf("the other device waited for the reset: %d\n", is_reset);
}

/* Work of another device may go on until the program is back from a reset. */
static void reset_beside_work(void)
{
	CUdevice device;

	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuMemcpyDtoD(block[1], block[0], SIZE));
	TRY(cuLaunchHostFunc(NULL, wait_for_reset, NULL));
	TRY(cuDeviceGet(&device, 0));
	sim_client_note_free((void *)(uintptr_t)block[0]);
	TRY(cuDevicePrimaryCtxReset(device));
	is_reset = 1;
	TRY(cuCtxSynchronize());
	ctx[0] = victim_start(0);
	block[0] = victim_alloc(SIZE);
}

/* The driver fails to open memory once, as when it is short of page tables. */
static void enable_at_second_try(void)
{
	TRY(cuCtxSetCurrent(ctx[1]));
	sim_client_fail("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
	printf("enable again: %s\n",
	       victim_name(cuCtxEnablePeerAccess(ctx[0], 0)));
	sim_client_fail_clear();
	copy_both_ways("again");
}

#if CUDA_VERSION >= 13000
/* A batch of one copy; what the driver says. */
static const char *copy_in_batch(CUstream stream)
{
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t size = SIZE, first = 0;

	return victim_name(cuMemcpyBatchAsync(&block[1], &block[0], &size, 1,
					      &attributes, &first, 1, stream));
}
#endif

/* A batch needs no current context, and peers need not be enabled for it. */
static void copy_without_context(void)
{
#if CUDA_VERSION >= 13000
	CUstream stream;

	fill(0, 9);
	fill(1, 0);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuCtxSetCurrent(NULL));
	printf("batch without a context: %s", copy_in_batch(stream));
	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamSynchronize(stream));
	printf(" %d\n", victim_is_filled(block[1], SIZE, 9));
	TRY(cuStreamDestroy(stream));
#endif
}

/* One that lasts for one copy is none for those behind it. */
static void copy_behind_a_failure(void)
{
#if CUDA_VERSION >= 13000
	CUstream stream;

	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	sim_client_fail("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
	TRY(cuMemcpyDtoDAsync(block[1], block[0], 100, stream));
	for (int i = 0; i < 2; i++)
		printf("batch behind a failure: %s\n", copy_in_batch(stream));
	TRY(cuStreamSynchronize(stream));
	TRY(cuStreamDestroy(stream));
#endif
}

static void reset(int ordinal)
{
	CUdevice device;

	TRY(cuDeviceGet(&device, ordinal));
	sim_client_note_free((void *)(uintptr_t)block[ordinal]);
	TRY(cuDevicePrimaryCtxReset(device));
	ctx[ordinal] = victim_start(ordinal);
}

/* Peer access dies with the context that had it, whatever its handle. */
static void reset_and_look(int ordinal)
{
	unsigned flags = 9;

	reset(ordinal);
	printf("access after a reset: %s",
	       victim_name(cuPointerGetAttribute(
		       &flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
		       block[1 - ordinal])));
	printf(" %u\n", flags);
	block[ordinal] = victim_alloc(SIZE);
}

/* What the primary context of device 0 is told of memory of device 1. */
static void look_from_here(const char *when)
{
	CUdeviceptr base = 0;
	size_t size = 0;

	TRY(cuCtxSetCurrent(ctx[0]));
	printf("%s: range %s", when,
	       victim_name(cuMemGetAddressRange(&base, &size, block[1])));
	printf(" %d, set %s\n", base == block[1] && size == SIZE,
	       victim_name(cuMemsetD8(block[1], 1, SIZE)));
	/* or it is under way when the peer is reset */
	TRY(cuCtxSynchronize());
}

/* What the driver does not take away is still there. */
static void disable_in_vain(void)
{
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuCtxEnablePeerAccess(ctx[1], 0));
	sim_client_fail("cuCtxDisablePeerAccess", 1, CUDA_ERROR_UNKNOWN);
	printf("disable: %s\n", victim_name(cuCtxDisablePeerAccess(ctx[1])));
	sim_client_fail_clear();
	TRY(cuCtxSetCurrent(ctx[1]));
	victim_free(block[1]);
	block[1] = victim_alloc(SIZE);
	look_from_here("disabled in vain");
}

/* Peer access dies with the context that it was to, whatever its handle. */
static void reset_the_peer(void)
{
	disable_in_vain();
	reset(1);
	block[1] = victim_alloc(SIZE);
	look_from_here("after the peer's reset");
	victim_free(block[1]);
}

/* Before anything was copied, which opens memory, too. */
static int set_after_a_reset(void)
{
	TRY(cuCtxSetCurrent(ctx[0]));
	printf("enable: %s\n", victim_name(cuCtxEnablePeerAccess(ctx[1], 0)));
	printf("set of a peer: %s\n",
	       victim_name(cuMemsetD8(block[1], 1, SIZE)));
	reset(0);
	printf("set after a reset: %s\n",
	       victim_name(cuMemsetD8(block[1], 1, SIZE)));
	victim_free(block[1]);
	return 0;
}

int main(int argc, char **argv)
{
	int n = 0, can = 0;
	size_t free_bytes, total[2];

	TRY(cuInit(0));
	TRY(cuDeviceGetCount(&n));
	if (n < 2) {
		printf("one device\n");
		return 0;
	}
	for (int i = 0; i < 2; i++) {
		ctx[i] = victim_start(i);
		block[i] = victim_alloc(SIZE);
		TRY(cuMemGetInfo(&free_bytes, &total[i]));
	}
	if (argc > 1 && strcmp(argv[1], "reset") == 0)
		return set_after_a_reset();
	if (argc > 1 && strcmp(argv[1], "peer") == 0) {
		reset_the_peer();
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "managed") == 0) {
		copy_from_managed();
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "bare") == 0) {
		copy_without_context();
		return 0;
	}
	if (argc > 1 && strcmp(argv[1], "misnamed") == 0) {
		copy_misnamed();
		return 0;
	}
	if (argc > 1)
		copy_behind_a_failure();
	copy_both_ways("no peers");
	in_order("no peers");
	TRY(cuDeviceCanAccessPeer(&can, 0, 1));
	printf("peers: %d\n", can);
	if (can) {
		TRY(cuCtxSetCurrent(ctx[0]));
		TRY(cuCtxEnablePeerAccess(ctx[1], 0));
		printf("enable twice: %s\n",
		       victim_name(cuCtxEnablePeerAccess(ctx[1], 0)));
		TRY(cuCtxSetCurrent(ctx[1]));
		TRY(cuCtxEnablePeerAccess(ctx[0], 0));
		peers_under_green();
		copy_both_ways("peers");
		in_order("peers");
		TRY(cuCtxSetCurrent(ctx[1]));
		TRY(cuCtxDisablePeerAccess(ctx[0]));
		copy_both_ways("one way");
		if (argc > 1) {
			enable_at_second_try();
			in_order_beside_a_capture();
			no_order_under_green();
			reset_beside_work();
		}
		reset_and_look(0);
	}
	for (int i = 0; i < 2; i++) {
		TRY(cuCtxSetCurrent(ctx[1 - i])); /* the other one: legal */
		victim_free(block[i]);
	}
	return 0;
}
