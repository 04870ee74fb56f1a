/* SPDX-License-Identifier: MIT
 *
 * clock: the time of one of the system's clocks. Async-signal-safe, any thread.
 */
#ifndef VS_BASE_CLOCK_H
#define VS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* ns; 0 of a clock that there is not. */
static inline uint64_t vs_clock_ns(clockid_t clock)
{
	struct timespec t = {0};

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Of CLOCK_MONOTONIC, in ms. */
static inline uint64_t vs_clock_ms(void)
{
	return vs_clock_ns(CLOCK_MONOTONIC) / 1000000;
}

#endif
