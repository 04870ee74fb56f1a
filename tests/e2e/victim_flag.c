/* SPDX-License-Identifier: MIT
 *
 * victim_flag [cycle | begin | begin-later | full | full-captured | refused |
 * peer | used | born]: frees memory, starts a kernel that runs until the host
 * raises a flag, and allocates meanwhile. The simulated driver has the memory
 * back by then and waits for nothing. So it is beside an open capture. Not for
 * a GPU: under the shim this ended well on an H200 (580.159.04), without it the
 * driver hung in one of the steps, and so did other processes until it was
 * killed.
 */
#include <pthread.h>
#include <unistd.h>

#include "victim_link.h"

#define MOST_PARTS 4000

static _Atomic uint32_t *flag;

/* Three fifths of the device in parts, freed; then as much in one block. */
static void run(CUfunction kernel, CUstream stream, int n_parts,
		CUstream captured)
{
	static CUdeviceptr p[MOST_PARTS];
	CUdeviceptr block, at = 0;
	void *arguments[] = {&at};
	size_t available, total, size;
	CUresult result;

	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuMemGetInfo(&available, &total));
	size = available / 5 * 3 / MOST_PARTS * MOST_PARTS;
	for (int i = 0; i < n_parts; i++)
		p[i] = victim_alloc(size / n_parts);
	TRY(cuMemsetD8(p[n_parts - 1], 1, MiB));
	TRY(cuCtxSynchronize());
	if (captured)
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
	for (int i = 0; i < n_parts; i++)
		victim_free(p[i]);
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	result = cuMemAlloc(&block, size);
	printf("%d parts%s: %s\n", n_parts, captured ? ", captured" : "",
	       victim_name(result));
	*flag = 1;
	TRY(cuStreamSynchronize(stream));
	if (captured)
		victim_end_capture(captured);
	if (result == CUDA_SUCCESS) {
		sim_client_note_alloc((void *)(uintptr_t)block, size);
		TRY(cuMemsetD8(block + size - MiB, 2, MiB));
		victim_free(block);
	}
}

/* A little of a full device is freed, in parts, and is needed. */
static void fill_and_need(CUfunction kernel, CUstream stream, int n_parts,
			  CUstream captured)
{
	CUdeviceptr rest, p[MOST_PARTS], block, at = 0;
	void *arguments[] = {&at};
	size_t available, total, size;
	CUresult result;

	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuMemGetInfo(&available, &total));
	size = available / 20;
	rest = victim_alloc(available - 3 * size);
	for (int i = 0; i < n_parts; i++)
		p[i] = victim_alloc(size / n_parts);
	TRY(cuMemsetD8(p[0], 1, size / n_parts));
	TRY(cuCtxSynchronize());
	if (captured)
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
	for (int i = 0; i < n_parts; i++)
		victim_free(p[i]);
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	result = cuMemAlloc(&block, size / 4 * 11);
	printf("full%s, %d parts: %s\n", captured ? ", captured" : "", n_parts,
	       victim_name(result));
	*flag = 1;
	TRY(cuStreamSynchronize(stream));
	if (captured)
		victim_end_capture(captured);
	TRY(cuMemFree(block));
	victim_free(rest);
}

/* What cannot be had anyhow the driver refuses at once. */
static void be_refused(CUfunction kernel, CUstream stream)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUdeviceptr rest, p, at = 0;
	void *arguments[] = {&at};
	CUmemGenericAllocationHandle handle;
	size_t available, total;

	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuMemGetInfo(&available, &total));
	rest = victim_alloc(available / 2);
	p = victim_alloc(200 * MiB);
	TRY(cuMemsetD8(p, 1, MiB));
	TRY(cuCtxSynchronize());
	victim_free(p);
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	printf("refused: %s\n",
	       victim_name(cuMemCreate(&handle, total / MiB / 2 * 2 * MiB,
				       &prop, 0)));
	*flag = 1;
	TRY(cuStreamSynchronize(stream));
	victim_free(rest);
}

/* Beside a capture: a block again and again, each in use when it is freed. */
static void cycle(CUfunction kernel, CUstream stream, CUstream captured,
		  int n_times)
{
	const size_t size = 20 * MiB;
	CUdeviceptr p, at = 0;
	void *arguments[] = {&at};

	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	for (int i = 0; i < n_times; i++) {
		p = victim_alloc(size);
		TRY(cuMemsetD8Async(p, 1, size, stream));
		victim_free(p);
	}
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	p = victim_alloc(size);
	*flag = 1;
	TRY(cuStreamSynchronize(stream));
	victim_end_capture(captured);
	victim_free(p);
	printf("%d times, captured\n", n_times);
}

/* What was had beside the kernel is used, and then that is let go. */
static void use(CUfunction kernel, CUstream stream, CUstream other)
{
	const size_t size = 64 * MiB;
	CUdeviceptr p = victim_alloc(size), at = 0;
	void *arguments[] = {&at};

	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	TRY(cuMemsetD8Async(p, 1, size, other));
	TRY(cuStreamSynchronize(other));
	victim_free(p);
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	p = victim_alloc(size);
	TRY(cuMemsetD8Async(p, 2, size, other));
	TRY(cuStreamSynchronize(other));
	*flag = 1;
	TRY(cuStreamSynchronize(stream));
	CHECK(victim_is_filled(p, size, 2));
	victim_free(p);
	puts("used");
}

static CUcontext ctx;

static CUdeviceptr freed, set;

static void *free_and_work(void *stream)
{
	TRY(cuCtxSetCurrent(ctx));
	victim_free(freed);
	TRY(cuMemsetD8Async(set, 1, 4, stream));
	return NULL;
}

/* A context is made beside the kernel, and works before that is let go. */
static void bear(CUfunction kernel, CUstream stream, CUstream other)
{
	CUdeviceptr at = 0, mine = victim_alloc(4 * KiB);
	void *arguments[] = {&at};
	pthread_t thread;
	CUcontext born;

	freed = victim_alloc(64 * MiB);
	set = victim_alloc(4 * KiB);
	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	CHECK(pthread_create(&thread, NULL, free_and_work, other) == 0);
	usleep(50000);
	TRY(cuCtxCreate_v2(&born, 0, 0));
	TRY(cuMemsetD8Async(mine, 1, 4, NULL));
	TRY(cuStreamSynchronize(NULL));
	*flag = 1;
	TRY(cuCtxDestroy(born));
	TRY(cuCtxSetCurrent(ctx));
	CHECK(pthread_join(thread, NULL) == 0);
	TRY(cuCtxSynchronize());
	victim_free(set);
	victim_free(mine);
	puts("born");
}

static _Atomic bool may_go_on;

/* Work of a peer waits for the host, while this device goes on as ever. */
static void beside_a_peer(void)
{
	CUcontext peer = victim_start(1);
	size_t available, total, size;
	CUstream stream;
	CUdeviceptr p;

	TRY(cuCtxEnablePeerAccess(ctx, 0));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuLaunchHostFunc(stream, victim_wait_for, &may_go_on));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuMemGetInfo(&available, &total));
	size = available / 10;
	for (int i = 0; i < 30; i++) {
		p = victim_alloc(size + (size_t)i * MiB);
		TRY(cuMemsetD8(p, i, MiB));
		TRY(cuCtxSynchronize());
		victim_free(p);
	}
	may_go_on = true;
	TRY(cuCtxSetCurrent(peer));
	TRY(cuStreamSynchronize(stream));
	TRY(cuCtxSetCurrent(ctx));
	puts("beside a peer");
}

static void *begin_and_raise(void *stream)
{
	TRY(cuCtxSetCurrent(ctx));
	usleep(100000);
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	*flag = 1;
	victim_end_capture(stream);
	return NULL;
}

/* Frees wait while the device is full. Then there is room again. */
static void be_full(void)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	size_t available, total, size = 64 * MiB;
	CUmemGenericAllocationHandle room;
	CUdeviceptr rest, p;

	TRY(cuMemCreate(&room, 8 * MiB, &prop, 0));
	TRY(cuMemGetInfo(&available, &total));
	rest = victim_alloc(available - size);
	for (int i = 0; i < 4; i++) {
		p = victim_alloc(size);
		TRY(cuMemsetD8Async(p, 1, size, NULL));
		victim_free(p);
	}
	victim_free(rest);
	TRY(cuMemRelease(room));
	usleep(500000);
}

/* A free may wait for the kernel; another thread captures, then ends it. */
static void begin(CUfunction kernel, CUstream stream, CUstream captured)
{
	CUdeviceptr p = victim_alloc(64 * MiB), at = 0;
	void *arguments[] = {&at};
	pthread_t thread;

	TRY(cuMemHostGetDevicePointer(&at, (void *)flag, 0));
	*flag = 0;
	victim_launch(kernel, stream, arguments);
	CHECK(pthread_create(&thread, NULL, begin_and_raise, captured) == 0);
	victim_free(p);
	CHECK(pthread_join(thread, NULL) == 0);
	puts("begun");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	bool is_cycle = !strcmp(what, "cycle"),
	     is_later = !strcmp(what, "begin-later"),
	     is_begin = is_later || !strcmp(what, "begin"),
	     is_full_captured = !strcmp(what, "full-captured"),
	     is_full = !strcmp(what, "full") || is_full_captured;
	CUfunction kernel;
	CUstream stream, captured;
	void *host;

	ctx = victim_start(0);
	TRY(cuMemHostAlloc(&host, sizeof(*flag), CU_MEMHOSTALLOC_DEVICEMAP));
	flag = host;
	kernel = victim_kernel("vs_spin_flag");
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	for (int i = 20; is_cycle && i > 0; i -= 3)
		cycle(kernel, stream, captured, i);
	if (is_later)
		be_full();
	if (is_begin)
		begin(kernel, stream, captured);
	if (!strcmp(what, "born"))
		bear(kernel, stream, captured);
	if (!strcmp(what, "used"))
		use(kernel, stream, captured);
	if (!strcmp(what, "peer"))
		beside_a_peer();
	for (int i = 1; is_full && i <= 100; i *= 10)
		fill_and_need(kernel, stream, i,
			      is_full_captured ? captured : NULL);
	if (!strcmp(what, "refused"))
		be_refused(kernel, stream);
	for (int i = 0; !*what && i < 2; i++) {
		CUstream beside = i == 0 ? NULL : captured;

		run(kernel, stream, 1, beside);
		run(kernel, stream, 60, beside);
		run(kernel, stream, MOST_PARTS, beside);
	}
	TRY(cuStreamDestroy(captured));
	TRY(cuStreamDestroy(stream));
	TRY(cuMemFreeHost(host));
	return 0;
}
