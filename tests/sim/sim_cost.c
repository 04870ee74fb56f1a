/* SPDX-License-Identifier: MIT */
#include "sim_cost.h"

#include "sim.h"
#include "sim_base.h"
#include "sim_call.h"

#define MIB (1.0 * (1 << 20))
#define GIB (1.0 * (1 << 30))
#define N_POINTS 6

/*
 * Times of a call as measured: by size, straight lines in between, the last
 * one going on.  each_us is the time of one handle among many; 0: as one alone.
 */
struct point {
	double size, us;
};

struct curve {
	double each_us;
	struct point points[N_POINTS];
};

/* clang-format off */
static const struct curve curves[SIM_COST_KINDS] = {
	/* an H200 */
	[SIM_COST_ALLOC] = { 0, { { 256, 30 }, { 64 * MIB, 32 },
		{ 256 * MIB, 51 }, { GIB, 73 }, { 4 * GIB, 251 } } },
	[SIM_COST_FREE] = { 0, { { 2 * MIB, 25 }, { 64 * MIB, 42 },
		{ 256 * MIB, 104 }, { GIB, 289 }, { 4 * GIB, 1148 } } },
	[SIM_COST_POOL_NEW] = { 0, { { MIB, 38 }, { 256 * MIB, 230 },
		{ GIB, 930 } } },
	[SIM_COST_POOL_ALLOC] = { 0, { { 0, 0.7 } } },
	[SIM_COST_POOL_FREE] = { 0, { { 0, 0.4 } } },
	/* an H200 */
	[SIM_COST_CREATE] = { 0, { { 2 * MIB, 9 }, { 32 * MIB, 12 },
		{ 256 * MIB, 14 }, { GIB, 16 }, { 4 * GIB, 29 },
		{ 16 * GIB, 260 } } },
	[SIM_COST_CREATE_FAIL] = { 0, { { 0, 60 } } },
	[SIM_COST_RESERVE] = { 0, { { 2 * MIB, 0.4 }, { 32 * MIB, 1.7 },
		{ GIB, 1.7 } } },
	[SIM_COST_MAP] = { 0, { { 2 * MIB, 0.6 }, { 32 * MIB, 0.7 },
		{ GIB, 0.7 }, { 4 * GIB, 1 } } },
	[SIM_COST_SET_ACCESS] = { 22, { { 2 * MIB, 19 }, { 32 * MIB, 39 },
		{ 256 * MIB, 41 }, { GIB, 65 }, { 4 * GIB, 130 },
		{ 16 * GIB, 400 } } },
	[SIM_COST_UNMAP] = { 14, { { 2 * MIB, 13 }, { 32 * MIB, 20 },
		{ 256 * MIB, 20 }, { GIB, 29 }, { 4 * GIB, 52 },
		{ 16 * GIB, 152 } } },
	[SIM_COST_RELEASE] = { 0, { { 2 * MIB, 9 }, { 32 * MIB, 16 },
		{ 256 * MIB, 72 }, { GIB, 260 }, { 4 * GIB, 1000 },
		{ 16 * GIB, 5500 } } },
	[SIM_COST_FREE_VA] = { 0, { { 2 * MIB, 0.4 }, { 32 * MIB, 1.9 },
		{ GIB, 2.2 } } },
	/* two H200: what the peer adds */
	[SIM_COST_SET_PEER] = { 0, { { 2 * MIB, 20 }, { 64 * MIB, 22 },
		{ GIB, 8450 } } },
	/* an H200 */
	[SIM_COST_EVENT_CREATE] = { 0, { { 0, 0.25 } } },
	[SIM_COST_EVENT_QUERY] = { 0, { { 0, 0.2 } } },
	[SIM_COST_CTX_RECORD] = { 0, { { 0, 0.2 } } },
	[SIM_COST_CTX_WAIT] = { 0, { { 0, 0.2 } } },
};
/* clang-format on */

static double total_us, vmm_us;

static double on_curve(const struct curve *curve, double size)
{
	const struct point *p = curve->points;
	unsigned i = 0;

	if (size <= p[0].size)
		return p[0].us;
	while (i + 2 < N_POINTS && p[i + 2].size > 0 && size > p[i + 1].size)
		i++;
	if (p[i + 1].size <= 0)
		return p[i].us;
	return p[i].us + (p[i + 1].us - p[i].us) * (size - p[i].size) /
				 (p[i + 1].size - p[i].size);
}

static double modelled(enum sim_cost_kind kind, uint64_t size, unsigned n)
{
	const struct curve *curve = &curves[kind];
	double each = (double)size / n;

	if (kind == SIM_COST_SET_PEER)
		return n * on_curve(curve, (double)size);
	/* Among many, a handle costs a little less, but never beats its size */
	if (n > 1 && curve->each_us > 0 && each <= 32 * MIB)
		return n * curve->each_us;
	return n * on_curve(curve, each);
}

void sim_cost(enum sim_cost_kind kind, uint64_t size, unsigned n)
{
	double us = modelled(kind, size, n);

	total_us += us;
	sim_thread.cost_us += us;
}

void sim_cost_vmm(enum sim_cost_kind kind, uint64_t size, unsigned n)
{
	double before = total_us;

	sim_cost(kind, size, n);
	vmm_us += total_us - before;
}

/* A sleep overshoots by 50 us or more: short times are waited actively. */
void sim_cost_spend(double us)
{
	uint64_t end = sim_clock_ns() + (uint64_t)(us * 1000);

	if (us > 200)
		sim_sleep_ns((uint64_t)((us - 100) * 1000));
	while (sim_clock_ns() < end)
		;
}

void sim_cost_clear(void)
{
	total_us = 0;
	vmm_us = 0;
}

double sim_cost_us(void)
{
	double us;

	sim_lock();
	us = total_us;
	sim_unlock();
	return us;
}

double sim_cost_vmm_us(void)
{
	double us;

	sim_lock();
	us = vmm_us;
	sim_unlock();
	return us;
}

void sim_cost_reset(void)
{
	sim_lock();
	sim_cost_clear();
	sim_unlock();
}
