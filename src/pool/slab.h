/* SPDX-License-Identifier: MIT
 *
 * slab: requests up to 1 MiB. A slab is a range of the slab heap cut into
 * objects of one class and owned by one context.
 *
 * An object is in exactly one place: in its slab (bit set in free_map), in a
 * batch (of a thread's cache, or waiting in struct vs_slabs for its marker),
 * with the program (word != 0), or dead (freed after it was pinned). Everything
 * but the words is guarded by the pool's lock; the words are atomics, so that
 * look-ups need no lock.
 *
 * Classes: multiples of 512 B up to 8 KiB, then eight a doubling.
 */
#ifndef VS_POOL_SLAB_H
#define VS_POOL_SLAB_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool/ctx.h"
#include "pool/state.h"

#define VS_SLAB_PAGE ((size_t)64 << 10) /* slabs are multiples of this */
#define VS_BATCH 254			/* objects in a batch at most: a page */

/*
 * What the program holds: serial << 21 | size asked for; 0: not live. One
 * word, so that a look-up and a free see a whole answer.
 */
#define VS_WORD_SIZE_BITS 21
#define VS_WORD(serial, size) ((uint64_t)(serial) << VS_WORD_SIZE_BITS | (size))
#define VS_WORD_SIZE(word) ((word) & ((1u << VS_WORD_SIZE_BITS) - 1))
#define VS_WORD_SERIAL(word) ((word) >> VS_WORD_SIZE_BITS)

struct vs_obj {
	CUdeviceptr address;
	_Atomic uint64_t *word;
};

struct vs_batch {
	struct vs_batch *next; /* first: see vs_slabs' pending_end */
	uint64_t tag; /* newest tag among the objects; 0: all may be used */
	unsigned n;
	struct vs_obj obj[VS_BATCH];
};

/*
 * The memory of a slab that went, words included, serves slabs of its class
 * again and nothing else: look-ups and frees of what is not there any more may
 * still read it. Of what they read without the lock base, ctx and caches alone
 * change.
 */
struct vs_slab {
	/* class list, while it has free objects; next: a spare one's, too */
	struct vs_slab *next, *prev;
	struct vs_range *range;
	struct vs_ctx *ctx;
	/* whose threads may free here by their caches; see vs_slab_caches */
	struct vs_ctx *caches;
	CUdeviceptr base;
	unsigned class;
	unsigned n_objects, n_free;
	unsigned n_pinned, n_dead; /* objects: pinned; of them, freed */
	uint64_t inverse;	   /* 2^32 / (object size / 512), rounded up */
	_Atomic uint64_t *words;   /* one an object */
	uint64_t *pinned_map; /* bit: object is dead after its free, or now */
	uint64_t *dead_map;   /* bit: it is one of n_dead */
	uint64_t dead_tag;    /* the newest of theirs */
	TAILQ_ENTRY(vs_slab) dead_link; /* of the pool's; while n_dead > 0 */
	uint64_t free_map[];		/* bit: object is in the slab */
};

/* The slabs of one context. */
struct vs_slabs {
	struct vs_slabs *next; /* all of the pool */
	struct vs_ctx *ctx;
	uint64_t newest; /* tag of all batches that were ever given back */
	struct {
		/* of slabs with free objects; the empty ones are last */
		struct vs_slab *with_free, *with_free_end;
		struct vs_batch *pending, **pending_end; /* oldest first */
	} class[VS_N_CLASSES];
};

/* Class of a size, 1 .. VS_SMALL_MAX bytes. */
static inline unsigned vs_class_of(size_t size)
{
	size_t units = (size + VS_ALIGN - 1) / VS_ALIGN;
	unsigned k;

	if (units <= 8)
		return (unsigned)units - 1;
	units--;
	k = 63 - (unsigned)__builtin_clzll(units);
	return 8 + (k - 3) * 8 + (unsigned)((units >> (k - 3)) - 8);
}

/* Bytes of an object of a class. */
static inline size_t vs_class_size(unsigned class)
{
	unsigned k;

	if (class < 8)
		return (class + 1) * VS_ALIGN;
	k = (class - 8) / 8 + 3;
	return ((size_t)((class - 8) % 8 + 9) << (k - 3)) * VS_ALIGN;
}

/* The slab that `p` of this pool's slab heap lies in, or NULL. Lock-free. */
static inline struct vs_slab *vs_slab_at(const struct vs_pool *pool,
					 CUdeviceptr p)
{
	size_t page = (p - pool->base) / VS_SLAB_PAGE;

	return __atomic_load_n(&pool->slab_at[page], __ATOMIC_ACQUIRE);
}

/* For who has no lock: the slab may just be gone, and be another. */
static inline CUdeviceptr vs_slab_base(const struct vs_slab *slab)
{
	return __atomic_load_n(&slab->base, __ATOMIC_RELAXED);
}

/*
 * Number of the object that `p` lies in. In units of 512 B, offsets stay under
 * 2^14 (slabs under 8 MiB) and sizes under 2^12, so that the product with
 * 2^32 / size rounded up is exact.
 */
static inline unsigned vs_slab_object(const struct vs_slab *slab, CUdeviceptr p)
{
	uint64_t unit = (p - vs_slab_base(slab)) / VS_ALIGN;

	return (unsigned)(unit * slab->inverse >> 32);
}

/*
 * The context whose threads may free objects of the slab by way of their
 * caches: its own, or NULL once an object was pinned. Then every free of the
 * slab takes the pool's lock and looks.
 */
static inline struct vs_ctx *vs_slab_caches(const struct vs_slab *slab)
{
	return __atomic_load_n(&slab->caches, __ATOMIC_RELAXED);
}

/* Bytes of a slab of a class; a multiple of VS_SLAB_PAGE. */
size_t vs_slab_span(unsigned class);

/* The struct of a context's slabs, made if new; NULL without memory. Lock. */
struct vs_slabs *vs_slabs_of(struct vs_pool *pool, struct vs_ctx *ctx);

/*
 * Fills an empty batch with objects that may be used at once: from slabs up to
 * `wanted`, but first with one that was given back whole and whose marker is
 * done, of which `most` at most. 1 <= wanted <= most. Returns how many. Lock.
 */
unsigned vs_slab_refill(struct vs_pool *pool, struct vs_slabs *s,
			unsigned class, unsigned wanted, unsigned most,
			struct vs_batch *batch);
/* Takes over a batch of freed objects, one at least, with their tag. Lock. */
void vs_slab_return(struct vs_pool *pool, struct vs_slabs *s, unsigned class,
		    struct vs_batch *batch);
/*
 * The same for a few, one at least, which join others of their tag: a batch
 * takes a page, and where an object of a slab is pinned all others come one by
 * one, and threads that end leave what they have. False: no memory.
 */
bool vs_slab_return_few(struct vs_pool *pool, struct vs_slabs *s,
			unsigned class, const struct vs_obj *few, unsigned n,
			uint64_t tag);
/* Makes a slab of a mapped range; NULL without host memory. Lock. */
struct vs_slab *vs_slab_make(struct vs_pool *pool, struct vs_slabs *s,
			     unsigned class, struct vs_range *range);
/*
 * Puts objects of batches that are done by now back into their slabs and gives
 * empty slabs back to the heap. Returns bytes given back. Takes the lock, and
 * gives it up in between.
 */
uint64_t vs_slab_sweep(struct vs_pool *pool);
/*
 * The same of some batches, with tags no newer than `tag`, and of some slabs;
 * whether there may be more. Adds the bytes to *bytes. Takes .3 ms at most (a
 * CPU, counting driver). Lock.
 */
bool vs_slab_sweep_some(struct vs_pool *pool, uint64_t tag, uint64_t *bytes);
/*
 * The newest tag of the batches; one that is done where those with a newer one
 * have left, or there are none. Lock.
 */
uint64_t vs_slab_newest(const struct vs_pool *pool);
/* Takes back everything a dying, idle context owned. Lock. */
void vs_slab_drop_ctx(struct vs_pool *pool, struct vs_ctx *ctx);
/* The live object at `p` is dead after its free. Lock. */
void vs_slab_pin(struct vs_pool *pool, CUdeviceptr p);
/*
 * Object `i` was freed just now, and is in no cache. If it was pinned it is
 * dead from now on, and with the last of its slab the slab is; so it is where
 * there is no host memory for a batch. Lock.
 */
void vs_slab_return_one(struct vs_pool *pool, struct vs_slab *slab, unsigned i);
/* The dead objects of a slab (one at least) may be used again. Lock. */
void vs_slab_revive(struct vs_pool *pool, struct vs_slab *slab);
/* Puts an object back into its slab (not live, not in a batch). Lock. */
void vs_slab_put(struct vs_pool *pool, struct vs_obj obj);

#endif
