/* SPDX-License-Identifier: MIT
 *
 * sequence: random calls of the driver whose answers must be the same without
 * and with the shim (sequence.c). What the program has.
 */
#ifndef SEQUENCE_H
#define SEQUENCE_H

#include "../e2e/victim_link.h"
#include "captures.h"

enum {
	PRIMARY = 0,
	GREEN = 3, /* between them: made by cuCtxCreate */
	N_CTX,
	N_CREATED = 9, /* streams */
	N_STREAMS = N_CREATED + N_CTX * (1 + N_THREADS),
	N_EVENTS = 6
};

struct context {
	CUcontext handle; /* NULL: none */
	CUdevice device;
	CUgreenCtx green;
	CUfunction sleeper; /* NULL: not loaded */
	bool has_calls;	    /* host functions were given to its streams */
};

extern struct context contexts[N_CTX];
extern CUmemoryPool pool; /* of the first device */
void make_pool(void);

/* ---- answers ------------------------------------------------------------ */

/* Prints ": NAME". */
CUresult say(CUresult result);
/* A further one of the same operation: what it is. */
CUresult also(const char *what, CUresult result);

static inline void *pointer(CUdeviceptr p)
{
	return (void *)(uintptr_t)p;
}

/* ---- contexts and streams ----------------------------------------------- */

/* Whose memory it is: a green context's is the primary one's. */
int owner(int ctx);
/* A thread begins with the primary one, and ends with what it has current. */
void enter(void);
void leave(void);
/* Their context has ended, or the thread whose own they are. */
void forget_streams(int ctx);
void forget_own_streams(void);
/* Host functions that this stream will call. */
void note_calls(struct stream *s, int n);
/* The function of that version; NULL, which is said: not in this driver. */
void *find(const char *name, int version);

/* ---- memory (blocks.c) -------------------------------------------------- */

struct block *new_block(enum kind kind, CUdeviceptr p, size_t size);
/* What the call has answered; the work is done, or captured. */
void end_work(struct stream *s, const struct action *actions, int n,
	      CUresult result);

/* ---- operations: name; how often; how often by a thread that captures ---- */

#define OPERATIONS(X)                                                          \
	X(alloc, 20, 2)                                                        \
	X(alloc_pitch, 4, 0)                                                   \
	X(alloc_async, 4, 1)                                                   \
	X(alloc_pooled, 3, 0)                                                  \
	X(alloc_managed, 2, 0)                                                 \
	X(alloc_host, 3, 0)                                                    \
	X(alloc_nothing, 2, 0)                                                 \
	X(alloc_too_much, 2, 0)                                                \
	X(free, 10, 2)                                                         \
	X(free_async, 6, 0)                                                    \
	X(free_twice, 3, 0)                                                    \
	X(free_inside, 2, 0)                                                   \
	X(free_null, 1, 0)                                                     \
	X(copy, 14, 8)                                                         \
	X(copy_2d, 5, 3)                                                       \
	X(copy_3d, 5, 3)                                                       \
	X(copy_peer, 4, 0)                                                     \
	X(copy_batch, 5, 1)                                                    \
	X(copy_batch_3d, 3, 0)                                                 \
	X(copy_past, 4, 1)                                                     \
	X(read, 10, 1)                                                         \
	X(set, 8, 8)                                                           \
	X(set_2d, 3, 4)                                                        \
	X(set_past, 3, 0)                                                      \
	X(kernel, 6, 6)                                                        \
	X(attributes, 5, 0)                                                    \
	X(range, 3, 0)                                                         \
	X(info, 2, 0)                                                          \
	X(handles, 2, 0)                                                       \
	X(ipc, 2, 0)                                                           \
	X(sync_memops, 1, 0)                                                   \
	X(advise, 2, 0)                                                        \
	X(stream_create, 8, 2)                                                 \
	X(stream_destroy, 2, 0)                                                \
	X(stream_query, 2, 0)                                                  \
	X(stream_sync, 3, 0)                                                   \
	X(ctx_sync, 2, 0)                                                      \
	X(event_record, 4, 0)                                                  \
	X(event_wait, 3, 1)                                                    \
	X(event_look, 2, 0)                                                    \
	X(host_call, 3, 3)                                                     \
	X(stream_value, 2, 0)                                                  \
	X(capture_begin, 8, 1)                                                 \
	X(capture_end, 5, 8)                                                   \
	X(capture_fork, 6, 8)                                                  \
	X(capture_alloc, 1, 2)                                                 \
	X(capture_look, 3, 3)                                                  \
	X(capture_mode, 2, 0)                                                  \
	X(graph_build, 3, 0)                                                   \
	X(graph_change, 4, 0)                                                  \
	X(graph_make, 3, 0)                                                    \
	X(graph_launch, 8, 6)                                                  \
	X(graph_update, 2, 0)                                                  \
	X(graph_destroy, 1, 0)                                                 \
	X(ctx_create, 3, 0)                                                    \
	X(ctx_destroy, 2, 0)                                                   \
	X(ctx_push, 4, 0)                                                      \
	X(ctx_pop, 3, 0)                                                       \
	X(ctx_set, 4, 1)                                                       \
	X(ctx_retain, 2, 0)                                                    \
	X(ctx_peer, 4, 0)                                                      \
	X(thread_end, 2, 0)                                                    \
	X(ctx_reset, 1, 0)                                                     \
	X(green_create, 2, 0)                                                  \
	X(green_destroy, 1, 0)

#define X(name, weight, within) void op_##name(void);
OPERATIONS(X)
#undef X

#endif
