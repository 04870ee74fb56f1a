/* SPDX-License-Identifier: MIT
 *
 * peer: which contexts may reach the memory of which, as the program has it.
 *
 * The list of pairs is peer.c's. Its lock guards that, and nothing is called
 * under it. The first of these asks the context table as well.
 */
#ifndef VS_HOOK_PEER_H
#define VS_HOOK_PEER_H

#include <cuda.h>
#include <stdbool.h>

/* The program has switched on access of `ctx` to memory of `peer`. */
bool vs_peer_is_enabled(CUcontext ctx, CUcontext peer);
/* Whether a context of `device` may reach memory of one of `owner`. */
bool vs_peer_devices_are(CUdevice device, CUdevice owner);
/* A later context of the same handle starts without. */
void vs_peer_ctx_dying(CUcontext ctx);

#endif
