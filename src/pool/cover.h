/* SPDX-License-Identifier: MIT
 *
 * cover: what covers a whole GiB of the arena, a stretch, is named there once
 * by the chunk table, and not at each of its granules: to write those of 64
 * GiB, and of another table, took 280 us on an H200, a sixth of the driver's
 * own allocation.
 */
#ifndef VS_POOL_COVER_H
#define VS_POOL_COVER_H

#include <stdint.h>

#define VS_STRETCH ((uint64_t)1 << 30)

/*
 * Where a table names what lies over a part of the arena: in the units
 * [head, head_end), the stretches [whole, whole_end), the units [tail,
 * tail_end). Without a whole stretch the head is all.
 */
struct vs_cover {
	uint64_t head, head_end;
	uint64_t whole, whole_end;
	uint64_t tail, tail_end;
};

/*
 * For the units that begin in [from, to), bytes from the arena's begin; `unit`
 * bytes each, a power of two and part of a stretch.
 */
static inline struct vs_cover vs_cover_of(uint64_t from, uint64_t to,
					  uint64_t unit)
{
	struct vs_cover c = {.head = (from + unit - 1) / unit,
			     .head_end = (to + unit - 1) / unit,
			     .whole = (from + VS_STRETCH - 1) / VS_STRETCH,
			     .whole_end = to / VS_STRETCH};

	c.tail = c.tail_end = c.head_end;
	if (c.whole < c.whole_end) {
		c.head_end = c.whole * (VS_STRETCH / unit);
		c.tail = c.whole_end * (VS_STRETCH / unit);
	} else {
		c.whole_end = c.whole;
	}
	return c;
}

#endif
