/* SPDX-License-Identifier: MIT */
#include "shadow.h"

struct block blocks[N_BLOCKS];
int n_wrong;

static int last_serial;

/* ---- blocks ------------------------------------------------------------- */

bool is_ours(const struct block *b)
{
	return b->kind != PAGEABLE && b->kind != ARRAY;
}

bool is_device(const struct block *b)
{
	return b->kind >= LINEAR && b->kind <= MANAGED;
}

bool is_linear(const struct block *b)
{
	return b->kind == LINEAR || b->kind == PITCHED;
}

bool is_pinned(const struct block *b)
{
	return b->kind == HOST || b->kind == REGISTERED;
}

bool is_host(const struct block *b)
{
	return b->kind == PAGEABLE || is_pinned(b);
}

bool is_advised(const struct block *b)
{
	return is_linear(b) || b->kind == MANAGED;
}

bool is_free_in_stream(const struct block *b)
{
	return is_linear(b) || b->kind == ASYNC || b->kind == POOLED;
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

bool two_blocks(struct block **to, struct block **from,
		bool (*to_fits)(const struct block *),
		bool (*from_fits)(const struct block *))
{
	*to = some_block(to_fits);
	*from = some_block(from_fits);
	return *to && *from && *to != *from;
}

bool has_place(size_t size)
{
	size_t live = 0;
	int n = 0;

	for (int i = 0; i < N_BLOCKS; i++) {
		n += blocks[i].kind != NONE;
		live += blocks[i].kind == NONE ? 0 : blocks[i].size;
	}
	printf(" %zu", size);
	return n < N_BLOCKS && live + size <= MOST_BYTES;
}

size_t some_size(void)
{
	static const unsigned bits[] = {12, 12, 17, 17, 20, 22};
	size_t size = 1;

	for (unsigned n = chance(bits[chance(6)]); n > 0; n--)
		size = size * 2 + chance(2);
	return size;
}

struct block *add_block(enum kind kind, int owner, void *p, size_t size)
{
	struct block *b = blocks;

	while (b->kind != NONE)
		b++;
	CHECK(b < blocks + N_BLOCKS);
	*b = (struct block){.kind = kind,
			    .serial = last_serial++,
			    .ctx = owner,
			    .bytes = p,
			    .size = size,
			    .shadow = malloc(size)};
	CHECK(b->shadow);
	if (is_linear(b))
		sim_client_note_alloc(p, size);
	printf(" b%d", b->serial);
	return b;
}

void add_constant(int owner)
{
	static unsigned char constant[256 * KiB];
	struct block *b;

	for (size_t i = 0; i < sizeof(constant); i++)
		constant[i] = (unsigned char)chance(256);
	b = add_block(PAGEABLE, owner, constant, sizeof(constant));
	memcpy(b->shadow, constant, sizeof(constant));
	b->is_known = true;
}

void forget_block(struct block *b)
{
	if (is_linear(b))
		sim_client_note_free(b->bytes);
	free(b->shadow);
	b->kind = NONE;
}

void set_by_host(struct block *b)
{
	memset(b->bytes, b->serial, b->size);
	memset(b->shadow, b->serial, b->size);
	b->is_known = true;
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

/* ---- actions ------------------------------------------------------------ */

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

struct action some_set(struct block *b, unsigned unit)
{
	uint32_t n = (uint32_t)(b->size / unit), count = 1 + chance(n);
	uint32_t at = chance(n - count + 1);

	printf("+%u %u of %u", at, count, unit);
	return set_of(b, (size_t)at * unit, (size_t)count * unit,
		      victim_random(&(uint64_t){n * 7 + at}), unit);
}

static size_t least(const struct block *a, const struct block *b)
{
	return a->size < b->size ? a->size : b->size;
}

struct action some_copy(struct block *to, struct block *from)
{
	size_t n = least(to, from);
	size_t size = chance(4) ? 1 + chance((uint32_t)n) : n;
	size_t at = chance((uint32_t)(to->size - size + 1));
	size_t from_at = chance((uint32_t)(from->size - size + 1));

	printf("+%zu from +%zu, %zu", at, from_at, size);
	return copy_of(to, at, from, from_at, size);
}

struct action some_planes(struct block *to, struct block *from, size_t depth,
			  size_t *to_rows, size_t *from_rows)
{
	size_t n = least(to, from), height = 1 + chance(8);
	struct action a;

	depth = n < depth ? 1 : depth;
	height = n / depth < height ? 1 : height;
	n = n / depth / height;
	a = copy_of(to, 0, from, 0, 1 + chance(n < 4000 ? (uint32_t)n : 4000));
	a.height = height;
	a.depth = depth;
	printf(" %zu x %zu x %zu", a.width, height, depth);
	a.dst = action_place(&a, to->size, to_rows);
	a.src = action_place(&a, from->size, from_rows);
	return a;
}

void carry_out(const struct action *a)
{
	const struct block *from = a->from < 0 ? NULL : &blocks[a->from];
	struct block *to = &blocks[a->to];

	action_do(a, to->shadow, from ? from->shadow : NULL);
	if (from)
		to->is_known = to->is_known && from->is_known;
	else if (a->width == to->size)
		to->is_known = true;
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
