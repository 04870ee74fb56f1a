/* SPDX-License-Identifier: MIT
 *
 * captures: streams, what they capture, and the graphs that come of it, as far
 * as that takes no call. For sequence.c and runtime.c, which define what does.
 */
#ifndef CAPTURES_H
#define CAPTURES_H

#include "shadow.h"

enum { N_GRAPHS = 4 };

struct stream {
	bool is_live, is_legacy, is_blocking;
	CUstream handle;
	union { /* the owner, see struct block */
		int ctx;
		int device;
	};
	CUevent event; /* behind its last work */
	struct recording *capture;
	int capturer; /* the thread */
	CUstreamCaptureMode mode;
};

struct graph {
	CUgraph graph;
	CUgraphExec exec;
	union {
		int ctx;
		int device;
	};
	struct recording does;
	/* in sequence.c: */
	bool is_built; /* by these nodes, not captured */
	CUgraphNode nodes[N_ACTIONS];
	bool is_changed; /* `exec` is not what `graph` is */
};

extern struct graph graphs[N_GRAPHS];
/* A thread's own: global at first. */
extern CUstreamCaptureMode own_mode[N_THREADS];
extern const char *const mode_names[];

/* ---- defined by each of them --------------------------------------------- */

/* Those that were created come first, and are so many. */
extern struct stream streams[];
extern const int n_created;

/* The context or device that is current in this thread; -1: none. */
int current(void);
/* Any that this thread can give work to; says which; NULL: none. */
struct stream *some_stream(void);
/* Of what is current, by any of its names; NULL: none. */
struct stream *null_stream(void);
/* Its own capture, or one that it was drawn into. */
bool is_capturing(const struct stream *s);
/* No other thread's capture is lost by an allocation or a free of this one. */
bool harms_no_capture(void);
void end_capture(struct stream *s);
/* A set in another stream between two events: joined, unless a call fails. */
bool set_aside(struct stream *s, struct stream *side, const struct action *a);
void drop_graph(struct graph *g);
/* Waits for its work on the host. */
bool settle(struct block *b);
/* Its bytes from there on, behind its work; says the answer. */
bool read_bytes(const struct block *b, void *data, size_t at, size_t size);
/* Lets the stream wait for what these blocks have; false, which is said: it
 * may not be given this work. */
bool begin_work(struct stream *s, const struct action *actions, int n);

/* ---- streams ------------------------------------------------------------- */

/* One of its names. */
CUstream name_of(const struct stream *s);
bool is_created(const struct stream *s);
/* Numbers of those that are created, and how many; of its captures a thread
 * has each three times. */
int some_created(int *found);
/* For streams to call; so many times this one will. */
void host_function(void *unused);
void count_calls(struct stream *s, int n);

/* ---- captures ------------------------------------------------------------ */

bool no_captures(void);
/* Whether this thread has one open. */
bool is_capturer(void);
/* As harms_no_capture; even_own: nor one of its own. */
bool harms_none(bool even_own);
/* For one more of that size, which is said, beside captures. */
bool has_room(size_t size);
/* One that has one open; says which; NULL: none. */
struct stream *some_capture(void);
void capture_began(struct stream *s, CUstreamCaptureMode mode);
/* graph: NULL if it failed; false: there is no room for it. */
bool capture_ended(struct stream *s, CUgraph graph);
void end_own_captures(void);
/* False, which is said: its capture is full, or is another stream's. */
bool can_take(const struct stream *s, int n);
/* Whether they are, now; false: it has none open. */
bool are_captured(struct stream *s, const struct action *actions, int n);
/* One of which all memory is there (what else a copy of it does is not said);
 * says which; NULL: none. */
struct graph *some_graph(void);

/* What came of all, when all work is done; false: some memory was wrong. */
bool report(void);

/* ---- operations of both -------------------------------------------------- */

void op_capture_end(void);
void op_capture_fork(void);
void op_graph_destroy(void);
void op_read(void);

#endif
