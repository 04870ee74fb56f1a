/* SPDX-License-Identifier: MIT
 *
 * blocks: memory, and what it must hold.
 */
#include "sequence.h"

struct block blocks[N_BLOCKS];
int n_wrong;

static int last_serial;

bool is_ours(const struct block *b)
{
	return b->kind != PAGEABLE;
}

bool is_device(const struct block *b)
{
	return b->kind >= LINEAR && b->kind <= MANAGED;
}

bool is_linear(const struct block *b)
{
	return b->kind == LINEAR || b->kind == PITCHED;
}

struct block *some_block(bool (*fits)(const struct block *))
{
	struct block *found[N_BLOCKS], *b;
	uint32_t n = 0;

	for (b = blocks; b < blocks + N_BLOCKS; b++)
		if (b->kind != NONE && fits(b))
			found[n++] = b;
	if (n == 0) {
		printf(" no block");
		return NULL;
	}
	b = found[chance(n)];
	printf(" b%d", b->serial);
	return b;
}

struct block *new_block(enum kind kind, CUdeviceptr p, size_t size)
{
	struct block *b = blocks;

	while (b->kind != NONE)
		b++;
	CHECK(b < blocks + N_BLOCKS);
	*b = (struct block){.kind = kind,
			    .serial = last_serial++,
			    .ctx = owner(current()),
			    .p = p,
			    .size = size,
			    .shadow = malloc(size)};
	CHECK(b->shadow);
	if (is_linear(b))
		sim_client_note_alloc(pointer(p), size);
	printf(" b%d", b->serial);
	return b;
}

void forget_block(struct block *b)
{
	if (is_linear(b))
		sim_client_note_free(pointer(b->p));
	free(b->shadow);
	b->kind = NONE;
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

void look_at(struct block *b, const unsigned char *data, size_t at, size_t size)
{
	size_t i = 0;

	if (!b->is_known)
		return;
	printf(" sum %016" PRIx64, victim_hash(HASH_START, data, size));
	while (i < size && data[i] == b->shadow[at + i])
		i++;
	if (i == size)
		return;
	printf(" WRONG at %zu: %02x for %02x", at + i, data[i],
	       b->shadow[at + i]);
	n_wrong++;
}

/* ---- work and shadows -------------------------------------------------- */

static int index_of(const struct block *b)
{
	return (int)(b - blocks);
}

struct action set_of(struct block *to, size_t at, size_t size, uint32_t value,
		     unsigned unit)
{
	return (struct action){.to = index_of(to),
			       .to_serial = to->serial,
			       .from = -1,
			       .dst.at = at,
			       .width = size,
			       .height = 1,
			       .depth = 1,
			       .value = value,
			       .unit = unit};
}

struct action copy_of(struct block *to, size_t at, struct block *from,
		      size_t from_at, size_t size)
{
	struct action a = set_of(to, at, size, 0, 1);

	a.from = index_of(from);
	a.from_serial = from->serial;
	a.src.at = from_at;
	return a;
}

static bool is_same(int i, int serial)
{
	return i < 0 || (blocks[i].kind != NONE && blocks[i].serial == serial);
}

bool is_live(const struct recording *r)
{
	bool is = true;

	for (const struct action *a = r->actions; a < r->actions + r->n; a++)
		is = is && is_same(a->to, a->to_serial) &&
		     is_same(a->from, a->from_serial);
	return is;
}

static void carry_out(const struct action *a)
{
	const struct block *from = a->from < 0 ? NULL : &blocks[a->from];
	struct block *to = &blocks[a->to];

	action_do(a, to->shadow, from ? from->shadow : NULL);
	if (from)
		to->is_known = to->is_known && from->is_known;
	else if (a->width == to->size)
		to->is_known = true;
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
	if (s->capture && s->capture->n + n > N_ACTIONS) {
		printf(" full");
		return false;
	}
	/* left in another's capture by a call that failed */
	if (!s->capture && is_capturing(s)) {
		printf(" joined");
		return false;
	}
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
	if (result != CUDA_SUCCESS)
		return;
	if (s->capture) {
		for (int i = 0; i < n; i++)
			s->capture->actions[s->capture->n++] = actions[i];
		return;
	}
	record(s);
	for (int i = 0; i < n; i++) {
		if (actions[i].to >= 0)
			carry_out(&actions[i]);
		is_behind(actions[i].to, s, actions[i].from >= 0);
		is_behind(actions[i].from, s, true);
	}
}
