/* SPDX-License-Identifier: MIT
 *
 * victim_asks: calls that programs make for each message that they send, or
 * more often, and how many calls of the driver's become of one: itself, or what
 * tells which context is current in its place, and little else.
 * victim_asks show: how many, of each. victim_asks NAME ROUNDS: that one alone.
 * victim_asks alone: where there is one context, and memory that copies wait
 * for (SYNC_MEMOPS), which is not copied.
 */
#include "victim_link.h"

#define ROUNDS 20

static CUcontext ctx, second, other; /* two of a device; of another one */
static CUdevice device;
static CUdeviceptr p, q, far; /* of ctx twice, of other */
static CUstream stream;

static void info(void)
{
	size_t available, total;

	TRY(cuMemGetInfo(&available, &total));
}

static void range(void)
{
	CUdeviceptr base;
	size_t size;

	TRY(cuMemGetAddressRange(&base, &size, p + 1));
}

static void range_beside(void)
{
	TRY(cuCtxSetCurrent(second));
	range();
	TRY(cuCtxSetCurrent(ctx));
}

static void ask(CUpointer_attribute what)
{
	uint64_t value = 0;

	TRY(cuPointerGetAttribute(&value, what, p));
}

static void owner(void)
{
	ask(CU_POINTER_ATTRIBUTE_CONTEXT);
}

static void device_pointer(void)
{
	ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
}

static void device_pointer_beside(void)
{
	TRY(cuCtxSetCurrent(second));
	device_pointer();
	TRY(cuCtxSetCurrent(ctx));
}

/* As UCX. */
static void attributes(void)
{
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				       CU_POINTER_ATTRIBUTE_CONTEXT};
	uint64_t values[4] = {0};
	void *data[] = {&values[0], &values[1], &values[2], &values[3]};

	TRY(cuPointerGetAttributes(4, which, data, p));
}

/* As cudaPointerGetAttributes. */
static void all_attributes_of(CUdeviceptr at)
{
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT,
				       CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
				       CU_POINTER_ATTRIBUTE_HOST_POINTER,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED,
				       CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	uint64_t values[6] = {0};
	void *data[] = {&values[0], &values[1], &values[2],
			&values[3], &values[4], &values[5]};

	TRY(cuPointerGetAttributes(6, which, data, at));
}

static void all_attributes(void)
{
	all_attributes_of(p);
}

static void attributes_of_host(void)
{
	static int on_host;

	all_attributes_of((CUdeviceptr)(uintptr_t)&on_host);
}

static void set_attribute(void)
{
	unsigned yes = 1;

	TRY(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, q));
}

static void peer_copy(void)
{
	TRY(cuMemcpyPeerAsync(far, other, p, ctx, 1, NULL));
}

static void peer_copy_in_stream(void)
{
	TRY(cuMemcpyPeerAsync(far, other, p, ctx, 1, stream));
}

static void peer_copy_from_beside(void)
{
	TRY(cuCtxSetCurrent(other));
	TRY(cuMemcpyPeerAsync(far, other, p, ctx, 1, stream));
	TRY(cuCtxSetCurrent(ctx));
}

static void retain(void)
{
	CUcontext same;

	TRY(cuDevicePrimaryCtxRetain(&same, device));
	TRY(cuDevicePrimaryCtxRelease(device));
}

static void copy(void)
{
	TRY(cuMemcpyDtoD(q, p, 1));
}

static void copy_in_stream(void)
{
	TRY(cuMemcpyDtoDAsync(q, p, 1, stream));
}

static void set_in_stream(void)
{
	TRY(cuMemsetD8Async(p, 0, 1, stream));
}

static void wait_for_stream(void)
{
	TRY(cuStreamSynchronize(stream));
}

static void wait_for_context(void)
{
	TRY(cuCtxSynchronize());
}

static void handle_of(void)
{
	CUipcMemHandle handle;

	TRY(cuIpcGetMemHandle(&handle, q));
}

static void host_flags(void)
{
	unsigned flags;

	cuMemHostGetFlags(&flags, (void *)(uintptr_t)p);
}

static void small(void)
{
	CUdeviceptr small;

	TRY(cuMemAlloc(&small, 4096));
	TRY(cuMemFree(small));
}

/* More than there is, when all that was freed is complete. */
static void create_in_vain(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUmemGenericAllocationHandle handle;

	static CUdeviceptr kept; /* so that small() leaves nothing idle */

	if (!kept)
		kept = victim_alloc(4096);
	small();
	TRY(cuCtxSynchronize());
	cuMemCreate(&handle, (size_t)1 << 46, &prop, 0);
}

/* Calls that one of these may become. */
static const struct what {
	const char *name;
	unsigned most;
	void (*make)(void);
} list[] = {
	{"info", 2, info},
	{"range", 1, range},
	{"range, beside", 2 + 1, range_beside},
	{"attribute", 1, owner},
	{"device pointer", 2, device_pointer},
	{"device pointer, beside", 2 + 2, device_pointer_beside},
	{"attributes", 1, attributes},
	{"all attributes", 2, all_attributes},
	{"attributes of the host", 1, attributes_of_host},
	{"peer copy", 2, peer_copy},
	{"peer copy in a stream", 3, peer_copy_in_stream},
	{"peer copy, beside", 2 + 3, peer_copy_from_beside},
	{"retain and release", 2, retain},
	{"copy", 2, copy},
	{"copy in a stream", 1, copy_in_stream},
	{"set in a stream", 1, set_in_stream},
	{"wait for a stream", 1, wait_for_stream},
	{"wait for the context", 1, wait_for_context},
	{"flags of the host", 1, host_flags},
	{"allocate and free", 2, small},
	{"create in vain", 21, create_in_vain},
	{"handle", 1, handle_of},
	{"set attribute", 1, set_attribute},
};

#define N_WHATS (sizeof(list) / sizeof(list[0]))

static __thread unsigned n_calls;

/* The simulator's. */
static void hear(const char *call)
{
	(void)call;
	n_calls++;
}

static unsigned count(const struct what *what)
{
	unsigned least = UINT32_MAX, before;

	what->make(); /* what is asked once */
	sim_client_on_call(hear);
	for (int i = 0; i < ROUNDS; i++) {
		before = n_calls;
		what->make();
		if (n_calls - before < least)
			least = n_calls - before;
	}
	sim_client_on_call(NULL);
	TRY(cuCtxSynchronize()); /* all of them write the same bytes */
	return least;
}

static void try_all(bool is_shown)
{
	for (size_t i = 0; i < N_WHATS; i++) {
		unsigned n = count(&list[i]);

		if (is_shown)
			printf("%s: %u\n", list[i].name, n);
		else
			printf("%s: %s\n", list[i].name,
			       n <= list[i].most ? "few calls" : "many calls");
	}
}

static void copy_alone(void)
{
	const struct what plain = {"copy", 1, copy};

	victim_start(0);
	q = victim_alloc(MiB);
	set_attribute();
	p = victim_alloc(MiB);
	q = victim_alloc(MiB);
	printf("few calls: %d\n", count(&plain) <= plain.most);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "alone")) {
		copy_alone();
		return 0;
	}
	other = victim_start(1);
	far = victim_alloc(MiB);
	ctx = victim_start(0);
	TRY(cuCtxGetDevice(&device));
	TRY(cuCtxCreate_v2(&second, 0, device));
	TRY(cuCtxSetCurrent(ctx));
	p = victim_alloc(MiB);
	q = victim_alloc(MiB);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (argc < 3)
		try_all(argc > 1);
	for (size_t i = 0; argc > 2 && i < N_WHATS; i++)
		for (int n = atoi(argv[2]);
		     n > 0 && !strcmp(argv[1], list[i].name); n--)
			list[i].make();
	TRY(cuCtxSynchronize());
	return 0;
}
