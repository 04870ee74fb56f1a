/* SPDX-License-Identifier: MIT
 *
 * runtime_ask: what the runtime says of memory.
 */
#include "runtime.h"

/* The thin runtime of the simulator has none. */
__typeof__(cudaMemAdvise) cudaMemAdvise __attribute__((weak));
__typeof__(cudaMemPrefetchAsync) cudaMemPrefetchAsync __attribute__((weak));

static void show(const char *what, const void *p, const struct block *b)
{
	if (p)
		printf(" %s %+td", what, (const char *)p - b->bytes);
	else
		printf(" no %s", what);
}

/* Of some place in it. */
void op_attributes(void)
{
	struct block *b = some_block(is_any);
	struct cudaPointerAttributes a;
	void *mapped = NULL;
	size_t at;

	if (!b)
		return;
	at = chance((uint32_t)b->size);
	printf("+%zu", at);
	if (say(cudaPointerGetAttributes(&a, b->bytes + at)) == cudaSuccess) {
		printf(" %d %d", (int)a.type, a.device);
		show("device", a.devicePointer, b);
		show("host", a.hostPointer, b);
	}
	if (chance(3) == 0 &&
	    also("mapped", cudaHostGetDevicePointer(&mapped, b->bytes, 0)) ==
		    cudaSuccess)
		show("device", mapped, b);
}

/* How much is free is a matter of steps and of time. */
void op_info(void)
{
	size_t bytes = 0, total = 0, live = 0;

	for (const struct block *b = blocks; b < blocks + N_BLOCKS; b++)
		if (is_linear(b) && b->device == current())
			live += b->size;
	if (say(cudaMemGetInfo(&bytes, &total)) == cudaSuccess)
		printf(" %d %d", bytes > 0, bytes + live <= total);
}

void op_ipc(void)
{
	struct block *b = some_block(is_linear);
	cudaIpcMemHandle_t handle;
	void *p;

	/* whether a capture or the handle is looked at first is nowhere said */
	if (!b || !no_captures() ||
	    say(cudaIpcGetMemHandle(&handle,
				    b->bytes + chance((uint32_t)b->size))) !=
		    cudaSuccess)
		return;
	also("open",
	     cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess));
	also("close", cudaIpcCloseMemHandle(b->bytes));
}

void op_advise(void)
{
	struct block *b = some_block(is_advised);
	struct cudaMemLocation here = {.type = cudaMemLocationTypeDevice};
	struct stream *s = some_stream();
	struct action a;

	if (!b || !s || s->capture || !cudaMemAdvise || !cudaMemPrefetchAsync)
		return;
	here.id = b->device;
	say(cudaMemAdvise(b->bytes, b->size, cudaMemAdviseSetReadMostly, here));
	say(cudaMemAdvise(b->bytes, b->size, cudaMemAdviseUnsetReadMostly,
			  here));
	a = set_of(b, 0, 0, 0, 1);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 cudaMemPrefetchAsync(b->bytes, b->size, here, 0,
					      name_of(s)));
}
