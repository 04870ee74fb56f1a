/* SPDX-License-Identifier: MIT
 *
 * victim_reuse: frees blocks that queued work still reads and takes new ones
 * for another stream at once. Without the shim cuMemFree waits; with it the
 * memory must not come back before the work is done.
 */
#include "victim_link.h"

#define N_STREAMS 4
#define N_COPIES 8

static bool round_of(size_t size, CUstream *streams, int round)
{
	CUdeviceptr source, target, next;
	bool is_good;

	source = victim_alloc(size);
	target = victim_alloc(size);
	TRY(cuMemsetD8(source, (unsigned char)round, size));
	TRY(cuMemsetD8(target, 0, size));
	TRY(cuCtxSynchronize());
	for (int i = 0; i < N_COPIES; i++)
		TRY(cuMemcpyDtoDAsync(target, source, size,
				      streams[round % N_STREAMS]));
	victim_free(source);
	next = victim_alloc(size);
	TRY(cuMemsetD8Async(next, 0xee, size,
			    streams[(round + 1) % N_STREAMS]));
	TRY(cuStreamSynchronize(streams[round % N_STREAMS]));
	is_good = victim_is_filled(target, size, round);
	TRY(cuStreamSynchronize(streams[(round + 1) % N_STREAMS]));
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
	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 60; i++)
		n_bad += !round_of(sizes[i % 5], streams, i + 1);
	printf("bad rounds: %d\n", n_bad);
	for (int i = 0; i < N_STREAMS; i++)
		TRY(cuStreamDestroy(streams[i]));
	return n_bad != 0;
}
