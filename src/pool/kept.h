/* SPDX-License-Identifier: MIT
 *
 * kept: the last ranges that a program which works freed, and whose work is
 * done, as they are. Most programs ask for the size of something that they have
 * just freed, or hardly less (how much, pool/reuse says). To merge it with its
 * neighbours, and what it covers at the other addresses of its chunks with
 * theirs, and to cut all that again, is half of what a large allocation costs
 * (HACKING.md). But what is kept packs worse, and more is moved: so they are
 * few, unless many of the requests of late found theirs, and none most of the
 * time where hardly any did. What is kept is in use as far as heap, views and
 * chunks are concerned, like what is on a shelf (pool/shelf): it goes home
 * before its heap, or the pool, does without it (pool/reuse).
 *
 * Part of struct vs_pool and guarded by its lock. No driver call is made here.
 */
#ifndef VS_POOL_KEPT_H
#define VS_POOL_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "pool/heap.h"

/* Ranges, while requests find theirs, and else. */
#define VS_KEPT_MOST 16
#define VS_KEPT_FEW 2

struct vs_kept {
	/* oldest first; sizes apart, or each look would touch all ranges */
	uint64_t span[VS_KEPT_MOST];
	unsigned n;
	unsigned n_put, n_found; /* of the last few: is it worth it? */
	unsigned n_skipped;	 /* were not kept since, as it was not */
	uint64_t bytes;
	bool is_worth_it;
	struct vs_range *range[VS_KEPT_MOST];
};

/* Whether what was just freed is to be kept; each is asked for once. */
bool vs_kept_wants(struct vs_kept *kept);

/* Takes the oldest off, if one has to go before another comes; or NULL. */
struct vs_range *vs_kept_surplus(struct vs_kept *kept);
/* A range in nobody's hands is kept; there is no surplus. */
void vs_kept_put(struct vs_kept *kept, struct vs_range *r);
/*
 * Takes the smallest one of at least `span` bytes, and so many more at most,
 * the last of those; NULL if there is none.
 */
struct vs_range *vs_kept_take(struct vs_kept *kept, uint64_t span,
			      uint64_t waste_most);
/* Takes the oldest of at least, and below, so many bytes; NULL: none. */
struct vs_range *vs_kept_within(struct vs_kept *kept, uint64_t least,
				uint64_t below);

#endif
