/* SPDX-License-Identifier: MIT
 *
 * victim_meet [captured | rounds | later | steps | default]: two devices of one
 * process, a thread for each, as a framework has them. Their kernels meet, as
 * those of a collective do: each runs until the other is there. One thread
 * gives its half, and captures its next graph (or does not); the other frees
 * what it has finished with before it gives its own. A cuMemFree waits for no
 * kernel of another device.
 *
 * rounds: beside a capture, and work that is complete each time, one goes round
 * with many times the memory that the device has.
 *
 * later: the same while a kernel of the other device waits for the host, which
 * began long after that device's last copy of the memory was done.
 *
 * steps: such a kernel in each step, right behind a copy.
 *
 * default: the same, and the copies are made in the default stream.
 */
#include <pthread.h>
#include <unistd.h>

#include "victim_link.h"

enum { STEPS = 6 };
static _Atomic uint32_t *is_met; /* the half of device 0 runs, by step */
static CUdeviceptr met_at;
static CUcontext ctx[2];
static CUdeviceptr weights[2];
static CUfunction spin;
static pthread_barrier_t barrier;
static bool is_capturing;

static void *be_device_1(void *unused)
{
	void *arguments[] = {&met_at};
	CUstream stream, captured;

	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	/* what it works on came from device 0, once */
	TRY(cuMemcpyDtoDAsync(weights[1], weights[0], MiB, stream));
	TRY(cuStreamSynchronize(stream));
	victim_launch(spin, stream, arguments);
	if (is_capturing) {
		TRY(cuStreamBeginCapture(captured,
					 CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		TRY(cuMemsetD8Async(weights[1], 0, MiB, captured));
	}
	pthread_barrier_wait(&barrier);
	if (is_capturing) {
		usleep(500000);
		victim_end_capture(captured);
	}
	TRY(cuStreamSynchronize(stream));
	return unused;
}

static void CUDA_CB come(void *unused)
{
	(void)unused;
	*is_met = 1;
}

static void go_round(CUstream stream)
{
	CUstream captured, other;

	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	TRY(cuMemcpyDtoDAsync(weights[1], weights[0], MiB, other));
	TRY(cuStreamSynchronize(other));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	victim_go_round(stream, 100 * MiB, 100);
	victim_end_capture(captured);
	puts("round");
}

/* Many times the memory that the device has, that of `ctx[0]`. */
static void fill_often(CUstream stream, int rounds)
{
	CUdeviceptr filled[7];
	size_t free_bytes, total;

	for (int i = 0; i < rounds; i++) {
		TRY(cuMemGetInfo(&free_bytes, &total));
		for (int j = 0; j < 7; j++) {
			filled[j] = victim_alloc(total / 10 + (size_t)i * MiB);
			TRY(cuMemsetD8Async(filled[j], i, MiB, stream));
		}
		TRY(cuStreamSynchronize(stream));
		for (int j = 0; j < 7; j++)
			victim_free(filled[j]);
	}
}

/* By device 1, of memory of device 0, in each way. */
static void copy_and_set(CUstream stream)
{
	TRY(cuMemcpyDtoDAsync(weights[1], weights[0], MiB, stream));
	TRY(cuMemsetD8Async(weights[0], 1, MiB, stream));
	TRY(cuMemcpyPeerAsync(weights[1], ctx[1], weights[0], ctx[0], MiB,
			      stream));
}

/* The kernel of step `i` waits while memory of the other device goes round. */
static void meet(CUstream stream, CUstream other, int i, int rounds)
{
	CUdeviceptr at = met_at + (unsigned)i * sizeof(*is_met);
	void *arguments[] = {&at};

	TRY(cuCtxSetCurrent(ctx[1]));
	victim_launch(spin, other, arguments);
	TRY(cuCtxSetCurrent(ctx[0]));
	fill_often(stream, rounds);
	is_met[i] = 1;
	TRY(cuStreamSynchronize(other));
}

static void wait_later(CUstream stream, const char *how)
{
	bool is_in_steps = strcmp(how, "later") != 0;
	CUstream other, copying;

	TRY(cuCtxSetCurrent(ctx[1]));
	TRY(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	copying = strcmp(how, "default") ? other : CU_STREAM_LEGACY;
	copy_and_set(other);
	TRY(cuStreamSynchronize(other));
	TRY(cuCtxSetCurrent(ctx[0]));
	fill_often(stream, 4);
	meet(stream, other, 0, 12);
	for (int i = 1; is_in_steps && i < STEPS; i++) {
		TRY(cuCtxSetCurrent(ctx[1]));
		copy_and_set(copying);
		meet(stream, other, i, 2);
	}
	puts(how);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	CUstream stream;

	is_capturing = argc > 1 && !strcmp(argv[1], "captured");
	for (int i = 0; i < 2; i++) {
		ctx[i] = victim_start(i);
		weights[i] = victim_alloc(MiB);
	}
	spin = victim_kernel("vs_spin_flag");
	TRY(cuCtxEnablePeerAccess(ctx[0], 0));
	TRY(cuCtxSetCurrent(ctx[0]));
	TRY(cuMemHostAlloc((void **)&is_met, STEPS * sizeof(*is_met),
			   CU_MEMHOSTALLOC_DEVICEMAP |
				   CU_MEMHOSTALLOC_PORTABLE));
	TRY(cuMemHostGetDevicePointer(&met_at, (void *)is_met, 0));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (argc > 1 && !strcmp(argv[1], "rounds")) {
		go_round(stream);
		return 0;
	}
	if (argc > 1 && !is_capturing) {
		wait_later(stream, argv[1]);
		return 0;
	}
	pthread_barrier_init(&barrier, NULL, 2);
	CHECK(pthread_create(&thread, NULL, be_device_1, NULL) == 0);
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 12; i++) {
		CUdeviceptr p = victim_alloc(32 * MiB);

		TRY(cuMemsetD8Async(p, i, MiB, stream));
		victim_free(p);
	}
	TRY(cuLaunchHostFunc(stream, come, NULL));
	TRY(cuStreamSynchronize(stream));
	CHECK(pthread_join(thread, NULL) == 0);
	puts("met");
	return 0;
}
