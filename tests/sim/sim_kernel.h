/* SPDX-License-Identifier: MIT */
/*
 * Kernel: the functions that modules may hold.  A victim embeds the PTX of
 * kernels_ptx.h; here the name chooses a host function that does the same.
 */
#ifndef SIM_KERNEL_H
#define SIM_KERNEL_H

#include "sim_work.h"

struct sim_kernel;

/* NULL: not one of ours. */
const struct sim_kernel *sim_kernel_find(const char *name);
/*
 * Fill in an operation from cuLaunchKernel's two ways of passing arguments:
 * pointers to each, or one packed buffer.  False if there are none.
 */
bool sim_kernel_bind(const struct sim_kernel *kernel, void **params,
		     void **extra, struct sim_op *op);

/* Where an argument lies in a packed buffer; `size` may be NULL. */
bool sim_kernel_param(const struct sim_kernel *kernel, size_t index,
		      size_t *offset, size_t *size);

#endif
