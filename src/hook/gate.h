/* SPDX-License-Identifier: MIT
 *
 * gate: whether the shim serves this process, or every wrapper just calls the
 * real function: no driver bound yet, knob off, excluded program, forked
 * child, driver shut down. It opens once and closes once.
 */
#ifndef VS_HOOK_GATE_H
#define VS_HOOK_GATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/hot.h"

/* True implies that vs_real is ready. Acquire. */
static inline bool vs_gate_is_open(void)
{
	return atomic_load_explicit(&vs_hot.is_open, memory_order_acquire);
}

/*
 * When a libcuda is first seen: reads the knobs and the program's name. From
 * then on a fork is noted. Further calls do nothing.
 */
void vs_gate_init(void);
/* Some calls of the program's come to this library instead. */
void vs_gate_behind(const char *path);
/* The driver is bound: opens, unless the gate is closed for good. */
void vs_gate_open(void);
/* cuInit succeeded in this process: a later fork must not inherit. */
void vs_gate_initialized(void);
/* A driver call answered CUDA_ERROR_DEINITIALIZED: the process is ending. */
void vs_gate_deinitialized(void);

#endif
