/* SPDX-License-Identifier: MIT */
/*
 * Graph: recorded operations, replayed in the order in which they were
 * captured.  Guarded by the lock.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "sim_call.h"
#include "sim_work.h"

struct sim_graph {
	uint64_t handle;
	struct sim_op *ops; /* their staged is not owned */
	unsigned n, max;
};

struct sim_graph *sim_graph_new(void);
void sim_graph_add(struct sim_graph *graph, const struct sim_op *op);
void sim_graph_free(struct sim_graph *graph);
void sim_graph_reset(void);

#endif
