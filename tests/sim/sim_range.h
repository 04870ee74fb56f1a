/* SPDX-License-Identifier: MIT */
/*
 * Range: an ordered set of address ranges that do not overlap, found by any
 * address inside (a treap).  Embed struct sim_range as the first member.
 * Guarded by the simulator's lock; owns no memory.
 */
#ifndef SIM_RANGE_H
#define SIM_RANGE_H

#include <stdbool.h>
#include <stdint.h>

struct sim_range {
	uint64_t start, size;
	struct sim_range *left, *right;
	uint32_t weight;
};

struct sim_ranges {
	struct sim_range *root;
	uint64_t n, bytes;
};

/* False, and nothing done, if it overlaps a member. */
bool sim_range_insert(struct sim_ranges *set, struct sim_range *range);
void sim_range_remove(struct sim_ranges *set, struct sim_range *range);
/* The member that holds addr, or NULL. */
struct sim_range *sim_range_find(const struct sim_ranges *set, uint64_t addr);
/* The first member that ends behind addr, or NULL. */
struct sim_range *sim_range_next(const struct sim_ranges *set, uint64_t addr);
/* The first member that overlaps [start, start + size), or NULL. */
struct sim_range *sim_range_overlap(const struct sim_ranges *set,
				    uint64_t start, uint64_t size);

#endif
