/* SPDX-License-Identifier: MIT */
/*
 * VMM: reservations of address space, mappings of physical memory in them,
 * and which device may reach each mapping.  Strict: whole handles and whole
 * mappings only (an H200).  Guarded by the lock.
 */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "sim_base.h"
#include "sim_call.h"
#include "sim_physical.h"
#include "sim_range.h"

struct sim_reservation {
	struct sim_range range;
};

struct sim_mapping {
	struct sim_range range;
	struct sim_physical *physical;
	struct sim_reservation *reservation;
	uint64_t buffer_id;
	unsigned char access[SIM_MAX_DEVICES]; /* CUmemAccess_flags */
};

struct sim_mapping *sim_vmm_find(uint64_t addr);
struct sim_reservation *sim_vmm_find_reservation(uint64_t addr);
/* Is [start, start + size) mapped without a gap? */
bool sim_vmm_mapped(uint64_t start, uint64_t size);
/* Mapped, and device may read (write: and write) all of it? */
bool sim_vmm_accessible(uint64_t start, uint64_t size, int device, bool write);

struct sim_vmm_sums {
	uint64_t n_reservations, reserved, n_mappings, mapped;
};

/* Reservations belong to no device: they are counted once, for device 0. */
void sim_vmm_sum(int device, struct sim_vmm_sums *sums);
void sim_vmm_reset(void);

#endif
