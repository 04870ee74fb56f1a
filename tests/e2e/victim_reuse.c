/* SPDX-License-Identifier: MIT
 *
 * victim_reuse: frees blocks that queued work still reads and takes new ones
 * for another stream at once. Without the shim cuMemFree waits; with it the
 * memory must not come back before the work is done.
 */
#include "victim_link.h"

#define N_STREAMS 4
#define SLEEP_NS 1000000

static CUfunction sleep_kernel, copy_kernel, fill_kernel;
static CUdeviceptr scratch;

/* A kernel that takes its time, then one that reads the block just freed. */
static bool round_of(size_t size, CUstream *streams, uint32_t round)
{
	CUdeviceptr source = victim_alloc(size), target = victim_alloc(size);
	CUdeviceptr next;
	CUstream old = streams[round % N_STREAMS];
	CUstream new = streams[(round + 1) % N_STREAMS];
	uint64_t ns = SLEEP_NS, n_words = size / 4, one = 1;
	uint32_t other = 0xeeeeeeee;
	void *sleep[] = {&ns, &scratch, &round, &one};
	void *copy[] = {&target, &source, &n_words};
	void *fill[] = {&next, &other, &n_words};
	bool is_good;

	TRY(cuMemsetD8(source, (unsigned char)round, size));
	TRY(cuMemsetD8(target, 0, size));
	TRY(cuCtxSynchronize());
	victim_launch(sleep_kernel, old, sleep);
	victim_launch(copy_kernel, old, copy);
	victim_free(source);
	next = victim_alloc(size);
	victim_launch(fill_kernel, new, fill);
	TRY(cuStreamSynchronize(old));
	is_good = victim_is_filled(target, size, (int)round);
	TRY(cuStreamSynchronize(new));
	is_good = is_good && victim_is_filled(next, size, 0xee);
	victim_free(next);
	victim_free(target);
	return is_good;
}

int main(void)
{
	static const size_t sizes[] = {512, 100 * KiB, MiB, 5 * MiB, 20 * MiB};
	CUstream streams[N_STREAMS];
	int n_bad = 0;

	victim_start(0);
	sleep_kernel = victim_kernel("vs_sleep");
	copy_kernel = victim_kernel("vs_copy");
	fill_kernel = victim_kernel("vs_fill");
	scratch = victim_alloc(4);
	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 60; i++)
		n_bad += !round_of(sizes[i % 5], streams, (uint32_t)i + 1);
	printf("bad rounds: %d\n", n_bad);
	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamDestroy(streams[i]));
	victim_free(scratch);
	return n_bad != 0;
}
