/* SPDX-License-Identifier: MIT */
#include "pool/toll.h"

#include "base/clock.h"
#include "pool/mark.h"
#include "pool/state.h"

#define WINDOW (100 * VS_MS)
/* Thousandths of a window: for the trunk first, so many windows in a row. */
enum { COSTLY = 25, COSTLY_WINDOWS = 2 };
/* How long that is tried before more is allowed. */
#define TRIAL (500 * VS_MS)
/* For a first step, so many in a row; and to go on. */
enum { DEAR = 40, DEAR_WINDOWS = 4, STILL_DEAR = 15, STILL_WINDOWS = 2 };
/* How long it is cheap before a step is taken back. */
#define CALM (30000 * VS_MS)
/* Windows in which all that is allowed brings little: then nothing is, for. */
enum { VAIN_WINDOWS = 20 };
#define BARRED (300000 * VS_MS)

enum { STEP = 30, MOST = 10 }; /* thousandths of the need; steps */

/* A quarter less than without is little. */
static bool is_in_vain(struct vs_toll *t, unsigned share)
{
	t->n_vain = share >= t->first / 4 * 3 ? t->n_vain + 1 : 0;
	return t->n_vain >= VAIN_WINDOWS;
}

/* Too much was paid. Lock. */
static void allow_more(struct vs_pool *pool, unsigned share, uint64_t now)
{
	struct vs_toll *t = &pool->toll;

	if (t->level == 0) {
		t->first = share;
		t->n_vain = 0;
	}
	t->since = now;
	if (t->level < MOST) {
		t->level++;
		vs_stat_add(&pool->stats, eased, 1);
	} else if (is_in_vain(t, share)) {
		t->level = 0;
		t->barred = now + BARRED;
	}
}

/* For good: what is so once is so again, and it costs next to no memory. */
static void try_trunk(struct vs_pool *pool, uint64_t now)
{
	pool->is_trunk_first = true;
	pool->toll.tried = now;
}

/* A window is over, of which so many thousandths were paid. Lock. */
static void judge(struct vs_pool *pool, unsigned share, uint64_t now)
{
	struct vs_toll *t = &pool->toll;

	t->n_costly = share >= COSTLY ? t->n_costly + 1 : 0;
	t->n_dear = share >= DEAR ? t->n_dear + 1 : 0;
	t->n_still = share >= STILL_DEAR ? t->n_still + 1 : 0;
	/* one that churns has more for that (pool/turnover) */
	if (pool->turnover.is_fast || now < t->barred ||
	    vs_mark_is_scarce(pool))
		return;
	if (!pool->is_trunk_first && t->n_costly >= COSTLY_WINDOWS)
		try_trunk(pool, now);
	if (!pool->is_trunk_first || now < t->tried + TRIAL)
		return;
	if (t->level > 0 ? t->n_still >= STILL_WINDOWS
			 : t->n_dear >= DEAR_WINDOWS)
		allow_more(pool, share, now);
}

void vs_toll_pay(struct vs_pool *pool, uint64_t began, uint64_t end)
{
	struct vs_toll *t = &pool->toll;
	uint64_t took;

	pthread_mutex_lock(&pool->lock);
	if (t->began == 0)
		t->began = began;
	t->paid += end - began;
	took = end - t->began;
	if (took >= WINDOW) {
		judge(pool, (unsigned)(t->paid * 1000 / took), end);
		t->began = end;
		t->paid = 0;
	}
	pthread_mutex_unlock(&pool->lock);
}

unsigned vs_toll_slack(struct vs_pool *pool)
{
	unsigned level = pool->toll.level;

	return level > 0 && !vs_mark_is_scarce(pool) ? level * STEP : 0;
}

void vs_toll_relax(struct vs_pool *pool, uint64_t now)
{
	struct vs_toll *t = &pool->toll;

	if (t->level == 0 || now < t->since + CALM)
		return;
	t->level--;
	t->since = now;
}
