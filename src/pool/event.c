/* SPDX-License-Identifier: MIT */
#include "pool/event.h"

#include <stddef.h>

#include "base/meta.h"
#include "driver/vmm.h"
#include "pool/ctx.h"

struct vs_event *vs_event_take(struct vs_event **spare, struct vs_ctx *ctx,
			       CUresult *result_out)
{
	struct vs_event **link, *e;

	for (link = spare; (e = *link); link = &e->next) {
		if (e->ctx == ctx) {
			*link = e->next;
			return e;
		}
	}
	*result_out = CUDA_ERROR_OUT_OF_MEMORY;
	e = vs_meta_alloc(sizeof(*e));
	if (!e)
		return NULL;
	*result_out = vs_vmm_event_create(ctx->handle, &e->event);
	if (*result_out != CUDA_SUCCESS) {
		vs_meta_free(e, sizeof(*e));
		return NULL;
	}
	e->ctx = ctx;
	return e;
}

void vs_events_keep(struct vs_event **spare, struct vs_event *list)
{
	while (list) {
		struct vs_event *next = list->next;

		vs_event_keep(spare, list);
		list = next;
	}
}

void vs_events_drop(struct vs_event **link, struct vs_ctx *ctx)
{
	while (*link) {
		struct vs_event *e = *link;

		if (e->ctx != ctx) {
			link = &e->next;
			continue;
		}
		*link = e->next;
		if (!ctx->has_ended)
			vs_vmm_event_destroy(e->event);
		vs_meta_free(e, sizeof(*e));
	}
}
