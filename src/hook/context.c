/* SPDX-License-Identifier: MIT
 *
 * context: the driver frees cuMemAlloc memory with its context; memory of the
 * pool belongs to no context, so the pool is told before one dies.
 */
#include "hook/hook.h"

#include <pthread.h>

#include "base/meta.h"
#include "base/thread.h"
#include "driver/vmm.h"
#include "hook/ipc.h"
#include "hook/peer.h"
#include "pool/pool.h"
#include "report/service.h"

/*
 * Note [The last release of a primary context]: the driver counts retains and
 * destroys the context with the last release, but tells its count to nobody.
 * So the program's own retains and releases are counted here. When the last
 * one is about to go, the pool is told before. The count is not trusted for a
 * device whose context was active before the program was first seen to retain
 * it: then the driver is asked after each release whether the context is gone.
 */
static struct primary {
	CUcontext ctx;	    /* NULL: none was seen, or another has it */
	unsigned n_retains; /* seen */
	bool is_shared;	    /* others hold it, unseen */
} primaries[VS_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the above */

/*
 * The pool and its thread are made here and not at the first allocation, which
 * is to cost no more than the driver's: nobody sees half a millisecond beside
 * the making of a context.
 */
static void born(CUcontext ctx, CUdevice device)
{
	struct vs_thread *t = vs_thread_self();
	bool is_served;

	vs_pool_ctx_born(ctx, device);
	if (!vs_thread_go_within(t))
		return;
	is_served = vs_pool_prepare(device);
	vs_thread_come_out(t);
	if (!is_served)
		return;
	/* where another road led to cuInit: it was not seen */
	vs_enter_initialized();
	vs_service_start();
}

/*
 * The driver may give a handle again. Whatever had this one is gone: a primary
 * context after a reset, or one whose end was not seen.
 */
static void created(CUcontext ctx, CUdevice device)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < VS_MAX_DEVICES; i++) {
		if (primaries[i].ctx == ctx)
			primaries[i].ctx = NULL;
	}
	pthread_mutex_unlock(&lock);
	born(ctx, device);
}

VS_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *out, unsigned int flags,
				       CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuCtxCreate);
	CUresult result = vs_real.cuCtxCreate(out, flags, device);

	VS_AGAIN(result, vs_real.cuCtxCreate(out, flags, device));
	if (result == CUDA_SUCCESS && is_open)
		created(*out, device);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *out, unsigned int flags,
					  CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuCtxCreate_v2);
	CUresult result = vs_real.cuCtxCreate_v2(out, flags, device);

	VS_AGAIN(result, vs_real.cuCtxCreate_v2(out, flags, device));
	if (result == CUDA_SUCCESS && is_open)
		created(*out, device);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *out,
					  CUexecAffinityParam *affinities,
					  int n_affinities, unsigned int flags,
					  CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuCtxCreate_v3);
	CUresult result = vs_real.cuCtxCreate_v3(out, affinities, n_affinities,
						 flags, device);

	VS_AGAIN(result, vs_real.cuCtxCreate_v3(out, affinities, n_affinities,
						flags, device));
	if (result == CUDA_SUCCESS && is_open)
		created(*out, device);
	return vs_seen(result);
}

#if CUDA_VERSION >= 12050
VS_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *out,
					  CUctxCreateParams *params,
					  unsigned int flags, CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuCtxCreate_v4);
	CUresult result = vs_real.cuCtxCreate_v4(out, params, flags, device);

	VS_AGAIN(result, vs_real.cuCtxCreate_v4(out, params, flags, device));
	if (result == CUDA_SUCCESS && is_open)
		created(*out, device);
	return vs_seen(result);
}
#endif

/* A callback that the driver makes into the program may retain, too. */
#ifdef PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP
#define TURN PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP
#else
#define TURN PTHREAD_MUTEX_INITIALIZER
#endif

/*
 * Held over each retain and release of a device's primary context, the driver's
 * call and its count, so that no thread retains, and allocates under, what
 * another is about to release as the last. Before all other locks, and over a
 * wait for the GPU, as a retain waits for the driver's end of a context, too.
 */
static pthread_mutex_t turns[VS_MAX_DEVICES] = {[0 ... VS_MAX_DEVICES - 1] =
							TURN};

/* Attaches not yet undone: as many detaches of the context destroy nothing. */
struct attached {
	struct attached *next;
	CUcontext ctx;
	unsigned n;
};
static struct attached *attaches; /* lock */
static bool is_uncounted; /* one was not noted: no detach is the last; lock */

static bool is_active(CUdevice device)
{
	unsigned int flags;
	int is_active = 0;

	return vs_real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) ==
		       CUDA_SUCCESS &&
	       is_active;
}

static bool is_primary(CUcontext ctx)
{
	bool is_found = false;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < VS_MAX_DEVICES && !is_found; i++)
		is_found = primaries[i].ctx == ctx;
	pthread_mutex_unlock(&lock);
	return is_found;
}

static bool is_countable(CUdevice device)
{
	return device >= 0 && device < VS_MAX_DEVICES;
}

/* Takes the turn of a countable device, or none; see `turns`. */
static pthread_mutex_t *begin_turn(bool is_open, CUdevice device)
{
	pthread_mutex_t *turn = is_open ? &turns[device] : NULL;

	if (turn)
		pthread_mutex_lock(turn);
	return turn;
}

static void end_turn(pthread_mutex_t *turn)
{
	if (turn)
		pthread_mutex_unlock(turn);
}

/* `was_active`: before this retain. */
static void retained(CUcontext ctx, CUdevice device, bool was_active)
{
	struct primary *p = &primaries[device];

	pthread_mutex_lock(&lock);
	if (p->n_retains == 0 && was_active)
		p->is_shared = true;
	p->ctx = ctx;
	p->n_retains++;
	pthread_mutex_unlock(&lock);
	born(ctx, device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out,
						    CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxRetain) &&
		       is_countable(device);
	pthread_mutex_t *turn = begin_turn(is_open, device);
	bool was_active = is_open && is_active(device);
	CUresult result = vs_real.cuDevicePrimaryCtxRetain(out, device);

	VS_AGAIN(result, vs_real.cuDevicePrimaryCtxRetain(out, device));
	if (result == CUDA_SUCCESS && is_open)
		retained(*out, device, was_active);
	end_turn(turn);
	return vs_seen(result);
}

/*
 * A green context retains its device's primary one until it is destroyed; a
 * reset of the primary one destroys it, too.
 */
struct green {
	struct green *next;
	CUgreenCtx handle;
	CUdevice device;
	CUcontext primary, converted; /* converted: NULL if unknown */
};
static struct green *greens; /* lock */

/* The link to a context's attaches, or to the end; lock. */
static struct attached **find_attached(CUcontext ctx)
{
	struct attached **link = &attaches;

	while (*link && (*link)->ctx != ctx)
		link = &(*link)->next;
	return link;
}

static void attached(CUcontext ctx)
{
	struct attached *fresh = vs_meta_alloc(sizeof(*fresh)), **link;

	pthread_mutex_lock(&lock);
	link = find_attached(ctx);
	if (!*link && fresh) {
		fresh->ctx = ctx;
		*link = fresh;
		fresh = NULL;
	}
	if (*link)
		(*link)->n++;
	else
		is_uncounted = true;
	pthread_mutex_unlock(&lock);
	vs_meta_free(fresh, sizeof(*fresh));
}

/* Returns whether this undoes an attach; else it destroys the context. */
static bool detached(CUcontext ctx)
{
	struct attached *a;
	bool is_undone;

	pthread_mutex_lock(&lock);
	a = *find_attached(ctx);
	is_undone = is_uncounted || (a && a->n > 0);
	if (a && a->n > 0)
		a->n--;
	pthread_mutex_unlock(&lock);
	return is_undone;
}

static void forget_attaches(CUcontext ctx)
{
	struct attached **link, *a;

	pthread_mutex_lock(&lock);
	link = find_attached(ctx);
	a = *link;
	if (a)
		*link = a->next;
	pthread_mutex_unlock(&lock);
	vs_meta_free(a, sizeof(*a));
}

/* `ctx` NULL: the primary one of `device`. For vs_pool_ctx_gone(). */
static struct vs_ctx *dying(CUcontext ctx, CUdevice device)
{
	CUcontext dead = ctx;

	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g; g = g->next) {
		if (ctx ? g->primary == ctx : g->device == device)
			g->converted = NULL;
	}
	if (!ctx)
		dead = primaries[device].ctx;
	pthread_mutex_unlock(&lock);
	if (dead) {
		forget_attaches(dead);
		vs_peer_ctx_dying(dead);
	}
	vs_ipc_ctx_dying(ctx, device);
	return vs_pool_ctx_dying(ctx, device);
}

/*
 * Before a release: the pool is told if this is the last for certain. Its
 * answer is for released().
 */
static bool before_release(CUdevice device, struct vs_ctx **ending_out)
{
	struct primary *p = &primaries[device];
	bool is_last;

	pthread_mutex_lock(&lock);
	is_last = p->n_retains == 1 && !p->is_shared;
	pthread_mutex_unlock(&lock);
	*ending_out = is_last ? dying(NULL, device) : NULL;
	return is_last;
}

static void released(CUdevice device, bool is_told)
{
	struct primary *p = &primaries[device];
	bool is_gone = !is_active(device);
	CUcontext ctx;

	pthread_mutex_lock(&lock);
	ctx = p->ctx;
	if (p->n_retains > 0)
		p->n_retains--;
	if (is_gone) {
		p->ctx = NULL;
		p->n_retains = 0;
		p->is_shared = false;
	}
	pthread_mutex_unlock(&lock);
	if (is_gone && !is_told && ctx)
		vs_pool_ctx_gone(dying(ctx, device));
}

/* The driver's function, of either version. */
typedef CUresult(CUDAAPI *primary_fn)(CUdevice device);

static CUresult release_primary(bool is_open, primary_fn real, CUdevice device)
{
	pthread_mutex_t *turn = begin_turn(is_open, device);
	struct vs_ctx *ending = NULL;
	bool is_told = is_open && before_release(device, &ending);
	CUresult result = vs_seen(real(device));

	vs_pool_ctx_gone(ending);
	if (result == CUDA_SUCCESS && is_open)
		released(device, is_told);
	end_turn(turn);
	return result;
}

static CUresult reset_primary(bool is_open, primary_fn real, CUdevice device)
{
	pthread_mutex_t *turn = begin_turn(is_open, device);
	struct vs_ctx *ending = is_open ? dying(NULL, device) : NULL;
	CUresult result = vs_seen(real(device));

	vs_pool_ctx_gone(ending);
	end_turn(turn);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxRelease) &&
		       is_countable(device);

	return release_primary(is_open, vs_real.cuDevicePrimaryCtxRelease,
			       device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxRelease_v2) &&
		       is_countable(device);

	return release_primary(is_open, vs_real.cuDevicePrimaryCtxRelease_v2,
			       device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxReset) &&
		       is_countable(device);

	return reset_primary(is_open, vs_real.cuDevicePrimaryCtxReset, device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxReset_v2) &&
		       is_countable(device);

	return reset_primary(is_open, vs_real.cuDevicePrimaryCtxReset_v2,
			     device);
}

/* The program has, or can get, `ctx` for the green context. */
static void green_converted(CUgreenCtx handle, CUcontext ctx)
{
	CUcontext primary = NULL;
	struct green *g;

	pthread_mutex_lock(&lock);
	for (g = greens; g && g->handle != handle; g = g->next)
		;
	if (g) {
		g->converted = ctx;
		primary = g->primary;
	}
	pthread_mutex_unlock(&lock);
	if (primary)
		vs_pool_green_born(ctx, primary);
}

/*
 * Converted at once: the program need not ask for the converted context, since
 * cuStreamGetCtx gives it, too.
 */
static void green_created(CUgreenCtx handle, CUdevice device, bool was_active)
{
	struct green *g = vs_meta_alloc(sizeof(*g));
	CUcontext primary = NULL, converted;

	if (g && vs_real.cuDevicePrimaryCtxRetain(&primary, device) ==
			 CUDA_SUCCESS) {
		vs_real.cuDevicePrimaryCtxRelease_v2(device);
		retained(primary, device, was_active);
		g->handle = handle;
		g->device = device;
		g->primary = primary;
		pthread_mutex_lock(&lock);
		g->next = greens;
		greens = g;
		pthread_mutex_unlock(&lock);
		if (vs_real.cuCtxFromGreenCtx(&converted, handle) ==
		    CUDA_SUCCESS)
			green_converted(handle, converted);
		return;
	}
	vs_meta_free(g, sizeof(*g));
	pthread_mutex_lock(&lock);
	primaries[device].is_shared = true;
	pthread_mutex_unlock(&lock);
}

VS_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *out,
					    CUdevResourceDesc resources,
					    CUdevice device, unsigned int flags)
{
	bool is_open =
		vs_enter(VS_API_cuGreenCtxCreate) && is_countable(device);
	pthread_mutex_t *turn = begin_turn(is_open, device);
	bool was_active = is_open && is_active(device);
	CUresult result =
		vs_real.cuGreenCtxCreate(out, resources, device, flags);

	VS_AGAIN(result,
		 vs_real.cuGreenCtxCreate(out, resources, device, flags));
	if (result == CUDA_SUCCESS && is_open)
		green_created(*out, device, was_active);
	end_turn(turn);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle)
{
	bool is_open = vs_enter(VS_API_cuCtxFromGreenCtx);
	CUresult result = vs_seen(vs_real.cuCtxFromGreenCtx(out, handle));

	if (result == CUDA_SUCCESS && is_open)
		green_converted(handle, *out);
	return result;
}

static struct green *take_green(CUgreenCtx handle)
{
	struct green **link, *g;

	pthread_mutex_lock(&lock);
	for (link = &greens; (g = *link); link = &g->next) {
		if (g->handle == handle) {
			*link = g->next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return g;
}

VS_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle)
{
	bool is_open = vs_enter(VS_API_cuGreenCtxDestroy), is_told;
	struct green *g = is_open ? take_green(handle) : NULL;
	struct vs_ctx *ending;
	pthread_mutex_t *turn;
	CUresult result;

	if (!g)
		return vs_seen(vs_real.cuGreenCtxDestroy(handle));
	turn = begin_turn(true, g->device);
	vs_pool_green_dying(g->converted, g->device);
	is_told = before_release(g->device, &ending);
	result = vs_seen(vs_real.cuGreenCtxDestroy(handle));
	vs_pool_ctx_gone(ending);
	if (result == CUDA_SUCCESS)
		released(g->device, is_told);
	end_turn(turn);
	vs_meta_free(g, sizeof(*g));
	return result;
}

static bool is_green(CUcontext ctx)
{
	bool is_found = false;

	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g && !is_found; g = g->next)
		is_found = g->converted == ctx;
	pthread_mutex_unlock(&lock);
	return is_found;
}

/*
 * A context that a program created; the driver refuses NULL, primary and green
 * ones.
 */
static struct vs_ctx *destroying(CUcontext ctx)
{
	return ctx && !is_primary(ctx) && !is_green(ctx) ? dying(ctx, 0) : NULL;
}

/* The driver's function, of any name. */
typedef CUresult(CUDAAPI *destroy_fn)(CUcontext ctx);

static CUresult destroy(bool is_open, destroy_fn real, CUcontext ctx)
{
	struct vs_ctx *ending = is_open ? destroying(ctx) : NULL;
	CUresult result = vs_seen(real(ctx));

	vs_pool_ctx_gone(ending);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
	bool is_open = vs_enter(VS_API_cuCtxDestroy);

	return destroy(is_open, vs_real.cuCtxDestroy, ctx);
}

VS_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
	bool is_open = vs_enter(VS_API_cuCtxDestroy_v2);

	return destroy(is_open, vs_real.cuCtxDestroy_v2, ctx);
}

VS_EXPORT CUresult CUDAAPI cuCtxAttach(CUcontext *out, unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuCtxAttach);
	CUresult result = vs_seen(vs_real.cuCtxAttach(out, flags));

	if (result == CUDA_SUCCESS && is_open)
		attached(*out);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuCtxDetach(CUcontext ctx)
{
	/* in a forked child somebody may hold the lock for ever */
	bool is_open = vs_enter(VS_API_cuCtxDetach);
	bool is_undone = is_open && detached(ctx);
	CUresult result =
		destroy(is_open && !is_undone, vs_real.cuCtxDetach, ctx);

	if (result != CUDA_SUCCESS && is_undone)
		attached(ctx);
	return result;
}
