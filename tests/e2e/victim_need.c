/* SPDX-License-Identifier: MIT
 *
 * victim_need: the device is full but for what the program has just freed,
 * which whoever asks next is to have.
 *
 *   race          cuMemAllocAsync, while another thread takes what was freed,
 * and leaves as much of the driver's freed KIND    create, async or array:
 * freed beside a capture before KIND   the same, freed before the capture began
 *   full          the device was full when the capture began, but for what was
 *                 free again
 *   contexts WHEN [DEVICE]   freed in another context beside a capture, that is
 *                 made before it or later
 *   other         another device is full when captures begin: what is freed and
 *                 allocated again on this one stays mapped
 *   vain [own]    more than there is, beside a capture, while work waits for
 *                 this thread; own: as much as was freed
 *   pools         a pool of the driver's keeps some of it, too, or has it back
 *                 when the work before the last free is done
 *   middles       what is free lies between large blocks; then smaller ones
 *   late          two blocks, the smaller one under long work; then as many
 *   ends          freed beside a capture that ends in the middle of the
 *                 allocation: before any one of the driver's calls
 */
#include <pthread.h>
#include <sys/wait.h>

#include "victim_link.h"

#define BUSY_NS ((uint64_t)3000000)
#define GRAIN (2 * MiB)

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUcontext ctx;
static CUstream stream;
static CUdeviceptr kept; /* a small block, for captures to use */

static size_t available(void)
{
	size_t available, total;

	TRY(cuMemGetInfo(&available, &total));
	return available;
}

static size_t percent(size_t of, size_t n)
{
	return of / 100 * n / (16 * GRAIN) * (16 * GRAIN);
}

static void sleep_by(CUfunction kernel, CUdeviceptr p, uint64_t ns)
{
	uint32_t value = 7;
	uint64_t n = 16;
	void *arguments[] = {&ns, &p, &value, &n};

	victim_launch(kernel, stream, arguments);
}

static void keep_busy(CUdeviceptr p, uint64_t ns)
{
	sleep_by(victim_kernel("vs_sleep"), p, ns);
}

static void take_the_rest_of(int device, size_t but)
{
	CUmemAllocationProp there = prop;
	CUmemGenericAllocationHandle handle;

	there.location.id = device;
	TRY(cuMemCreate(&handle, (available() - but) / GRAIN * GRAIN, &there,
			0));
}

static void take_the_rest(size_t but)
{
	take_the_rest_of(0, but);
}

/* ---- race ------------------------------------------------------------ */

static pthread_barrier_t turn;

struct other {
	size_t size;
	CUresult result;
};

/* Gives back as much of the driver's as it takes by cuMemAlloc. */
static void *swap(void *argument)
{
	struct other *o = argument;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(ctx));
	TRY(cuMemCreate(&handle, o->size, &prop, 0));
	pthread_barrier_wait(&turn);
	usleep(5000);
	TRY(cuMemRelease(handle));
	o->result = cuMemAlloc(&p, o->size);
	pthread_barrier_wait(&turn);
	if (o->result == CUDA_SUCCESS)
		TRY(cuMemFree(p));
	return NULL;
}

static void race(void)
{
	size_t whole = available();
	struct other o = {.size = percent(whole, 40)};
	int n_failed = 0;

	for (int i = 0; i < 10; i++) {
		CUdeviceptr p = victim_alloc(percent(whole, 40)), async;
		pthread_t thread;
		CUresult result;

		CHECK(pthread_barrier_init(&turn, NULL, 2) == 0);
		CHECK(pthread_create(&thread, NULL, swap, &o) == 0);
		pthread_barrier_wait(&turn);
		keep_busy(p, 20000000);
		victim_free(p);
		result = cuMemAllocAsync(&async, percent(whole, 50), stream);
		if (result == CUDA_SUCCESS)
			TRY(cuMemFreeAsync(async, stream));
		TRY(cuStreamSynchronize(stream));
		pthread_barrier_wait(&turn);
		pthread_join(thread, NULL);
		n_failed += result != CUDA_SUCCESS || o.result != CUDA_SUCCESS;
		TRY(cuCtxSynchronize());
	}
	printf("failed: %d\n", n_failed);
}

/* ---- beside a capture ------------------------------------------------ */

static CUstream begin(void)
{
	CUstream captured;

	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuMemsetD8Async(kept, 1, 16, captured));
	return captured;
}

static void end(CUstream captured)
{
	victim_end_capture(captured);
	TRY(cuStreamDestroy(captured));
}

static CUresult ask(const char *kind, size_t size)
{
	CUDA_ARRAY_DESCRIPTOR shape = {.Width = 8192,
				       .Height = size / 8192 / 4,
				       .Format = CU_AD_FORMAT_FLOAT,
				       .NumChannels = 1};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	CUarray array;

	if (strcmp(kind, "create") == 0)
		return cuMemCreate(&handle, size, &prop, 0);
	return strcmp(kind, "array") == 0 ? cuArrayCreate(&array, &shape)
					  : cuMemAllocAsync(&p, size, stream);
}

static void freed(const char *kind, bool is_before)
{
	size_t size = percent(available(), 5);
	CUdeviceptr p = victim_alloc(size);
	CUstream captured = NULL;

	take_the_rest(4 * GRAIN);
	keep_busy(p, BUSY_NS);
	if (!is_before)
		captured = begin();
	victim_free(p);
	if (is_before)
		captured = begin();
	printf("%s: %s\n", kind, victim_name(ask(kind, size)));
	end(captured);
}

static void full(void)
{
	static CUdeviceptr p[512], small[512];
	const size_t size = 8 * GRAIN;
	CUresult result = CUDA_SUCCESS;
	int n = 0, most, n_small = 0;
	CUstream captured;

	while (n < 512 && cuMemAlloc(&p[n], size) == CUDA_SUCCESS)
		n++;
	while (n_small < 512 &&
	       cuMemAlloc(&small[n_small], GRAIN) == CUDA_SUCCESS)
		n_small++;
	while (n_small > 0)
		TRY(cuMemFree(small[--n_small]));
	most = n;
	while (n > most * 2 / 3)
		TRY(cuMemFree(p[--n]));
	TRY(cuCtxSynchronize());
	captured = begin();
	while (n < most - 1 &&
	       (result = cuMemAlloc(&p[n], size)) == CUDA_SUCCESS)
		n++;
	printf("full again: %s\n", victim_name(result));
	for (int i = 0; i < 5; i++) {
		TRY(cuMemsetD8Async(p[n - 1], 1, size, stream));
		TRY(cuMemFree(p[--n]));
	}
	while (n < most - 1 &&
	       (result = cuMemAlloc(&p[n], size)) == CUDA_SUCCESS)
		n++;
	printf("and again: %s\n", victim_name(result));
	end(captured);
}

/*
 * Freed under work in another context than that which captures; `when` it is
 * made: before the capture, or later, while that is open.
 */
static void freed_elsewhere(const char *when, int device)
{
	bool is_later = strcmp(when, "later") == 0;
	CUstream captured = NULL;
	CUfunction kernel;
	CUcontext other;
	CUresult result;
	CUdeviceptr p, q;
	size_t size;

	if (is_later)
		captured = begin();
	if (device > 0)
		other = victim_start(device);
	else
		TRY(cuCtxCreate_v2(&other, 0, device));
	TRY(cuCtxSetCurrent(other));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	/* more would be waited for by the free */
	size = percent(available(), 5);
	p = victim_alloc(size);
	kernel = victim_kernel("vs_sleep");
	if (!is_later) {
		TRY(cuCtxSetCurrent(ctx));
		captured = begin();
		TRY(cuCtxSetCurrent(other));
	}
	take_the_rest_of(device, 0);
	sleep_by(kernel, p, BUSY_NS);
	victim_free(p);
	result = cuMemAlloc(&q, size);
	printf("another context, %s: %s\n", when, victim_name(result));
	TRY(cuCtxSetCurrent(ctx));
	end(captured);
}

static unsigned n_releases;

static void count_releases(const char *call)
{
	n_releases += strcmp(call, "cuMemRelease") == 0;
}

static void beside_a_full_device(void)
{
	victim_start(1);
	victim_alloc(percent(available(), 50));
	take_the_rest_of(1, 0);
	TRY(cuCtxSetCurrent(ctx));
	sim_client_on_call(count_releases);
	for (int i = 0; i < 4; i++) {
		victim_free(victim_alloc(32 * GRAIN));
		end(begin());
	}
	sim_client_on_call(NULL);
	printf("given back: %u\n", n_releases);
}

/* ---- beside memory pools of the driver's ------------------------------- */

static CUdeviceptr take_async(size_t size)
{
	CUdeviceptr p;

	TRY(cuMemAllocAsync(&p, size, stream));
	return p;
}

/* A cuMemFree of the driver's waits for all work, also for that of the pool. */
static void ask_after_free(const char *what, CUdeviceptr freed, size_t size)
{
	CUresult result;
	CUdeviceptr q;

	victim_free(freed);
	result = cuMemAlloc(&q, size);
	printf("%s: %s\n", what, victim_name(result));
	if (result == CUDA_SUCCESS)
		TRY(cuMemFree(q));
	TRY(cuCtxSynchronize());
}

static void beside_pools(void)
{
	size_t whole = available();
	uint64_t all = UINT64_MAX;
	CUdeviceptr p, async;
	CUmemoryPool pool;

	TRY(cuDeviceGetDefaultMemPool(&pool, 0));
	TRY(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				  &all));
	TRY(cuMemFreeAsync(take_async(percent(whole, 50)), stream));
	TRY(cuStreamSynchronize(stream));
	/* more would be waited for by the free */
	p = victim_alloc(percent(whole, 4));
	keep_busy(p, 30000000);
	ask_after_free("kept by a pool", p, percent(whole, 98));

	async = take_async(percent(whole, 50));
	p = victim_alloc(percent(whole, 4));
	keep_busy(p, 30000000);
	TRY(cuMemFreeAsync(async, stream));
	ask_after_free("freed into a pool", p, percent(whole, 75));
}

/* ---- between large blocks ---------------------------------------------- */

/* A part of what each second large block leaves, in blocks of so many bytes. */
static void fill_middles(CUdeviceptr *large, int n, size_t part, size_t size)
{
	static CUdeviceptr p[1 << 16];
	CUresult result = CUDA_SUCCESS;
	size_t want, k = 0;

	for (int i = 1; i < n; i += 2)
		TRY(cuMemFree(large[i]));
	want = percent(available(), part) / size;
	CHECK(want > 0 && want <= sizeof(p) / sizeof(p[0]));
	while (k < want && (result = cuMemAlloc(&p[k], size)) == CUDA_SUCCESS)
		k++;
	printf("blocks of %zu KiB: %s\n", size / KiB, victim_name(result));
	while (k > 0)
		TRY(cuMemFree(p[--k]));
	for (int i = 1; i < n; i += 2)
		TRY(cuMemAlloc(&large[i], 16 * GRAIN));
}

static void between(void)
{
	static CUdeviceptr p[512];
	size_t whole = available();
	int n = 0;

	/* of few large pieces */
	victim_free(victim_alloc(percent(whole, 95)));
	while (n < 512 && cuMemAlloc(&p[n], 16 * GRAIN) == CUDA_SUCCESS)
		n++;
	fill_middles(p, n, 85, 6 * MiB);
	fill_middles(p, n, 85, 4 * MiB);
	fill_middles(p, n, 10, 200 * KiB);
}

/* ---- behind long work --------------------------------------------------- */

/* A free of the driver's waits for the work; what it frees is had again. */
static void after_long_work(void)
{
	static CUdeviceptr p[512], small[512];
	int n = 0, n_small = 0;
	CUdeviceptr q;

	for (int i = 0; i < 8; i++)
		small[n_small++] = victim_alloc(2 * GRAIN);
	victim_free(victim_alloc(percent(available(), 95)));
	while (n < 512 && cuMemAlloc(&p[n], 16 * GRAIN) == CUDA_SUCCESS)
		n++;
	while (n_small < 512 &&
	       cuMemAlloc(&small[n_small], 2 * GRAIN) == CUDA_SUCCESS)
		n_small++;
	while (cuMemAlloc(&q, GRAIN) == CUDA_SUCCESS)
		;
	TRY(cuMemFree(p[n / 2]));
	TRY(cuCtxSynchronize());
	keep_busy(small[3], 400000000);
	TRY(cuMemFree(small[3]));
	printf("the smaller: %s\n", victim_name(cuMemAlloc(&q, 2 * GRAIN)));
	printf("the larger: %s\n", victim_name(cuMemAlloc(&q, 16 * GRAIN)));
}

static _Atomic bool may_go;

static void in_vain(bool is_own)
{
	/* more would be waited for by the free */
	size_t size = percent(available(), 5);
	CUdeviceptr p = victim_alloc(size), q;
	CUstream captured;
	CUresult result;

	if (is_own)
		take_the_rest(4 * GRAIN);
	captured = begin();
	victim_free(p);
	TRY(cuLaunchHostFunc(stream, victim_wait_for, &may_go));
	alarm(50);
	result = is_own ? cuMemAlloc(&q, size)
			: ask("create", 4096 * (size_t)GRAIN);
	/* what markers cannot be had for is not known to be done before that */
	CHECK(!is_own || result == CUDA_SUCCESS ||
	      result == CUDA_ERROR_OUT_OF_MEMORY);
	printf("too much: %s\n", is_own ? "answered" : victim_name(result));
	may_go = true;
	TRY(cuStreamSynchronize(stream));
	end(captured);
}

/* ---- a capture that ends --------------------------------------------- */

static _Thread_local bool is_asking;
static int calls_left;

static void *capture_until(void *unused)
{
	CUstream captured;

	(void)unused;
	TRY(cuCtxSetCurrent(ctx));
	captured = begin();
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);
	end(captured);
	pthread_barrier_wait(&turn);
	return NULL;
}

static void let_it_end(void)
{
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);
}

/* The simulator's: each call of the driver. */
static void hear(const char *call)
{
	(void)call;
	if (is_asking && calls_left > 0 && --calls_left == 0)
		let_it_end();
}

/* In a process of its own; exit status: 0, 1 if that failed, 2: no such call.
 */
static int end_before(int k)
{
	/* more would be waited for by the free */
	size_t size = available() / 40 / GRAIN * GRAIN;
	CUdeviceptr p[2], q;
	pthread_t thread;
	CUresult result;

	CHECK(pthread_barrier_init(&turn, NULL, 2) == 0);
	for (int i = 0; i < 2; i++)
		p[i] = victim_alloc(size);
	take_the_rest(4 * GRAIN);
	sim_client_on_call(hear);
	keep_busy(p[0], BUSY_NS);
	CHECK(pthread_create(&thread, NULL, capture_until, NULL) == 0);
	pthread_barrier_wait(&turn);
	for (int i = 0; i < 2; i++)
		victim_free(p[i]);
	calls_left = k;
	is_asking = true;
	result = cuMemAlloc(&q, 2 * size);
	is_asking = false;
	if (calls_left == 0)
		return result != CUDA_SUCCESS;
	let_it_end();
	pthread_join(thread, NULL);
	return 2;
}

static void ends(char *self)
{
	int status = 0, n_failed = 0;

	for (int k = 1; k < 100 && status != 2; k++) {
		char number[16];
		pid_t child;

		snprintf(number, sizeof(number), "%d", k);
		child = fork();
		if (child == 0) {
			execl("/proc/self/exe", self, "end", number,
			      (char *)NULL);
			_exit(127);
		}
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
		status = WEXITSTATUS(status);
		n_failed += status == 1;
	}
	printf("failed: %d\n", n_failed);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "full";

	if (strcmp(what, "ends") == 0)
		ends(argv[0]);
	ctx = victim_start(0);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	kept = victim_alloc(4096);
	if (strcmp(what, "race") == 0)
		race();
	else if (strcmp(what, "pools") == 0)
		beside_pools();
	else if (strcmp(what, "contexts") == 0)
		freed_elsewhere(argv[2], argc > 3 ? atoi(argv[3]) : 0);
	else if (strcmp(what, "other") == 0)
		beside_a_full_device();
	else if (strcmp(what, "middles") == 0)
		between();
	else if (strcmp(what, "late") == 0)
		after_long_work();
	else if (strcmp(what, "vain") == 0)
		in_vain(argc > 2);
	else if (strcmp(what, "end") == 0)
		return end_before(atoi(argv[2]));
	else if (strcmp(what, "ends") == 0)
		victim_free(victim_alloc(GRAIN));
	else if (argc > 2)
		freed(argv[2], strcmp(what, "before") == 0);
	else
		full();
	return 0;
}
