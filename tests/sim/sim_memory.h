/* SPDX-License-Identifier: MIT */
/*
 * Memory: the register of everything that is no VMM mapping - legacy, pool,
 * managed, page-locked host and imported memory - found by any address
 * inside; and the question whether work may touch a range.  Guarded by the
 * lock.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "sim_call.h"
#include "sim_range.h"
#include "sim_work.h"

enum sim_memory_kind {
	SIM_LEGACY, /* cuMemAlloc */
	SIM_ASYNC,  /* cuMemAllocAsync */
	SIM_MANAGED,
	SIM_HOST,	/* cuMemAllocHost, cuMemHostAlloc */
	SIM_REGISTERED, /* cuMemHostRegister */
	SIM_IMPORTED,	/* cuIpcOpenMemHandle */
};

struct sim_memory {
	struct sim_range range; /* as requested, not rounded */
	enum sim_memory_kind kind;
	int device;
	struct sim_context *ctx; /* that allocated it */
	uint64_t buffer_id;
	uint64_t mapping_start, mapping_size; /* the 2 MiB block(s) */
	unsigned flags;			      /* of host memory */
	bool sync_memops;
	bool memops_wait;	 /* the program has set it */
	bool going;		 /* a free waits for the device */
	struct sim_block *block; /* legacy (sim_legacy.c) */
	struct sim_pool *pool;	 /* async (sim_pool.c) */
	/* imported (sim_ipc.c) */
	unsigned opened;
	uint64_t key;
};

struct sim_memory *sim_memory_new(enum sim_memory_kind kind, uint64_t start,
				  uint64_t size);
/* Takes it out of the register and frees the structure. */
void sim_memory_delete(struct sim_memory *memory);
struct sim_memory *sim_memory_find(uint64_t addr);
/* In address order; from 0 for the first. */
struct sim_memory *sim_memory_next(uint64_t addr);
/* Never reused; for BUFFER_ID. */
uint64_t sim_memory_next_id(void);

bool sim_memory_is_host(const struct sim_memory *memory);

/* May work of ctx that runs on device touch the range? */
bool sim_memory_accessible(uint64_t start, uint64_t size,
			   const struct sim_context *ctx, int device,
			   bool write);

/* The same for a range of an operation, with what is said of it. */
bool sim_memory_may_touch(const struct sim_context *ctx, int device,
			  const struct sim_extent *extent);

/*
 * May the operation start?  If not: as on the hardware, an illegal address
 * breaks the context for good; and it is reported.
 */
bool sim_memory_check_access(struct sim_stream *stream,
			     const struct sim_op *op);

/* The bytes that an allocation rounds up to on the device. */
struct sim_memory_sums {
	uint64_t n[SIM_IMPORTED + 1], bytes[SIM_IMPORTED + 1];
};

void sim_memory_sum(int device, struct sim_memory_sums *sums);

/* sim_legacy.c: free all that a dying context allocated. */
void sim_legacy_free_context(struct sim_context *ctx);
uint64_t sim_legacy_physical(int device);
/* The file behind legacy memory, and where in it; -1 without backing. */
int sim_legacy_file(const struct sim_memory *memory, uint64_t *offset_out);
void sim_legacy_reset(void);

/* sim_host.c */
void sim_host_free(struct sim_memory *memory);
void sim_host_reset(void);

#endif
