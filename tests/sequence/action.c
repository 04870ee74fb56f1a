/* SPDX-License-Identifier: MIT */
#include "action.h"

#include <stdio.h>
#include <string.h>

#include "turns.h"

static size_t row_at(const struct place *p, size_t z, size_t y)
{
	return p->at + z * p->slice + y * p->pitch;
}

void action_do(const struct action *a, unsigned char *to,
	       const unsigned char *from)
{
	unsigned char *p;
	size_t x, y, z;

	for (z = 0; z < a->depth; z++) {
		for (y = 0; y < a->height; y++) {
			p = to + row_at(&a->dst, z, y);
			if (from)
				memcpy(p, from + row_at(&a->src, z, y),
				       a->width);
			for (x = 0; !from && x < a->width; x++)
				p[x] = (unsigned char)(a->value >>
						       x % a->unit * 8);
		}
	}
}

struct place action_place(const struct action *a, size_t block_size,
			  size_t *rows_out)
{
	size_t pitch = a->width + chance(64), rows = a->height + chance(3);
	size_t at = chance(300);
	size_t span = (a->depth - 1) * pitch * rows + (a->height - 1) * pitch +
		      a->width;

	if (at + span > block_size) {
		pitch = a->width;
		rows = a->height;
		at = 0;
	}
	*rows_out = rows;
	printf(" +%zu %zu %zu", at, pitch, rows);
	return (struct place){at, pitch, pitch * rows};
}
