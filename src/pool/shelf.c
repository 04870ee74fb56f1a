/* SPDX-License-Identifier: MIT */
#include "pool/shelf.h"

static struct vs_range *take_top(struct vs_shelf *shelf, unsigned bin)
{
	struct vs_range *r = shelf->top[bin];

	shelf->top[bin] = r->below;
	if (!r->below)
		vs_bins_empty(&shelf->filled, bin);
	return r;
}

void vs_shelf_put(struct vs_shelf *shelf, struct vs_range *r)
{
	unsigned bin = vs_bin_of(r->span);

	r->below = shelf->top[bin];
	shelf->top[bin] = r;
	vs_bins_fill(&shelf->filled, bin);
}

struct vs_range *vs_shelf_take(struct vs_shelf *shelf, uint64_t span,
			       uint64_t waste)
{
	unsigned bin = vs_bin_of(span);

	if (shelf->top[bin] && shelf->top[bin]->span >= span)
		return take_top(shelf, bin);
	bin = vs_bins_from(&shelf->filled, bin + 1);
	if (bin < VS_RANGE_BINS && shelf->top[bin]->span - span <= waste)
		return take_top(shelf, bin);
	return NULL;
}

struct vs_range *vs_shelf_any(struct vs_shelf *shelf)
{
	unsigned bin = vs_bins_from(&shelf->filled, 0);

	return bin < VS_RANGE_BINS ? take_top(shelf, bin) : NULL;
}
