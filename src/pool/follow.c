/* SPDX-License-Identifier: MIT
 *
 * follow: one context's NULL stream after another's.
 */
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/ctx.h"
#include "pool/pool.h"

/* Both contexts are in use. False if events cannot be had, for now. */
static bool follow(CUcontext later, CUcontext earlier)
{
	CUevent event;
	bool is_good;

	if (vs_vmm_event_mark(earlier, &event) != CUDA_SUCCESS)
		return false;
	is_good = vs_vmm_event_follow(later, event) == CUDA_SUCCESS;
	vs_vmm_event_destroy(event);
	return is_good;
}

void vs_pool_follow(CUcontext later, CUcontext earlier)
{
	struct vs_ctx *to = vs_ctx_peek(later), *from = vs_ctx_peek(earlier);
	bool is_good = true;

	if (!to || !from || to == from || !vs_ctx_use(from))
		return;
	if (!vs_capture_shut_out()) {
		vs_capture_barrier(from);
		vs_ctx_unuse(from);
		return;
	}
	if (vs_ctx_use(to)) {
		/* not from->handle: a green one has a NULL stream of its own */
		is_good = follow(later, earlier);
		vs_ctx_unuse(to);
	}
	vs_capture_let_in();
	/* nobody would hear of wrong data; after a fault it is no wait */
	if (!is_good)
		vs_vmm_ctx_wait(earlier);
	vs_ctx_unuse(from);
}
