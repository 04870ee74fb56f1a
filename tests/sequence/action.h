/* SPDX-License-Identifier: MIT
 *
 * action: a set or a copy, and what it makes of the blocks' shadows.
 */
#ifndef ACTION_H
#define ACTION_H

#include <stddef.h>
#include <stdint.h>

/* Where a copy begins in a block, and the steps to its next row and plane. */
struct place {
	size_t at, pitch, slice;
};

/* A set of elements of `unit` bytes, or a copy: `from` is no block's then. */
struct action {
	int to, to_serial, from, from_serial;
	struct place dst, src;
	size_t width, height, depth; /* width in bytes */
	uint32_t value;
	unsigned unit;
};

/* On the shadows of both; from: NULL if it is a set. */
void action_do(const struct action *a, unsigned char *to,
	       const unsigned char *from);
/* Some place for the action's rows that ends within a block of that size. */
struct place action_place(const struct action *a, size_t block_size,
			  size_t *rows_out);

#endif
