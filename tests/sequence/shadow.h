/* SPDX-License-Identifier: MIT
 *
 * shadow: what a program of random calls has of memory, and what that must
 * hold. For sequence.c and runtime.c.
 *
 * All work on a block is ordered by events, so what it must hold is known as
 * soon as the work is given: each block has a shadow on the host.
 */
#ifndef SHADOW_H
#define SHADOW_H

#include "../e2e/victim.h"
#include "action.h"
#include "turns.h"

enum { N_BLOCKS = 24, N_ACTIONS = 32, MOST_BYTES = 32 << 20 };

enum kind {
	NONE,
	PAGEABLE,
	LINEAR,
	PITCHED,
	ASYNC,
	POOLED,
	MANAGED,
	HOST,
	REGISTERED,
	ARRAY
};

struct block {
	enum kind kind;
	int serial; /* of all that were ever made */
	union {	    /* the owner: a context; by the runtime a device */
		int ctx;
		int device;
	};
	union { /* as the driver takes it; as the runtime does */
		CUdeviceptr p;
		char *bytes;
	};
	size_t size;
	unsigned char *shadow;
	bool is_known;
	CUevent done; /* behind all work on it; NULL: no work */
	/* in sequence.c: of that context; in the NULL stream; a copy */
	int done_ctx;
	bool was_null, was_copy;
	uint64_t id;
	/* in runtime.c: of rows of `width` bytes; it has no pointer */
	struct cudaArray *array;
	size_t width;
};

/* What a graph does, in order. */
struct recording {
	int n, n_calls;
	struct action actions[N_ACTIONS];
};

extern struct block blocks[N_BLOCKS]; /* the first is pageable and constant */
extern int n_wrong; /* blocks that did not hold what they should */

/* ---- blocks -------------------------------------------------------------- */

/* Made here, and has a pointer. */
bool is_ours(const struct block *b);
bool is_device(const struct block *b);
/* One of cuMemAlloc or cudaMalloc: the pool's, under the shim. */
bool is_linear(const struct block *b);
bool is_pinned(const struct block *b);
bool is_host(const struct block *b);
/* May be given advice, or be freed in a stream. */
bool is_advised(const struct block *b);
bool is_free_in_stream(const struct block *b);
/* Has a pointer. */
bool is_any(const struct block *b);

/* Any that fits; says which; NULL: none. */
struct block *some_block(bool (*fits)(const struct block *));
/* Two that differ; false: there are none, which was said. */
bool two_blocks(struct block **to, struct block **from,
		bool (*to_fits)(const struct block *),
		bool (*from_fits)(const struct block *));
/* For one more of that size, which is said. */
bool has_place(size_t size);
size_t some_size(void);
struct block *add_block(enum kind kind, int owner, void *p, size_t size);
/* The first. */
void add_constant(int owner);
/* It is gone, or is the driver's to take with a context. */
void forget_block(struct block *b);
/* The host sets what it reaches. */
void set_by_host(struct block *b);
/* Compares what is there, and prints a sum. */
void look_at(struct block *b, const unsigned char *data, size_t at,
	     size_t size);

/* ---- actions ------------------------------------------------------------- */

struct action set_of(struct block *to, size_t at, size_t size, uint32_t value,
		     unsigned unit);
struct action copy_of(struct block *to, size_t at, struct block *from,
		      size_t from_at, size_t size);
/* Whole elements, in their place. */
struct action some_set(struct block *b, unsigned unit);
/* Some bytes of both; sizes up to all. */
struct action some_copy(struct block *to, struct block *from);
/* Some rows and planes of both; how many rows a plane has in each. */
struct action some_planes(struct block *to, struct block *from, size_t depth,
			  size_t *to_rows, size_t *from_rows);
/* On the shadows. */
void carry_out(const struct action *a);
/* Whether all memory that it works on is still there. */
bool is_live(const struct recording *r);

#endif
