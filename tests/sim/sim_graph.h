/* SPDX-License-Identifier: MIT */
/*
 * Graph: recorded operations, replayed in the order in which they were
 * captured or added: a node can depend on older ones alone.  Guarded by the
 * lock.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "sim_call.h"
#include "sim_work.h"

/* The name of one operation of a graph. */
struct sim_node {
	uint64_t handle;
	struct sim_graph *graph;
	unsigned at;
};

struct sim_graph {
	uint64_t handle;
	struct sim_op *ops;	 /* their staged is not owned */
	struct sim_node **nodes; /* NULL until somebody asks for it */
	unsigned n, max;
};

struct sim_graph_exec {
	uint64_t handle;
	uint64_t graph; /* that it was made from; may be gone */
	struct sim_op *ops;
	unsigned n;
};

struct sim_graph *sim_graph_new(void);
void sim_graph_add(struct sim_graph *graph, const struct sim_op *op);
/* The node of an operation. */
struct sim_node *sim_graph_node(struct sim_graph *graph, unsigned at);
/* Takes all operations out. */
void sim_graph_clear(struct sim_graph *graph);
void sim_graph_free(struct sim_graph *graph);
void sim_graph_reset(void);

#endif
