/* SPDX-License-Identifier: MIT
 *
 * runtime_blocks: memory, and what it must hold.
 */
#include "runtime.h"

struct block blocks[N_BLOCKS];
int n_wrong;

static int last_serial;

bool is_linear(const struct block *b)
{
	return b->kind == LINEAR || b->kind == PITCHED;
}

bool is_ours(const struct block *b)
{
	return b->kind != PAGEABLE && b->kind != ARRAY;
}

bool is_device(const struct block *b)
{
	return b->kind >= LINEAR && b->kind <= MANAGED;
}

bool is_pinned(const struct block *b)
{
	return b->kind == HOST || b->kind == REGISTERED;
}

bool is_array(const struct block *b)
{
	return b->kind == ARRAY;
}

bool is_any(const struct block *b)
{
	return b->kind != ARRAY;
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

struct block *new_block(enum kind kind, void *p, size_t size)
{
	struct block *b = blocks;

	while (b->kind != NONE)
		b++;
	CHECK(b < blocks + N_BLOCKS);
	*b = (struct block){.kind = kind,
			    .serial = last_serial++,
			    .device = current(),
			    .p = p,
			    .size = size,
			    .shadow = malloc(size)};
	CHECK(b->shadow);
	if (is_linear(b))
		sim_client_note_alloc(p, size);
	printf(" b%d", b->serial);
	return b;
}

void forget_block(struct block *b)
{
	if (is_linear(b))
		sim_client_note_free(b->p);
	free(b->shadow);
	b->kind = NONE;
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
		result = cudaFreeHost(b->p);
	else if (b->kind == REGISTERED)
		result = free_registered(b->p);
	else if (b->kind == ARRAY)
		result = cudaFreeArray(b->array);
	else
		result = cudaFree(b->p);
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

cudaError_t fetch(const struct block *b, void *data, size_t at, size_t size)
{
	if (b->kind == ARRAY)
		return cudaMemcpy2DFromArray(data, b->width, b->array, 0, 0,
					     b->width, b->size / b->width,
					     cudaMemcpyDeviceToHost);
	return cudaMemcpy(data, b->p + at, size, cudaMemcpyDefault);
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

/* ---- work and shadows --------------------------------------------------- */

struct action set_of(struct block *to, size_t at, size_t size, uint32_t value,
		     unsigned unit)
{
	return (struct action){.to = (int)(to - blocks),
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

	a.from = (int)(from - blocks);
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
	if (result != cudaSuccess)
		return;
	if (s->capture) {
		for (int i = 0; i < n; i++)
			s->capture->actions[s->capture->n++] = actions[i];
		return;
	}
	record(s);
	for (const struct action *a = actions; a < actions + n; a++) {
		carry_out(a);
		blocks[a->to].done = s->event;
		if (a->from >= 0 && blocks[a->from].kind != PAGEABLE)
			blocks[a->from].done = s->event;
	}
}
