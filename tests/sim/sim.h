/* SPDX-License-Identifier: MIT */
/*
 * Control interface of the simulated driver (tests/sim, libcuda.so.1).
 *
 * Everything here is exported by the stand-in itself.  A unit test links it;
 * a victim that must also run on a real GPU includes sim_client.h instead,
 * which finds these names at run time and does nothing without them.
 *
 * Nothing here counts as a driver call: no call counter, no modelled cost, no
 * injected failure, no capture rule, no need of cuInit or a context.  All
 * functions may be called from any thread; none may be called from a host
 * function (cuLaunchHostFunc).
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/*
 * Environment, read at load and again by sim_reset():
 *
 *  SIM_DEVICES=N          devices, 1 to 16 (1)
 *  SIM_MEMORY=SIZE        physical bytes of each device; K M G T (8G)
 *  SIM_SHARED=FILE        the processes that name the same FILE share the
 *                         devices' memory; one that is killed never gives
 *                         its part back (each has all the memory)
 *  SIM_DRIVER_VERSION=N   as cuDriverGetVersion, e.g. 12040 (13000); newer
 *                         functions are absent from cuGetProcAddress
 *  SIM_NO_VMM=1           attribute 0, VMM calls NOT_SUPPORTED
 *  SIM_PEER=0|1|near      may devices be peers (1); near: with the next alone
 *  SIM_SET_ACCESS_PEER_FAILS=1  cuMemSetAccess refuses a foreign device
 *  SIM_FREE_AFTER_END=1   cuMemFree minds no current context that has ended
 *                         (what a driver does is not known)
 *  SIM_HANDLE_REUSE=1     a created context has the handle of a dead one, of a
 *                         primary one too if nobody retains that (each has
 *                         one of its own)
 *  SIM_STUB=1             cuInit returns CUDA_ERROR_STUB_LIBRARY
 *  SIM_BACKING=memfd|none none: the books only, no memory, no data (memfd)
 *  SIM_VA_LIMIT=SIZE      largest single reservation (64T)
 *  SIM_CLOCK=real|manual  manual: no work runs before sim_advance() or a
 *                         synchronizing call (real)
 *  SIM_LAG_US=N           each piece of work takes at least this long (0)
 *  SIM_COST=count|sleep   sleep: calls take their modelled time (count)
 *  SIM_JUDGE=count|abort|off   what a violation does besides its line on
 *                         stderr; off: judge nothing (count)
 *  SIM_JUDGE_MODE=complete|ordered  see sim_judge_mode() (complete)
 *  SIM_FAIL=NAME:N:CODE[:COUNT],...  fail calls N to N+COUNT-1 (COUNT 1; 0:
 *                         every call from N on) of NAME with CUresult CODE;
 *                         CODE kill: the process dies there as by kill -9
 *  SIM_REPORT=FILE|-      write a report at exit (- is stderr; %p in FILE
 *                         is the process id)
 *  SIM_TRACE=1            one line on stderr for each driver call
 *  SIM_CUDART_NOTES=1     the thin runtime announces every cudaMalloc and
 *                         cudaFree to the judge, for programs that do not
 */

/*
 * Forget everything (contexts, memory, streams, counters, failures, clock)
 * and read the environment again, as if the library had just been loaded.
 * Work in flight is thrown away.  No other thread may be in a driver call.
 */
void sim_reset(void);

/* ---- judge ---------------------------------------------------------- */

enum sim_violation {
	/* unmap, release or free under submitted work that is not complete */
	SIM_V_BUSY,
	/* the same, complete by luck: the host has not seen it complete */
	SIM_V_UNSEEN,
	/* work touched unmapped or inaccessible address space */
	SIM_V_ILLEGAL,
	/* handed out while earlier work was not seen complete (or ordered) */
	SIM_V_HANDOUT,
	/* handed out twice: overlaps another announced live range */
	SIM_V_OVERLAP,
	/* a handle was used after it was destroyed */
	SIM_V_STALE,
	/* any broken rule of VMM (granularity, partial unmap, unknown handle,
	 * ...), or sim_note_free() of what was not announced */
	SIM_V_RULE,
	/* a free of something that is not there: an ordinary mistake of a
	 * program, which the driver answers with a code; it is counted, but
	 * not among all, not printed, and never aborts */
	SIM_V_BAD_FREE,
	SIM_V_KINDS
};

/*
 * Violations since load or sim_violations_clear(): all (but SIM_V_BAD_FREE),
 * or of one kind.
 */
unsigned long sim_violations(void);
unsigned long sim_violations_of(enum sim_violation kind);
void sim_violations_clear(void);

/* Text of the latest violation ("" if none); returns its length. */
size_t sim_violation_text(char *buf, size_t size);

/* Print violations on stderr (default) or only count them. */
void sim_violations_quiet(bool quiet);

enum sim_judge_mode {
	/* at sim_note_alloc() all earlier work on the range must have been
	 * seen complete by the host (a query or wait that covers it) */
	SIM_JUDGE_COMPLETE,
	/* new work on the range must come after the old work by stream order
	 * or waits, or the old work must have been seen complete */
	SIM_JUDGE_ORDERED,
	/* no hand-out checks */
	SIM_JUDGE_OFF
};

/* Returns the mode before. */
enum sim_judge_mode sim_judge_mode(enum sim_judge_mode mode);

/*
 * A test program announces what it holds: right after an allocation call
 * returned ptr, and just before it frees ptr.  NULL and size 0 are ignored.
 */
void sim_note_alloc(uint64_t ptr, size_t size);
void sim_note_free(uint64_t ptr);

/* ---- books ---------------------------------------------------------- */

struct sim_books {
	uint64_t n_reservations, reserved_bytes;
	uint64_t n_handles;  /* references held by handles */
	uint64_t n_physical; /* distinct cuMemCreate allocations alive */
	uint64_t vmm_bytes;  /* their physical bytes */
	uint64_t n_mappings, mapped_bytes;
	uint64_t n_legacy, legacy_bytes; /* cuMemAlloc, as requested */
	uint64_t legacy_physical;	 /* 2 MiB blocks under them */
	uint64_t n_async, async_bytes;	 /* cuMemAllocAsync, live */
	uint64_t n_arrays, array_bytes;
	uint64_t n_host;     /* page-locked host allocations */
	uint64_t n_ipc;	     /* open legacy IPC mappings */
	uint64_t n_contexts; /* active primary and created */
	uint64_t n_streams;  /* created and not destroyed */
	uint64_t n_events;
	uint64_t n_graphs, n_graph_execs;
	uint64_t n_modules;
	uint64_t n_pending;	      /* pieces of work not complete */
	uint64_t n_notes, note_bytes; /* announced live ranges */
	uint64_t physical;	      /* all device bytes in use */
	uint64_t peak_physical;	      /* most since load or reset */
	uint64_t memory;	      /* the device's budget */
};

/* Fill *out for one device, or summed over all of them with device -1. */
void sim_books(int device, struct sim_books *out);

/* ---- calls and failures --------------------------------------------- */

/*
 * NAME is the base name ("cuMemAlloc": all its versions and per-thread
 * twins together) or an exact symbol ("cuMemAlloc_v2").  "*" is every
 * function.  Calls that were made to fail count too.
 */
unsigned long sim_calls(const char *name);
void sim_calls_clear(void);

/*
 * The n-th call of NAME from now on (1: the next) fails with CUresult code
 * and does nothing else.  Several rules may be set.  Returns 0, or -1 for an
 * unknown name.
 */
int sim_fail(const char *name, unsigned long n, int code);
/* The same for count calls from the n-th on; count 0: for ever. */
int sim_fail_many(const char *name, unsigned long n, unsigned long count,
		  int code);
/* Each call fails with probability p (0 to 1), repeatable for one seed. */
int sim_fail_random(const char *name, double p, unsigned seed, int code);
void sim_fail_clear(void);
/* Failures injected since load: 0 ends a torture loop. */
unsigned long sim_failures(void);

/* ---- time ----------------------------------------------------------- */

/* Manual clock: let ns pass, running what becomes due.  Returns the time. */
uint64_t sim_advance(uint64_t ns);
uint64_t sim_now(void);
/* Each later piece of work takes at least this long. */
void sim_set_lag_us(unsigned us);

/* Modelled time of all calls, and of the VMM calls among them. */
double sim_cost_us(void);
double sim_cost_vmm_us(void);
void sim_cost_reset(void);

/*
 * From now on the callback hears of each call, before it is made, in its thread
 * and without locks held: as a subscriber of CUPTI does. What it calls itself
 * it hears of, too. NULL: no more.
 */
void sim_on_call(void (*callback)(const char *symbol));

/* ---- state ---------------------------------------------------------- */

/* Every call answers CUDA_ERROR_DEINITIALIZED, as during shutdown. */
void sim_set_deinitialized(bool deinitialized);
/* Budget of one device (-1: all) from now on; may be below what is used. */
void sim_set_memory(int device, uint64_t bytes);
/* Make the context (CUcontext) sticky-broken with a CUresult; 0 mends it. */
void sim_set_sticky(void *ctx, int code);
/* Open stream captures in the process, invalidated ones included. */
unsigned sim_captures(void);
/* Captures invalidated by a prohibited call since load. */
unsigned long sim_captures_killed(void);
/* Write the exit report now: path, or "-" for stderr. */
void sim_report(const char *path);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
