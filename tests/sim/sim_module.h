/* SPDX-License-Identifier: MIT */
/*
 * Module: loaded images and the functions in them; libraries are modules
 * without a context.  Guarded by the lock.
 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "sim_call.h"

void sim_module_free_context(struct sim_context *ctx);
void sim_module_reset(void);

#endif
