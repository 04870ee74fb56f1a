/* SPDX-License-Identifier: MIT
 *
 * event: the driver's events that markers are made of (pool/fence). Each
 * belongs to one context and is used again and again, since making one takes as
 * long as recording it.
 *
 * Owned by the fence; its lock guards the lists, for all of this.
 */
#ifndef VS_POOL_EVENT_H
#define VS_POOL_EVENT_H

#include <cuda.h>

#include "driver/vmm.h"
#include "pool/ctx.h"

struct vs_event {
	struct vs_event *next; /* of a marker, or spare */
	struct vs_ctx *ctx;
	CUevent event;
};

/*
 * A spare event of the context, or a new one; NULL if it cannot be made,
 * *result_out is why.
 */
struct vs_event *vs_event_take(struct vs_event **spare, struct vs_ctx *ctx,
			       CUresult *result_out);
/* It is spare from now on. */
static inline void vs_event_keep(struct vs_event **spare, struct vs_event *e)
{
	e->next = *spare;
	*spare = e;
}

/* The same for all of a list. */
void vs_events_keep(struct vs_event **spare, struct vs_event *list);
/*
 * Takes the events of a context out of a list and destroys them, unless they
 * went with it.
 */
void vs_events_drop(struct vs_event **link, struct vs_ctx *ctx);
/* CUDA_SUCCESS: its work is complete; NOT_READY; else what is wrong. */
static inline CUresult vs_event_query(const struct vs_event *e)
{
	CUresult r = vs_vmm_event_query(e->event);

	return r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY
		       ? r
		       : vs_vmm_query_again(e->ctx->handle, e->event, r);
}

#endif
