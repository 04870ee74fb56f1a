/* SPDX-License-Identifier: MIT
 *
 * sequence: random calls of the driver whose answers must be the same without
 * and with the shim (sequence.c). What the program has.
 */
#ifndef SEQUENCE_H
#define SEQUENCE_H

#include "../e2e/victim_link.h"
#include "shadow.h"

enum {
	PRIMARY = 0,
	GREEN = 3, /* between them: made by cuCtxCreate */
	N_CTX,
	N_CREATED = 9, /* streams */
	N_STREAMS = N_CREATED + N_CTX * (1 + N_THREADS),
	N_EVENTS = 6,
	N_GRAPHS = 4
};

struct stream {
	bool is_live, is_legacy, is_blocking;
	CUstream handle;
	int ctx;
	CUevent event; /* behind its last work */
	struct recording *capture;
	int capturer; /* the thread */
	CUstreamCaptureMode mode;
};

struct graph {
	CUgraph graph;
	CUgraphExec exec;
	int ctx;
	struct recording does;
	bool is_built; /* by these nodes, not captured */
	CUgraphNode nodes[N_ACTIONS];
	bool is_changed; /* `exec` is not what `graph` is */
};

struct context {
	CUcontext handle; /* NULL: none */
	CUdevice device;
	CUgreenCtx green;
	CUfunction sleeper; /* NULL: not loaded */
	bool has_calls;	    /* host functions were given to its streams */
};

extern struct context contexts[N_CTX];
extern struct stream streams[N_STREAMS];
extern struct graph graphs[N_GRAPHS];
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

/* The one that is current in this thread; -1: none. */
int current(void);
/* Whose memory it is: a green context's is the primary one's. */
int owner(int ctx);
bool no_captures(void);
/* A thread begins with the primary one, and ends with what it has current. */
void enter(void);
void leave(void);
/* Any that this thread can give work to; says which; NULL: none. */
struct stream *some_stream(void);
/* Of the current context, by any of its names. */
struct stream *null_stream(void);
/* Its own capture, or one that it was drawn into. */
bool is_capturing(const struct stream *s);
/* Their context has ended, or the thread whose own they are. */
void forget_streams(int ctx);
void forget_own_streams(void);
CUstream name_of(const struct stream *s);
/* Host functions that this stream will call; whether all were. */
void note_calls(struct stream *s, int n);
bool all_called(void);
/* The function of that version; NULL, which is said: not in this driver. */
void *find(const char *name, int version);

/* ---- memory (blocks.c) -------------------------------------------------- */

struct block *new_block(enum kind kind, CUdeviceptr p, size_t size);
/* Waits for its work on the host. */
bool settle(struct block *b);
/* Lets the stream wait for what these blocks have; false, which is said: it
 * may not be given this work. */
bool begin_work(struct stream *s, const struct action *actions, int n);
/* What the call has answered; the work is done, or captured. */
void end_work(struct stream *s, const struct action *actions, int n,
	      CUresult result);

/* ---- graphs.c ----------------------------------------------------------- */

/* No other thread's capture is lost by an allocation or a free of this one. */
bool harms_no_capture(void);
/* A thread's own: global at first. */
extern CUstreamCaptureMode own_mode[N_THREADS];
/* Whether this thread has one open. */
bool is_capturer(void);
void end_capture(struct stream *s);
/* One of which all memory is there. */
struct graph *some_graph(void);
void drop_graph(struct graph *g);

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
