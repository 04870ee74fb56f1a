/* SPDX-License-Identifier: MIT */
#include "hook/context.h"

#include <pthread.h>

#include "base/meta.h"
#include "base/thread.h"
#include "driver/vmm.h"
#include "hook/green.h"
#include "hook/hook.h"
#include "hook/ipc.h"
#include "hook/peer.h"
#include "hook/primary.h"
#include "pool/capture.h"
#include "pool/pool.h"
#include "report/service.h"

/* Attaches not yet undone: as many detaches of the context destroy nothing. */
struct attached {
	struct attached *next;
	CUcontext ctx;
	unsigned n;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct attached *attaches; /* lock */
static bool is_uncounted; /* one was not noted: no detach is the last; lock */

/*
 * The pool and its thread are made here and not at the first allocation, which
 * is to cost no more than the driver's: nobody sees half a millisecond beside
 * the making of a context.
 */
void vs_context_born(CUcontext ctx, CUdevice device)
{
	struct vs_thread *t = vs_thread_self();
	bool is_served;

	vs_thread_go_deeper(t);
	vs_pool_ctx_born(ctx, device);
	vs_thread_come_back(t);
	if (!vs_thread_go_within(t))
		return;
	is_served = vs_pool_prepare(device);
	vs_thread_come_out(t);
	vs_capture_ctx_born(ctx);
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
	vs_primary_replaced(ctx);
	vs_context_born(ctx, device);
	vs_pool_ctx_come();
}

#define RETURN_CREATED(call, ...)                                              \
	do {                                                                   \
		bool is_open = vs_enter(VS_API_##call);                        \
		CUresult result = vs_real.call(__VA_ARGS__);                   \
                                                                               \
		VS_AGAIN(vs_device_bit(device), result,                        \
			 vs_real.call(__VA_ARGS__));                           \
		if (result == CUDA_SUCCESS && is_open)                         \
			created(*out, device);                                 \
		return vs_seen(result);                                        \
	} while (0)

VS_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *out, unsigned int flags,
				       CUdevice device)
{
	RETURN_CREATED(cuCtxCreate, out, flags, device);
}

VS_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *out, unsigned int flags,
					  CUdevice device)
{
	RETURN_CREATED(cuCtxCreate_v2, out, flags, device);
}

VS_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *out,
					  CUexecAffinityParam *affinities,
					  int n_affinities, unsigned int flags,
					  CUdevice device)
{
	RETURN_CREATED(cuCtxCreate_v3, out, affinities, n_affinities, flags,
		       device);
}

#if CUDA_VERSION >= 12050
VS_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *out,
					  CUctxCreateParams *params,
					  unsigned int flags, CUdevice device)
{
	RETURN_CREATED(cuCtxCreate_v4, out, params, flags, device);
}
#endif

/* For OpenGL and VDPAU; contexts like others. */
VS_EXPORT CUresult CUDAAPI cuGLCtxCreate(CUcontext *out, unsigned int flags,
					 CUdevice device)
{
	RETURN_CREATED(cuGLCtxCreate, out, flags, device);
}

VS_EXPORT CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *out, unsigned int flags,
					    CUdevice device)
{
	RETURN_CREATED(cuGLCtxCreate_v2, out, flags, device);
}

VS_EXPORT CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *out, unsigned int flags,
					    CUdevice device,
					    uint32_t vdp_device,
					    void *vdp_proc_address)
{
	RETURN_CREATED(cuVDPAUCtxCreate, out, flags, device, vdp_device,
		       vdp_proc_address);
}

VS_EXPORT CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *out,
					       unsigned int flags,
					       CUdevice device,
					       uint32_t vdp_device,
					       void *vdp_proc_address)
{
	RETURN_CREATED(cuVDPAUCtxCreate_v2, out, flags, device, vdp_device,
		       vdp_proc_address);
}

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

/*
 * vs_enter(), and false in a host function: there the driver refuses the end,
 * so nothing is to be taken back.
 */
static bool enter_end(enum vs_api api, CUcontext ctx)
{
	return vs_enter(api) && vs_vmm_is_permitted(ctx);
}

struct vs_ctx *vs_context_dying(CUcontext ctx, CUdevice device)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_ctx *ending = NULL;

	vs_thread_go_deeper(t);
	vs_green_ending(ctx, device);
	if (!ctx)
		ctx = vs_primary_of(device);
	if (ctx) {
		forget_attaches(ctx);
		vs_peer_ctx_dying(ctx);
		vs_ipc_ctx_dying(ctx);
		ending = vs_pool_ctx_dying(ctx);
		/* what was opened meanwhile, while its work was waited for */
		vs_ipc_ctx_dying(ctx);
	}
	vs_thread_come_back(t);
	/* what it leaves is idle now: its age counts though nobody frees */
	vs_service_wake();
	return ending;
}

/*
 * A context that a program created; the driver refuses NULL, primary and green
 * ones.
 */
static struct vs_ctx *destroying(CUcontext ctx)
{
	return ctx && !vs_primary_is(ctx) && !vs_green_is(ctx)
		       ? vs_context_dying(ctx, 0)
		       : NULL;
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
	bool is_open = enter_end(VS_API_cuCtxDestroy, ctx);

	return destroy(is_open, vs_real.cuCtxDestroy, ctx);
}

VS_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
	bool is_open = enter_end(VS_API_cuCtxDestroy_v2, ctx);

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
	bool is_open = enter_end(VS_API_cuCtxDetach, ctx);
	bool is_undone = is_open && detached(ctx);
	CUresult result =
		destroy(is_open && !is_undone, vs_real.cuCtxDetach, ctx);

	if (result != CUDA_SUCCESS && is_undone)
		attached(ctx);
	return result;
}
