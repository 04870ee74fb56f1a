/* SPDX-License-Identifier: MIT
 *
 * service: the shim's one thread. Decays idle memory, trims on request, also on
 * that of other processes that are out of memory (base/board), writes the
 * trace. All signals blocked, relaxed capture mode, detached, named "vmmshim";
 * gone in a forked child. Sleeps without a timer when the pools have nothing to
 * decay. At exit it makes no more driver calls; a trim under way is waited for,
 * 20 ms at most.
 */
#ifndef VS_REPORT_SERVICE_H
#define VS_REPORT_SERVICE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/hot.h"

/*
 * When a context is born (at the first allocation that the pool served, if that
 * was not seen), or when a call is out of memory, pool or none: others are
 * asked then, by whichever thread comes back from here. Further calls do
 * nothing.
 */
void vs_service_start(void);
/* Asks for a trim of every pool. Async-signal-safe; starts nothing. */
void vs_service_post_trim(void);
/*
 * Where the thread could not be started, a posted trim runs here, unless the
 * caller is within the pool (base/thread).
 */
void vs_service_wake_up(void) __attribute__((cold));

/*
 * There may be work: after each free, and where a context ends. One load and a
 * branch. The caller holds no lock of the pool; a callback of the driver's may
 * be under one.
 */
static inline void vs_service_wake(void)
{
	/* it sleeps without a timer, or is about to */
	if (__builtin_expect(atomic_load_explicit(&vs_hot.is_dozing,
						  memory_order_relaxed),
			     0))
		vs_service_wake_up();
}

/* In a forked child. */
void vs_service_forked(void);

#endif
