/* SPDX-License-Identifier: MIT
 *
 * victim_ending: contexts are reset or destroyed while threads of theirs are in
 * the middle of allocating and freeing, who then get errors and end. Whatever
 * else there is goes on.
 *
 *   reset      the primary context, and the program begins again
 *   bystander  contexts of their own, while a thread that has another checks
 *              its data
 *   late       a thread frees what it had when its context has ended, and
 *              another has memory of the same sizes by then
 *   foreign    the same thread asks about what another context had all the
 *              time, and frees it
 *   refused    a host function tries to end contexts, which the driver
 *              refuses: all of theirs stays
 *   inside     a host function tries to retain and to release the context
 *              while its last release waits for that function
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "victim_link.h"

enum { N_WORKERS = 4, N_BLOCKS = 16, ROUNDS = 40, ROUND_US = 4000 };

static atomic_uint n_begun; /* workers */
static atomic_bool is_over; /* the context's end has returned */

struct worker {
	pthread_t thread;
	CUcontext ctx;
	uint64_t seed;
};

static size_t any_size(uint64_t *seed)
{
	return victim_random(seed) % 4 ? victim_random(seed) % 5000 + 1
				       : victim_random(seed) % (10 * MiB) + 1;
}

/* All results are as good: the context may end before or after each call. */
static void *worker_main(void *argument)
{
	struct worker *w = argument;
	CUresult r = cuCtxSetCurrent(w->ctx);
	CUdeviceptr p[N_BLOCKS];

	atomic_fetch_add(&n_begun, 1);
	while (r == CUDA_SUCCESS && !atomic_load(&is_over)) {
		int n = 0;

		while (r == CUDA_SUCCESS && n < N_BLOCKS)
			r = cuMemAlloc(&p[n++], any_size(&w->seed));
		while (r == CUDA_SUCCESS && n > 0)
			r = cuMemFree(p[--n]);
	}
	return NULL;
}

static void end_beside_workers(CUcontext ctx, bool is_primary)
{
	struct worker workers[N_WORKERS];

	atomic_store(&n_begun, 0);
	atomic_store(&is_over, false);
	for (unsigned i = 0; i < N_WORKERS; i++) {
		struct worker *w = &workers[i];

		w->ctx = ctx;
		w->seed = i;
		CHECK(!pthread_create(&w->thread, NULL, worker_main, w));
	}
	while (atomic_load(&n_begun) < N_WORKERS)
		usleep(100);
	usleep(ROUND_US);
	if (is_primary)
		TRY(cuDevicePrimaryCtxReset(0));
	else
		TRY(cuCtxDestroy(ctx));
	atomic_store(&is_over, true);
	for (unsigned i = 0; i < N_WORKERS; i++)
		pthread_join(workers[i].thread, NULL);
}

/* Blocks of the current context hold what was written to them. */
static void check_some(unsigned round)
{
	CUdeviceptr p[6];
	size_t size[6];

	for (unsigned i = 0; i < 6; i++) {
		size[i] = i < 3 ? (round % 7 + 1) * 64 * MiB : i * 3000;
		TRY(cuMemAlloc(&p[i], size[i]));
		TRY(cuMemsetD8(p[i], (unsigned char)(round + i), 4 * KiB));
	}
	for (unsigned i = 0; i < 6; i++) {
		unsigned char byte = 0;

		TRY(cuMemcpyDtoH(&byte, p[i], 1));
		CHECK(byte == (unsigned char)(round + i));
		TRY(cuMemFree(p[i]));
	}
}

/* Nothing of what has ended holds memory. */
static void check_most(void)
{
	size_t free, total;
	CUdeviceptr p;

	TRY(cuMemGetInfo(&free, &total));
	TRY(cuMemAlloc(&p, total / 20 * 17));
	TRY(cuMemFree(p));
}

static void resets(void)
{
	for (int i = 0; i < ROUNDS; i++)
		end_beside_workers(victim_start(0), true);
	victim_start(0);
}

static atomic_bool is_enough;

static void *bystander_main(void *ctx)
{
	TRY(cuCtxSetCurrent(ctx));
	for (unsigned round = 0; !atomic_load(&is_enough); round++)
		check_some(round);
	return NULL;
}

static void destroys(void)
{
	pthread_t bystander;
	CUcontext own, ctx;

	TRY(cuInit(0));
	TRY(cuCtxCreate_v2(&own, 0, 0));
	CHECK(!pthread_create(&bystander, NULL, bystander_main, own));
	for (int i = 0; i < ROUNDS; i++) {
		TRY(cuCtxCreate_v2(&ctx, 0, 0));
		end_beside_workers(ctx, false);
	}
	atomic_store(&is_enough, true);
	pthread_join(bystander, NULL);
	TRY(cuCtxSetCurrent(own));
}

enum { N_LATE = 40 };

struct late {
	CUcontext ctx;
	CUdeviceptr foreign[N_LATE];
	pthread_t thread;
	sem_t has_all, has_ended;
};

static size_t late_size(int i)
{
	return i % 2 ? (size_t)(i + 1) * 512 : MiB + (size_t)(i + 1) * 40 * KiB;
}

static void *late_main(void *argument)
{
	struct late *l = argument;
	CUdeviceptr p[N_LATE];

	TRY(cuCtxSetCurrent(l->ctx));
	for (int i = 0; i < N_LATE; i++)
		TRY(cuMemAlloc(&p[i], late_size(i)));
	sem_post(&l->has_all);
	sem_wait(&l->has_ended);
	for (int i = 0; i < N_LATE; i++)
		printf("a late free: %d\n", (int)cuMemFree(p[i]));
	return NULL;
}

/* What it may ask about such memory, and what it may have. */
static void ask_about(CUdeviceptr p)
{
	CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	unsigned type = 0, yes = 1;
	void *data = &type;
	CUipcMemHandle handle;
	size_t free, total;
	CUdeviceptr q;
	char byte;

	printf("range %d, handle %d, ", cuMemGetAddressRange(&q, &total, p),
	       cuIpcGetMemHandle(&handle, p));
	printf("copy %d, set %d, ", cuMemcpyDtoH(&byte, p, 1),
	       cuMemsetD8(p, 1, 1));
	printf("attribute %d, several %d, ",
	       cuPointerGetAttribute(&type, which, p),
	       cuPointerGetAttributes(1, &which, &data, p));
	printf("set one %d, ",
	       cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
				     p));
	printf("allocation %d, info %d\n", cuMemAlloc(&q, MiB),
	       cuMemGetInfo(&free, &total));
}

/* Memory of a context that lives, by a thread whose own has ended. */
static void *foreign_main(void *argument)
{
	struct late *l = argument;

	TRY(cuCtxSetCurrent(l->ctx));
	sem_post(&l->has_all);
	sem_wait(&l->has_ended);
	ask_about(l->foreign[0]);
	ask_about(l->foreign[1]);
	for (int i = 0; i < N_LATE; i++)
		printf("a foreign free: %d\n", (int)cuMemFree(l->foreign[i]));
	return NULL;
}

/* A context that is to end, and then one that stays and is current. */
static void make_both(struct late *l)
{
	CUcontext own;

	TRY(cuInit(0));
	TRY(cuCtxCreate_v2(&l->ctx, 0, 0));
	TRY(cuCtxCreate_v2(&own, 0, 0));
}

/* The thread frees from when has_ended is posted. */
static void end_beside(struct late *l, void *(*run)(void *))
{
	sem_init(&l->has_all, 0, 0);
	sem_init(&l->has_ended, 0, 0);
	CHECK(!pthread_create(&l->thread, NULL, run, l));
	sem_wait(&l->has_all);
	TRY(cuCtxDestroy(l->ctx));
}

static void foreign_frees(void)
{
	struct late l;

	make_both(&l);
	for (int i = 0; i < N_LATE; i++)
		TRY(cuMemAlloc(&l.foreign[i], late_size(i)));
	end_beside(&l, foreign_main);
	sem_post(&l.has_ended);
	pthread_join(l.thread, NULL);
}

static void late_frees(void)
{
	CUdeviceptr p[N_LATE];
	struct late l;

	make_both(&l);
	end_beside(&l, late_main);
	for (int i = 0; i < N_LATE; i++) {
		TRY(cuMemAlloc(&p[i], late_size(i)));
		TRY(cuMemsetD8(p[i], (unsigned char)i, late_size(i)));
	}
	sem_post(&l.has_ended);
	pthread_join(l.thread, NULL);
	for (int i = 0; i < N_LATE; i++) {
		unsigned char byte = 0;

		TRY(cuMemcpyDtoH(&byte, p[i] + late_size(i) - 1, 1));
		CHECK(byte == i);
		TRY(cuMemFree(p[i]));
	}
}

static struct refused {
	CUdevice device;
	CUcontext second;
	CUresult destroyed, reset, released;
} refused;

static void CUDA_CB try_to_end(void *data)
{
	struct refused *r = data;

	r->destroyed = cuCtxDestroy(r->second);
	r->reset = cuDevicePrimaryCtxReset(r->device);
	r->released = cuDevicePrimaryCtxRelease(r->device);
}

/* Nobody else gets the block, and it can be freed. */
static void check_kept(CUcontext ctx, CUdeviceptr p, size_t size, int byte)
{
	CUdeviceptr other;

	TRY(cuCtxSetCurrent(ctx));
	other = victim_alloc(size);
	CHECK(other != p);
	TRY(cuMemsetD8(other, 0, size));
	CHECK(victim_is_filled(p, size, byte));
	victim_free(other);
	victim_free(p);
}

static void ends_are_refused(void)
{
	CUcontext primary = victim_start(0);
	CUdeviceptr first, second;
	CUstream stream;

	first = victim_alloc(3 * MiB);
	TRY(cuMemsetD8(first, 5, 3 * MiB));
	TRY(cuDeviceGet(&refused.device, 0));
	TRY(cuCtxCreate_v2(&refused.second, 0, refused.device));
	second = victim_alloc(3 * MiB);
	TRY(cuMemsetD8(second, 7, 3 * MiB));
	TRY(cuCtxSetCurrent(primary));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuLaunchHostFunc(stream, try_to_end, &refused));
	TRY(cuStreamSynchronize(stream));
	CHECK(refused.destroyed == CUDA_ERROR_NOT_PERMITTED);
	CHECK(refused.reset == CUDA_ERROR_NOT_PERMITTED);
	CHECK(refused.released == CUDA_ERROR_NOT_PERMITTED);
	check_kept(refused.second, second, 3 * MiB, 7);
	check_kept(primary, first, 3 * MiB, 5);
}

static struct held {
	CUdevice device;
	CUresult retained, released;
	atomic_bool is_over;
} held;

static void CUDA_CB try_to_hold(void *data)
{
	struct held *h = data;
	CUcontext ctx;

	victim_nap(NULL);
	h->retained = cuDevicePrimaryCtxRetain(&ctx, h->device);
	h->released = cuDevicePrimaryCtxRelease(h->device);
	atomic_store(&h->is_over, true);
}

static void holds_are_refused(void)
{
	CUdeviceptr p;

	alarm(20); /* or it waits for ever */
	victim_start(0);
	p = victim_alloc(3 * MiB);
	TRY(cuDeviceGet(&held.device, 0));
	TRY(cuLaunchHostFunc(NULL, try_to_hold, &held));
	sim_client_note_free((void *)(uintptr_t)p);
	TRY(cuDevicePrimaryCtxRelease(held.device));
	while (!atomic_load(&held.is_over))
		usleep(1000);
	CHECK(held.retained == CUDA_ERROR_NOT_PERMITTED);
	CHECK(held.released == CUDA_ERROR_NOT_PERMITTED);
	alarm(0);
	victim_start(0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "bystander"))
		destroys();
	else if (argc > 1 && !strcmp(argv[1], "late"))
		late_frees();
	else if (argc > 1 && !strcmp(argv[1], "foreign"))
		foreign_frees();
	else if (argc > 1 && !strcmp(argv[1], "refused"))
		ends_are_refused();
	else if (argc > 1 && !strcmp(argv[1], "inside"))
		holds_are_refused();
	else
		resets();
	check_some(0);
	check_most();
	printf("done\n");
	return 0;
}
