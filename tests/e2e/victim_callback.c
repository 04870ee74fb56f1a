/* SPDX-License-Identifier: MIT
 *
 * victim_callback: a profiler's callback for driver calls asks what memory is
 * left, waits for the GPU and takes memory of its own, as a subscriber of CUPTI
 * may. Of the calls that a pool makes for itself it hears, too, and the pool is
 * to survive that. A real driver calls nobody back here.
 */
#include <unistd.h>

#include "victim_link.h"

enum { BLOCKS = 8, ROUNDS = 40 };

static __thread int is_inside;

/* What a pool does that does not allocate or free for the program alone. */
static int is_of_interest(const char *call)
{
	return strncmp(call, "cuEvent", 7) == 0 ||
	       strncmp(call, "cuCtxRecord", 11) == 0 ||
	       strncmp(call, "cuMemCreate", 11) == 0 ||
	       strncmp(call, "cuMemMap", 8) == 0 ||
	       strncmp(call, "cuMemUnmap", 10) == 0 ||
	       strncmp(call, "cuMemGetInfo", 12) == 0;
}

static void heard(const char *call)
{
	CUcontext current = NULL;
	size_t unused, total;
	CUdeviceptr p;

	if (is_inside || !is_of_interest(call))
		return;
	is_inside = 1;
	if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) {
		TRY(cuMemGetInfo(&unused, &total));
		CHECK(unused <= total);
		TRY(cuCtxSynchronize());
		TRY(cuMemAlloc(&p, 4096));
		TRY(cuMemFree(p));
	}
	is_inside = 0;
}

static void listen(void (*callback)(const char *))
{
	static void *cache;
	void (*subscribe)(void (*)(const char *));

	*(void **)&subscribe = sim_client_find(&cache, "sim_on_call");
	if (subscribe)
		subscribe(callback);
}

int main(void)
{
	CUdeviceptr p[BLOCKS];
	size_t unused, total;
	CUstream stream;
	int n_good = 0;

	victim_start(0);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	listen(heard);
	for (size_t round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < BLOCKS; i++) {
			size_t size = (i % 2 ? 40 + i + round : 1) * MiB;

			p[i] = victim_alloc(size);
			TRY(cuMemsetD8Async(p[i], (unsigned char)i, MiB,
					    stream));
		}
		TRY(cuMemGetInfo(&unused, &total));
		TRY(cuStreamSynchronize(stream));
		for (size_t i = 0; i < BLOCKS; i++)
			n_good += victim_is_filled(p[i], MiB, (int)i);
		for (size_t i = 0; i < BLOCKS; i++) {
			usleep(100);
			victim_free(p[i]);
		}
	}
	listen(NULL);
	printf("good: %d of %d\n", n_good, BLOCKS * ROUNDS);
	return 0;
}
