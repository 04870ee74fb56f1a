/* SPDX-License-Identifier: MIT
 *
 * copies: copies of all kinds, within the memory.
 */
#include "sequence.h"

/* By the call that names both ends, if there is one. */
static CUresult copy_named(const struct action *a, bool is_async, CUstream s)
{
	const struct block *to = &blocks[a->to], *from = &blocks[a->from];
	CUdeviceptr d = to->p + a->dst.at, f = from->p + a->src.at;
	size_t n = a->width;

	if (is_host(to) && is_host(from))
		return is_async ? cuMemcpyAsync(d, f, n, s) : cuMemcpy(d, f, n);
	if (is_host(to))
		return is_async ? cuMemcpyDtoHAsync(pointer(d), f, n, s)
				: cuMemcpyDtoH(pointer(d), f, n);
	if (is_host(from))
		return is_async ? cuMemcpyHtoDAsync(d, pointer(f), n, s)
				: cuMemcpyHtoD(d, pointer(f), n);
	return is_async ? cuMemcpyDtoDAsync(d, f, n, s) : cuMemcpyDtoD(d, f, n);
}

static CUresult copy_so(unsigned how, const struct action *a, CUstream s)
{
	CUdeviceptr d = blocks[a->to].p + a->dst.at;
	CUdeviceptr f = blocks[a->from].p + a->src.at;

	switch (how) {
	case 0:
		return cuMemcpyAsync(d, f, a->width, s);
	case 1:
		return cuMemcpy(d, f, a->width);
	default:
		return copy_named(a, how == 2, s);
	}
}

void op_copy(void)
{
	unsigned how = chance(4);
	struct stream *s = how % 2 ? null_stream() : some_stream();
	struct block *to, *from;
	struct action a;

	if (!two_blocks(&to, &from, is_ours, is_any) || !s)
		return;
	a = some_copy(to, from);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1, copy_so(how, &a, name_of(s)));
}

/* ---- rows and planes ---------------------------------------------------- */

/* In `a`, and as the driver takes it. */
static CUDA_MEMCPY3D some_box(struct block *to, struct block *from,
			      size_t depth, struct action *a)
{
	size_t to_rows, from_rows;
	CUDA_MEMCPY3D c;

	*a = some_planes(to, from, depth, &to_rows, &from_rows);
	c = (CUDA_MEMCPY3D){.srcMemoryType = is_host(from)
						     ? CU_MEMORYTYPE_HOST
						     : CU_MEMORYTYPE_DEVICE,
			    .srcHost = pointer(from->p + a->src.at),
			    .srcDevice = from->p + a->src.at,
			    .srcPitch = a->src.pitch,
			    .srcHeight = from_rows,
			    .dstMemoryType = is_host(to) ? CU_MEMORYTYPE_HOST
							 : CU_MEMORYTYPE_DEVICE,
			    .dstHost = pointer(to->p + a->dst.at),
			    .dstDevice = to->p + a->dst.at,
			    .dstPitch = a->dst.pitch,
			    .dstHeight = to_rows,
			    .WidthInBytes = a->width,
			    .Height = a->height,
			    .Depth = a->depth};
	if (chance(3) == 0 && !is_host(from))
		c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
	return c;
}

static CUDA_MEMCPY2D flat(const CUDA_MEMCPY3D *c)
{
	return (CUDA_MEMCPY2D){.srcMemoryType = c->srcMemoryType,
			       .srcHost = c->srcHost,
			       .srcDevice = c->srcDevice,
			       .srcPitch = c->srcPitch,
			       .dstMemoryType = c->dstMemoryType,
			       .dstHost = c->dstHost,
			       .dstDevice = c->dstDevice,
			       .dstPitch = c->dstPitch,
			       .WidthInBytes = c->WidthInBytes,
			       .Height = c->Height};
}

static void copy_box(size_t depth)
{
	bool is_async = chance(2);
	struct stream *s = is_async ? some_stream() : null_stream();
	struct block *to, *from;
	CUDA_MEMCPY2D rows;
	CUDA_MEMCPY3D c;
	struct action a;
	CUresult result;

	if (!two_blocks(&to, &from, is_ours, is_any) || !s)
		return;
	c = some_box(to, from, depth, &a);
	rows = flat(&c);
	if (!begin_work(s, &a, 1))
		return;
	if (depth > 1)
		result = is_async ? cuMemcpy3DAsync(&c, name_of(s))
				  : cuMemcpy3D(&c);
	else
		result = is_async ? cuMemcpy2DAsync(&rows, name_of(s))
				  : cuMemcpy2DUnaligned(&rows);
	end_work(s, &a, 1, result);
}

void op_copy_2d(void)
{
	copy_box(1);
}

void op_copy_3d(void)
{
	copy_box(2 + chance(3));
}

/*
 * What a peer copy names for memory: its context, as it should, or another, or
 * none. It makes no difference to the driver (an H100; two H200).
 */
static CUcontext named_for(const struct block *b)
{
	int other = (int)chance(N_CTX + 1);

	if (chance(2))
		return contexts[b->ctx].handle;
	if (other == N_CTX) {
		printf(" unnamed");
		return NULL;
	}
	if (contexts[other].handle) {
		printf(" by c%d", other);
		return contexts[other].handle;
	}
	return contexts[b->ctx].handle;
}

void op_copy_peer(void)
{
	bool is_async = chance(2);
	struct stream *s = is_async ? some_stream() : null_stream();
	struct block *to, *from;
	CUcontext c, d;
	struct action a;
	CUdeviceptr p, q;

	if (!two_blocks(&to, &from, is_linear, is_linear) || !s)
		return;
	a = some_copy(to, from);
	p = to->p + a.dst.at;
	q = from->p + a.src.at;
	c = named_for(to);
	d = named_for(from);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 is_async ? cuMemcpyPeerAsync(p, c, q, d, a.width,
						      name_of(s))
				  : cuMemcpyPeer(p, c, q, d, a.width));
}

/* ---- batches ------------------------------------------------------------ */

#if CUDA_VERSION >= 12080
typedef CUresult(CUDAAPI *batch_fn)(CUdeviceptr *, CUdeviceptr *, size_t *,
				    size_t, CUmemcpyAttributes *, size_t *,
				    size_t, CUstream);
typedef CUresult(CUDAAPI *older_boxes_fn)(size_t, CUDA_MEMCPY3D_BATCH_OP *,
					  size_t *, unsigned long long,
					  CUstream);
typedef CUresult(CUDAAPI *boxes_fn)(size_t, CUDA_MEMCPY3D_BATCH_OP *,
				    unsigned long long, CUstream);

/*
 * In a green context's stream the driver crashes in other memory (README.md,
 * "emulated: green contexts"), and the simulator says so of captured ones, too,
 * which the driver refuses. Between devices that cannot be peers the shim
 * refuses one (README.md, Limits).
 */
static bool may_batch(const struct stream *s, const struct block *to,
		      const struct block *from)
{
	CUdevice d = contexts[s->ctx].device;

	return contexts[to->ctx].device == d &&
	       contexts[from->ctx].device == d &&
	       (s->ctx != GREEN ||
		(is_linear(to) && is_linear(from) && !s->capture));
}

/* That of 12.8 says which copy failed. */
static CUresult copy_batch(const struct action *actions, size_t n, CUstream s)
{
	CUmemcpyAttributes how = {.srcAccessOrder =
					  CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	bool is_older = chance(2);
	CUdeviceptr to[3], from[3];
	size_t sizes[3], first = 0, failed = 77;
	void *call = find("cuMemcpyBatchAsync", is_older ? 12080 : 13000);
	CUresult result;

	for (size_t i = 0; i < n; i++) {
		to[i] = blocks[actions[i].to].p + actions[i].dst.at;
		from[i] = blocks[actions[i].from].p + actions[i].src.at;
		sizes[i] = actions[i].width;
	}
	if (!call)
		return CUDA_ERROR_NOT_FOUND;
	if (!is_older)
		return ((batch_fn)call)(to, from, sizes, n, &how, &first, 1, s);
	result = ((victim_older_batch_fn)call)(to, from, sizes, n, &how, &first,
					       1, &failed, s);
	if (result != CUDA_SUCCESS)
		printf(" failed %zd", (ssize_t)failed);
	return result;
}

/* No order among them: each has blocks of its own. */
void op_copy_batch(void)
{
	struct stream *s = some_stream();
	struct block *to, *from;
	struct action actions[3];
	bool is_used[N_BLOCKS] = {false}, *t, *f;
	int n = 0;

	for (uint32_t i = 1 + chance(3); i > 0; i--) {
		if (!two_blocks(&to, &from, is_ours, is_ours) || !s ||
		    !may_batch(s, to, from))
			continue;
		t = &is_used[to - blocks];
		f = &is_used[from - blocks];
		if (!*t && !*f)
			actions[n++] = some_copy(to, from);
		*t = *f = true;
	}
	if (n > 0 && begin_work(s, actions, n))
		end_work(s, actions, n,
			 copy_batch(actions, (size_t)n, name_of(s)));
}

static CUmemcpy3DOperand operand(const struct block *b, const struct place *at)
{
	CUmemcpy3DOperand o = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER};

	o.op.ptr.ptr = b->p + at->at;
	o.op.ptr.rowLength = at->pitch;
	o.op.ptr.layerHeight = at->slice / at->pitch;
	return o;
}

void op_copy_batch_3d(void)
{
	bool is_older = chance(2);
	struct stream *s = some_stream();
	CUDA_MEMCPY3D_BATCH_OP c = {.srcAccessOrder =
					    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	void *call = find("cuMemcpy3DBatchAsync", is_older ? 12080 : 13000);
	struct block *to, *from;
	struct action a;
	size_t failed = 77;

	if (!two_blocks(&to, &from, is_ours, is_ours) || !s ||
	    !may_batch(s, to, from) || !call)
		return;
	some_box(to, from, 1 + chance(2), &a);
	c.src = operand(from, &a.src);
	c.dst = operand(to, &a.dst);
	c.extent = (CUextent3D){a.width, a.height, a.depth};
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 is_older ? ((older_boxes_fn)call)(1, &c, &failed, 0,
							   name_of(s))
				  : ((boxes_fn)call)(1, &c, 0, name_of(s)));
}
#else
void op_copy_batch(void)
{
}

void op_copy_batch_3d(void)
{
}
#endif
