/* SPDX-License-Identifier: MIT */
/*
 * Call: what every driver call does before and after its own work: take the
 * lock, count, inject a failure, check initialization, context and capture;
 * then charge the modelled time.  Owns the calling thread's state.
 */
#ifndef SIM_CALL_H
#define SIM_CALL_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/newer.h"

enum sim_function_flag {
	SIM_NEEDS_INIT = 1,
	SIM_NEEDS_CTX = 2,
	SIM_CAPTURE_UNSAFE = 4,
	SIM_IS_VMM = 8,
	SIM_PER_THREAD = 16,
};

enum sim_id {
#define SIM_API(symbol, base, since, flags, body, params, args) SIM_##symbol,
#include "sim_api.def"
#undef SIM_API
	SIM_N_FUNCTIONS
};

struct sim_function {
	const char *symbol, *base;
	int since;
	unsigned flags;
	void (*address)(void);
};

extern const struct sim_function sim_functions[SIM_N_FUNCTIONS];

/* The bodies: called with the lock held, after all checks. */
#define SIM_API(symbol, base, since, flags, body, params, args)                \
	CUresult sim_##body params;
#include "sim_api.def"
#undef SIM_API

#define SIM_STACK 32

struct sim_context;

/* One for each thread; only that thread touches it. */
struct sim_thread {
	const char *call;	     /* name for messages */
	struct sim_context *current; /* valid in a CTX function */
	uint64_t stack[SIM_STACK];   /* context handles */
	int depth;
	uint64_t id; /* 0: none yet; never reused */
	CUstreamCaptureMode mode;
	bool per_thread; /* in a THREAD function */
	bool in_host_function;
	bool in_call;	/* holds the lock */
	double cost_us; /* of this call */
};

extern __thread struct sim_thread sim_thread;

CUresult sim_call_enter(enum sim_id id);
CUresult sim_call_leave(enum sim_id id, CUresult result);

/* The calling thread's number, given out at first use. */
uint64_t sim_thread_id(void);

/* Count of calls of one function since load. */
extern unsigned long sim_call_counts[SIM_N_FUNCTIONS];
/* 0: no such name.  Called with each id that a name means. */
unsigned sim_call_match(const char *name, void (*visit)(enum sim_id, void *),
			void *arg);

/* Injected failures (sim_fail.c): CUDA_SUCCESS lets the call go on. */
CUresult sim_fail_check(enum sim_id id);
void sim_fail_read_env(void);
void sim_fail_reset(void);

#endif
