/* SPDX-License-Identifier: MIT */
#include "hook/ipc_import.h"

#include <bsd/sys/tree.h>
#include <pthread.h>
#include <string.h>

#include "base/thread.h"
#include "base/uthash_meta.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "hook/ipc.h"
#include "hook/ipc_fetch.h"
#include "pool/capture.h"
#include "pool/share.h"

/*
 * How long other contexts' work is waited for, ns: what the driver's own close
 * waits for is not known, and it may wait for this very thread. And at a later
 * try.
 */
#define PEER_PATIENCE ((uint64_t)1000000000)
#define SWEEP_PATIENCE ((uint64_t)20000000)

/* A handle is open in one context of a device at most. */
struct key {
	struct vs_ipc_handle handle;
	uint64_t device; /* of the context that opened it; no padding */
};

enum state {
	OPEN,	 /* the program has it */
	CLOSED,	 /* to be unmapped when no capture is open, and work is done */
	CLOSING, /* in the hands of the thread that unmaps it */
};

struct imported {
	struct key key;
	UT_hash_handle hh; /* while OPEN */
	CUcontext ctx;	   /* that opened it; NULL: it has ended */
	RB_ENTRY(imported) by_address;
	CUdeviceptr reserved; /* where the pieces lie */
	uint64_t bytes;	      /* of the pieces */
	struct vs_span span;  /* what the program sees */
	CUdevice device;      /* of the context that opened it */
	uint64_t peers;	      /* devices with access besides `device` */
	uint64_t copiers;     /* devices that copied it without; table_lock */
	enum state state;
	unsigned n_opens;
	uint64_t swept; /* the newest sweep that was in vain; table_lock */
};

/* On the stack of the thread that asks. */
struct asked {
	const struct vs_ipc_handle *h; /* one of the exporter's */
	pthread_t thread;
	struct asked *next;
};

RB_HEAD(tree, imported);

static int compare(const struct imported *a, const struct imported *b)
{
	return (a->reserved > b->reserved) - (a->reserved < b->reserved);
}

/* tree.h marks its functions by a name that glibc leaves to struct members */
#define __unused __attribute__((unused))
RB_GENERATE_STATIC(tree, imported, by_address, compare)
#undef __unused

_Atomic int vs_ipc_n_imports;
_Atomic CUdeviceptr vs_ipc_low = UINTPTR_MAX, vs_ipc_high; /* table_lock */
/* Exporters that are being asked, each by one thread; `opening`. */
static struct asked *asked;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_answered = PTHREAD_COND_INITIALIZER;
/* Held over the driver's access calls; who is called back looks pointers up. */
static pthread_mutex_t table_lock = VS_RECURSIVE_MUTEX;
static struct imported *imports;		 /* the open ones; table_lock */
static struct tree tree = RB_INITIALIZER(&tree); /* all; table_lock */
static _Atomic bool has_closed;			 /* some are CLOSED */

/* --- access --------------------------------------------------------------- */

/* The ordinal here of the device that a handle's memory is on, or -1. */
static CUdevice device_of(const struct vs_ipc_handle *h)
{
	int n = 0;

	vs_real.cuDeviceGetCount(&n);
	for (CUdevice d = 0; d < n && h->device; d++)
		if (vs_vmm_device_id(d) == h->device)
			return d;
	return -1;
}

static bool can_reach(CUdevice from, CUdevice to)
{
	int can = 1;

	if (from == to || to < 0 || !vs_real.cuDeviceCanAccessPeer)
		return true;
	vs_real.cuDeviceCanAccessPeer(&can, from, to);
	return can != 0;
}

/*
 * The devices with access to the memory of the opening one's context. Those
 * that cannot reach the one that this memory is on have none to it.
 */
static uint64_t peers_of(const struct imported *im)
{
	uint64_t peers = vs_pool_peers(im->device), all = peers;

	for (CUdevice d = 0; d < VS_MAX_DEVICES && all >> d; d++) {
		if ((all >> d & 1) && !can_reach(d, im->span.device))
			peers &= ~((uint64_t)1 << d);
	}
	return peers;
}

/*
 * Read and write for the device of the opening context, those with access to
 * its memory, and the one that the memory is on.
 */
static CUresult allow(struct imported *im, CUdevice home)
{
	uint64_t peers = peers_of(im);
	CUresult r;

	if (home >= 0)
		peers |= (uint64_t)1 << home;
	r = vs_vmm_allow(im->reserved, im->bytes, im->device, peers);
	if (r != CUDA_SUCCESS)
		return r == CUDA_ERROR_OUT_OF_MEMORY
			       ? r
			       : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	im->peers = peers;
	return CUDA_SUCCESS;
}

/* All devices whose work may touch it. */
static uint64_t reach_of(const struct imported *im)
{
	return im->peers | im->copiers | (uint64_t)1 << im->device;
}

/* table_lock */
static CUresult add_peers(struct imported *im, uint64_t peers)
{
	CUresult r = CUDA_SUCCESS;

	peers |= im->peers;
	if (peers != im->peers)
		r = vs_vmm_allow(im->reserved, im->bytes, im->device, peers);
	if (r == CUDA_SUCCESS)
		im->peers = peers;
	return r;
}

/* One that is just being opened holds the lock, or finds the peers itself. */
CUresult vs_ipc_peers_changed(void)
{
	CUresult r = CUDA_SUCCESS;
	struct imported *im;

	pthread_mutex_lock(&table_lock);
	RB_FOREACH (im, tree, &tree) {
		if (im->state == OPEN && r == CUDA_SUCCESS)
			r = add_peers(im, peers_of(im));
	}
	pthread_mutex_unlock(&table_lock);
	return r;
}

/* --- addresses ------------------------------------------------------------ */

/* The import whose pieces lie over `p`; table_lock. */
static struct imported *over(CUdeviceptr p)
{
	struct imported *im = RB_ROOT(&tree), *best = NULL;

	while (im) {
		if (p < im->reserved) {
			im = RB_LEFT(im, by_address);
		} else {
			best = im;
			im = RB_RIGHT(im, by_address);
		}
	}
	return best && p - best->reserved < best->bytes ? best : NULL;
}

bool vs_ipc_find_import(CUdeviceptr p, struct vs_span *span_out)
{
	struct imported *im;
	bool is_found;

	pthread_mutex_lock(&table_lock);
	im = over(p);
	is_found = im && im->state == OPEN && p >= im->span.base &&
		   p - im->span.base < im->span.size;
	if (is_found)
		*span_out = im->span;
	pthread_mutex_unlock(&table_lock);
	return is_found;
}

bool vs_ipc_is_over_import(CUdeviceptr p)
{
	bool is_over;

	pthread_mutex_lock(&table_lock);
	is_over = over(p) != NULL;
	pthread_mutex_unlock(&table_lock);
	return is_over;
}

CUresult vs_ipc_reach(CUdeviceptr p, CUdevice device)
{
	CUresult r = CUDA_SUCCESS;
	struct imported *im;

	if (!vs_ipc_has_imports())
		return CUDA_SUCCESS;
	pthread_mutex_lock(&table_lock);
	im = over(p);
	if (im && im->device != device)
		r = add_peers(im, (uint64_t)1 << device);
	pthread_mutex_unlock(&table_lock);
	return r;
}

void vs_ipc_note_copy(CUdeviceptr p, uint64_t devices)
{
	struct imported *im;

	if (!vs_ipc_has_imports())
		return;
	pthread_mutex_lock(&table_lock);
	im = over(p);
	if (im)
		im->copiers |= devices;
	pthread_mutex_unlock(&table_lock);
}

/* --- the end of an import ------------------------------------------------- */

/* The caller, who is to unmap it, alone knows it now; table_lock. */
static void take(struct imported *im)
{
	if (im->state == OPEN)
		HASH_DEL(imports, im);
	im->state = CLOSING;
}

static void bury(struct imported *im)
{
	pthread_mutex_lock(&table_lock);
	RB_REMOVE(tree, &tree, im);
	atomic_fetch_sub(&vs_ipc_n_imports, 1);
	pthread_mutex_unlock(&table_lock);
	vs_ipc_unmap(im->reserved, im->bytes, im->bytes);
	vs_meta_free(im, sizeof(*im));
}

/* To be unmapped later; of this context, if that lives then. */
static void put_off(struct imported *im, CUcontext ctx, uint64_t sweep)
{
	pthread_mutex_lock(&table_lock);
	im->ctx = ctx;
	im->swept = sweep;
	im->state = CLOSED;
	pthread_mutex_unlock(&table_lock);
	atomic_store(&has_closed, true);
}

/* Unmaps when all work on it is done; false, and later, if that is not known.
 */
static bool dispose(struct imported *im, uint64_t patience_ns, uint64_t sweep)
{
	if (!vs_share_settle(reach_of(im), im->ctx, patience_ns)) {
		put_off(im, im->ctx, sweep);
		return false;
	}
	bury(im);
	return true;
}

/*
 * Takes one of a context, in any state, or without one any that is CLOSED and
 * that neither this sweep nor a newer one has tried; NULL: none left.
 */
static struct imported *take_one(CUcontext ctx, uint64_t sweep)
{
	struct imported *im;

	pthread_mutex_lock(&table_lock);
	RB_FOREACH (im, tree, &tree) {
		if (ctx ? im->ctx == ctx && im->state != CLOSING
			: im->state == CLOSED && im->swept < sweep)
			break;
	}
	if (im)
		take(im);
	pthread_mutex_unlock(&table_lock);
	return im;
}

/*
 * What was closed in a capture, or under work of others. Beside a capture none
 * can go yet, and a look at all would make each of many closes as long as the
 * number of those before.
 */
static void sweep(void)
{
	static _Atomic uint64_t sweeps;
	uint64_t patience = SWEEP_PATIENCE;
	struct imported *im;
	uint64_t number;

	if (!atomic_load_explicit(&has_closed, memory_order_relaxed) ||
	    vs_capture_count() > 0 || !atomic_exchange(&has_closed, false))
		return;
	number = atomic_fetch_add(&sweeps, 1) + 1;
	while ((im = take_one(NULL, number))) {
		if (!dispose(im, patience, number))
			patience = 0;
	}
}

CUresult vs_ipc_close(CUdeviceptr p)
{
	struct imported *im;
	bool is_last = false;

	sweep();
	pthread_mutex_lock(&table_lock);
	im = over(p);
	if (im && (im->state != OPEN || im->span.base != p))
		im = NULL;
	if (im) {
		is_last = --im->n_opens == 0;
		if (is_last)
			take(im);
	}
	pthread_mutex_unlock(&table_lock);
	if (is_last)
		dispose(im, PEER_PATIENCE, 0);
	return im ? CUDA_SUCCESS : VS_PASS;
}

/*
 * What devices reach whose work is not done stays mapped, and is nobody's. With
 * the lock though none may be open: the first may just be entered.
 */
void vs_ipc_ctx_dying(CUcontext ctx)
{
	uint64_t settled = 0, patience = PEER_PATIENCE;
	struct imported *im;

	while ((im = take_one(ctx, 0))) {
		uint64_t reach = reach_of(im);

		if ((reach & ~settled) &&
		    !vs_share_settle(reach, ctx, patience)) {
			/* an error means that the context is beyond work */
			vs_vmm_ctx_wait(ctx);
			patience = 0;
			put_off(im, NULL, 0);
			continue;
		}
		settled |= reach;
		bury(im);
	}
}

/* --- open ----------------------------------------------------------------- */

static struct imported *find(const struct key *key)
{
	struct imported *im;

	HASH_FIND(hh, imports, key, sizeof(*key), im);
	return im;
}

/*
 * True, with *result_out, when the handle is open already: in this context it
 * is counted, in another of the same device it is INVALID_HANDLE, as the
 * driver's (an H100). That refuses any handle of a process of which that
 * context has one open, too (an H200; cuda.h, cuIpcOpenMemHandle): here they
 * are let, since no program rests on that error.
 */
static bool open_again(const struct key *key, CUcontext ctx, CUdeviceptr *out,
		       CUresult *result_out)
{
	struct imported *im;

	pthread_mutex_lock(&table_lock);
	im = find(key);
	*result_out = CUDA_ERROR_INVALID_HANDLE;
	if (im && im->ctx == ctx) {
		im->n_opens++;
		*out = im->span.base;
		*result_out = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&table_lock);
	return im != NULL;
}

/* table_lock */
static void widen(const struct imported *im)
{
	if (im->reserved < atomic_load(&vs_ipc_low))
		atomic_store(&vs_ipc_low, im->reserved);
	if (im->reserved + im->bytes > atomic_load(&vs_ipc_high))
		atomic_store(&vs_ipc_high, im->reserved + im->bytes);
}

/*
 * `home`: see allow(). With the lock: see vs_ipc_peers_changed().
 * ALREADY_MAPPED: it is open by now, by a callback.
 */
static CUresult enter(struct imported *im, CUdevice home)
{
	CUresult r = CUDA_ERROR_CONTEXT_IS_DESTROYED;

	pthread_mutex_lock(&table_lock);
	/* or nobody would close it: see vs_ipc_ctx_dying() */
	if (!vs_pool_ctx_is_ending(im->ctx) && vs_vmm_is_current_alive())
		r = allow(im, home);
	if (r == CUDA_SUCCESS && find(&im->key)) {
		r = CUDA_ERROR_ALREADY_MAPPED;
	} else if (r == CUDA_SUCCESS) {
		HASH_ADD(hh, imports, key, sizeof(im->key), im);
		/* uthash leaves hh.tbl NULL when it had no memory */
		if (!im->hh.tbl)
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS) {
		RB_INSERT(tree, &tree, im);
		widen(im);
		atomic_fetch_add(&vs_ipc_n_imports, 1);
	}
	pthread_mutex_unlock(&table_lock);
	return r;
}

static CUresult bring(struct imported *im, CUdevice home)
{
	const struct vs_ipc_handle *h = &im->key.handle;
	CUresult r;

	if (!can_reach(im->device, home))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	r = vs_ipc_fetch(h, &im->reserved, &im->bytes);
	if (r != CUDA_SUCCESS)
		return r;
	im->n_opens = 1;
	im->span.base = im->reserved + h->offset;
	im->span.size = h->size;
	im->span.id = vs_share_serial();
	im->span.ctx = im->ctx;
	im->span.device = home >= 0 ? home : im->device;
	r = enter(im, home);
	if (r != CUDA_SUCCESS)
		vs_ipc_unmap(im->reserved, im->bytes, im->bytes);
	return r;
}

/* The place of the exporter's turn; `opening`. */
static struct asked **find_asked(const struct vs_ipc_handle *h)
{
	struct asked **at = &asked;

	while (*at && memcmp((*at)->h->key, h->key, sizeof(h->key)) != 0)
		at = &(*at)->next;
	return at;
}

/*
 * No other thread asks this exporter from now on. Others are asked meanwhile:
 * one that is stopped is waited for for long. A thread that the driver calls
 * back in its turn has another one within that.
 */
static void begin_asking(struct asked *turn)
{
	const struct asked *before;

	pthread_mutex_lock(&opening);
	while ((before = *find_asked(turn->h)) &&
	       !pthread_equal(before->thread, turn->thread))
		pthread_cond_wait(&is_answered, &opening);
	turn->next = asked;
	asked = turn;
	pthread_mutex_unlock(&opening);
}

static void end_asking(const struct asked *turn)
{
	struct asked **at;

	pthread_mutex_lock(&opening);
	at = find_asked(turn->h);
	if (*at) /* not in a child that was forked meanwhile */
		*at = turn->next;
	pthread_cond_broadcast(&is_answered);
	pthread_mutex_unlock(&opening);
}

/* ALREADY_MAPPED: see enter(). */
static CUresult bring_new(const struct key *key, CUcontext ctx,
			  CUdeviceptr *out)
{
	struct imported *im = vs_meta_alloc(sizeof(*im));
	CUresult r;

	if (!im)
		return CUDA_ERROR_OUT_OF_MEMORY;
	im->key = *key;
	im->ctx = ctx;
	im->device = (CUdevice)key->device;
	r = bring(im, device_of(&key->handle));
	if (r == CUDA_SUCCESS)
		*out = im->span.base;
	else
		vs_meta_free(im, sizeof(*im));
	return r;
}

/* In the exporter's turn. */
static CUresult open_new(const struct key *key, CUcontext ctx, CUdeviceptr *out)
{
	CUresult r;

	do {
		/* by another thread in its turn, or in a callback */
		if (open_again(key, ctx, out, &r))
			return r;
		r = bring_new(key, ctx, out);
		/* and what was open may be closed again */
	} while (r == CUDA_ERROR_ALREADY_MAPPED);
	return r;
}

CUresult vs_ipc_import(const struct vs_ipc_handle *h, CUcontext ctx,
		       CUdevice device, CUdeviceptr *out)
{
	struct key key = {.handle = *h, .device = (uint64_t)device};
	struct asked turn = {.h = h, .thread = pthread_self()};
	CUresult r;

	sweep();
	if (open_again(&key, ctx, out, &r))
		return r;
	begin_asking(&turn);
	r = open_new(&key, ctx, out);
	end_asking(&turn);
	return r;
}

void vs_ipc_import_forked(void)
{
	pthread_mutex_init(&opening, NULL);
	pthread_cond_init(&is_answered, NULL);
	asked = NULL;
	pthread_mutex_init(&table_lock, NULL);
	imports = NULL;
	RB_INIT(&tree);
	atomic_store(&vs_ipc_n_imports, 0);
}
