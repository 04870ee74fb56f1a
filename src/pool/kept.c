/* SPDX-License-Identifier: MIT */
#include "pool/kept.h"

#include <string.h>

/*
 * Of so many that were kept so many in a hundred were found, or more: of the
 * few, and of the many. Of the recorded traces it is 12 to 17 and 34 to 49
 * where it pays, 6 and 17 where it does not (HACKING.md).
 */
#define WINDOW 128
#define FEW_FOUND 10
#define MANY_FOUND 20
/* Before it is tried again. */
#define SKIPPED (7 * WINDOW)

static struct vs_range *take_slot(struct vs_kept *kept, unsigned i)
{
	struct vs_range *r = kept->range[i];
	unsigned n_behind = --kept->n - i;

	kept->bytes -= kept->span[i];
	memmove(&kept->span[i], &kept->span[i + 1],
		n_behind * sizeof(kept->span[0]));
	memmove(&kept->range[i], &kept->range[i + 1],
		n_behind * sizeof(kept->range[0]));
	return r;
}

struct vs_range *vs_kept_take(struct vs_kept *kept, uint64_t span,
			      uint64_t waste_most)
{
	uint64_t least = waste_most + 1;
	unsigned best = VS_KEPT_MOST;

	for (unsigned i = kept->n; i-- > 0;) {
		uint64_t waste = kept->span[i] - span; /* smaller: very much */

		if (waste >= least)
			continue;
		least = waste;
		best = i;
	}
	if (best == VS_KEPT_MOST)
		return NULL;
	kept->n_found++;
	return take_slot(kept, best);
}

struct vs_range *vs_kept_within(struct vs_kept *kept, uint64_t least,
				uint64_t below)
{
	for (unsigned i = 0; i < kept->n; i++) {
		if (kept->span[i] >= least && kept->span[i] < below)
			return take_slot(kept, i);
	}
	return NULL;
}

struct vs_range *vs_kept_surplus(struct vs_kept *kept)
{
	unsigned most = kept->is_worth_it ? VS_KEPT_MOST : VS_KEPT_FEW;

	return kept->n >= most ? take_slot(kept, 0) : NULL;
}

bool vs_kept_wants(struct vs_kept *kept)
{
	if (kept->n_skipped == 0)
		return true;
	kept->n_skipped--;
	return false;
}

void vs_kept_put(struct vs_kept *kept, struct vs_range *r)
{
	kept->bytes += r->span;
	kept->span[kept->n] = r->span;
	kept->range[kept->n++] = r;
	if (++kept->n_put < WINDOW)
		return;
	kept->is_worth_it =
		kept->n_found * 100 >=
		WINDOW * (kept->is_worth_it ? MANY_FOUND : FEW_FOUND);
	kept->n_skipped = kept->is_worth_it ? 0 : SKIPPED;
	kept->n_put = kept->n_found = 0;
}
