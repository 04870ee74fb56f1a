/* SPDX-License-Identifier: MIT */
#include "sim_range.h"

#include <stddef.h>

static uint32_t next_weight(void)
{
	static uint32_t state = 2463534242u;

	/* xorshift32: same shape of the tree in every run */
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

/* Split tree into what starts before start and the rest. */
static void split(struct sim_range *tree, uint64_t start,
		  struct sim_range **before, struct sim_range **rest)
{
	while (tree) {
		if (tree->start < start) {
			*before = tree;
			before = &tree->right;
			tree = tree->right;
		} else {
			*rest = tree;
			rest = &tree->left;
			tree = tree->left;
		}
	}
	*before = NULL;
	*rest = NULL;
}

bool sim_range_insert(struct sim_ranges *set, struct sim_range *range)
{
	struct sim_range **link = &set->root;

	if (sim_range_overlap(set, range->start, range->size))
		return false;
	range->weight = next_weight();
	while (*link && (*link)->weight >= range->weight)
		link = range->start < (*link)->start ? &(*link)->left
						     : &(*link)->right;
	split(*link, range->start, &range->left, &range->right);
	*link = range;
	set->n++;
	set->bytes += range->size;
	return true;
}

void sim_range_remove(struct sim_ranges *set, struct sim_range *range)
{
	struct sim_range **link = &set->root;
	struct sim_range *left = range->left, *right = range->right;

	while (*link != range)
		link = range->start < (*link)->start ? &(*link)->left
						     : &(*link)->right;
	while (left && right) {
		if (left->weight >= right->weight) {
			*link = left;
			link = &left->right;
			left = left->right;
		} else {
			*link = right;
			link = &right->left;
			right = right->left;
		}
	}
	*link = left ? left : right;
	set->n--;
	set->bytes -= range->size;
}

struct sim_range *sim_range_next(const struct sim_ranges *set, uint64_t addr)
{
	struct sim_range *at = set->root, *best = NULL;

	while (at) {
		if (at->start + at->size > addr) {
			best = at;
			at = at->left;
		} else {
			at = at->right;
		}
	}
	return best;
}

struct sim_range *sim_range_find(const struct sim_ranges *set, uint64_t addr)
{
	struct sim_range *range = sim_range_next(set, addr);

	return range && range->start <= addr ? range : NULL;
}

struct sim_range *sim_range_overlap(const struct sim_ranges *set,
				    uint64_t start, uint64_t size)
{
	struct sim_range *range = sim_range_next(set, start);

	return range && range->start < start + size ? range : NULL;
}
