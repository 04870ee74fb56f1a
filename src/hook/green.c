/* SPDX-License-Identifier: MIT */
#include "hook/green.h"

#include <pthread.h>

#include "base/meta.h"
#include "hook/context.h"
#include "hook/hook.h"
#include "hook/primary.h"
#include "pool/pool.h"

struct green {
	struct green *next;
	CUgreenCtx handle;
	CUdevice device;
	CUcontext primary, converted; /* converted: NULL if unknown */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct green *greens; /* lock */

_Atomic bool vs_green_was_made;

CUcontext vs_green_primary(CUcontext ctx)
{
	CUcontext primary = NULL;

	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g && !primary; g = g->next)
		if (g->converted == ctx)
			primary = g->primary;
	pthread_mutex_unlock(&lock);
	return primary;
}

CUcontext vs_green_any_primary(void)
{
	CUcontext primary;

	pthread_mutex_lock(&lock);
	primary = greens ? greens->primary : NULL;
	pthread_mutex_unlock(&lock);
	return primary;
}

bool vs_green_is(CUcontext ctx)
{
	return vs_green_primary(ctx) != NULL;
}

bool vs_green_holds(CUdevice device)
{
	bool is_found = false;

	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g && !is_found; g = g->next)
		is_found = g->device == device;
	pthread_mutex_unlock(&lock);
	return is_found;
}

void vs_green_ending(CUcontext ctx, CUdevice device)
{
	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g; g = g->next) {
		if (ctx ? g->primary == ctx : g->device == device)
			g->converted = NULL;
	}
	pthread_mutex_unlock(&lock);
}

/* The program has, or can get, `ctx` for the green context. */
static void converted(CUgreenCtx handle, CUcontext ctx)
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

static void put(struct green *g)
{
	atomic_store(&vs_green_was_made, true);
	pthread_mutex_lock(&lock);
	g->next = greens;
	greens = g;
	pthread_mutex_unlock(&lock);
}

/* Without host memory it is not noted: false. */
static bool note(CUgreenCtx handle, CUdevice device, CUcontext primary)
{
	struct green *g = vs_meta_alloc(sizeof(*g));

	if (!g)
		return false;
	g->handle = handle;
	g->device = device;
	g->primary = primary;
	put(g);
	return true;
}

/*
 * Converted at once: the program need not ask for the converted context, since
 * cuStreamGetCtx gives it, too.
 */
static void created(struct vs_turn *turn, CUgreenCtx handle, CUdevice device)
{
	CUcontext primary = vs_primary_of(device), ctx;

	if (!primary || !note(handle, device, primary)) {
		vs_turn_retained(turn, NULL);
		return;
	}
	vs_turn_retained(turn, primary);
	if (vs_real.cuCtxFromGreenCtx(&ctx, handle) == CUDA_SUCCESS)
		converted(handle, ctx);
}

VS_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *out,
					    CUdevResourceDesc resources,
					    CUdevice device, unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuGreenCtxCreate);
	struct vs_turn turn;
	CUresult result;

	vs_turn_retain(&turn, is_open, device);
	result = vs_real.cuGreenCtxCreate(out, resources, device, flags);
	VS_AGAIN(vs_device_bit(device), result,
		 vs_real.cuGreenCtxCreate(out, resources, device, flags));
	if (result == CUDA_SUCCESS && turn.lock)
		created(&turn, *out, device);
	vs_turn_end(&turn);
	/* cuda.h promises that a wait of the primary holds those there are */
	if (result == CUDA_SUCCESS && is_open)
		vs_pool_lend_all();
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle)
{
	bool is_open = vs_enter(VS_API_cuCtxFromGreenCtx);
	CUresult result = vs_seen(vs_real.cuCtxFromGreenCtx(out, handle));

	if (result == CUDA_SUCCESS && is_open)
		converted(handle, *out);
	return result;
}

/* CU_DEVICE_INVALID: it was not noted. */
static CUdevice device_of(CUgreenCtx handle)
{
	CUdevice device = CU_DEVICE_INVALID;

	pthread_mutex_lock(&lock);
	for (struct green *g = greens; g; g = g->next) {
		if (g->handle == handle)
			device = g->device;
	}
	pthread_mutex_unlock(&lock);
	return device;
}

static struct green *take(CUgreenCtx handle)
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

/* In a turn. */
static CUresult destroy(struct green *g, struct vs_turn *turn)
{
	CUresult result;

	vs_turn_release(turn);
	result = vs_seen(vs_real.cuGreenCtxDestroy(g->handle));
	if (result == CUDA_SUCCESS)
		vs_pool_green_gone(g->converted);
	if (result == CUDA_SUCCESS || vs_real_is_for_good(result))
		vs_meta_free(g, sizeof(*g));
	else
		put(g); /* refused: it holds the primary one still */
	vs_turn_released(turn, result);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle)
{
	bool is_open = vs_enter(VS_API_cuGreenCtxDestroy);
	CUdevice device = is_open ? device_of(handle) : CU_DEVICE_INVALID;
	struct vs_thread *t = vs_thread_self();
	struct vs_turn turn;
	CUresult result;
	struct green *g;

	if (device == CU_DEVICE_INVALID || !vs_primary_may_end(device))
		return vs_seen(vs_real.cuGreenCtxDestroy(handle));
	vs_thread_go_deeper(t);
	vs_pool_green_dying(device);
	vs_thread_come_back(t);
	/* it holds the primary one until then: a reset meanwhile is refused */
	vs_turn_begin(&turn, true, device);
	g = take(handle);
	result = g ? destroy(g, &turn)
		   : vs_seen(vs_real.cuGreenCtxDestroy(handle));
	vs_turn_end(&turn);
	return result;
}
