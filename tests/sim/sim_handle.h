/* SPDX-License-Identifier: MIT */
/*
 * Handle: the values that a program holds instead of pointers, so that a
 * destroyed or invented handle is noticed and never followed.  Guarded by the
 * simulator's lock.
 */
#ifndef SIM_HANDLE_H
#define SIM_HANDLE_H

#include <stdint.h>

enum sim_kind {
	SIM_CONTEXT = 1,
	SIM_GREEN,
	SIM_STREAM,
	SIM_EVENT,
	SIM_MODULE,
	SIM_FUNCTION,
	SIM_GRAPH,
	SIM_GRAPH_EXEC,
	SIM_GRAPH_NODE,
	SIM_PHYSICAL,
	SIM_POOL,
	SIM_ARRAY,
	SIM_MULTICAST,
	SIM_KINDS
};

uint64_t sim_handle_new(enum sim_kind kind, void *object);
/* NULL if the handle is not live; reports it if it was destroyed. */
void *sim_handle_get(enum sim_kind kind, uint64_t handle);
/* The same without a report. */
void *sim_handle_peek(enum sim_kind kind, uint64_t handle);
void sim_handle_free(uint64_t handle);
unsigned sim_handle_count(enum sim_kind kind);
/* Call visit for each live handle of a kind; it may free that handle. */
void sim_handle_each(enum sim_kind kind, void (*visit)(void *object, void *arg),
		     void *arg);
void sim_handle_reset(void);

/* A handle as the driver's opaque pointer type, and back. */
#define SIM_AS(type, handle) ((type)(uintptr_t)(handle))
#define SIM_OF(pointer) ((uint64_t)(uintptr_t)(pointer))

#endif
