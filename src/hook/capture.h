/* SPDX-License-Identifier: MIT
 *
 * capture: what an open capture means to the calls that the pool serves.
 */
#ifndef VS_HOOK_CAPTURE_H
#define VS_HOOK_CAPTURE_H

#include <cuda.h>

/*
 * Before the pool allocates or frees: what the driver says to such a call of
 * this thread, which it refuses within a capture of the thread's own, and
 * spoils the capture by it. VS_PASS where it does not refuse. `ctx`: to ask it
 * under; NULL: the current one, without which there is no answer.
 */
CUresult vs_capture_refusal(CUcontext ctx);

#endif
