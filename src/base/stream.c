/* SPDX-License-Identifier: MIT */
#include "base/stream.h"

struct vs_stream vs_stream = {.enough = VS_STREAM_ENOUGH};

/* See Note [Believed less]. */
static unsigned more_than(unsigned enough)
{
	unsigned most = VS_STREAM_ENOUGH;

	for (int i = 0; i < VS_STREAM_RETRIES; i++)
		most *= 8;
	return enough < most ? enough * 8 : VS_STREAM_NEVER;
}

void vs_stream_changed(uintptr_t key)
{
	unsigned enough = atomic_load(&vs_stream.enough);

	/* of two threads that see it one has the say */
	if (enough != VS_STREAM_NEVER && atomic_load(&vs_stream.n) >= enough)
		atomic_compare_exchange_strong(&vs_stream.enough, &enough,
					       more_than(enough));
	atomic_store(&vs_stream.n, 1);
	atomic_store(&vs_stream.last, key);
	/* before the work, as who looks at it later must see it */
	if (atomic_fetch_add(&vs_stream.changes, 1) >= VS_STREAM_MOST_CHANGES)
		atomic_store(&vs_stream.enough, VS_STREAM_NEVER);
}
