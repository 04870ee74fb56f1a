/* SPDX-License-Identifier: MIT
 *
 * contexts: which is current, how they begin and end.
 */
#include "sequence.h"

enum { DEPTH = 3 };

struct context contexts[N_CTX];

static int stacks[N_THREADS][DEPTH], depths[N_THREADS];

int current(void)
{
	CUcontext ctx = NULL;

	TRY(cuCtxGetCurrent(&ctx));
	for (int i = 0; ctx && i < N_CTX; i++)
		if (contexts[i].handle == ctx)
			return i;
	return -1;
}

int owner(int ctx)
{
	return ctx == GREEN ? PRIMARY : ctx;
}

/* ---- which is current --------------------------------------------------- */

static int some_context(void)
{
	int i = (int)chance(N_CTX);

	printf(" c%d", i);
	return contexts[i].handle ? i : -1;
}

static void note_push(int ctx)
{
	stacks[me][depths[me]++] = ctx;
}

void enter(void)
{
	if (depths[me] > 0)
		return;
	TRY(cuCtxSetCurrent(contexts[PRIMARY].handle));
	note_push(PRIMARY);
}

void leave(void)
{
	depths[me] = 0;
	own_mode[me] = CU_STREAM_CAPTURE_MODE_GLOBAL;
	forget_own_streams();
}

void op_ctx_push(void)
{
	int i = some_context();

	if (i < 0 || depths[me] == DEPTH)
		return;
	if (say(cuCtxPushCurrent(contexts[i].handle)) == CUDA_SUCCESS)
		note_push(i);
}

void op_ctx_pop(void)
{
	CUcontext popped;

	if (depths[me] == 1 && chance(3) > 0)
		return;
	if (say(cuCtxPopCurrent(&popped)) == CUDA_SUCCESS)
		depths[me]--;
}

void op_ctx_set(void)
{
	int i = some_context();

	if (i < 0 && chance(4) > 0)
		return;
	say(cuCtxSetCurrent(i < 0 ? NULL : contexts[i].handle));
	depths[me] -= depths[me] > 0;
	if (i >= 0)
		note_push(i);
}

/* ---- contexts that begin and end: not beside captures, of which it is nowhere
 * said what becomes ------------------------------------------------------- */

void op_ctx_create(void)
{
	int i = 1 + (int)chance(GREEN - 1);

	if (contexts[i].handle || depths[me] == DEPTH || !no_captures())
		return;
	printf(" c%d", i);
	if (say(cuCtxCreate_v2(&contexts[i].handle, 0, contexts[i].device)) ==
	    CUDA_SUCCESS)
		note_push(i);
}

void op_green_create(void)
{
	struct context *c = &contexts[GREEN];
	CUdevice d = c->device;

	if (c->handle || !no_captures())
		return;
	if (say(cuGreenCtxCreate(&c->green, victim_units(d), d,
				 CU_GREEN_CTX_DEFAULT_STREAM)) == CUDA_SUCCESS)
		TRY(cuCtxFromGreenCtx(&c->handle, c->green));
}

/*
 * No thread has it current, but maybe this one: that of a thread to which one
 * that is gone stays current crashes the driver now and then (HACKING.md).
 */
static bool is_current_elsewhere(int ctx)
{
	for (int t = 0; t < N_THREADS; t++)
		for (int i = 0; i < depths[t]; i++)
			if (stacks[t][i] == ctx &&
			    (t != me || i != depths[t] - 1))
				return true;
	return false;
}

/* Host functions must have been called by its end. */
static bool finish_calls(int ctx)
{
	CUcontext popped;
	CUresult result;

	if (!contexts[ctx].has_calls)
		return true;
	TRY(cuCtxPushCurrent(contexts[ctx].handle));
	result = say(cuCtxSynchronize());
	TRY(cuCtxPopCurrent(&popped));
	contexts[ctx].has_calls = false;
	return result == CUDA_SUCCESS;
}

/* It is freed before the end: whether it goes too is the driver's to say. */
static bool goes_before(const struct block *b, int ctx)
{
	if (b->kind == ASYNC || b->kind == POOLED)
		return b->ctx == ctx || ctx == PRIMARY;
	return (b->kind == MANAGED || b->kind == HOST) && b->ctx == ctx;
}

/*
 * Other contexts' work on what goes is waited for, and its own on what stays;
 * that of its own on its own is not.
 */
static bool is_waited_for(const struct block *b, int ctx)
{
	if (is_linear(b))
		return (b->ctx == ctx) != (b->done_ctx == ctx);
	return goes_before(b, ctx) || b->done_ctx == ctx;
}

static bool prepare_end(int ctx)
{
	for (int i = 0; i < N_GRAPHS; i++)
		if (graphs[i].graph && graphs[i].ctx == ctx)
			drop_graph(&graphs[i]);
	for (struct block *b = blocks + 1; b < blocks + N_BLOCKS; b++) {
		if (b->kind == NONE)
			continue;
		if (b->done && is_waited_for(b, ctx)) {
			if (!settle(b))
				return false;
			b->done = NULL;
		}
		if (goes_before(b, ctx)) {
			if (say(b->kind == HOST
					? cuMemFreeHost(pointer(b->p))
					: cuMemFree(b->p)) != CUDA_SUCCESS)
				return false;
			forget_block(b);
		}
	}
	return finish_calls(ctx);
}

static void note_end(int ctx)
{
	for (struct block *b = blocks; b < blocks + N_BLOCKS; b++)
		if (is_linear(b) && b->ctx == ctx)
			forget_block(b);
	forget_streams(ctx);
	contexts[ctx].sleeper = NULL;
}

void op_ctx_destroy(void)
{
	int i = 1 + (int)chance(GREEN - 1);

	printf(" c%d", i);
	if (!contexts[i].handle || is_current_elsewhere(i) || !no_captures() ||
	    !prepare_end(i))
		return;
	if (say(cuCtxDestroy(contexts[i].handle)) != CUDA_SUCCESS)
		return;
	note_end(i);
	contexts[i].handle = NULL;
	if (depths[me] > 0 && stacks[me][depths[me] - 1] == i)
		depths[me]--;
}

/* More than one, so that the end of one is not that of the context. */
void op_ctx_retain(void)
{
	CUdevice d = contexts[PRIMARY].device;
	static int n = 1;

	if (n == 1 || chance(2)) {
		say(cuDevicePrimaryCtxRetain(&contexts[PRIMARY].handle, d));
		n++;
	} else {
		say(cuDevicePrimaryCtxRelease(d));
		n--;
	}
}

/* A green context as a peer is nowhere spoken of. */
void op_ctx_peer(void)
{
	int c = some_context(), here = current();

	if (c < 0 || here < 0 || c == here || c == GREEN || here == GREEN ||
	    !no_captures())
		return;
	if (chance(3) > 0)
		say(cuCtxEnablePeerAccess(contexts[c].handle, 0));
	else
		say(cuCtxDisablePeerAccess(contexts[c].handle));
}

/* The same handle, alive again before anybody else can use it. */
void op_ctx_reset(void)
{
	CUdevice d = contexts[PRIMARY].device;
	CUdeviceptr p = 0;

	if (!no_captures() || !prepare_end(PRIMARY))
		return;
	/* whether a pool outlives it is nowhere said; the simulator refuses one
	 * of which a free in a stream is still to come, which is chance */
	cuMemPoolDestroy(pool);
	if (also("reset", cuDevicePrimaryCtxReset(d)) == CUDA_SUCCESS) {
		note_end(PRIMARY);
		if (current() == PRIMARY) {
			also("alloc", cuMemAlloc(&p, 1000));
			also("sync", cuCtxSynchronize());
		}
		also("retain",
		     cuDevicePrimaryCtxRetain(&contexts[PRIMARY].handle, d));
	}
	make_pool();
}

/* Its streams first. */
void op_green_destroy(void)
{
	struct context *c = &contexts[GREEN];

	if (!c->handle || is_current_elsewhere(GREEN) || current() == GREEN ||
	    !no_captures() || !prepare_end(GREEN))
		return;
	for (struct stream *s = streams; s < streams + N_CREATED; s++) {
		if (!s->is_live || s->ctx != GREEN)
			continue;
		say(cuStreamSynchronize(s->handle));
		say(cuStreamDestroy(s->handle));
	}
	say(cuGreenCtxDestroy(c->green));
	note_end(GREEN);
	c->handle = NULL;
}
