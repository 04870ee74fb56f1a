/* SPDX-License-Identifier: MIT */
/*
 * Copy: what a copy's two ends are, whether it may be, and how it waits.
 */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "sim_work.h"

/* What the program said about an end of a copy. */
enum sim_side {
	SIM_ANY_SIDE, /* unified: look it up */
	SIM_HOST_SIDE,
	SIM_DEVICE_SIDE,
};

struct sim_transfer {
	struct sim_copy copy;
	enum sim_side dst, src;
	bool peer; /* cuMemcpyPeer: access is not asked */
	bool async;
	/* cuMemcpyPeer's for dst and src; NULL: none */
	struct sim_context *named[2];
};

CUresult sim_transfer(struct sim_transfer *transfer, CUstream stream);

/*
 * The operation of a copy that is to run in ctx, or an error if it may not. A
 * copy of nothing touches nothing.
 */
CUresult sim_copy_prepare(const struct sim_transfer *transfer,
			  struct sim_context *ctx, struct sim_op *op);
/* Take the data of a host source now. */
void sim_copy_stage(struct sim_op *op);
/* sim_memcpy.c: what a description means; not what it means of arrays. */
CUresult sim_copy_describe(const CUDA_MEMCPY3D *params,
			   struct sim_transfer *transfer);
/* sim_memset.c: as sim_copy_prepare(). */
CUresult sim_set_prepare(const struct sim_set *set, struct sim_context *ctx,
			 struct sim_op *op);
/*
 * Submits a plain copy or set within devices, and waits for it if
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS or the context's flag says so.
 */
CUresult sim_copy_submit_plain(struct sim_stream *stream,
			       const struct sim_op *op);
/* May a copy or set that was prepared before still run? */
bool sim_copy_may_run(const struct sim_op *op);
bool sim_set_may_run(const struct sim_op *op);

/* Is [addr, addr + size) device memory that device may reach? */
bool sim_copy_check_device(uint64_t addr, uint64_t size, int device, bool write,
			   bool peer, struct sim_extent *extent);

#endif
