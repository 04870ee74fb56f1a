/* SPDX-License-Identifier: MIT
 *
 * context: the driver frees cuMemAlloc memory with its context; memory of the
 * pool belongs to no context, so the pool is told of a birth and before an end.
 * context.c has the hooks of those that a program creates, primary.c of primary
 * ones, green.c of green ones.
 *
 * Any thread. A birth and an end take the pool's locks and call the driver, so
 * of those in HACKING.md `turns` alone may be held. The lock of context.c
 * guards its counts of cuCtxAttach; nothing is called under it.
 */
#ifndef VS_HOOK_CONTEXT_H
#define VS_HOOK_CONTEXT_H

#include <cuda.h>
#include <stdbool.h>

#include "hook/hook.h"

struct vs_ctx;

/* The driver has made the context, or retained it. vs_pool_ctx_come() next. */
void vs_context_born(CUcontext ctx, CUdevice device);
/*
 * It is about to end (`ctx` NULL: the primary one of `device`). Call before the
 * driver's own function, and vs_pool_ctx_gone() with the answer after that.
 */
struct vs_ctx *vs_context_dying(CUcontext ctx, CUdevice device);

#endif
