/* SPDX-License-Identifier: MIT
 *
 * crowd [--seconds N] [--seed S] KINDS
 *
 * One thread for each letter of KINDS, on the first device, or on the second
 * for a capital one, makes calls of one kind all the time (the table below),
 * mostly with blocks that the others leave to it: each is looked at, passed on
 * and freed by whichever thread comes by. All calls must succeed, but for want
 * of memory, all answers be those of the block, and no block may hold anything
 * but what was written to it.
 *
 * A plain program of the driver API. crowd.test runs it under a library that
 * is slow by chance (jitter.c).
 */
#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "../e2e/victim_link.h"

enum { N_SLOTS = 64, N_OWN = 12, N_DEVICES = 2, MOST_THREADS = 32 };

struct block {
	CUdeviceptr p;
	size_t size;
	int device, byte;
	unsigned long long id; /* 0: not asked for yet */
};

struct self {
	pthread_t thread;
	void (*act)(struct self *);
	uint64_t random;
	int device;
	CUstream stream;
};

static CUcontext ctx[N_DEVICES];
static _Atomic(struct block *) slots[N_SLOTS];
static atomic_bool is_done;
static atomic_ulong n_allocs, n_failed;

/* NULL: out of memory. */
static struct block *take(struct self *self)
{
	struct block *b = calloc(1, sizeof(*b));
	CUresult r;

	CHECK(b);
	b->device = self->device;
	b->size = victim_size(&self->random,
			      victim_random(&self->random) % 4 ? 18 : 23);
	r = cuMemAlloc(&b->p, b->size);
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		n_failed++;
		free(b);
		return NULL;
	}
	TRY(r);
	n_allocs++;
	sim_client_note_alloc((void *)(uintptr_t)b->p, b->size);
	b->byte = (int)(victim_random(&self->random) % 256);
	TRY(cuMemsetD8Async(b->p, (unsigned char)b->byte, b->size,
			    self->stream));
	TRY(cuStreamSynchronize(self->stream));
	return b;
}

static void drop(struct block *b)
{
	if (b)
		victim_free(b->p);
	free(b);
}

/* Leaves `b`, if any, and gets what another thread left, or NULL. */
static struct block *swap(struct self *self, struct block *b)
{
	return atomic_exchange(&slots[victim_random(&self->random) % N_SLOTS],
			       b);
}

static void look(struct self *self, const struct block *b)
{
	size_t at[] = {0, victim_random(&self->random) % b->size, b->size - 1};
	unsigned char byte[3];

	for (int i = 0; i < 3; i++)
		TRY(cuMemcpyDtoHAsync(&byte[i], b->p + at[i], 1, self->stream));
	TRY(cuStreamSynchronize(self->stream));
	for (int i = 0; i < 3; i++)
		CHECK(byte[i] == b->byte);
}

/* ---- kinds of calls -------------------------------------------------------
 */

static void own(struct self *self)
{
	struct block *mine[N_OWN];

	for (int i = 0; i < N_OWN; i++)
		mine[i] = take(self);
	for (int i = 0; i < N_OWN; i++) {
		if (mine[i])
			look(self, mine[i]);
		drop(mine[i]);
	}
}

static void pass_on(struct self *self)
{
	struct block *b = swap(self, take(self));

	if (b)
		look(self, b);
	drop(b);
}

static void *live_briefly(void *argument)
{
	struct self *self = argument;

	TRY(cuCtxSetCurrent(ctx[self->device]));
	for (int i = 0; i < 6; i++)
		pass_on(self);
	return NULL;
}

static void make_thread(struct self *self)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, live_briefly, self));
	CHECK(!pthread_join(thread, NULL));
}

static void make_stream(struct self *self)
{
	struct block *b = take(self);
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (b)
		TRY(cuMemsetD8Async(b->p, 9, b->size, stream));
	drop(b);
	TRY(cuStreamDestroy(stream));
}

static void make_context(struct self *self)
{
	CUdeviceptr p;
	CUcontext made;
	CUresult r;

	TRY(cuCtxCreate_v2(&made, 0, self->device));
	for (int i = 0; i < 8; i++) {
		r = cuMemAlloc(&p, victim_size(&self->random, 20));
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			continue;
		TRY(r);
		TRY(cuMemsetD8(p, 1, 1));
		if (i % 2)
			TRY(cuMemFree(p));
	}
	TRY(cuCtxDestroy(made));
	TRY(cuCtxSetCurrent(ctx[self->device]));
}

static void ask(struct self *self)
{
	struct block *b = swap(self, NULL);
	CUdeviceptr base;
	unsigned long long id;
	CUcontext owner;
	size_t size, free;

	TRY(cuMemGetInfo(&free, &size));
	CHECK(free <= size);
	if (!b)
		return;
	if (b->device == self->device) {
		TRY(cuMemGetAddressRange(&base, &size, b->p + b->size / 2));
		CHECK(base == b->p && size == b->size);
	}
	TRY(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, b->p));
	CHECK(owner == ctx[b->device]);
	TRY(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, b->p));
	CHECK(!b->id || b->id == id);
	b->id = id;
	drop(swap(self, b));
}

static void export_it(struct self *self)
{
	struct block *b = swap(self, NULL);
	CUipcMemHandle handle;

	if (b && b->device == self->device)
		TRY(cuIpcGetMemHandle(&handle, b->p));
	drop(victim_random(&self->random) % 2 ? swap(self, b) : b);
}

static void register_it(struct self *self)
{
	struct block *b = swap(self, NULL);
	unsigned yes = 1;

	if (b)
		TRY(cuPointerSetAttribute(
			&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b->p));
	drop(victim_random(&self->random) % 2 ? swap(self, b) : b);
}

static void reach_peer(struct self *self)
{
	CUcontext peer = ctx[!self->device];
	struct block *b;

	if (!peer)
		return;
	TRY(cuCtxEnablePeerAccess(peer, 0));
	b = swap(self, NULL);
	if (b) {
		look(self, b);
		b->byte ^= 1;
		TRY(cuMemsetD8Async(b->p, (unsigned char)b->byte, b->size,
				    self->stream));
		TRY(cuStreamSynchronize(self->stream));
	}
	drop(swap(self, b));
	TRY(cuCtxDisablePeerAccess(peer));
}

static void capture(struct self *self)
{
	struct block *b = swap(self, NULL);

	TRY(cuStreamBeginCapture_v2(self->stream,
				    CU_STREAM_CAPTURE_MODE_RELAXED));
	usleep(victim_random(&self->random) % 1000);
	drop(b);
	victim_end_capture(self->stream);
}

static void trim(struct self *self)
{
	usleep(victim_random(&self->random) % 3000);
	kill(getpid(), SIGUSR2);
}

static void allocate_async(struct self *self)
{
	CUdeviceptr p;
	CUresult r = cuMemAllocAsync(&p, victim_size(&self->random, 22),
				     self->stream);

	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return;
	TRY(r);
	TRY(cuMemFreeAsync(p, self->stream));
	TRY(cuStreamSynchronize(self->stream));
}

static const struct {
	char letter;
	void (*act)(struct self *);
} kinds[] = {
	{'o', own},	    {'p', pass_on},	 {'t', make_thread},
	{'s', make_stream}, {'c', make_context}, {'a', ask},
	{'x', export_it},   {'r', register_it},	 {'e', reach_peer},
	{'g', capture},	    {'d', trim},	 {'y', allocate_async},
};

/* ---- the program ----------------------------------------------------------
 */

static void *act_all_the_time(void *argument)
{
	struct self *self = argument;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	TRY(cuCtxSetCurrent(ctx[self->device]));
	TRY(cuThreadExchangeStreamCaptureMode(&mode));
	TRY(cuStreamCreate(&self->stream, CU_STREAM_NON_BLOCKING));
	while (!is_done)
		self->act(self);
	TRY(cuStreamDestroy(self->stream));
	return NULL;
}

static void start(struct self *self, char letter, uint64_t seed)
{
	self->random = seed;
	self->device = isupper((unsigned char)letter) != 0;
	CHECK(ctx[self->device]);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].letter == tolower((unsigned char)letter))
			self->act = kinds[i].act;
	CHECK(self->act);
	CHECK(!pthread_create(&self->thread, NULL, act_all_the_time, self));
}

/* Signals end a sleep. */
static void sleep_until(time_t end)
{
	while (time(NULL) < end)
		usleep(10000);
}

static void run(const char *letters, uint64_t seed, int seconds)
{
	static struct self self[MOST_THREADS];
	int n_devices, n = (int)strlen(letters);

	TRY(cuInit(0));
	TRY(cuDeviceGetCount(&n_devices));
	for (int i = 0; i < n_devices && i < N_DEVICES; i++)
		ctx[i] = victim_start(i);
	CHECK(n <= MOST_THREADS);
	for (int i = 0; i < n; i++)
		start(&self[i], letters[i], seed * 1009 + (unsigned)i);
	sleep_until(time(NULL) + seconds);
	is_done = true;
	for (int i = 0; i < n; i++)
		CHECK(!pthread_join(self[i].thread, NULL));
	for (int i = 0; i < N_SLOTS; i++)
		drop(slots[i]);
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)time(NULL) % 1000000;
	const char *letters = "";
	int seconds = 1;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
			seconds = atoi(argv[++i]);
		else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 0);
		else
			letters = argv[i];
	}
	printf("crowd seed %" PRIu64 ": ", seed);
	fflush(stdout);
	run(letters, seed, seconds);
	printf("%lu allocations, %lu out of memory, %ld violations\n", n_allocs,
	       n_failed, sim_client_violations());
	return sim_client_violations() > 0 || n_allocs == 0;
}
