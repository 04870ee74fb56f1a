/* SPDX-License-Identifier: MIT */
#include "pool/turnover.h"

#include "pool/range.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define WINDOW_NS ((uint64_t)5000000)
/*
 * Training and inference turn their memory over 7 to 15 times a second, 300 in
 * their fastest 5 ms (the traces of HACKING.md); a loop that does nothing but
 * churn does it more than 1000 times.
 */
#define FAST_PER_S 500
/* The extra at most: a part of the device that no neighbour feels, and ... */
#define DEVICE_SHARE 64
/* ... so many times what was live at most, or so much if that is more. */
#define TIMES_LIVE 3
#define SMALL_LIVE (8 * VS_FLOOR)

/* Bytes of small objects ever handed out. */
static uint64_t small_handed(struct vs_pool *pool)
{
	uint64_t handed = 0;

	for (struct vs_tcache *tc = vs_tcache_first(pool); tc;
	     tc = tc->next_made)
		handed += vs_stat_get(tc, alloc_spans);
	return handed;
}

/* What the program waited for memory is not its own pace. */
static void look(struct vs_pool *pool, struct vs_turnover *t, uint64_t handed)
{
	uint64_t now = vs_vmm_clock();
	uint64_t waited = vs_stat_get(&pool->stats, wait_ns);
	uint64_t high = vs_stat_get(&pool->stats, live_high);
	uint64_t elapsed = now - t->began, paused = waited - t->waited;

	/* of several threads the waits add up */
	if (paused > elapsed - elapsed / 16)
		paused = elapsed - elapsed / 16;
	if (elapsed < WINDOW_NS + paused)
		return;
	t->is_fast = (handed - t->handed_before) / FAST_PER_S >
		     high / 1000 * ((elapsed - paused) / 1000) / 1000;
	t->began = now;
	t->waited = waited;
	t->handed_before = handed;
}

uint64_t vs_turnover_extra(struct vs_pool *pool)
{
	struct vs_turnover *t = &pool->turnover;
	uint64_t most = vs_stat_get(&pool->stats, live_high) * TIMES_LIVE;
	uint64_t extra =
		TIMES_LIVE * (pool->pending_bytes + vs_range_slack(pool));

	look(pool, t, t->handed + small_handed(pool));
	if (!t->is_fast)
		return 0;
	if (most < SMALL_LIVE)
		most = SMALL_LIVE;
	if (most > pool->dev.total / DEVICE_SHARE)
		most = pool->dev.total / DEVICE_SHARE;
	return extra < most ? extra : most;
}
