/* SPDX-License-Identifier: MIT
 *
 * ask: what the driver says of memory.
 */
#include <unistd.h>

#include "sequence.h"

static void show_context(CUcontext ctx)
{
	int i = 0;

	while (i < N_CTX && contexts[i].handle != ctx)
		i++;
	printf(i < N_CTX && ctx ? " c%d" : " none", i);
}

/* How a pool's memory lies is a matter of time. */
static bool is_asked(const struct block *b)
{
	return is_linear(b) || b->kind == MANAGED || b->kind == HOST;
}

/* As an offset, or as itself where it names nothing of this run. */
static void show(CUpointer_attribute what, uint64_t value, struct block *b)
{
	switch (what) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		show_context((CUcontext)(uintptr_t)value);
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		printf(" %+" PRId64, (int64_t)(value - b->p));
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		printf(b->id == value ? " same" : b->id ? " other" : " new");
		b->id = value;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		printf(value ? " some" : " none");
		break;
	default:
		printf(" %" PRIu64, value);
	}
}

/* As of CUDA 12.5. */
#define LAST_ATTRIBUTE CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID

/* Of some place in it. */
void op_attributes(void)
{
	struct block *b = some_block(is_asked);
	uint64_t value;
	size_t at;

	if (!b)
		return;
	at = chance((uint32_t)b->size);
	printf("+%zu", at);
	for (int a = 1; a <= LAST_ATTRIBUTE; a++) {
		CUpointer_attribute what = (CUpointer_attribute)a;

		if (what == CU_POINTER_ATTRIBUTE_P2P_TOKENS || chance(3) > 0)
			continue;
		value = 0;
		printf(" %d", a);
		if (say(cuPointerGetAttribute(&value, what, b->p + at)) ==
		    CUDA_SUCCESS)
			show(what, value, b);
	}
}

void op_range(void)
{
	struct block *b = some_block(is_asked);
	CUdeviceptr base = 0;
	size_t size = 0, at;

	if (!b)
		return;
	/* what is left of its last 512 bytes is nobody's */
	at = chance((uint32_t)(is_linear(b) ? (b->size + 511) / 512 * 512
					    : b->size));
	printf("+%zu", at);
	if (say(cuMemGetAddressRange(&base, &size, b->p + at)) == CUDA_SUCCESS)
		printf(" %+" PRId64 " %zu", (int64_t)(base - b->p), size);
}

/* How much is free is a matter of steps and of time. */
void op_info(void)
{
	size_t bytes = 0, total = 0, live = 0;
	int here = current();

	for (const struct block *b = blocks; b < blocks + N_BLOCKS; b++)
		if (is_linear(b) && here >= 0 &&
		    contexts[b->ctx].device == contexts[here].device)
			live += b->size;
	if (say(cuMemGetInfo(&bytes, &total)) == CUDA_SUCCESS)
		printf(" %d %d", bytes > 0, bytes + live <= total);
}

void op_handles(void)
{
	struct block *b = some_block(is_linear);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr pages;
	size_t size;
	int fd = -1;

	if (!b)
		return;
	/* whole pages, wherever it begins; none of a small one */
	pages = (b->p + 64 * KiB - 1) / (64 * KiB) * (64 * KiB);
	size = b->size < 128 * KiB ? 0 : 64 * KiB;
	say(cuMemRetainAllocationHandle(&handle, pointer(b->p)));
	if (also("fd", cuMemGetHandleForAddressRange(
			       &fd, pages, size,
			       CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0)) ==
	    CUDA_SUCCESS)
		close(fd);
}

void op_ipc(void)
{
	struct block *b = some_block(is_linear);
	CUipcMemHandle handle;
	CUdeviceptr p;

	/* whether a capture or the handle is looked at first is nowhere said */
	if (!no_captures())
		return;
	if (!b ||
	    say(cuIpcGetMemHandle(&handle, b->p + chance((uint32_t)b->size))) !=
		    CUDA_SUCCESS)
		return;
	also("open", cuIpcOpenMemHandle(&p, handle,
					CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	also("close", cuIpcCloseMemHandle(b->p));
}

void op_sync_memops(void)
{
	struct block *b = some_block(is_linear);
	unsigned value = 1;

	if (b && harms_no_capture())
		say(cuPointerSetAttribute(
			&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b->p));
}

void op_advise(void)
{
	struct block *b = some_block(is_advised);
	struct stream *s = some_stream();
	CUresult(CUDAAPI * advise)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
	CUresult(CUDAAPI * fetch)(CUdeviceptr, size_t, CUdevice, CUstream);
	CUdevice d = contexts[PRIMARY].device;
	struct action a;

	*(void **)&advise = find("cuMemAdvise", 8000);
	*(void **)&fetch = find("cuMemPrefetchAsync", 8000);
	if (!b || !s || s->capture || !advise || !fetch)
		return;
	say(advise(b->p, b->size, CU_MEM_ADVISE_SET_READ_MOSTLY, d));
	say(advise(b->p, b->size, CU_MEM_ADVISE_UNSET_READ_MOSTLY, d));
	a = set_of(b, 0, 0, 0, 1);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1, fetch(b->p, b->size, d, name_of(s)));
}

/* A wait for what is so already. */
void op_stream_value(void)
{
	struct block *b = some_block(is_linear);
	struct stream *s = some_stream();
	CUresult(CUDAAPI * write)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
	CUresult(CUDAAPI * wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
	struct action a;
	CUdeviceptr p;

	*(void **)&write = find("cuStreamWriteValue32", 11070);
	*(void **)&wait = find("cuStreamWaitValue32", 11070);
	if (!b || !s || s->capture || b->size < 4 || !write || !wait)
		return;
	a = set_of(b, chance((uint32_t)b->size / 4) * 4, 4, chance(1000), 4);
	p = b->p + a.dst.at;
	if (!begin_work(s, &a, 1))
		return;
	end_work(s, &a, 1, write(name_of(s), p, a.value, 0));
	say(wait(name_of(s), p, 0, CU_STREAM_WAIT_VALUE_GEQ));
}
