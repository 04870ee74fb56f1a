/* SPDX-License-Identifier: MIT
 *
 * blocks: memory, and the order of the work on it.
 */
#include "sequence.h"

struct block *new_block(enum kind kind, CUdeviceptr p, size_t size)
{
	return add_block(kind, owner(current()), pointer(p), size);
}

bool settle(struct block *b)
{
	CUresult result = CUDA_SUCCESS;

	if (b->done)
		result = cuEventSynchronize(b->done);
	if (result != CUDA_SUCCESS)
		also("its work", result);
	return result == CUDA_SUCCESS;
}

/*
 * Captured work is on memory of its own context alone: what a graph makes of
 * another's is nowhere said, and a set of it neither.
 */
static bool is_own(const struct stream *s, int i)
{
	const struct block *b = i < 0 ? NULL : &blocks[i];

	return !b || !is_linear(b) || b->ctx == owner(s->ctx);
}

/*
 * A copy in the NULL stream keeps the order of that of the context whose memory
 * it reaches, behind what is there and before what comes (CUDA C++ Programming
 * Guide, peer-to-peer memory copy). A green one keeps none with its primary
 * one (an H100), nor with any other (two H200).
 */
static bool is_ordered(const struct stream *s, const struct block *b,
		       bool is_copy)
{
	if (b->done == s->event)
		return true;
	if (!s->is_legacy || !b->was_null || !is_linear(b) || s->ctx == GREEN ||
	    b->done_ctx == GREEN)
		return false;
	return (is_copy && b->done_ctx == b->ctx) ||
	       (b->was_copy && s->ctx == b->ctx);
}

static bool wait_for(struct stream *s, int i, bool is_copy)
{
	CUresult result = CUDA_SUCCESS;

	if (i >= 0 && blocks[i].done && !is_ordered(s, &blocks[i], is_copy))
		result = cuStreamWaitEvent(name_of(s), blocks[i].done, 0);
	if (result != CUDA_SUCCESS)
		also("order", result);
	return result == CUDA_SUCCESS;
}

/* Memory of pools is its own device's alone. */
static bool is_near(const struct stream *s, int i)
{
	return i < 0 || (blocks[i].kind != ASYNC && blocks[i].kind != POOLED) ||
	       contexts[s->ctx].device == contexts[PRIMARY].device;
}

bool begin_work(struct stream *s, const struct action *actions, int n)
{
	for (int i = 0; i < n; i++) {
		const struct action *a = &actions[i];

		if (is_own(s, a->to) && is_own(s, a->from) &&
		    is_near(s, a->to) && is_near(s, a->from))
			continue;
		if (s->capture || a->from < 0 || !is_near(s, a->to) ||
		    !is_near(s, a->from)) {
			printf(" of another");
			return false;
		}
	}
	if (!can_take(s, n))
		return false;
	for (int i = 0; !s->capture && i < n; i++)
		if (!wait_for(s, actions[i].to, actions[i].from >= 0) ||
		    !wait_for(s, actions[i].from, true))
			return false;
	return true;
}

static void is_behind(int i, const struct stream *s, bool is_copy)
{
	if (i < 0 || blocks[i].kind == PAGEABLE)
		return;
	blocks[i].done = s->event;
	blocks[i].done_ctx = s->ctx;
	blocks[i].was_null = s->is_legacy;
	blocks[i].was_copy = is_copy;
}

/* By a thread without a context, too, if a call went that needs none. */
static void record(const struct stream *s)
{
	bool is_bare = current() < 0;
	CUcontext popped;

	if (is_bare)
		TRY(cuCtxPushCurrent(contexts[s->ctx].handle));
	TRY(cuEventRecord(s->event, name_of(s)));
	if (is_bare)
		TRY(cuCtxPopCurrent(&popped));
}

void end_work(struct stream *s, const struct action *actions, int n,
	      CUresult result)
{
	say(result);
	if (result != CUDA_SUCCESS || are_captured(s, actions, n))
		return;
	record(s);
	for (int i = 0; i < n; i++) {
		if (actions[i].to >= 0)
			carry_out(&actions[i]);
		is_behind(actions[i].to, s, actions[i].from >= 0);
		is_behind(actions[i].from, s, true);
	}
}
