/* SPDX-License-Identifier: MIT
 *
 * fits [--seed N] [--ops N] [--strict PERMILLE] [--captures]
 *
 * Takes memory in all of the driver's ways, up to a device that is nearly full,
 * and gives it back in any order, much of it behind unfinished work. Whatever
 * is out of memory must be so, too, once all work has been waited for: the
 * driver's cuMemFree waits for it, and one comes after each free in a stream
 * and before the next request. So what is asked for depends on the seed alone,
 * not on the time.
 *
 * --strict: what leaves that part of the device to spare must be had. The shim
 * can do so where its chunks are no larger than the driver's, see fits.test.
 */
#include "../e2e/victim_link.h"

#define GRAIN (2 * MiB)
/* All work there may be is done long before, and no wait is in vain. */
#define TOO_LONG_NS UINT64_C(20000000000)

enum { N_SLOTS = 400, N_STREAMS = 3 };
enum kind { NONE, ALLOC, PITCH, ASYNC, CREATE, ARRAY, MODULE, N_KINDS };

struct block {
	enum kind kind;
	bool is_had; /* else it counts as live all the same */
	size_t size;
	CUdeviceptr p;
	CUmemGenericAllocationHandle handle;
	CUarray array;
	CUmodule module;
};

static const char *const names[N_KINDS] = {"",
					   "cuMemAlloc",
					   "cuMemAllocPitch",
					   "cuMemAllocAsync",
					   "cuMemCreate",
					   "cuArrayCreate",
					   "cuModuleLoadData"};
static struct block slots[N_SLOTS];
static unsigned long n_asked, n_refused, n_bad;
static size_t budget, live, most; /* bytes of the device */
static CUstream streams[N_STREAMS], captured;
static CUfunction sleeper;
static CUdeviceptr small;
static uint64_t state;
static bool is_async_freed, may_capture, is_strict;
static int op;

static uint32_t chance(uint32_t n)
{
	return victim_random(&state) % n;
}

static size_t whole(size_t size)
{
	return (size + GRAIN - 1) / GRAIN * GRAIN;
}

/* ---- one block --------------------------------------------------------- */

static CUresult noted(const struct block *b, CUresult result)
{
	if (result == CUDA_SUCCESS)
		sim_client_note_alloc((void *)(uintptr_t)b->p, b->size);
	return result;
}

static CUresult make(struct block *b)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location.type =
					    CU_MEM_LOCATION_TYPE_DEVICE};
	CUDA_ARRAY_DESCRIPTOR array = {.Width = 8192,
				       .Height = b->size / 32768,
				       .Format = CU_AD_FORMAT_FLOAT,
				       .NumChannels = 1};
	char text[256];
	size_t pitch;

	switch (b->kind) {
	case ALLOC:
		return noted(b, cuMemAlloc(&b->p, b->size));
	case PITCH:
		return noted(b, cuMemAllocPitch(&b->p, &pitch, 4096,
						b->size / 4096, 4));
	case ASYNC:
		return cuMemAllocAsync(&b->p, b->size, streams[0]);
	case CREATE:
		return cuMemCreate(&b->handle, b->size, &prop, 0);
	case ARRAY:
		return cuArrayCreate(&b->array, &array);
	default:
		snprintf(text, sizeof(text),
			 ".version 6.4\n.target sm_70\n.address_size 64\n"
			 ".visible .global .align 8 .b8 big[%zu];\n"
			 ".visible .entry nothing() {\nret;\n}\n",
			 b->size);
		return cuModuleLoadData(&b->module, text);
	}
}

static void unmake(struct block *b)
{
	if (b->kind == ALLOC || b->kind == PITCH) {
		victim_free(b->p);
	} else if (b->kind == ASYNC) {
		TRY(cuMemFreeAsync(b->p, streams[0]));
		is_async_freed = true;
	} else if (b->kind == CREATE) {
		TRY(cuMemRelease(b->handle));
	} else if (b->kind == ARRAY) {
		TRY(cuArrayDestroy(b->array));
	} else {
		TRY(cuModuleUnload(b->module));
	}
}

/* The driver's free waits for all that was freed in a stream. */
static void settle(void)
{
	if (!is_async_freed)
		return;
	victim_free(small);
	small = victim_alloc(4096);
	is_async_freed = false;
}

/* Whether it is had now that the GPU has nothing left to do. */
static bool is_had_later(const struct block *b)
{
	struct block again = *b;

	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamSynchronize(streams[i]));
	if (make(&again) != CUDA_SUCCESS)
		return false;
	unmake(&again);
	return true;
}

static void judge(const struct block *b, bool must_fit, uint64_t took)
{
	const char *what = NULL;

	n_asked++;
	n_refused += !b->is_had;
	if (took > TOO_LONG_NS)
		what = "took long";
	else if (!b->is_had && must_fit)
		what = "was refused";
	else if (!b->is_had && is_had_later(b))
		what = "was had after a wait alone";
	if (!what)
		return;
	n_bad++;
	printf("op %d: %s of %zu KiB beside %zu MiB of %zu %s\n", op,
	       names[b->kind], b->size / KiB, live / MiB, budget / MiB, what);
}

/* What would leave less to spare may be had or not, and is not kept. */
static bool take(enum kind kind, size_t size)
{
	struct block b = {.kind = kind, .size = size}, *at = slots;
	uint64_t began;
	CUresult result;
	bool fits;

	while (at < slots + N_SLOTS && at->kind)
		at++;
	if (at == slots + N_SLOTS)
		return false;
	if (kind != ALLOC)
		b.size = kind == CREATE ? whole(size)
					: (size + 32767) / 32768 * 32768;
	settle();
	fits = live + whole(b.size) <= most;
	began = victim_now_ns();
	result = make(&b);
	b.is_had = result == CUDA_SUCCESS;
	CHECK(b.is_had || result == CUDA_ERROR_OUT_OF_MEMORY);
	judge(&b, fits && is_strict, victim_now_ns() - began);
	if (fits) {
		live += whole(b.size);
		*at = b;
	} else if (b.is_had) {
		unmake(&b);
	}
	return fits;
}

/* Work of some milliseconds, on the block itself if it may be. */
static void work_on(struct block *b)
{
	uint64_t ns = 1000000 * (1 + (uint64_t)chance(15)), words = 16;
	uint32_t value = 7;
	unsigned stream = chance(N_STREAMS);
	CUdeviceptr p = small;
	void *arguments[] = {&ns, &p, &value, &words};

	if (b->is_had && b->size >= 64 &&
	    (b->kind == ALLOC || b->kind == PITCH))
		p = b->p;
	TRY(cuLaunchKernel(sleeper, 1, 1, 1, 32, 1, 1, 0, streams[stream],
			   arguments, NULL));
}

static void drop(struct block *b)
{
	bool is_busy = chance(3) > 0;

	if (b->kind == NONE)
		return;
	if (is_busy)
		work_on(b);
	live -= whole(b->size);
	if (b->is_had)
		unmake(b);
	b->kind = NONE;
}

/* ---- what a program does ----------------------------------------------- */

static size_t some_size(void)
{
	size_t part = budget / 256;

	switch (chance(4)) {
	case 0:
		return 64 + victim_size(&state, 20);
	case 1:
		return MiB + chance(16) * MiB;
	case 2:
		return part / 4 + chance((uint32_t)(part * 2 / KiB)) * KiB;
	default:
		return part + chance((uint32_t)(budget / 12 / KiB)) * KiB;
	}
}

static enum kind some_kind(void)
{
	return chance(2) ? ALLOC : 1 + chance(N_KINDS - 1);
}

static void fill(enum kind kind, size_t size)
{
	while (take(kind, size))
		;
}

static void drop_some(void)
{
	unsigned percent = chance(100);

	for (int i = 0; i < N_SLOTS; i++)
		if (chance(100) < percent)
			drop(&slots[i]);
}

/* Most of what can be had. */
static void take_rest(enum kind kind)
{
	if (most > live + 2 * GRAIN)
		take(kind, (most - live - GRAIN) / 100 * (60 + chance(40)));
}

static void toggle_capture(void)
{
	if (captured) {
		victim_end_capture(captured);
		TRY(cuStreamDestroy(captured));
		captured = NULL;
	} else {
		TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
		TRY(cuMemsetD8Async(small, 1, 16, captured));
	}
}

static void keep_in_pool(void)
{
	uint64_t threshold = chance(2) ? UINT64_MAX : 0;
	CUmemoryPool pool;

	TRY(cuDeviceGetDefaultMemPool(&pool, 0));
	TRY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				  &threshold));
}

static void step(void)
{
	unsigned x = chance(100);

	if (x < 40)
		take(some_kind(), some_size());
	else if (x < 70)
		drop(&slots[chance(N_SLOTS)]);
	else if (x < 78)
		fill(some_kind(), some_size() + budget / 64);
	else if (x < 86)
		drop_some();
	else if (x < 95)
		take_rest(some_kind());
	else if (x < 97)
		keep_in_pool();
	else if (may_capture)
		toggle_capture();
}

static void start(uint64_t seed, unsigned long spare)
{
	size_t unused;

	victim_start(0);
	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	sleeper = victim_kernel("vs_sleep");
	small = victim_alloc(4096);
	/* what is free at first is not the same with and without the shim */
	TRY(cuMemGetInfo(&unused, &budget));
	budget -= 16 * MiB;
	most = budget / 1000 * (1000 - spare);
	state = seed;
}

int main(int argc, char **argv)
{
	unsigned long spare = 20;
	uint64_t seed = 1;
	int n_ops = 300;

	for (int i = 1; i < argc; i++) {
		const char *next = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(next, NULL, 0);
		else if (strcmp(argv[i], "--ops") == 0)
			n_ops = atoi(next);
		else if (strcmp(argv[i], "--captures") == 0)
			may_capture = true;
		else if (strcmp(argv[i], "--strict") == 0) {
			is_strict = true;
			spare = strtoul(next, NULL, 0);
		}
	}
	start(seed, spare);
	for (op = 0; op < n_ops; op++)
		step();
	if (captured)
		toggle_capture();
	printf("fits seed %" PRIu64 ": %lu requests, %lu out of memory, %lu of "
	       "them wrongly, %ld violations\n",
	       seed, n_asked, n_refused, n_bad, sim_client_violations());
	return n_bad > 0 || sim_client_violations() > 0;
}
