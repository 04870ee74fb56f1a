/* SPDX-License-Identifier: MIT
 *
 * gate: whether the shim serves this process, or every wrapper just calls the
 * real function: knob off or sync, excluded program, forked child, driver shut
 * down.
 */
#ifndef VS_HOOK_GATE_H
#define VS_HOOK_GATE_H

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic bool vs_gate_flag;

static inline bool vs_gate_is_open(void)
{
	return atomic_load_explicit(&vs_gate_flag, memory_order_relaxed);
}

/* When libcuda is bound: reads knobs and program name, sets fork handlers. */
void vs_gate_init(void);
/* For good; logged once at info level with the reason. */
void vs_gate_close(const char *why);
/* cuInit succeeded in this process: a later fork must not inherit. */
void vs_gate_initialized(void);
/* A driver call answered CUDA_ERROR_DEINITIALIZED: the process is ending. */
void vs_gate_deinitialized(void);

#endif
