/* SPDX-License-Identifier: MIT */
#include "base/stream.h"

struct vs_stream vs_stream = {.last = VS_THREAD_NOWHERE,
			      .shared = VS_THREAD_NOWHERE};

void vs_stream_give_up(void)
{
	atomic_store(&vs_stream.n, VS_STREAM_SEVERAL);
}

/* Of what is counted nothing is left, unless it is no use any more. */
static void begin_again(void)
{
	unsigned n = atomic_load(&vs_stream.n);

	/* first: who sees that enough was counted since then sees the change */
	atomic_fetch_add(&vs_stream.changes, 1);
	while (n != VS_STREAM_SEVERAL &&
	       !atomic_compare_exchange_weak(&vs_stream.n, &n, 0))
		;
	if (n == VS_STREAM_ENOUGH)
		atomic_store(&vs_stream.hasty, 0);
	else if (atomic_fetch_add(&vs_stream.hasty, 1) >=
		 VS_STREAM_MOST_CHANGES)
		vs_stream_give_up();
}

void vs_stream_changed(const struct vs_thread *t, uintptr_t key)
{
	uintptr_t last = atomic_load(&vs_stream.last);
	/* or both nowhere, at the first of all work; see Note [Two feeders] */
	bool is_forgiven = t && t->worked_in == last &&
			   !atomic_load(&vs_stream.is_relied_on);

	/* all before the work, as who looks at it later must see it */
	if (is_forgiven &&
	    atomic_compare_exchange_strong(&vs_stream.last, &last, key)) {
		begin_again();
		/* it was handed out meanwhile: see vs_stream_rely() */
		if (atomic_load(&vs_stream.is_relied_on))
			vs_stream_give_up();
	} else if (last != key) {
		vs_stream_give_up();
	}
}

void vs_stream_joined(uintptr_t key)
{
	uintptr_t shared = VS_THREAD_NOWHERE;

	if (!atomic_compare_exchange_strong(&vs_stream.shared, &shared, key) &&
	    shared != key)
		vs_stream_give_up();
}

void vs_stream_count(uintptr_t key, unsigned n)
{
	uintptr_t shared = atomic_load(&vs_stream.shared);

	if (shared != VS_THREAD_NOWHERE && shared != key)
		return;
	/* of two at once one may count, and none but SEVERAL is lost */
	atomic_compare_exchange_strong(&vs_stream.n, &n, n + 1);
}

void vs_stream_made(void)
{
	begin_again();
}
