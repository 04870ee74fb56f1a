/* SPDX-License-Identifier: MIT */
#include "base/stream.h"

struct vs_stream vs_stream = {.first = VS_STREAM_NONE};

void vs_stream_give_up(void)
{
	atomic_store(&vs_stream.n, VS_STREAM_SEVERAL);
}

void vs_stream_came(uintptr_t key)
{
	uintptr_t first = VS_STREAM_NONE;

	/* before the work, as who looks at it later must see it */
	if (!atomic_compare_exchange_strong(&vs_stream.first, &first, key) &&
	    first != key)
		vs_stream_give_up();
}

void vs_stream_made(CUstream made)
{
	unsigned n = atomic_load(&vs_stream.n);

	/* the first was destroyed, and its work may not be done */
	if (atomic_load(&vs_stream.first) == (uintptr_t)made)
		vs_stream_give_up();
	else
		while (n != VS_STREAM_SEVERAL &&
		       !atomic_compare_exchange_weak(&vs_stream.n, &n, 0))
			;
}
