/* SPDX-License-Identifier: MIT */
/*
 * Cost: modelled time of driver calls, as measured on an H200.
 * Guarded by the lock.
 */
#ifndef SIM_COST_H
#define SIM_COST_H

#include <stdint.h>

enum sim_cost_kind {
	SIM_COST_ALLOC,
	SIM_COST_FREE,
	SIM_COST_POOL_NEW, /* pool takes memory, or gives it up */
	SIM_COST_POOL_ALLOC,
	SIM_COST_POOL_FREE,
	SIM_COST_CREATE,
	SIM_COST_CREATE_FAIL, /* out of memory, legacy too */
	SIM_COST_RESERVE,
	SIM_COST_MAP,
	SIM_COST_SET_ACCESS,
	SIM_COST_SET_PEER, /* added by each further device */
	SIM_COST_UNMAP,
	SIM_COST_RELEASE,
	SIM_COST_FREE_VA,
	SIM_COST_EVENT_CREATE,
	SIM_COST_EVENT_QUERY,
	SIM_COST_CTX_RECORD,
	SIM_COST_CTX_WAIT,
	SIM_COST_KINDS
};

/* size is the whole range, n the handles (or devices) in it. */
void sim_cost(enum sim_cost_kind kind, uint64_t size, unsigned n);
/* The same, counted as VMM too. */
void sim_cost_vmm(enum sim_cost_kind kind, uint64_t size, unsigned n);
/* Let the time really pass; without the lock. */
void sim_cost_spend(double us);
void sim_cost_clear(void);

#endif
