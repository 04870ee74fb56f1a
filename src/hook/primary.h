/* SPDX-License-Identifier: MIT
 *
 * primary: who holds the primary context of a device, and its last release.
 *
 * Note [The last release of a primary context]: the driver counts retains and
 * destroys the context with the last release, but tells its count to nobody.
 * So the program's own retains and releases are counted here. When the last
 * one is about to go, the pool is told before. The count is not trusted for a
 * device whose context was active before the program was first seen to retain
 * it, nor after a reset: then the driver is asked after each release whether
 * the context is gone, else only where none was seen to hold it any more. So a
 * library that retains and releases it for each of its calls costs nothing.
 * Those who held it before a reset hold what comes after it (cuda.h): they stay
 * counted.
 */
#ifndef VS_HOOK_PRIMARY_H
#define VS_HOOK_PRIMARY_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>

struct vs_ctx;

/*
 * A turn: one retain or release of a device's primary context, the driver's
 * call and its count, so that no thread retains, and allocates under, what
 * another is about to release as the last. On the stack of who takes it. Its
 * lock comes before all others, and is held over a wait for the GPU, as a
 * retain waits for the driver's end of a context, too.
 */
struct vs_turn {
	pthread_mutex_t *lock; /* NULL: nothing is counted */
	CUdevice device;
	bool was_active;       /* before a retain; a release after a reset */
	bool is_born;	       /* retained, perhaps made */
	bool is_told;	       /* the pool, of the last release */
	struct vs_ctx *ending; /* its answer */
};

/*
 * Before the driver's call, which is to retain, or to end something: from then
 * on nobody else retains, releases or resets. A turn that is not `is_open`, or
 * of no device that the shim has a place for, does nothing (false).
 */
void vs_turn_retain(struct vs_turn *turn, bool is_open, CUdevice device);
bool vs_turn_begin(struct vs_turn *turn, bool is_open, CUdevice device);
/* In such a turn: the driver's call is to release, be it as a green one goes.
 */
void vs_turn_release(struct vs_turn *turn);
/* The driver has retained `ctx` (NULL: the context is not known). */
void vs_turn_retained(struct vs_turn *turn, CUcontext ctx);
/* The driver has answered the release. */
void vs_turn_released(struct vs_turn *turn, CUresult result);
/* Ends either. Then, no turn held, tells the pool that a context came. */
void vs_turn_end(struct vs_turn *turn);

/*
 * False in a host function. There the driver refuses the end of the context, so
 * nothing is to be taken back.
 */
bool vs_primary_may_end(CUdevice device);
/* The primary context of a device, as far as can be told; NULL: none. */
CUcontext vs_primary_of(CUdevice device);
/* The context is one. */
bool vs_primary_is(CUcontext ctx);
/* The handle is another context's from now on. */
void vs_primary_replaced(CUcontext ctx);

#endif
