/* SPDX-License-Identifier: MIT
 *
 * victim_left small|large: a context works on blocks of another one of the same
 * device, which frees them and ends; what is allocated then is written to.
 * victim_left reset|release [captured]: a stream of a peer copies a block,
 * which its owner frees before the last context of its device ends; beside an
 * open capture, too. The work sees what it was given.
 */
#include "victim_link.h"

#define BLOCKS 8
#define SIZE ((size_t)8 * MiB)

static int copy_of_another(size_t size)
{
	CUcontext ends, stays = victim_start(0);
	CUdeviceptr from[BLOCKS], to;
	int n_good = 0;
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	/* nothing small of this context is left to be allocated */
	to = victim_alloc(BLOCKS * SIZE);
	TRY(cuCtxCreate_v2(&ends, 0, 0));
	for (int i = 0; i < BLOCKS; i++) {
		from[i] = victim_alloc(size);
		TRY(cuMemsetD8(from[i], 7, size));
	}
	TRY(cuCtxSynchronize());
	TRY(cuCtxSetCurrent(stays));
	TRY(cuLaunchHostFunc(stream, victim_nap, NULL));
	for (int i = 0; i < BLOCKS; i++)
		TRY(cuMemcpyDtoDAsync(to + i * SIZE, from[i], size, stream));
	TRY(cuCtxSetCurrent(ends));
	for (int i = 0; i < BLOCKS; i++)
		victim_free(from[i]);
	TRY(cuCtxDestroy(ends));
	TRY(cuCtxSetCurrent(stays));
	for (int i = 0; i < BLOCKS; i++)
		TRY(cuMemsetD8Async(victim_alloc(size), 9, size,
				    CU_STREAM_PER_THREAD));
	TRY(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	TRY(cuStreamSynchronize(stream));
	for (int i = 0; i < BLOCKS; i++)
		n_good += victim_is_filled(to + i * SIZE, size, 7);
	printf("copied: %d of %d\n", n_good, BLOCKS);
	return 0;
}

static int copy_of_peer(const char *how, bool is_captured)
{
	CUcontext peer = victim_start(1), owner = victim_start(0);
	CUstream stream, captured;
	CUdeviceptr from, to;
	CUgraph graph;

	from = victim_alloc(SIZE);
	TRY(cuMemsetD8(from, 7, SIZE));
	TRY(cuCtxSynchronize());
	TRY(cuCtxSetCurrent(peer));
	TRY(cuCtxEnablePeerAccess(owner, 0));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	to = victim_alloc(SIZE);
	TRY(cuLaunchHostFunc(stream, victim_nap, NULL));
	TRY(cuMemcpyDtoDAsync(to, from, SIZE, stream));
	if (is_captured)
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuCtxSetCurrent(owner));
	victim_free(from);
	if (!strcmp(how, "reset"))
		TRY(cuDevicePrimaryCtxReset(0));
	else
		TRY(cuDevicePrimaryCtxRelease(0));
	TRY(cuCtxSetCurrent(peer));
	if (is_captured)
		TRY(cuStreamEndCapture(captured, &graph));
	TRY(cuStreamSynchronize(stream));
	printf("copied: %d\n", victim_is_filled(to, SIZE, 7));
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "small";

	if (!strcmp(how, "small"))
		return copy_of_another(3000);
	if (!strcmp(how, "large"))
		return copy_of_another(SIZE);
	return copy_of_peer(how, argc > 2 && !strcmp(argv[2], "captured"));
}
