/* SPDX-License-Identifier: MIT
 *
 * clock: the time of one of the system's clocks. Async-signal-safe, any thread.
 *
 * From the kernel: what a program's C library says may stand still or run ten
 * times as fast (libfaketime), so that a wait would never end, or not wait for
 * a process that has another's. A system call takes some 0.1 us more; those who
 * only note a time, and often, ask the library.
 */
#ifndef VS_BASE_CLOCK_H
#define VS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "base/kernel.h"

#define VS_MS ((uint64_t)1000000) /* ns */

static inline uint64_t vs_clock_ns_of(struct timespec t)
{
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ns; 0 of a clock that there is not. */
static inline uint64_t vs_clock_ns(clockid_t clock)
{
	struct timespec t = {0};

	vs_kernel(SYS_clock_gettime, clock, &t);
	return vs_clock_ns_of(t);
}

/* Of CLOCK_MONOTONIC, in ns, by the C library. */
static inline uint64_t vs_clock_stamp_ns(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_MONOTONIC, &t);
	return vs_clock_ns_of(t);
}

/*
 * A process may be stopped while it waits (a signal, a frozen container), and
 * those whom it waits for with it. So between two looks at the clock no more
 * than this passes for who waits; ns.
 */
#define VS_PASSES_MOST (100 * VS_MS)

/* What passed since `last`, which becomes `now`. */
static inline uint64_t vs_clock_passed(uint64_t *last, uint64_t now)
{
	uint64_t passed = now - *last;

	*last = now;
	return passed < VS_PASSES_MOST ? passed : VS_PASSES_MOST;
}

/* Of CLOCK_MONOTONIC, in ms. */
static inline uint64_t vs_clock_ms(void)
{
	return vs_clock_ns(CLOCK_MONOTONIC) / VS_MS;
}

#endif
