/* SPDX-License-Identifier: MIT
 *
 * memory: the calls that make memory and free it.
 */
#include "sequence.h"

CUmemoryPool pool;

void make_pool(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location.type = CU_MEM_LOCATION_TYPE_DEVICE};

	TRY(cuMemPoolCreate(&pool, &props));
}

/* ---- allocations -------------------------------------------------------- */

/*
 * Fresh memory of cuMemAlloc holds what was there before (README.md, Limits:
 * the driver's reads as zero), so all is set first.
 */
static void fill(struct block *b, struct stream *s)
{
	struct action a = set_of(b, 0, b->size, chance(256), 1);

	if (s && is_linear(b) && b->ctx != owner(s->ctx))
		s = null_stream();
	if (!s || !begin_work(s, &a, 1))
		return;
	end_work(s, &a, 1,
		 cuMemsetD8Async(b->p, (unsigned char)a.value, b->size,
				 name_of(s)));
}

void op_alloc(void)
{
	size_t size = some_size();
	CUdeviceptr p = 0;

	if (!has_room(size) || say(cuMemAlloc(&p, size)) != CUDA_SUCCESS)
		return;
	fill(new_block(LINEAR, p, size), some_stream());
}

void op_alloc_pitch(void)
{
	size_t width = 1 + chance(2000), height = 1 + chance(300), pitch = 0;
	CUdeviceptr p = 0;

	printf(" %zu x", width);
	if (!has_room((width + 511) / 512 * 512 * height) ||
	    say(cuMemAllocPitch(&p, &pitch, width, height, 4)) != CUDA_SUCCESS)
		return;
	printf(" pitch %zu", pitch);
	fill(new_block(PITCHED, p, pitch * height), some_stream());
}

static void alloc_in_stream(enum kind kind)
{
	struct stream *s = some_stream();
	size_t size = some_size();
	CUdeviceptr p = 0;
	CUresult result;

	/* a graph's are made and freed within it, see op_capture_alloc */
	if (!s || s->capture || current() < 0 ||
	    contexts[s->ctx].device != contexts[PRIMARY].device ||
	    !has_room(size))
		return;
	result = kind == ASYNC
			 ? cuMemAllocAsync(&p, size, name_of(s))
			 : cuMemAllocFromPoolAsync(&p, size, pool, name_of(s));
	if (say(result) == CUDA_SUCCESS)
		fill(new_block(kind, p, size), s);
}

void op_alloc_async(void)
{
	alloc_in_stream(ASYNC);
}

void op_alloc_pooled(void)
{
	alloc_in_stream(POOLED);
}

void op_alloc_managed(void)
{
	size_t size = 1 + chance(64 * KiB);
	CUdeviceptr p = 0;

	if (has_room(size) &&
	    say(cuMemAllocManaged(&p, size, CU_MEM_ATTACH_GLOBAL)) ==
		    CUDA_SUCCESS)
		fill(new_block(MANAGED, p, size), null_stream());
}

void op_alloc_host(void)
{
	size_t size = 1 + chance(256 * KiB);
	void *p = NULL;

	if (has_room(size) && say(cuMemHostAlloc(&p, size, 0)) == CUDA_SUCCESS)
		set_by_host(new_block(HOST, (CUdeviceptr)(uintptr_t)p, size));
}

void op_alloc_nothing(void)
{
	CUdeviceptr p = 7;
	size_t pitch = 7;

	if (!harms_no_capture())
		return;
	also("alloc", cuMemAlloc(&p, 0));
	also("alloc", cuMemAlloc(NULL, 64));
	also("pitch", cuMemAllocPitch(&p, &pitch, 0, 4, 4));
	also("pitch", cuMemAllocPitch(&p, &pitch, 4, 4, 3));
	printf(" %d", p == 0);
}

void op_alloc_too_much(void)
{
	CUdeviceptr p = 7;
	size_t pitch;

	if (!harms_no_capture())
		return;
	also("alloc", cuMemAlloc(&p, (size_t)1 << (50 + chance(12))));
	also("alloc", cuMemAlloc(&p, SIZE_MAX - chance(1000)));
	also("pitch",
	     cuMemAllocPitch(&p, &pitch, (size_t)1 << 40, (size_t)1 << 40, 4));
	printf(" %d", p == 0);
}

/* ---- frees ------------------------------------------------------------- */

/*
 * Not without a context: there the simulator frees, where an H200 and the shim
 * do not (tests/e2e/golden.test). Of what is not of cuMemAlloc a free does not
 * wait.
 */
void op_free(void)
{
	struct block *b = some_block(is_ours);
	CUresult result;

	if (!b || current() < 0 || !harms_no_capture() ||
	    (!is_linear(b) && !settle(b)))
		return;
	if (b->kind == HOST)
		result = cuMemFreeHost(pointer(b->p));
	else
		result = cuMemFree(b->p);
	if (say(result) == CUDA_SUCCESS)
		forget_block(b);
}

void op_free_async(void)
{
	struct block *b = some_block(is_free_in_stream);
	struct stream *s = some_stream();
	struct action a;

	if (!b || !s || s->capture || current() < 0 || !harms_no_capture())
		return;
	a = set_of(b, 0, 0, 0, 1);
	if (begin_work(s, &a, 1) &&
	    say(cuMemFreeAsync(b->p, name_of(s))) == CUDA_SUCCESS)
		forget_block(b);
}

/* What is nobody's just after, as no allocation came between. */
void op_free_twice(void)
{
	struct block *b = some_block(is_linear);
	CUipcMemHandle ipc;
	CUdeviceptr p, base;
	size_t size;
	int type;

	if (!b || current() < 0 || !harms_no_capture())
		return;
	p = b->p;
	if (say(cuMemFree(p)) != CUDA_SUCCESS)
		return;
	forget_block(b);
	also("free", cuMemFree(p));
	also("attribute",
	     cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	also("range", cuMemGetAddressRange(&base, &size, p));
	also("ipc", cuIpcGetMemHandle(&ipc, p));
}

void op_free_inside(void)
{
	struct block *b = some_block(is_linear);

	if (!b || current() < 0 || !harms_no_capture())
		return;
	also("free", cuMemFree(b->p + 1 + chance((uint32_t)b->size)));
	also("free", cuMemFree((CUdeviceptr)(uintptr_t)b));
	also("free host", cuMemFreeHost(pointer(b->p)));
}

void op_free_null(void)
{
	if (!harms_no_capture())
		return;
	say(cuMemFree(0));
	also("free host", cuMemFreeHost(NULL));
}
