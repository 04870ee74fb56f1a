/* SPDX-License-Identifier: MIT
 *
 * victim_async: memory of cuMemAlloc freed by cuMemFreeAsync and the reverse,
 * and managed memory beside them.
 */
#include "victim_link.h"

#define SIZE (MiB + 100)

/* Without a context, while another stream is captured. */
static void beside_capture(CUcontext ctx, CUstream stream)
{
	CUdeviceptr p = victim_alloc(SIZE);
	CUstream captured;

	TRY(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	TRY(cuCtxSetCurrent(NULL));
	sim_client_note_free((void *)(uintptr_t)p);
	printf("beside a capture: %s\n",
	       victim_name(cuMemFreeAsync(p, stream)));
	TRY(cuCtxSetCurrent(ctx));
	victim_end_capture(captured);
	TRY(cuStreamDestroy(captured));
}

int main(void)
{
	CUcontext ctx;
	CUstream stream;
	CUdeviceptr p, q, managed;
	bool is_good = true;

	ctx = victim_start(0);
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	TRY(cuMemAllocManaged(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
	TRY(cuMemsetD8(managed, 9, SIZE));
	for (int i = 0; i < 60; i++) {
		p = victim_alloc(SIZE);
		TRY(cuMemAllocAsync(&q, SIZE, stream));
		TRY(cuMemsetD8Async(p, (unsigned char)i, SIZE, stream));
		TRY(cuMemcpyDtoDAsync(q, p, SIZE, stream));
		sim_client_note_free((void *)(uintptr_t)p);
		TRY(cuMemFreeAsync(p, stream));
		TRY(cuStreamSynchronize(stream));
		is_good = is_good && victim_is_filled(q, SIZE, i);
		TRY(cuMemFree(q));
	}
	printf("data %s\n", is_good ? "good" : "bad");
	p = victim_alloc(SIZE);
	printf("its middle: %s", victim_name(cuMemFree(p + 512)));
	printf(" %s\n", victim_name(cuMemFreeAsync(p + 512, stream)));
	/* without a context: its stream has one, the default stream has not */
	TRY(cuMemAllocAsync(&q, SIZE, stream));
	TRY(cuCtxSetCurrent(NULL));
	printf("no context: %s", victim_name(cuMemFreeAsync(p, NULL)));
	sim_client_note_free((void *)(uintptr_t)p);
	printf(" %s", victim_name(cuMemFreeAsync(p, stream)));
	printf(" %s\n", victim_name(cuMemFreeAsync(q, stream)));
	TRY(cuCtxSetCurrent(ctx));
	beside_capture(ctx, stream);
	printf("managed: %d\n", victim_is_filled(managed, SIZE, 9));
	TRY(cuMemFree(managed));
	TRY(cuStreamDestroy(stream));
	return 0;
}
