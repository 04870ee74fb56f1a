/* SPDX-License-Identifier: MIT
 *
 * victim_faults device|peer|context [first]: a kernel faults in another context
 * (of device 1, which may reach the memory of device 0 or not; a second one of
 * device 0), and the program goes on with the first, which is sound. It has
 * most of what it needs in the pool by then; first: it has nothing yet. The
 * other one has nothing but that error to give, until it is gone.
 */
#include "victim_link.h"

enum { STEPS = 20 };

/* Blocks of varying size, none of which leaves room for the next one. */
static void work(const char *when, size_t size)
{
	int n_good = 0;

	for (int i = 0; i < STEPS; i++) {
		CUdeviceptr p, small;
		CUresult r = cuMemAlloc(&p, size + (size_t)(i * 8 * MiB));

		if (r != CUDA_SUCCESS) {
			printf("%s, step %d: %s\n", when, i, victim_name(r));
			continue;
		}
		small = victim_alloc(1000 << i % 5);
		TRY(cuMemsetD8(small, (unsigned char)i, 1000));
		TRY(cuMemsetD8(p, (unsigned char)i, MiB));
		TRY(cuCtxSynchronize());
		CHECK(victim_is_filled(p, MiB, i));
		TRY(cuMemFree(p));
		victim_free(small);
		n_good++;
	}
	printf("%s: %d of %d\n", when, n_good, STEPS);
}

/* A context of device 1, or a second one of device 0; it is current. */
static CUcontext start_other(bool is_second)
{
	CUcontext ctx;

	if (is_second)
		TRY(cuCtxCreate_v2(&ctx, 0, 0));
	else
		ctx = victim_start(1);
	return ctx;
}

/* In the current context. The program learns of it there, or elsewhere. */
static void fault(CUcontext elsewhere)
{
	CUdeviceptr nowhere = (CUdeviceptr)0x70 << 32;
	uint32_t value = 1;
	uint64_t n_words = 10;
	void *arguments[] = {&nowhere, &value, &n_words};
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	victim_launch(victim_kernel("vs_fill"), stream, arguments);
	if (elsewhere)
		TRY(cuCtxSetCurrent(elsewhere));
	printf("wait: %s\n", victim_name(cuStreamSynchronize(stream)));
}

/* The context that faulted. */
static void ask(CUcontext ctx)
{
	CUdeviceptr p;

	TRY(cuCtxSetCurrent(ctx));
	printf("wait there: %s\n", victim_name(cuCtxSynchronize()));
	for (int i = 0; i < 5; i++)
		printf("%d bytes: %s\n", 1000 << i * 3,
		       victim_name(cuMemAlloc(&p, 1000 << i * 3)));
}

static void end_other(CUcontext ctx, bool is_second)
{
	if (is_second)
		TRY(cuCtxDestroy(ctx));
	else
		TRY(cuDevicePrimaryCtxReset(1));
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "context";
	bool is_second = !strcmp(how, "context");
	bool is_first = argc > 2 && !strcmp(argv[2], "first");
	CUcontext sound, other;
	size_t unused, total;

	sound = victim_start(0);
	TRY(cuMemGetInfo(&unused, &total));
	other = start_other(is_second);
	if (!strcmp(how, "peer"))
		TRY(cuCtxEnablePeerAccess(sound, 0));
	if (!is_first) {
		work("before, there", unused / 10 * 3);
		TRY(cuCtxSetCurrent(sound));
		work("before", unused / 10 * 5);
		TRY(cuCtxSetCurrent(other));
	}
	/* a stream need not be the current context's */
	fault(strcmp(how, "device") ? NULL : sound);
	TRY(cuCtxSetCurrent(sound));
	work("after", unused / 10 * 5);
	ask(other);
	TRY(cuCtxSetCurrent(sound));
	work("again", unused / 10 * 5);
	end_other(other, is_second);
	TRY(cuCtxSetCurrent(sound));
	work("without it", unused / 10 * 5);
	start_other(is_second);
	work("there", unused / 10 * 3);
	return 0;
}
