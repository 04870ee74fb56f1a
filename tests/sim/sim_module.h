/* SPDX-License-Identifier: MIT */
/*
 * Module: loaded images and the functions in them; libraries are modules
 * without a context.  Guarded by the lock.
 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "sim_call.h"
#include "sim_work.h"

void sim_module_free_context(struct sim_context *ctx);
void sim_module_reset(void);

/*
 * The operation of a kernel (a CUfunction's handle, or a CUkernel's) that is to
 * run in ctx, or an error if it may not.
 */
CUresult sim_kernel_prepare(uint64_t function, void **params, void **extra,
			    const struct sim_context *ctx, struct sim_op *op);

#endif
