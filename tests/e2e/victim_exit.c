/* SPDX-License-Identifier: MIT
 *
 * victim_exit: the program ends while threads still allocate and free, with
 * memory live; an exit handler frees some. "quick": by _exit.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "victim_link.h"

static CUcontext ctx;
static CUdeviceptr kept;
static atomic_int n_started;

static void *work(void *arg)
{
	CUdeviceptr p;

	(void)arg;
	if (cuCtxSetCurrent(ctx))
		return NULL;
	n_started++;
	/* errors are expected here once the driver shuts down */
	while (cuMemAlloc(&p, 100 * KiB) == CUDA_SUCCESS) {
		if (cuMemsetD8(p, 1, 100 * KiB) || cuMemFree(p))
			break;
	}
	return NULL;
}

static void on_exit_free(void)
{
	cuMemFree(kept); /* may fail: the driver may be gone */
	printf("exit handler ran\n");
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "return";
	pthread_t threads[3];

	ctx = victim_start(0);
	kept = victim_alloc(3 * MiB);
	atexit(on_exit_free);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
	while (n_started < 3)
		usleep(100);
	usleep(20000);
	printf("ending\n");
	fflush(stdout);
	if (strcmp(how, "quick") == 0)
		_exit(7);
	return 6;
}
