/* SPDX-License-Identifier: MIT
 *
 * peer: cuCtxEnablePeerAccess covers the driver's allocations; the pool's
 * chunks must be told.
 */
#include "hook/peer.h"

#include <pthread.h>

#include "base/meta.h"
#include "driver/vmm.h"
#include "hook/copy.h"
#include "hook/hook.h"
#include "hook/ipc.h"
#include "pool/pool.h"

/*
 * One direction. A green context has the address space of its primary one, so
 * pairs are of primary and created contexts.
 */
struct pair {
	struct pair *next;
	CUcontext ctx, peer;
	CUdevice device, owner; /* of each */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pair *pairs; /* lock */

/* The link to a pair, or to the end; lock. */
static struct pair **find(CUcontext ctx, CUcontext peer)
{
	struct pair **link = &pairs;

	while (*link && ((*link)->ctx != ctx || (*link)->peer != peer))
		link = &(*link)->next;
	return link;
}

bool vs_peer_is_enabled(CUcontext ctx, CUcontext peer)
{
	bool is_enabled;

	ctx = vs_pool_ctx_owning(ctx);
	peer = vs_pool_ctx_owning(peer);
	pthread_mutex_lock(&lock);
	is_enabled = *find(ctx, peer) != NULL;
	pthread_mutex_unlock(&lock);
	return is_enabled;
}

bool vs_peer_devices_are(CUdevice device, CUdevice owner)
{
	struct pair *p;

	pthread_mutex_lock(&lock);
	p = pairs;
	while (p && (p->device != device || p->owner != owner))
		p = p->next;
	pthread_mutex_unlock(&lock);
	return p != NULL;
}

static void note(CUcontext ctx, CUcontext peer, bool is_enabled)
{
	struct pair *fresh = is_enabled ? vs_meta_alloc(sizeof(*fresh)) : NULL;
	struct pair *old = NULL, **link;

	if (fresh)
		*fresh = (struct pair){.ctx = ctx,
				       .peer = peer,
				       .device = vs_vmm_device_of(ctx),
				       .owner = vs_vmm_device_of(peer)};
	pthread_mutex_lock(&lock);
	link = find(ctx, peer);
	if (!*link && fresh) {
		*link = fresh;
		fresh = NULL;
	} else if (*link && !is_enabled) {
		old = *link;
		*link = old->next;
	}
	pthread_mutex_unlock(&lock);
	vs_meta_free(fresh, sizeof(*fresh));
	vs_meta_free(old, sizeof(*old));
}

static CUresult tell_pool(CUcontext peer, bool is_enabled)
{
	struct vs_thread *t = vs_thread_self();
	CUcontext ctx;
	CUresult result = vs_real.cuCtxGetCurrent(&ctx);

	vs_thread_go_deeper(t);
	if (result == CUDA_SUCCESS)
		result = vs_pool_peer(ctx, peer, is_enabled);
	if (result == CUDA_SUCCESS && is_enabled)
		result = vs_ipc_peers_changed();
	if (result == CUDA_SUCCESS)
		note(vs_pool_ctx_owning(ctx), vs_pool_ctx_owning(peer),
		     is_enabled);
	vs_thread_come_back(t);
	return result;
}

void vs_peer_ctx_dying(CUcontext ctx)
{
	struct pair *dead = NULL, **link, *p;

	pthread_mutex_lock(&lock);
	for (link = &pairs; (p = *link);) {
		if (p->ctx != ctx && p->peer != ctx) {
			link = &p->next;
			continue;
		}
		*link = p->next;
		p->next = dead;
		dead = p;
	}
	pthread_mutex_unlock(&lock);
	/* the pool's memory stays open to the device */
	if (dead)
		vs_copy_note_opened();
	while ((p = dead)) {
		dead = p->next;
		vs_meta_free(p, sizeof(*p));
	}
}

static bool is_noted(CUcontext peer)
{
	return vs_peer_is_enabled(vs_vmm_current(), peer);
}

/* What can help is tried: memory for page tables. Twice is harmless. */
static CUresult open_pool(CUcontext peer)
{
	CUresult result;

	atomic_store(&vs_copier_has_peers, true);
	result = tell_pool(peer, true);
	if (result != CUDA_SUCCESS) {
		vs_again_relieved(VS_ANY_DEVICE, VS_RELIEF_IDLE);
		result = tell_pool(peer, true);
	}
	return result;
}

/*
 * Another thread has enabled it, and may still be telling the pool, or about
 * to: whoever is answered that it is enabled relies on it.
 */
static CUresult join(CUcontext peer)
{
	CUresult result = is_noted(peer) ? CUDA_SUCCESS : open_pool(peer);

	return result == CUDA_SUCCESS ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
				      : result;
}

/*
 * Where the pool, or what was opened by IPC, cannot be given access the program
 * gets the error, though the driver had said success: it may then copy another
 * way, but a kernel that believed in the access would fault.
 */
VS_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer,
						 unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuCtxEnablePeerAccess);
	CUresult result = vs_real.cuCtxEnablePeerAccess(peer, flags);

	VS_AGAIN(VS_ANY_DEVICE, result,
		 vs_real.cuCtxEnablePeerAccess(peer, flags));
	if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED && is_open)
		return join(peer);
	if (result != CUDA_SUCCESS || !is_open)
		return vs_seen(result);
	result = open_pool(peer);
	if (result != CUDA_SUCCESS)
		vs_real.cuCtxDisablePeerAccess(peer);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
	bool is_open = vs_enter(VS_API_cuCtxDisablePeerAccess);
	bool was_noted = is_open && is_noted(peer);
	CUresult result;

	/* not behind the driver's: another thread may enable it anew by then */
	if (was_noted)
		tell_pool(peer, false);
	result = vs_seen(vs_real.cuCtxDisablePeerAccess(peer));
	/* access that stays is harmless: the program cannot tell */
	if (result == CUDA_SUCCESS && is_open)
		vs_copy_note_opened();
	else if (was_noted)
		tell_pool(peer, true);
	return result;
}
