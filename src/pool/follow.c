/* SPDX-License-Identifier: MIT
 *
 * follow: one context's NULL stream after another's.
 */
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/ctx.h"
#include "pool/pool.h"

/* Both contexts are in use. */
static void follow(CUcontext later, CUcontext earlier)
{
	CUevent event;

	if (vs_vmm_event_create(earlier, &event) != CUDA_SUCCESS)
		return;
	if (vs_vmm_event_record(earlier, event) == CUDA_SUCCESS)
		vs_vmm_event_follow(later, event);
	vs_vmm_event_destroy(event);
}

void vs_pool_follow(CUcontext later, CUcontext earlier)
{
	struct vs_ctx *to = vs_ctx_peek(later), *from = vs_ctx_peek(earlier);
	bool may_record;

	if (!to || !from || to == from || !vs_ctx_use(from))
		return;
	may_record = vs_capture_shut_out();
	if (!may_record) {
		vs_capture_barrier(from);
	} else if (vs_ctx_use(to)) {
		/* not from->handle: a green one has a NULL stream of its own */
		follow(later, earlier);
		vs_ctx_unuse(to);
	}
	if (may_record)
		vs_capture_let_in();
	vs_ctx_unuse(from);
}
