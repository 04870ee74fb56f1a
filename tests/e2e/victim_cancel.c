/* SPDX-License-Identifier: MIT
 *
 * victim_cancel: threads that were cancelled, but meet no cancellation point
 * until they have given back what they hold, allocate and free.
 */
#include <pthread.h>

#include "victim_link.h"

enum { THREADS = 8, PAIRS = 60, BLOCKS = 50 };

static CUcontext ctx;
static int n_pairs;

static size_t size_of(int i)
{
	switch (i % 3) {
	case 0:
		return 1000 + (size_t)i;
	case 1:
		return 600 * KiB;
	default:
		return (3 + (size_t)(i % 50)) * MiB;
	}
}

/* The handle is the first of the process, or not. */
static void share(CUdeviceptr p)
{
	CUipcMemHandle handle;

	TRY(cuIpcGetMemHandle(&handle, p));
}

static void *hasty(void *unused)
{
	CUdeviceptr p;

	(void)unused;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	TRY(cuCtxSetCurrent(ctx));
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	for (int i = 0; i < PAIRS; i++) {
		p = victim_alloc(size_of(i));
		TRY(cuMemsetD8Async(p, 1, 500, 0));
		if (i == 0)
			share(p);
		victim_free(p);
		n_pairs++;
	}
	pthread_testcancel();
	return NULL;
}

int main(void)
{
	CUdeviceptr p[BLOCKS];
	pthread_t thread;
	void *end;

	ctx = victim_start(0);
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_create(&thread, NULL, hasty, NULL) == 0);
		CHECK(pthread_join(thread, &end) == 0);
		CHECK(end == PTHREAD_CANCELED);
		/* nothing of it is left */
		for (int j = 0; j < BLOCKS; j++)
			p[j] = victim_alloc((size_t)j * 64 * KiB + 1);
		share(p[0]);
		for (int j = 0; j < BLOCKS; j++)
			victim_free(p[j]);
	}
	printf("%d pairs\n", n_pairs);
	return 0;
}
