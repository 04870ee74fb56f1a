/* SPDX-License-Identifier: MIT
 *
 * capture: the fence's side of the captures (the hooks' side is in fence.h).
 */
#ifndef VS_POOL_CAPTURE_H
#define VS_POOL_CAPTURE_H

#include <stdbool.h>

#include "pool/ctx.h"

/*
 * True when no capture is open; none can begin until vs_capture_let_in. False
 * (nothing to undo) when one is open or just beginning.
 */
bool vs_capture_shut_out(void);
void vs_capture_let_in(void);
/*
 * Waits for all work of a context while a capture is open, harming none: frees
 * a small block of the driver's own, which waits as cuMemFree does (facts, 2),
 * in relaxed mode (facts, 5). The block was made before the capture began.
 * False if there is none or a call failed, but for a context beyond work.
 */
bool vs_capture_barrier(struct vs_ctx *ctx);
/* A marker met a capture that was never counted: log it, once. */
void vs_capture_unseen(void);

#endif
