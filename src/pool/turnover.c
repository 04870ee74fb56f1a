/* SPDX-License-Identifier: MIT */
#include "pool/turnover.h"

#include "pool/range.h"
#include "pool/state.h"
#include "pool/tcache.h"

#define WINDOW_NS ((uint64_t)5000000)
/*
 * A program that works launches a kernel for most of its blocks, and frameworks
 * take some 10 us for that. Decoding by a language model, whose cache is copied
 * for each word, turns its memory over as often as a loop that only churns, but
 * makes 4,000 allocations a second (H200, PyTorch), and the loop 200,000.
 */
#define FAST_PER_S 500
/* Between two of a thread, at most; and while it goes on so. */
#define FAST_NS ((uint64_t)8000)
#define STILL_FAST_NS ((uint64_t)12000)
/* The extra: so many times what is pending; of a new program, once. */
#define TIMES_PENDING 3
/*
 * At most a part of the device that no neighbour feels, twice that for a
 * program that is fast. Each process for itself: twelve of them that churned on
 * 16 GiB held 7.5, which was 4.5 with half of it (simulated). And ...
 */
#define DEVICE_SHARE 64
#define FAST_SHARE 32
/*
 * ... so many times what was live at most, or so much if that is more, or for
 * each thread what its batch of small objects may hold (pool/tcache). With less
 * than that threads have smaller batches (Note [Quota] in pool/quota): 12, 16
 * and 24 threads made 44, 53 and 33 million pairs of 1 MiB a second so, and 61,
 * 77 and 81 with their own (H100, 16 processors).
 */
#define TIMES_LIVE 4
#define SMALL_LIVE (8 * VS_FLOOR)

/* What is held is much more than what is needed. */
#define ROOMY_TIMES 2

/* Allocations that one marker should serve. */
#define SERVED 8
/* After so many markers that served less; and after a vain attempt. */
#define THICK 256
#define PAUSE 65536

/* Bytes that were ever handed out. */
static uint64_t all_handed(struct vs_pool *pool)
{
	uint64_t handed = pool->turnover.handed + pool->census.alloc_spans;

	VS_EACH_TCACHE (tc, pool)
		handed += vs_stat_get(tc, alloc_spans);
	return handed;
}

/*
 * What the program waited for memory, or for mapping it, is not its pace. Of
 * several threads the waits add up, and so does their time.
 */
static void look(struct vs_pool *pool, struct vs_turnover *t)
{
	uint64_t now = vs_vmm_clock(), handed, times, busy;
	uint64_t waited = vs_stat_get(&pool->stats, wait_ns) +
			  vs_stat_get(&pool->stats, vmm_ns);
	uint64_t high = pool->need;
	uint64_t elapsed = now - t->began, paused = waited - t->waited;
	uint64_t most_ns = t->is_fast ? STILL_FAST_NS : FAST_NS;

	if (t->began == 0) {
		t->began = now;
		t->is_new = true;
		return;
	}
	if (elapsed < WINDOW_NS)
		return;
	elapsed *= vs_fence_waiters(&pool->fence);
	if (paused > elapsed - elapsed / 16)
		paused = elapsed - elapsed / 16;
	busy = elapsed - paused;
	if (busy < WINDOW_NS)
		return;
	t->is_new = false;
	handed = all_handed(pool);
	times = vs_range_allocs(pool);
	__atomic_store_n(&t->is_fast,
			 (handed - t->handed_before) / (busy / 1000) >
					 high / (1000000 / FAST_PER_S) &&
				 (times - t->times_before) * most_ns > busy,
			 __ATOMIC_RELAXED);
	t->began = now;
	t->waited = waited;
	t->handed_before = handed;
	t->times_before = times;
	vs_fence_forget_waiters(&pool->fence);
}

/*
 * A new program with more live than it would get has not yet handed that out
 * again: it may have freed its first large block, and go on by smaller ones.
 */
static bool is_first_round(struct vs_pool *pool)
{
	return pool->need > SMALL_LIVE && all_handed(pool) < 2 * pool->need;
}

/* The most for a program that is fast; for one that may yet turn out to be. */
static uint64_t most_extra(struct vs_pool *pool, const struct vs_turnover *t)
{
	uint64_t unfelt =
		pool->dev.total / (t->is_fast ? FAST_SHARE : DEVICE_SHARE);
	uint64_t high = pool->need;
	uint64_t most = SMALL_LIVE;

	if (t->is_fast) {
		if (high * TIMES_LIVE > most)
			most = high * TIMES_LIVE;
		if (pool->census.n_listed * VS_WIDE_BIN_BYTES > most)
			most = pool->census.n_listed * VS_WIDE_BIN_BYTES;
	} else if (high > unfelt || is_first_round(pool)) {
		most = 0;
	}
	return most < unfelt ? most : unfelt;
}

bool vs_turnover_is_roomy(const struct vs_pool *pool)
{
	return pool->need <= pool->most / DEVICE_SHARE &&
	       pool->chunks.held > ROOMY_TIMES * pool->need;
}

uint64_t vs_turnover_extra(struct vs_pool *pool)
{
	struct vs_turnover *t = &pool->turnover;
	uint64_t extra, most;

	look(pool, t);
	if (!t->is_fast) {
		t->spare = 0;
		if (!t->is_new)
			return 0;
	}
	/* not before: it looks at the caches of all threads */
	extra = pool->pending_bytes + vs_range_slack(pool);
	if (t->is_fast)
		extra *= TIMES_PENDING;
	if (extra < t->spare)
		extra = t->spare;
	most = most_extra(pool, t);
	return extra < most ? extra : most;
}

bool vs_turnover_wants_spare(struct vs_pool *pool, uint64_t span)
{
	struct vs_turnover *t = &pool->turnover;
	uint64_t times = vs_stat_get(&pool->stats, large_hit) +
			 vs_stat_get(&pool->stats, large_miss);
	bool is_thick = times - t->times_settled < SERVED;

	t->times_settled = times;
	if (!is_thick || ++t->thick < THICK)
		return false;
	t->thick = 0;
	look(pool, t);
	t->spare = t->is_fast ? t->spare + span : 0;
	return t->is_fast;
}

void vs_turnover_no_spare(struct vs_pool *pool, uint64_t span)
{
	struct vs_turnover *t = &pool->turnover;

	t->spare -= span < t->spare ? span : t->spare;
	t->thick = -PAUSE;
}
