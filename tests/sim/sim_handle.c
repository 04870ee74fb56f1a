/* SPDX-License-Identifier: MIT */
#include "sim_handle.h"

#include <stdlib.h>

#include "sim_base.h"
#include "sim_judge.h"

/*
 * kind (8 bits), generation (32), index (24).  The top byte makes the value
 * no valid address, so that a program that follows it faults at once.
 */
#define INDEX_BITS 24
#define INDEX_MASK ((1u << INDEX_BITS) - 1)

struct slot {
	void *object;	     /* NULL: free */
	uint32_t generation; /* of the live or the next handle */
	uint32_t next_free;
	uint8_t kind;
};

static struct slot *slots;
static uint32_t n_slots, max_slots, first_free = INDEX_MASK;
static unsigned counts[SIM_KINDS];

static const char *const kind_names[SIM_KINDS] = {
	[SIM_CONTEXT] = "context",
	[SIM_GREEN] = "green context",
	[SIM_STREAM] = "stream",
	[SIM_EVENT] = "event",
	[SIM_MODULE] = "module",
	[SIM_FUNCTION] = "function",
	[SIM_GRAPH] = "graph",
	[SIM_GRAPH_EXEC] = "executable graph",
	[SIM_GRAPH_NODE] = "graph node",
	[SIM_PHYSICAL] = "memory handle",
	[SIM_POOL] = "memory pool",
	[SIM_ARRAY] = "array",
	[SIM_MULTICAST] = "multicast object",
};

static uint32_t take_slot(void)
{
	uint32_t index = first_free;

	if (index != INDEX_MASK) {
		first_free = slots[index].next_free;
		return index;
	}
	if (n_slots == max_slots) {
		max_slots = max_slots ? 2 * max_slots : 256;
		slots = sim_realloc(slots, max_slots * sizeof(*slots));
	}
	slots[n_slots].generation = 1;
	return n_slots++;
}

uint64_t sim_handle_new(enum sim_kind kind, void *object)
{
	uint32_t index = take_slot();

	slots[index].object = object;
	slots[index].kind = (uint8_t)kind;
	counts[kind]++;
	return (uint64_t)kind << 56 |
	       (uint64_t)slots[index].generation << INDEX_BITS | index;
}

static struct slot *slot_of(enum sim_kind kind, uint64_t handle)
{
	uint32_t index = handle & INDEX_MASK;

	if (handle >> 56 != (uint64_t)kind || index >= n_slots)
		return NULL;
	return &slots[index];
}

static uint32_t generation_of(uint64_t handle)
{
	return (uint32_t)(handle >> INDEX_BITS);
}

void *sim_handle_peek(enum sim_kind kind, uint64_t handle)
{
	struct slot *slot = slot_of(kind, handle);

	if (!slot || slot->generation != generation_of(handle))
		return NULL;
	return slot->object;
}

void *sim_handle_get(enum sim_kind kind, uint64_t handle)
{
	struct slot *slot = slot_of(kind, handle);

	if (!slot)
		return NULL;
	if (slot->generation == generation_of(handle))
		return slot->object;
	if (slot->generation > generation_of(handle))
		sim_violation(SIM_V_STALE, "use of a destroyed %s %#llx",
			      kind_names[kind], (unsigned long long)handle);
	return NULL;
}

void sim_handle_free(uint64_t handle)
{
	uint32_t index = handle & INDEX_MASK;
	struct slot *slot = &slots[index];

	counts[slot->kind]--;
	slot->object = NULL;
	slot->generation++;
	slot->next_free = first_free;
	first_free = index;
}

unsigned sim_handle_count(enum sim_kind kind)
{
	return counts[kind];
}

void sim_handle_each(enum sim_kind kind, void (*visit)(void *object, void *arg),
		     void *arg)
{
	uint32_t i;

	for (i = 0; i < n_slots; i++)
		if (slots[i].object && slots[i].kind == kind)
			visit(slots[i].object, arg);
}

void sim_handle_reset(void)
{
	uint32_t i;

	/* Generations go on, so that old handles stay invalid. */
	first_free = INDEX_MASK;
	for (i = n_slots; i-- > 0;) {
		if (slots[i].object)
			slots[i].generation++;
		slots[i].object = NULL;
		slots[i].next_free = first_free;
		first_free = i;
	}
	for (i = 0; i < SIM_KINDS; i++)
		counts[i] = 0;
}
