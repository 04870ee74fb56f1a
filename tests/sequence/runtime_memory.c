/* SPDX-License-Identifier: MIT
 *
 * runtime_memory: the calls that make memory and free it.
 */
#include "runtime.h"

/* ---- allocations -------------------------------------------------------- */

/*
 * Fresh memory of cudaMalloc holds what was there before (README.md, Limits:
 * the driver's reads as zero), so all is set first.
 */
static void fill(struct block *b, struct stream *s)
{
	struct action a = set_of(b, 0, b->size, chance(256), 1);

	if (s && b->device != s->device)
		s = null_stream();
	if (!s || !begin_work(s, &a, 1))
		return;
	end_work(s, &a, 1,
		 cudaMemsetAsync(b->bytes, (int)a.value, b->size, name_of(s)));
}

void op_alloc(void)
{
	size_t size = some_size();
	void *p = NULL;

	if (!has_room(size) || say(cudaMalloc(&p, size)) != cudaSuccess)
		return;
	fill(new_block(LINEAR, p, size), some_stream());
}

void op_alloc_pitch(void)
{
	size_t width = 1 + chance(2000), height = 1 + chance(300), pitch = 0;
	void *p = NULL;

	printf(" %zu x", width);
	if (!has_room((width + 511) / 512 * 512 * height) ||
	    say(cudaMallocPitch(&p, &pitch, width, height)) != cudaSuccess)
		return;
	printf(" pitch %zu", pitch);
	fill(new_block(PITCHED, p, pitch * height), some_stream());
}

void op_alloc_3d(void)
{
	struct cudaExtent extent = {1 + chance(900), 1 + chance(20),
				    1 + chance(9)};
	struct cudaPitchedPtr p = {0};

	printf(" %zu x %zu x", extent.width, extent.height);
	if (!has_room(1024 * extent.height * extent.depth) ||
	    say(cudaMalloc3D(&p, extent)) != cudaSuccess)
		return;
	printf(" pitch %zu x %zu", p.pitch, p.ysize);
	fill(new_block(PITCHED, p.ptr, p.pitch * extent.height * extent.depth),
	     some_stream());
}

void op_alloc_async(void)
{
	struct stream *s = some_stream();
	size_t size = some_size();
	void *p = NULL;

	/* a graph's: op_capture_alloc, op_graph_alloc */
	if (!s || s->capture || s->device != current() || !has_room(size))
		return;
	if (say(cudaMallocAsync(&p, size, name_of(s))) == cudaSuccess)
		fill(new_block(ASYNC, p, size), s);
}

void op_alloc_managed(void)
{
	size_t size = 1 + chance(64 * KiB);
	void *p = NULL;

	if (has_room(size) &&
	    say(cudaMallocManaged(&p, size, cudaMemAttachGlobal)) ==
		    cudaSuccess)
		fill(new_block(MANAGED, p, size), null_stream());
}

static cudaError_t make_registered(void **p, size_t size)
{
	cudaError_t result;

	*p = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
	CHECK(*p);
	result = cudaHostRegister(*p, size,
				  chance(2) ? cudaHostRegisterDefault
					    : cudaHostRegisterMapped);
	if (result != cudaSuccess)
		free(*p);
	return result;
}

void op_alloc_host(void)
{
	static const unsigned flags[] = {
		cudaHostAllocDefault, cudaHostAllocMapped,
		cudaHostAllocPortable, cudaHostAllocWriteCombined};
	size_t size = 1 + chance(256 * KiB);
	uint32_t how = chance(6);
	cudaError_t result;
	void *p = NULL;

	if (!has_room(size))
		return;
	if (how == 5)
		result = make_registered(&p, size);
	else
		result = how == 4 ? cudaMallocHost(&p, size)
				  : cudaHostAlloc(&p, size, flags[how]);
	printf(" how %u", how);
	if (say(result) == cudaSuccess)
		set_by_host(new_block(how == 5 ? REGISTERED : HOST, p, size));
}

/* Of bytes, filled from the constant block; the simulator's hold none. */
void op_alloc_array(void)
{
	struct cudaChannelFormatDesc bytes = {8, 0, 0, 0,
					      cudaChannelFormatKindUnsigned};
	size_t width = 1 + chance(700), height = 1 + chance(90);
	struct stream *s = null_stream();
	cudaArray_t array = NULL;
	cudaError_t result;
	struct block *b;
	struct action a;

	printf(" %zu x", width);
	if (!has_room(width * height) || !s || !no_captures() ||
	    say(cudaMallocArray(&array, &bytes, width, height, 0)) !=
		    cudaSuccess)
		return;
	b = new_block(ARRAY, NULL, width * height);
	b->array = array;
	b->width = width;
	a = copy_of(b, 0, &blocks[0], 0, b->size);
	result = cudaMemcpy2DToArray(array, 0, 0, blocks[0].bytes, width, width,
				     height, cudaMemcpyHostToDevice);
	b->is_known = result == cudaSuccess;
	end_work(s, &a, 1, result);
}

void op_alloc_nothing(void)
{
	struct cudaPitchedPtr box = {.ptr = (void *)7};
	void *p = (void *)7;
	size_t pitch = 7;

	if (!harms_no_capture())
		return;
	also("alloc", cudaMalloc(&p, 0));
	also("alloc", cudaMalloc(NULL, 64));
	printf(" %d", p == NULL);
	also("pitch", cudaMallocPitch(&p, &pitch, 0, 4));
	also("3d", cudaMalloc3D(&box, (struct cudaExtent){0, 2, 2}));
	printf(" %d %d", p == NULL, box.ptr == NULL);
}

void op_alloc_too_much(void)
{
	struct cudaExtent huge = {(size_t)1 << 30, 1 << 20, 1 << 10};
	struct cudaPitchedPtr box = {.ptr = (void *)7};
	void *p = (void *)7;
	size_t pitch;

	if (!harms_no_capture())
		return;
	also("alloc", cudaMalloc(&p, (size_t)1 << (50 + chance(12))));
	also("alloc", cudaMalloc(&p, SIZE_MAX - chance(1000)));
	also("pitch", cudaMallocPitch(&p, &pitch, (size_t)1 << 40, 1 << 20));
	also("3d", cudaMalloc3D(&box, huge));
	printf(" %d %d", p == NULL, box.ptr == NULL);
}

/* ---- frees -------------------------------------------------------------- */

static bool is_freed_here(const struct block *b)
{
	return b->kind != PAGEABLE &&
	       (b->kind != ARRAY || b->device == current());
}

/* Of what is not of cudaMalloc a free does not wait. */
void op_free(void)
{
	struct block *b = some_block(is_freed_here);

	if (b && harms_no_capture() && (is_linear(b) || settle(b)))
		free_block(b);
}

void op_free_async(void)
{
	struct block *b = some_block(is_free_in_stream);
	struct stream *s = some_stream();
	struct action a;

	if (!b || !s || s->capture || !harms_no_capture())
		return;
	a = set_of(b, 0, 0, 0, 1);
	if (begin_work(s, &a, 1) &&
	    say(cudaFreeAsync(b->bytes, name_of(s))) == cudaSuccess)
		forget_block(b);
}

/* What is nobody's just after, as no allocation came between. */
void op_free_twice(void)
{
	struct block *b = some_block(is_linear);
	struct cudaPointerAttributes a;
	cudaIpcMemHandle_t ipc;
	void *p;

	if (!b || !harms_no_capture())
		return;
	p = b->bytes;
	if (free_block(b) != cudaSuccess)
		return;
	also("free", cudaFree(p));
	also("peek", cudaPeekAtLastError());
	if (also("attributes", cudaPointerGetAttributes(&a, p)) == cudaSuccess)
		printf(" %d %d", (int)a.type, a.device);
	also("ipc", cudaIpcGetMemHandle(&ipc, p));
}

/* Pointers that are no allocation's, or another kind's. */
void op_free_wrong(void)
{
	struct block *b = some_block(is_linear);
	struct block *h = some_block(is_pinned);

	if (!harms_no_capture())
		return;
	also("host", cudaFree(blocks[0].bytes));
	also("pageable", cudaFreeHost(blocks[0].bytes));
	if (b) {
		also("inside",
		     cudaFree(b->bytes + 1 + chance((uint32_t)b->size)));
		also("as host", cudaFreeHost(b->bytes));
		also("register", cudaHostRegister(b->bytes, b->size, 0));
		also("unregister", cudaHostUnregister(b->bytes));
	}
	if (h && h->kind == REGISTERED && settle(h))
		if (also("registered", cudaFreeHost(h->bytes)) == cudaSuccess)
			forget_block(h);
	also("last", cudaGetLastError());
}

void op_free_null(void)
{
	if (!harms_no_capture())
		return;
	say(cudaFree(NULL));
	also("host", cudaFreeHost(NULL));
	also("array", cudaFreeArray(NULL));
}
