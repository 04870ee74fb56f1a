/* SPDX-License-Identifier: MIT
 *
 * fake: a counting stand-in for the driver under the pool, for unit tests and
 * for replay. No memory, no threads, a clock of its own.
 *
 * It keeps the books of reservations, handles and mappings, enforces their
 * rules (a broken rule ends the program with a line that names it), fails calls
 * on demand, and adds up what each call costs on real hardware. Work on the
 * "GPU" is only time: an event is complete `lag_ns` after it was recorded, and
 * not before `gpu_free`, when all work is done that was given to it so far.
 */
#ifndef VS_TEST_FAKE_H
#define VS_TEST_FAKE_H

#include <cuda.h>
#include <stdint.h>

#define FAKE_CTX ((CUcontext)0x1000)

struct fake {
	uint64_t now;	   /* ns */
	uint64_t lag_ns;   /* from a marker's record to its completion */
	uint64_t gpu_free; /* ns */
	uint64_t memory;   /* bytes of the device */
	uint64_t others;   /* of them, other processes have */
	uint64_t space;	   /* the largest reservation there can be */
	double cost_us;	   /* of all memory calls so far */
	/* books */
	uint64_t held, held_high;
	unsigned long refused; /* creates beyond what others leave */
	unsigned long creates, releases, maps, unmaps, accesses;
	unsigned long records, queries, natives, handles, mappings;
	unsigned long orders;	/* waits of a context for an event */
	unsigned long seen;	/* of the queries: the event was complete */
	unsigned long tables;	/* page tables that mappings made */
	unsigned long barriers; /* see fake_allow_barriers() */
	/* the n-th coming call of this kind fails; 0: never */
	unsigned fail_create, fail_map, fail_access, fail_unmap, fail_record;
	unsigned fail_release;
	CUdeviceptr never_unmapped; /* where each unmap fails; 0: nowhere */
	/* called before an unmap, and when a handle's memory is gone */
	void (*on_unmap)(CUdeviceptr at, uint64_t size);
	void (*on_gone)(uint64_t handle);
	CUcontext current;
	int captures; /* a record while > 0 ends the program */
};

extern struct fake fake;

/* Makes the fake the driver of this process, with `memory` bytes. */
void fake_install(uint64_t memory);
/*
 * From now on the driver's own allocator serves, and its free waits for all
 * work, which the pool does on purpose beside a capture.
 */
void fake_allow_barriers(void);
/* A part of a handle that can be reached at an address. */
struct fake_piece {
	uint64_t handle, handle_size; /* a number that no other ever has */
	uint64_t offset, size;	      /* up to the end of the handle */
	uint64_t devices;	      /* with access, a bit each */
};

/* What lies at `p`; 0 if nothing does, or without access. */
int fake_piece(CUdeviceptr p, struct fake_piece *out);
/* Base of the mapping over `p`; 0: none. */
CUdeviceptr fake_mapping(CUdeviceptr p);

#endif
