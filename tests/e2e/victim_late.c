/* SPDX-License-Identifier: MIT
 *
 * victim_late context|peer: work of one context still reads a block that was
 * freed when another context comes, or gets access, and writes to a new one.
 * The work must read what was there.
 *
 * victim_late gl: so must that of a context for OpenGL, in which nothing is
 * allocated or freed.
 */
#include "victim_link.h"

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *ctx, unsigned int flags,
				  CUdevice device);

#define SIZE (100 * MiB)
#define N_WORDS ((uint64_t)(SIZE / 4))

/* The other context, made or let in now; it is current afterwards. */
static void let_in(bool is_peer, CUcontext first, CUcontext other)
{
	CUdevice device;

	if (is_peer) {
		TRY(cuCtxSetCurrent(other));
		TRY(cuCtxEnablePeerAccess(first, 0));
		return;
	}
	TRY(cuDeviceGet(&device, 0));
	TRY(cuCtxCreate(&other, NULL, 0, device));
}

/* On another device: its memory is of the first, as the program may have it. */
static CUdeviceptr next_block(bool is_peer, CUcontext first)
{
	CUcontext other;
	CUdeviceptr p;

	TRY(cuCtxGetCurrent(&other));
	if (is_peer)
		TRY(cuCtxSetCurrent(first));
	p = victim_alloc(SIZE);
	TRY(cuCtxSetCurrent(other));
	return p;
}

static void fill(CUdeviceptr p, uint32_t value)
{
	CUfunction kernel = victim_kernel("vs_fill");
	uint64_t n_words = N_WORDS;
	void *args[] = {&p, &value, &n_words};
	CUstream stream;

	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	victim_launch(kernel, stream, args);
	TRY(cuStreamSynchronize(stream));
}

int main(int argc, char **argv)
{
	bool is_peer = argc > 1 && strcmp(argv[1], "peer") == 0;
	bool is_gl = argc > 1 && strcmp(argv[1], "gl") == 0;
	CUcontext first = victim_start(0), other = NULL;
	CUfunction sleep = victim_kernel("vs_sleep");
	CUfunction copy = victim_kernel("vs_copy");
	CUdeviceptr scratch = victim_alloc(4);
	CUdeviceptr from = victim_alloc(SIZE), to = victim_alloc(SIZE), next;
	uint64_t ns = 300000000, n_words = N_WORDS, one = 1;
	uint32_t round = 7;
	void *sleep_args[] = {&ns, &scratch, &round, &one};
	void *copy_args[] = {&to, &from, &n_words};
	CUstream stream;
	CUdevice device;

	if (is_peer) {
		TRY(cuDeviceGet(&device, 1));
		TRY(cuDevicePrimaryCtxRetain(&other, device));
		TRY(cuCtxSetCurrent(first));
	}
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuMemsetD8(from, 1, SIZE));
	TRY(cuMemsetD8(to, 0, SIZE));
	TRY(cuCtxSynchronize());
	if (is_gl) {
		TRY(cuGLCtxCreate_v2(&other, 0, 0));
		TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		sleep = victim_kernel("vs_sleep");
		copy = victim_kernel("vs_copy");
	}
	victim_launch(sleep, stream, sleep_args);
	victim_launch(copy, stream, copy_args);
	TRY(cuCtxSetCurrent(first));
	victim_free(from);
	if (!is_gl)
		let_in(is_peer, first, other);
	next = next_block(is_peer, first);
	fill(next, 0xeeeeeeee);
	TRY(cuCtxSetCurrent(is_gl ? other : first));
	TRY(cuCtxSynchronize());
	TRY(cuCtxSetCurrent(first));
	printf("the copy read what was there: %s\n",
	       victim_is_filled(to, SIZE, 1) ? "yes" : "no");
	return 0;
}
