/* SPDX-License-Identifier: MIT */
/* Array: occupies device memory, holds no data.  Guarded by the lock. */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "sim_call.h"

void sim_array_free_context(struct sim_context *ctx);
void sim_array_sum(int device, uint64_t *n_out, uint64_t *bytes_out);

#endif
