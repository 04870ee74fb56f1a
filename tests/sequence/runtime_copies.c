/* SPDX-License-Identifier: MIT
 *
 * runtime_copies: copies of all kinds.
 */
#include "runtime.h"

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
	p = to->bytes + a.dst.at;
	q = from->bytes + a.src.at;
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
			 cudaMemcpyPeer(to->bytes + a.dst.at, to->device,
					from->bytes + a.src.at, from->device,
					a.width));
}

/* ---- rows and planes ---------------------------------------------------- */

/* Of both, in `a`; what a plane is high, in `box`. */
static void some_box(struct block *to, struct block *from, size_t depth,
		     struct action *a, struct cudaMemcpy3DParms *box)
{
	size_t to_rows, from_rows;

	*a = some_planes(to, from, depth, &to_rows, &from_rows);
	*box = (struct cudaMemcpy3DParms){
		.srcPtr = {from->bytes + a->src.at, a->src.pitch, a->width,
			   from_rows},
		.dstPtr = {to->bytes + a->dst.at, a->dst.pitch, a->width,
			   to_rows},
		.extent = {a->width, a->height, a->depth},
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
		 is_into ? cudaMemcpy2DToArray(b->array, 0, row,
					       other->bytes + at, b->width,
					       b->width, n, cudaMemcpyDefault)
			 : cudaMemcpy2DFromArray(other->bytes + at, b->width,
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
	char *end, *constant = blocks[0].bytes;

	if (!b || !s || s->device != current() || !no_captures())
		return;
	n = b->size < 64 ? b->size : 64;
	end = b->bytes + b->size - n;
	printf(" %zu past", past);
	also("plain",
	     cudaMemcpy(end, b->bytes, n + past, cudaMemcpyDeviceToDevice));
	also("default", cudaMemcpyAsync(end, constant, n + past,
					cudaMemcpyDefault, name_of(s)));
	also("to the host",
	     cudaMemcpy(constant, end, n + past, cudaMemcpyDeviceToHost));
	also("rows",
	     cudaMemcpy2D(end, n, constant, n, n, 2, cudaMemcpyHostToDevice));
	also("kind", cudaMemcpy(b->bytes, constant, 1, (enum cudaMemcpyKind)9));
	also("nothing", cudaMemcpy(b->bytes, constant, 0, cudaMemcpyDefault));
	also("peek", cudaPeekAtLastError());
}
