/* SPDX-License-Identifier: MIT
 *
 * victim_green [refused|meanwhile|blamed|beside [other]]: memory is allocated,
 * used and freed under green contexts, is used on after one is destroyed, and
 * stays as long as one green context holds the primary one; so also where that
 * is to be destroyed, and the primary one is reset meanwhile.
 */
#include <pthread.h>

#include "victim_link.h"

static CUdevice device;
static CUdevResourceDesc units;

struct green {
	CUgreenCtx handle;
	CUcontext ctx;
	CUstream stream;
};

/* Its context is that of its stream. */
static struct green make_unconverted(void)
{
	struct green g;

	TRY(cuGreenCtxCreate(&g.handle, units, device,
			     CU_GREEN_CTX_DEFAULT_STREAM));
	TRY(cuGreenCtxStreamCreate(&g.stream, g.handle, CU_STREAM_NON_BLOCKING,
				   0));
	TRY(cuStreamGetCtx(g.stream, &g.ctx));
	return g;
}

static struct green make(void)
{
	struct green g = make_unconverted();

	TRY(cuCtxFromGreenCtx(&g.ctx, g.handle));
	return g;
}

static void destroy(struct green g)
{
	TRY(cuStreamSynchronize(g.stream));
	TRY(cuStreamDestroy(g.stream));
	TRY(cuGreenCtxDestroy(g.handle));
}

/* Freed with its work queued, on and on, under whatever context is current. */
static void churn(CUstream stream, int n_rounds)
{
	static const size_t sizes[] = {300, 40 * KiB, 900 * KiB, 3 * MiB,
				       21 * MiB};

	for (int i = 0; i < n_rounds; i++) {
		size_t size = sizes[i % 5];
		CUdeviceptr p = victim_alloc(size);

		TRY(cuMemsetD8Async(p, (unsigned char)i, size, stream));
		victim_free(p);
	}
	TRY(cuStreamSynchronize(stream));
}

/* Whose it is by what the driver says. */
static const char *owner(CUdeviceptr p, CUcontext primary)
{
	CUcontext ctx = NULL;

	TRY(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, p));
	return ctx == primary ? "primary" : "other";
}

static void lifetimes(CUcontext primary)
{
	struct green g = make(), h = make();
	CUdeviceptr small, large;

	TRY(cuCtxSetCurrent(g.ctx));
	small = victim_alloc(1000);
	large = victim_alloc(12 * MiB);
	printf("owners: %s %s\n", owner(small, primary), owner(large, primary));
	TRY(cuMemsetD8Async(small, 7, 1000, g.stream));
	TRY(cuMemsetD8Async(large, 8, 12 * MiB, g.stream));
	churn(g.stream, 40);
	/* nothing that it holds is gone then */
	printf("reset of the primary: %s\n",
	       victim_name(cuDevicePrimaryCtxReset(device)));
	printf("destroy by cuCtxDestroy: %s\n",
	       victim_name(cuCtxDestroy(g.ctx)));
	TRY(cuCtxSetCurrent(h.ctx));
	churn(h.stream, 40);
	TRY(cuCtxSetCurrent(primary));
	destroy(g);
	churn(NULL, 40);
	printf("after the first: %d %d\n", victim_is_filled(small, 1000, 7),
	       victim_is_filled(large, 12 * MiB, 8));
	TRY(cuCtxSetCurrent(h.ctx));
	victim_free(small);
	churn(h.stream, 10);
	TRY(cuCtxSetCurrent(primary));
	destroy(h);
	victim_free(large);
	churn(NULL, 40);
}

/* One green context is destroyed while the other's work is under way. */
static void rounds(CUcontext primary)
{
	for (int i = 0; i < 100; i++) {
		struct green g = make();
		CUdeviceptr p;

		TRY(cuCtxSetCurrent(g.ctx));
		p = victim_alloc(5 * MiB);
		TRY(cuMemsetD8Async(p, 9, 5 * MiB, g.stream));
		churn(g.stream, 6);
		victim_free(p);
		TRY(cuCtxSetCurrent(primary));
		destroy(g);
	}
}

/* What a library does that is given a stream and not its context. */
static void by_stream(CUcontext primary)
{
	struct green g = make_unconverted();
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(g.ctx));
	p = victim_alloc(5 * MiB);
	printf("owner by stream: %s\n", owner(p, primary));
	TRY(cuMemsetD8Async(p, 4, 5 * MiB, g.stream));
	churn(g.stream, 40);
	TRY(cuCtxSetCurrent(primary));
	destroy(g);
	churn(NULL, 40);
	printf("by stream: %d\n", victim_is_filled(p, 5 * MiB, 4));
	victim_free(p);
}

/* The green context alone holds the primary one. */
static void last_hold(void)
{
	struct green g = make();
	CUdeviceptr p;

	TRY(cuDevicePrimaryCtxRelease(device));
	TRY(cuCtxSetCurrent(g.ctx));
	p = victim_alloc(6 * MiB);
	TRY(cuMemsetD8Async(p, 3, 6 * MiB, g.stream));
	TRY(cuStreamSynchronize(g.stream));
	printf("release: %s\n", victim_name(cuDevicePrimaryCtxRelease(device)));
	printf("reset: %s\n", victim_name(cuDevicePrimaryCtxReset(device)));
	churn(g.stream, 10);
	printf("held by a green context: %d\n",
	       victim_is_filled(p, 6 * MiB, 3));
	sim_client_note_free((void *)(uintptr_t)p);
	destroy(g);
}

static CUcontext owner_of(CUdeviceptr p)
{
	CUcontext owner;

	TRY(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
	return owner;
}

/* The driver refuses to destroy it: it goes on holding the primary one. */
static void stays(void)
{
	struct green g = make();
	CUdeviceptr p, q;

	TRY(cuCtxSetCurrent(g.ctx));
	p = victim_alloc(6 * MiB);
	TRY(cuMemsetD8Async(p, 3, 6 * MiB, g.stream));
	TRY(cuStreamSynchronize(g.stream));
	printf("destroy: %s\n", victim_name(cuGreenCtxDestroy(g.handle)));
	printf("reset: %s\n", victim_name(cuDevicePrimaryCtxReset(device)));
	churn(g.stream, 10);
	printf("after both: %d\n", victim_is_filled(p, 6 * MiB, 3));
	q = victim_alloc(6 * MiB);
	printf("of one owner: %d\n", owner_of(q) == owner_of(p));
	victim_free(q);
	victim_free(p);
	destroy(g);
}

static pthread_t destroyer, resetter;
static _Atomic bool is_heard, is_over;
static CUresult reset_result;

static void *reset(void *unused)
{
	(void)unused;
	reset_result = cuDevicePrimaryCtxReset(device);
	is_over = true;
	return NULL;
}

/* The simulator's: the destroyer's next call, be it the program's or not. */
static void hear(const char *call)
{
	if (!pthread_equal(pthread_self(), destroyer) || is_heard ||
	    (strcmp(call, "cuCtxRecordEvent") != 0 &&
	     strcmp(call, "cuGreenCtxDestroy") != 0))
		return;
	is_heard = true;
	CHECK(pthread_create(&resetter, NULL, reset, NULL) == 0);
	for (int i = 0; i < 300 && !is_over; i++)
		usleep(1000);
}

static void reset_meanwhile(void)
{
	CUdeviceptr p = victim_alloc(6 * MiB), q = victim_alloc(6 * MiB);
	struct green g = make();

	TRY(cuMemsetD8(p, 3, 6 * MiB));
	TRY(cuCtxSynchronize());
	TRY(cuStreamDestroy(g.stream));
	victim_free(q);
	destroyer = pthread_self();
	sim_client_on_call(hear);
	TRY(cuGreenCtxDestroy(g.handle));
	sim_client_on_call(NULL);
	if (is_heard)
		pthread_join(resetter, NULL);
	printf("reset: %s", victim_name(reset_result));
	printf(" %d\n", victim_is_filled(p, 6 * MiB, 3));
	victim_free(p);
}

/*
 * A green context has no stream of the thread's own; what is freed there stays
 * allocated.
 */
static void own_stream(CUcontext primary)
{
	struct green g = make();
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(g.ctx));
	p = victim_alloc(6 * MiB);
	TRY(cuMemsetD8(p, 5, 6 * MiB));
	printf("own stream: %s",
	       victim_name(cuStreamQuery(CU_STREAM_PER_THREAD)));
	printf(" %s",
	       victim_name(cuStreamBeginCapture(
		       CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED)));
	printf(" %s", victim_name(cuMemFreeAsync(p, CU_STREAM_PER_THREAD)));
	churn(g.stream, 10);
	printf(" %d\n", victim_is_filled(p, 6 * MiB, 5));
	victim_free(p);
	TRY(cuCtxSetCurrent(primary));
	destroy(g);
}

#if CUDA_VERSION >= 13000
static CUresult batch_rows(CUdeviceptr dst, CUdeviceptr src, size_t size,
			   CUstream stream)
{
	CUmemcpyAttributes how = {.srcAccessOrder =
					  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	size_t from = 0;

	return cuMemcpyBatchAsync(&dst, &src, &size, 1, &how, &from, 1, stream);
}

/*
 * In a stream of a green context, whatever is current: behind what that stream
 * has been given before, and before what it is given then.
 */
static void batch(CUcontext current, CUstream stream)
{
	CUDA_MEMCPY3D_BATCH_OP box = {
		.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
		.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
		.extent = {MiB, 2, 1},
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	const size_t size = 2 * MiB;
	CUdeviceptr p, q, r;

	TRY(cuCtxSetCurrent(current));
	p = victim_alloc(size);
	q = victim_alloc(size);
	r = victim_alloc(size);
	TRY(cuMemsetD8Async(p, 21, size, stream));
	printf("batch: %s", victim_name(batch_rows(q, p, size, stream)));
	box.src.op.ptr.ptr = q;
	box.dst.op.ptr.ptr = r;
	printf(" %s", victim_name(cuMemcpy3DBatchAsync(1, &box, 0, stream)));
	TRY(cuMemsetD8Async(q, 22, size, stream));
	box.extent.width = 4 * MiB; /* past its end */
	printf(" %s", victim_name(cuMemcpy3DBatchAsync(1, &box, 0, stream)));
	TRY(cuStreamSynchronize(stream));
	printf(" %d %d\n", victim_is_filled(q, size, 22),
	       victim_is_filled(r, size, 21));
	victim_free(p);
	victim_free(q);
	victim_free(r);
}

/* A thread that has the stream alone. */
static void batch_alone(CUcontext primary, CUstream stream)
{
	const size_t size = MiB;
	CUdeviceptr p = victim_alloc(size), q = victim_alloc(size);

	TRY(cuMemsetD8Async(p, 23, size, stream));
	TRY(cuCtxSetCurrent(NULL));
	printf("batch, no context: %s",
	       victim_name(batch_rows(q, p, size, stream)));
	TRY(cuCtxSetCurrent(primary));
	TRY(cuMemsetD8Async(p, 24, size, stream));
	TRY(cuStreamSynchronize(stream));
	printf(" %d\n", victim_is_filled(q, size, 23));
	victim_free(p);
	victim_free(q);
}

/* No copy of a batch that nothing is wrong with is said to have failed. */
static void blamed(void)
{
	CUmemcpyAttributes how = {.srcAccessOrder =
					  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	CUdriverProcAddressQueryResult found;
	struct green g = make();
	CUdeviceptr p = victim_alloc(MiB), q = victim_alloc(MiB);
	size_t size = MiB, from = 0, failed = 0;
	victim_older_batch_fn copy_batch;
	CUresult result;

	TRY(cuGetProcAddress_v2("cuMemcpyBatchAsync", (void **)&copy_batch,
				12080, 0, &found));
	result =
		copy_batch(&q, &p, &size, 1, &how, &from, 1, &failed, g.stream);
	printf("blamed: %d\n", result != CUDA_SUCCESS && failed != SIZE_MAX);
	destroy(g);
	victim_free(p);
	victim_free(q);
}

static void batches(CUcontext primary)
{
	struct green g = make();

	for (int i = 0; i < 20; i++) {
		batch(g.ctx, g.stream);
		batch(primary, g.stream);
	}
	TRY(cuCtxSetCurrent(primary));
	batch_alone(primary, g.stream);
	destroy(g);
}
#else
static void batches(CUcontext primary)
{
	(void)primary;
}

static void blamed(void)
{
}
#endif

/*
 * A copy in a green context's NULL stream is done while the primary one's,
 * whose memory it reaches, waits for the host. (So 155 of 160 on an H100.) With
 * another context there is an order to keep, but that between these two.
 */
static void beside(CUcontext primary, bool has_other)
{
	struct green g = make();
	CUdeviceptr p = victim_alloc(MiB);
	_Atomic bool may_go = false;
	CUcontext other;
	char *seen;

	if (has_other) {
		TRY(cuCtxCreate_v2(&other, 0, device));
		TRY(cuCtxSetCurrent(primary));
	}
	TRY(cuMemsetD8(p, 31, MiB));
	TRY(cuCtxSynchronize());
	TRY(cuMemHostAlloc((void **)&seen, MiB, CU_MEMHOSTALLOC_PORTABLE));
	TRY(cuLaunchHostFunc(NULL, victim_wait_for, &may_go));
	TRY(cuMemsetD8Async(p, 32, MiB, NULL));
	TRY(cuCtxSetCurrent(g.ctx));
	TRY(cuMemcpyDtoHAsync(seen, p, MiB, NULL));
	for (int ms = 0; ms < 5000 && cuStreamQuery(NULL) != CUDA_SUCCESS; ms++)
		usleep(1000);
	printf("beside: %s", victim_name(cuStreamQuery(NULL)));
	may_go = true;
	TRY(cuStreamSynchronize(NULL));
	printf(" %d\n", seen[0] == 31 && seen[MiB - 1] == 31);
	TRY(cuCtxSetCurrent(primary));
	TRY(cuCtxSynchronize());
	TRY(cuMemFreeHost(seen));
	victim_free(p);
	destroy(g);
	if (has_other)
		TRY(cuCtxDestroy(other));
}

int main(int argc, char **argv)
{
	CUcontext primary = victim_start(0);
	CUdeviceptr p;
	size_t before, after, total;

	TRY(cuDeviceGet(&device, 0));
	units = victim_units(device);
	if (argc > 1 && !strcmp(argv[1], "refused")) {
		stays();
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "blamed")) {
		blamed();
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "beside")) {
		beside(primary, argc > 2);
		return 0;
	}
	if (argc > 1) {
		reset_meanwhile();
		return 0;
	}
	TRY(cuMemGetInfo(&before, &total));
	p = victim_alloc(6 * MiB);
	TRY(cuMemsetD8(p, 1, 6 * MiB));
	lifetimes(primary);
	rounds(primary);
	by_stream(primary);
	own_stream(primary);
	batches(primary);
	printf("at the end: %d\n", victim_is_filled(p, 6 * MiB, 1));
	victim_free(p);
	last_hold();
	primary = victim_start(0);
	TRY(cuMemGetInfo(&after, &total));
	printf("memory came back: %d\n", after + 2 * MiB >= before);
	churn(NULL, 10);
	return 0;
}
