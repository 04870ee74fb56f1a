/* SPDX-License-Identifier: MIT
 *
 * runtime: random calls of the runtime whose answers must be the same without
 * and with the shim (runtime.c). What the program has.
 */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "captures.h"

/* behind cuda.h: before it nothing is renamed for per-thread streams */
#include <cuda_runtime_api.h>

enum {
	MOST_DEVICES = 2,
	N_CREATED = 7, /* streams */
	N_STREAMS = N_CREATED + MOST_DEVICES * (1 + N_THREADS),
	N_EVENTS = 5
};

extern int n_devices;

/* ---- answers ------------------------------------------------------------ */

/* Prints ": NAME". */
cudaError_t say(cudaError_t result);
/* A further one of the same operation: what it is. */
cudaError_t also(const char *what, cudaError_t result);

/* ---- devices and streams ------------------------------------------------ */

/* The device was reset, or the thread ends whose own they are. */
void forget_streams(int device);
void forget_own_streams(void);

/* ---- memory (runtime_blocks.c) ------------------------------------------ */

bool is_array(const struct block *b);
struct block *new_block(enum kind kind, void *p, size_t size);
/* By the call for its kind; says the answer. */
cudaError_t free_block(struct block *b);
/* What the call has answered; the work is done, or captured. */
void end_work(struct stream *s, const struct action *actions, int n,
	      cudaError_t result);
/* Kernels of the device, which was reset. */
void forget_kernels(int device);

/* ---- operations: name; how often; how often by a thread that captures ---- */

#define OPERATIONS(X)                                                          \
	X(alloc, 20, 4)                                                        \
	X(alloc_pitch, 3, 1)                                                   \
	X(alloc_3d, 3, 0)                                                      \
	X(alloc_async, 5, 1)                                                   \
	X(alloc_managed, 2, 0)                                                 \
	X(alloc_host, 3, 1)                                                    \
	X(alloc_array, 3, 0)                                                   \
	X(alloc_nothing, 2, 0)                                                 \
	X(alloc_too_much, 2, 0)                                                \
	X(free, 10, 4)                                                         \
	X(free_async, 6, 1)                                                    \
	X(free_twice, 3, 1)                                                    \
	X(free_wrong, 3, 0)                                                    \
	X(free_null, 1, 1)                                                     \
	X(copy, 14, 8)                                                         \
	X(copy_2d, 5, 3)                                                       \
	X(copy_3d, 5, 3)                                                       \
	X(copy_array, 6, 0)                                                    \
	X(copy_peer, 3, 0)                                                     \
	X(copy_wrong, 4, 1)                                                    \
	X(read, 10, 1)                                                         \
	X(set, 8, 8)                                                           \
	X(set_2d, 3, 4)                                                        \
	X(set_3d, 3, 0)                                                        \
	X(set_wrong, 3, 0)                                                     \
	X(kernel, 6, 6)                                                        \
	X(attributes, 6, 1)                                                    \
	X(info, 2, 1)                                                          \
	X(ipc, 2, 0)                                                           \
	X(advise, 3, 0)                                                        \
	X(errors, 8, 2)                                                        \
	X(device_set, 4, 1)                                                    \
	X(device_sync, 2, 0)                                                   \
	X(device_peer, 3, 0)                                                   \
	X(device_reset, 1, 0)                                                  \
	X(thread_end, 2, 0)                                                    \
	X(stream_create, 8, 2)                                                 \
	X(stream_destroy, 2, 0)                                                \
	X(stream_query, 2, 0)                                                  \
	X(stream_sync, 3, 0)                                                   \
	X(event_record, 4, 0)                                                  \
	X(event_wait, 3, 1)                                                    \
	X(event_look, 2, 0)                                                    \
	X(host_call, 3, 3)                                                     \
	X(capture_begin, 14, 1)                                                \
	X(capture_end, 5, 8)                                                   \
	X(capture_fork, 6, 8)                                                  \
	X(capture_alloc, 1, 3)                                                 \
	X(capture_look, 3, 3)                                                  \
	X(capture_mode, 2, 0)                                                  \
	X(graph_launch, 10, 6)                                                 \
	X(graph_alloc, 2, 0)                                                   \
	X(graph_destroy, 1, 0)

#define X(name, weight, within) void op_##name(void);
OPERATIONS(X)
#undef X

#endif
