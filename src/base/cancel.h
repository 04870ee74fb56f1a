/* SPDX-License-Identifier: MIT
 *
 * cancel: the shim's own waits, and what it writes, are no cancellation points.
 * A thread that is cancelled there would take an allocation or a lock along.
 */
#ifndef VS_BASE_CANCEL_H
#define VS_BASE_CANCEL_H

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/sys.h"

/* What it returns is for vs_cancel_let. Async-signal-safe, as that is. */
static inline int vs_cancel_hold(void)
{
	int saved;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved);
	return saved;
}

static inline void vs_cancel_let(int saved)
{
	pthread_setcancelstate(saved, NULL);
}

/*
 * Less than a second; no signal ends it early, since who waits may count how
 * often.
 */
static inline void vs_cancel_free_sleep(long ns)
{
	struct timespec time = {.tv_nsec = ns};
	int saved = vs_cancel_hold();

	while (vs_sys_nanosleep(&time, &time) != 0 && errno == EINTR)
		;
	vs_cancel_let(saved);
}

#endif
