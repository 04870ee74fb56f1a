/* SPDX-License-Identifier: MIT
 *
 * work: sets, kernels and reads, and what runs past an end.
 */
#include "sequence.h"

/* ---- past the end ------------------------------------------------------- */

/* Nothing else is wrong with the call. */
static bool is_plain(const struct stream *s)
{
	return s && s->ctx == current() && !(IS_PER_THREAD && s->ctx == GREEN);
}

/* Where the driver refuses it, and the shim too; not so in a created stream by
 * a thread without a context (README.md, Limits). Beside a capture the driver
 * says first what that forbids (an H100), the shim what runs past an end. */
void op_copy_past(void)
{
	struct stream *s = some_stream();
	struct block *to = some_block(is_linear);
	size_t past = 1 + chance(64), n;
	CUdeviceptr end;

	if (!to || !is_plain(s) || !no_captures())
		return;
	n = to->size < 64 ? to->size : 64;
	end = to->p + to->size - n;
	printf(" %zu past", past);
	also("plain", cuMemcpyDtoD(end, to->p, n + past));
	also("async", cuMemcpyAsync(end, blocks[0].p, n + past, name_of(s)));
	also("from the host",
	     cuMemcpyHtoD(end, pointer(blocks[0].p), n + past));
	also("to the host", cuMemcpyDtoHAsync(pointer(blocks[0].p), end,
					      n + past, name_of(s)));
}

void op_set_past(void)
{
	struct stream *s = some_stream();
	struct block *b = some_block(is_linear);
	size_t past = 1 + chance(64);

	if (!b || !is_plain(s) || b->ctx != owner(s->ctx) || !no_captures())
		return;
	printf(" %zu past", past);
	also("plain", cuMemsetD8(b->p, 1, b->size + past));
	also("async",
	     cuMemsetD8Async(b->p + b->size - 1, 1, 1 + past, name_of(s)));
	also("rows", cuMemsetD2D8Async(b->p, b->size, 1, past, 2, name_of(s)));
}

/* ---- sets and kernels --------------------------------------------------- */

static CUresult set_so(const struct action *a, bool is_async, CUstream s)
{
	CUdeviceptr p = blocks[a->to].p + a->dst.at;
	size_t n = a->width / a->unit;
	unsigned short half = (unsigned short)a->value;
	unsigned char byte = (unsigned char)a->value;

	if (a->unit == 1)
		return is_async ? cuMemsetD8Async(p, byte, n, s)
				: cuMemsetD8(p, byte, n);
	if (a->unit == 2)
		return is_async ? cuMemsetD16Async(p, half, n, s)
				: cuMemsetD16(p, half, n);
	return is_async ? cuMemsetD32Async(p, a->value, n, s)
			: cuMemsetD32(p, a->value, n);
}

void op_set(void)
{
	unsigned unit = 1u << chance(3);
	bool is_async = chance(3) > 0;
	struct stream *s = is_async ? some_stream() : null_stream();
	struct block *b = some_block(is_device);
	struct action a;

	if (!b || !s || b->size < unit)
		return;
	a = some_set(b, unit);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1, set_so(&a, is_async, name_of(s)));
}

void op_set_2d(void)
{
	bool is_async = chance(2);
	struct stream *s = is_async ? some_stream() : null_stream();
	struct block *b = some_block(is_device);
	unsigned char byte = (unsigned char)chance(256);
	struct action a;
	CUdeviceptr p;
	size_t rows;

	if (!b || !s)
		return;
	a = set_of(b, 0, 1 + chance(b->size < 900 ? (uint32_t)b->size : 900),
		   byte, 1);
	a.height = 1 + chance((uint32_t)(b->size / a.width));
	a.dst = action_place(&a, b->size, &rows);
	p = b->p + a.dst.at;
	printf(" %zu x %zu", a.width, a.height);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 is_async ? cuMemsetD2D8Async(p, a.dst.pitch, byte,
						      a.width, a.height,
						      name_of(s))
				  : cuMemsetD2D8(p, a.dst.pitch, byte, a.width,
						 a.height));
}

static bool has_kernel(int ctx)
{
	CUmodule module;
	CUresult result;

	if (contexts[ctx].sleeper)
		return true;
	result = also("load", cuModuleLoadData(&module, vs_kernels_ptx));
	return result == CUDA_SUCCESS &&
	       cuModuleGetFunction(&contexts[ctx].sleeper, module,
				   "vs_sleep") == CUDA_SUCCESS;
}

/* Its own context is current, and the memory is that one's. */
void op_kernel(void)
{
	uint64_t ns = (uint64_t)chance(300) * 1000, words;
	struct stream *s = some_stream();
	struct block *b = some_block(is_device);
	struct action a;
	CUdeviceptr p;
	void *arguments[] = {&ns, &p, &a.value, &words};

	if (!b || !s || s->ctx == GREEN || s->ctx != current() ||
	    b->ctx != s->ctx || b->size < 4 || !has_kernel(s->ctx))
		return;
	a = some_set(b, 4);
	p = b->p + a.dst.at;
	words = a.width / 4;
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 cuLaunchKernel(contexts[s->ctx].sleeper, 4, 1, 1, 64,
					1, 1, 0, name_of(s), arguments, NULL));
}

bool read_bytes(const struct block *b, void *data, size_t at, size_t size)
{
	return say(cuMemcpyDtoH(data, b->p + at, size)) == CUDA_SUCCESS;
}
