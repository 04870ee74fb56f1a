/* SPDX-License-Identifier: MIT
 *
 * runtime_blocks: memory, and the order of the work on it.
 */
#include "runtime.h"

bool is_array(const struct block *b)
{
	return b->kind == ARRAY;
}

struct block *new_block(enum kind kind, void *p, size_t size)
{
	return add_block(kind, current(), p, size);
}

static cudaError_t free_registered(void *p)
{
	cudaError_t result = cudaHostUnregister(p);

	if (result == cudaSuccess)
		free(p);
	return result;
}

cudaError_t free_block(struct block *b)
{
	cudaError_t result;

	if (b->kind == HOST)
		result = cudaFreeHost(b->bytes);
	else if (b->kind == REGISTERED)
		result = free_registered(b->bytes);
	else if (b->kind == ARRAY)
		result = cudaFreeArray(b->array);
	else
		result = cudaFree(b->bytes);
	if (say(result) == cudaSuccess)
		forget_block(b);
	return result;
}

bool settle(struct block *b)
{
	cudaError_t result = cudaSuccess;

	if (b->done)
		result = cudaEventSynchronize(b->done);
	if (result != cudaSuccess)
		also("its work", result);
	return result == cudaSuccess;
}

/* Of an array all of it. */
bool read_bytes(const struct block *b, void *data, size_t at, size_t size)
{
	cudaError_t result =
		b->kind == ARRAY
			? cudaMemcpy2DFromArray(data, b->width, b->array, 0, 0,
						b->width, b->size / b->width,
						cudaMemcpyDeviceToHost)
			: cudaMemcpy(data, b->bytes + at, size,
				     cudaMemcpyDefault);

	return say(result) == cudaSuccess;
}

/*
 * Captured work and sets are on memory of their own device alone; copies reach
 * another's but that of its pools, which is no peer's.
 */
static bool may_reach(const struct stream *s, int i, bool is_copy)
{
	const struct block *b = i < 0 ? NULL : &blocks[i];

	if (!b || b->device == s->device || !is_device(b))
		return true;
	return is_copy && is_linear(b) && !s->capture;
}

static bool wait_for(struct stream *s, int i)
{
	cudaError_t result = cudaSuccess;

	if (i >= 0 && blocks[i].done && blocks[i].done != s->event)
		result = cudaStreamWaitEvent(name_of(s), blocks[i].done, 0);
	if (result != cudaSuccess)
		also("order", result);
	return result == cudaSuccess;
}

bool begin_work(struct stream *s, const struct action *actions, int n)
{
	for (const struct action *a = actions; a < actions + n; a++) {
		if (may_reach(s, a->to, a->from >= 0) &&
		    may_reach(s, a->from, true))
			continue;
		printf(" of another");
		return false;
	}
	/* whose node it would be is nowhere said */
	if (s->capture && s->device != current()) {
		printf(" elsewhere");
		return false;
	}
	if (!can_take(s, n))
		return false;
	for (int i = 0; !s->capture && i < n; i++)
		if (!wait_for(s, actions[i].to) ||
		    !wait_for(s, actions[i].from))
			return false;
	return true;
}

/* An event is of its stream's device, which the NULL stream's need be. */
static void record(const struct stream *s)
{
	TRY(cudaEventRecord(s->event, name_of(s)));
}

void end_work(struct stream *s, const struct action *actions, int n,
	      cudaError_t result)
{
	say(result);
	if (result != cudaSuccess || are_captured(s, actions, n))
		return;
	record(s);
	for (const struct action *a = actions; a < actions + n; a++) {
		carry_out(a);
		blocks[a->to].done = s->event;
		if (a->from >= 0 && blocks[a->from].kind != PAGEABLE)
			blocks[a->from].done = s->event;
	}
}
