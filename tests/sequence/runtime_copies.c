/* SPDX-License-Identifier: MIT
 *
 * runtime_copies: copies of all kinds.
 */
#include "runtime.h"

/* Two that differ; false: there are none, which was said. */
static bool two_blocks(struct block **to, struct block **from,
		       bool (*to_fits)(const struct block *),
		       bool (*from_fits)(const struct block *))
{
	*to = some_block(to_fits);
	*from = some_block(from_fits);
	return *to && *from && *to != *from;
}

static bool is_host(const struct block *b)
{
	return b->kind == PAGEABLE || is_pinned(b);
}

static size_t least(const struct block *a, const struct block *b)
{
	return a->size < b->size ? a->size : b->size;
}

/* By name, or to be found out. */
static enum cudaMemcpyKind kind_of(const struct block *to,
				   const struct block *from)
{
	if (chance(2))
		return cudaMemcpyDefault;
	if (is_host(to))
		return is_host(from) ? cudaMemcpyHostToHost
				     : cudaMemcpyDeviceToHost;
	return is_host(from) ? cudaMemcpyHostToDevice
			     : cudaMemcpyDeviceToDevice;
}

/* Some bytes of both; sizes up to all. */
static struct action some_copy(struct block *to, struct block *from)
{
	size_t n = least(to, from);
	size_t size = chance(4) ? 1 + chance((uint32_t)n) : n;
	size_t at = chance((uint32_t)(to->size - size + 1));
	size_t from_at = chance((uint32_t)(from->size - size + 1));

	printf("+%zu from +%zu, %zu", at, from_at, size);
	return copy_of(to, at, from, from_at, size);
}

/* From host to host the host does it, which waits for no stream. */
static bool is_ready(bool is_async, struct block *to, struct block *from)
{
	if (is_async || !is_host(to) || !is_host(from))
		return true;
	return no_captures() && settle(to) && settle(from);
}

void op_copy(void)
{
	bool is_async = chance(2);
	struct stream *s = is_async ? some_stream() : null_stream();
	enum cudaMemcpyKind kind;
	struct block *to, *from;
	struct action a;
	char *p, *q;

	if (!two_blocks(&to, &from, is_ours, is_any) || !s)
		return;
	a = some_copy(to, from);
	p = to->p + a.dst.at;
	q = from->p + a.src.at;
	kind = kind_of(to, from);
	if (is_ready(is_async, to, from) && begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 is_async ? cudaMemcpyAsync(p, q, a.width, kind,
						    name_of(s))
				  : cudaMemcpy(p, q, a.width, kind));
}

/* In the legacy NULL stream, however the program is built. */
void op_copy_peer(void)
{
	struct stream *s = null_stream();
	struct block *to, *from;
	struct action a;

	if (!two_blocks(&to, &from, is_linear, is_linear) || !s ||
	    IS_PER_THREAD)
		return;
	a = some_copy(to, from);
	if (begin_work(s, &a, 1))
		end_work(s, &a, 1,
			 cudaMemcpyPeer(to->p + a.dst.at, to->device,
					from->p + a.src.at, from->device,
					a.width));
}

/* ---- rows and planes ---------------------------------------------------- */

/* Of both, in `a`; what a plane is high, in `box`. */
static void some_box(struct block *to, struct block *from, size_t depth,
		     struct action *a, struct cudaMemcpy3DParms *box)
{
	size_t n = least(to, from), height = 1 + chance(8), to_rows, from_rows;

	depth = n < depth ? 1 : depth;
	height = n / depth < height ? 1 : height;
	n = n / depth / height;
	*a = copy_of(to, 0, from, 0, 1 + chance(n < 4000 ? (uint32_t)n : 4000));
	a->height = height;
	a->depth = depth;
	printf(" %zu x %zu x %zu", a->width, height, depth);
	a->dst = action_place(a, to->size, &to_rows);
	a->src = action_place(a, from->size, &from_rows);
	*box = (struct cudaMemcpy3DParms){
		.srcPtr = {from->p + a->src.at, a->src.pitch, a->width,
			   from_rows},
		.dstPtr = {to->p + a->dst.at, a->dst.pitch, a->width, to_rows},
		.extent = {a->width, height, depth},
		.kind = kind_of(to, from)};
}

static cudaError_t copy_rows(const struct cudaMemcpy3DParms *box, bool is_async,
			     cudaStream_t s)
{
	const struct cudaPitchedPtr *to = &box->dstPtr, *from = &box->srcPtr;

	if (is_async)
		return cudaMemcpy2DAsync(to->ptr, to->pitch, from->ptr,
					 from->pitch, box->extent.width,
					 box->extent.height, box->kind, s);
	return cudaMemcpy2D(to->ptr, to->pitch, from->ptr, from->pitch,
			    box->extent.width, box->extent.height, box->kind);
}

static void copy_box(size_t depth)
{
	bool is_async = chance(2);
	struct stream *s = is_async ? some_stream() : null_stream();
	struct cudaMemcpy3DParms box;
	struct block *to, *from;
	struct action a;
	cudaError_t result;

	if (!two_blocks(&to, &from, is_ours, is_any) || !s)
		return;
	some_box(to, from, depth, &a, &box);
	if (!is_ready(is_async, to, from) || !begin_work(s, &a, 1))
		return;
	if (depth == 1)
		result = copy_rows(&box, is_async, name_of(s));
	else
		result = is_async ? cudaMemcpy3DAsync(&box, name_of(s))
				  : cudaMemcpy3D(&box);
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

/* ---- arrays ------------------------------------------------------------- */

static struct block *some_partner(void)
{
	return some_block(chance(4) ? is_linear : is_ours);
}

/* Whole rows of an array, to or from what is in one piece. */
void op_copy_array(void)
{
	struct block *b = some_block(is_array), *other = some_partner();
	struct stream *s = null_stream();
	size_t row, n, at;
	struct action a;
	bool is_into = chance(2);

	if (!b || !other || !s || b->device != current() ||
	    other->size < b->width)
		return;
	n = (other->size < b->size ? other->size : b->size) / b->width;
	n = 1 + chance((uint32_t)n);
	row = chance((uint32_t)(b->size / b->width - n + 1));
	at = chance((uint32_t)(other->size - n * b->width + 1));
	printf(" %s %zu+%zu +%zu", is_into ? "into" : "from", row, n, at);
	a = is_into ? copy_of(b, row * b->width, other, at, n * b->width)
		    : copy_of(other, at, b, row * b->width, n * b->width);
	if (!begin_work(s, &a, 1))
		return;
	end_work(s, &a, 1,
		 is_into ? cudaMemcpy2DToArray(b->array, 0, row, other->p + at,
					       b->width, b->width, n,
					       cudaMemcpyDefault)
			 : cudaMemcpy2DFromArray(other->p + at, b->width,
						 b->array, 0, row, b->width, n,
						 cudaMemcpyDefault));
}

/* ---- what is refused ---------------------------------------------------- */

/* Beside a capture the driver says first what that forbids (an H100), the shim
 * what runs past an end. */
void op_copy_wrong(void)
{
	struct stream *s = some_stream();
	struct block *b = some_block(is_linear);
	size_t past = 1 + chance(64), n;
	char *end, *constant = blocks[0].p;

	if (!b || !s || s->device != current() || !no_captures())
		return;
	n = b->size < 64 ? b->size : 64;
	end = b->p + b->size - n;
	printf(" %zu past", past);
	also("plain",
	     cudaMemcpy(end, b->p, n + past, cudaMemcpyDeviceToDevice));
	also("default", cudaMemcpyAsync(end, constant, n + past,
					cudaMemcpyDefault, name_of(s)));
	also("to the host",
	     cudaMemcpy(constant, end, n + past, cudaMemcpyDeviceToHost));
	also("rows",
	     cudaMemcpy2D(end, n, constant, n, n, 2, cudaMemcpyHostToDevice));
	also("kind", cudaMemcpy(b->p, constant, 1, (enum cudaMemcpyKind)9));
	also("nothing", cudaMemcpy(b->p, constant, 0, cudaMemcpyDefault));
	also("peek", cudaPeekAtLastError());
}
