/* SPDX-License-Identifier: MIT
 *
 * runtime_work: sets, kernels and reads.
 */
#include "runtime.h"

#include "../sim/kernels_ptx.h"

static CUfunction sleepers[MOST_DEVICES]; /* NULL: not loaded */

/* ---- sets --------------------------------------------------------------- */

void op_set(void)
{
	bool is_async = chance(3) > 0;
	struct stream *s = is_async ? some_stream() : null_stream();
	struct block *b = some_block(is_device);
	struct action a;
	char *p;

	if (!b || !s)
		return;
	a = some_set(b, 1);
	p = b->bytes + a.dst.at;
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 is_async ? cudaMemsetAsync(p, (int)a.value, a.width,
						    name_of(s))
				  : cudaMemset(p, (int)a.value, a.width));
}

/* Some rows and planes of it; how many rows a plane has. */
static struct action some_rows(struct block *b, size_t depth, size_t *rows)
{
	uint32_t most = (uint32_t)(b->size / depth);
	struct action a = set_of(b, 0, 1 + chance(most < 900 ? most : 900),
				 chance(256), 1);

	a.depth = depth;
	a.height = 1 + chance((uint32_t)(most / a.width));
	a.dst = action_place(&a, b->size, rows);
	printf(" %zu x %zu x %zu", a.width, a.height, depth);
	return a;
}

void op_set_2d(void)
{
	bool is_async = chance(2);
	struct stream *s = is_async ? some_stream() : null_stream();
	struct block *b = some_block(is_device);
	struct action a;
	size_t rows;
	char *p;

	if (!b || !s)
		return;
	a = some_rows(b, 1, &rows);
	p = b->bytes + a.dst.at;
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 is_async ? cudaMemset2DAsync(p, a.dst.pitch,
						      (int)a.value, a.width,
						      a.height, name_of(s))
				  : cudaMemset2D(p, a.dst.pitch, (int)a.value,
						 a.width, a.height));
}

/* What is as wide as `xsize` may be set with what lies between its rows. */
void op_set_3d(void)
{
	struct stream *s = null_stream();
	struct block *b = some_block(is_device);
	struct cudaPitchedPtr box;
	struct action a;
	size_t rows;

	if (!b || !s || b->size < 3)
		return;
	a = some_rows(b, 1 + chance(3), &rows);
	box = (struct cudaPitchedPtr){b->bytes + a.dst.at, a.dst.pitch,
				      a.dst.pitch, rows};
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 cudaMemset3D(box, (int)a.value,
				      (struct cudaExtent){a.width, a.height,
							  a.depth}));
}

/* Nothing else is wrong with the call, see op_copy_wrong. */
void op_set_wrong(void)
{
	struct stream *s = some_stream();
	struct block *b = some_block(is_linear);
	size_t past = 1 + chance(64);

	if (!b || !s || s->device != current() || b->device != current() ||
	    !no_captures())
		return;
	printf(" %zu past", past);
	also("plain", cudaMemset(b->bytes, 1, b->size + past));
	also("async",
	     cudaMemsetAsync(b->bytes + b->size - 1, 1, 1 + past, name_of(s)));
	also("rows", cudaMemset2D(b->bytes, b->size, 1, past, 2));
	also("nothing", cudaMemset(b->bytes, 1, 0));
	also("last", cudaGetLastError());
}

/* ---- kernels ------------------------------------------------------------ */

void forget_kernels(int device)
{
	sleepers[device] = NULL;
}

/* As the runtime says where the driver's own are. */
static void *find(const char *name, unsigned version)
{
	enum cudaDriverEntryPointQueryResult found;
	void *address = NULL;

	TRY(cudaGetDriverEntryPointByVersion(
		name, &address, version,
		IS_PER_THREAD ? cudaEnablePerThreadDefaultStream
			      : cudaEnableLegacyStream,
		&found));
	CHECK(address);
	return address;
}

static bool has_kernel(int device)
{
	CUresult(CUDAAPI * load)(CUmodule *, const void *);
	CUresult(CUDAAPI * get)(CUfunction *, CUmodule, const char *);
	CUmodule module;

	if (sleepers[device])
		return true;
	*(void **)&load = find("cuModuleLoadData", 2000);
	*(void **)&get = find("cuModuleGetFunction", 2000);
	return also("load", (cudaError_t)load(&module, vs_kernels_ptx)) ==
		       cudaSuccess &&
	       get(&sleepers[device], module, "vs_sleep") == CUDA_SUCCESS;
}

/* By the driver, in the runtime's context. */
void op_kernel(void)
{
	CUresult(CUDAAPI * launch)(CUfunction, unsigned, unsigned, unsigned,
				   unsigned, unsigned, unsigned, unsigned,
				   CUstream, void **, void **);
	uint64_t ns = (uint64_t)chance(300) * 1000, words;
	struct stream *s = some_stream();
	struct block *b = some_block(is_device);
	struct action a;
	char *p;
	void *arguments[] = {&ns, &p, &a.value, &words};

	if (!b || !s || s->device != current() || b->device != s->device ||
	    b->size < 4)
		return;
	TRY(cudaSetDevice(s->device)); /* so that its context is there */
	if (!has_kernel(s->device))
		return;
	*(void **)&launch = find("cuLaunchKernel", 7000);
	a = some_set(b, 4);
	p = b->bytes + a.dst.at;
	words = a.width / 4;
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 (cudaError_t)launch(sleepers[s->device], 4, 1, 1, 64,
					     1, 1, 0, name_of(s), arguments,
					     NULL));
}
