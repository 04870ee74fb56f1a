/* SPDX-License-Identifier: MIT */
#include "pool/capture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/log.h"
#include "base/meta.h"
#include "base/sys.h"
#include "base/thread.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/ctx.h"
#include "pool/pool.h"
#include "pool/state.h"
#include "pool/trim.h"

/*
 * A capture's origin stream. A per-thread stream has one name in all threads,
 * and in all contexts, green ones too.
 */
struct capture {
	struct capture *next;
	uint64_t number; /* in the order of their begins, from 1 */
	CUstream stream;
	long thread;	/* of a per-thread stream, else 0 */
	CUcontext own;	/* of one: the current context, a green one as it is */
	CUcontext ctx;	/* the stream's */
	long strict;	/* the thread that began it, if it is strict; else 0 */
	bool is_ending; /* as `thread` is */
};

#define BARRIER_SIZE 512 /* bytes: any small block is a barrier */

/* Markers are many: a begin that waits keeps further ones out. */
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#define GATE PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#else
#define GATE PTHREAD_RWLOCK_INITIALIZER
#endif

static pthread_rwlock_t gate = GATE;
static CUcontext beginning; /* context of the capture that begins; gate */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *open_captures;	      /* lock */
static uint64_t begun;			      /* captures, ever; lock */
static _Atomic int count, n_strict, n_ending; /* written under lock */
static _Atomic bool is_known;		      /* the program captures */

static struct capture name_of(CUstream stream, bool is_per_thread)
{
	struct capture c = {.stream = stream};

	if (stream == CU_STREAM_PER_THREAD || (!stream && is_per_thread)) {
		c.stream = CU_STREAM_PER_THREAD;
		c.thread = vs_sys_gettid();
		c.own = vs_vmm_current();
	}
	return c;
}

/* Of the device that is full: what others keep brings it nothing. */
static bool make_room(CUdevice device)
{
	struct vs_thread *t = vs_thread_self();
	struct vs_pool *pool = vs_pool_of(device);
	bool is_any;

	if (!pool || !vs_thread_go_within(t))
		return false;
	is_any = vs_trim(pool) > 0;
	vs_thread_come_out(t);
	return is_any;
}

/* In the current context, which is `ctx`; see prepare_barrier(). */
static void make_barrier(struct vs_ctx *ctx, uint64_t *full)
{
	uint64_t device = (uint64_t)1 << ctx->device;
	CUstreamCaptureMode saved;
	CUdeviceptr block, none = 0;
	CUresult r;

	vs_vmm_relax(&saved);
	r = vs_real.cuMemAlloc_v2(&block, BARRIER_SIZE);
	if (r == CUDA_ERROR_OUT_OF_MEMORY && !(*full & device)) {
		if (make_room(ctx->device))
			r = vs_real.cuMemAlloc_v2(&block, BARRIER_SIZE);
		else
			*full |= device;
	}
	if (r == CUDA_SUCCESS &&
	    !atomic_compare_exchange_strong(&ctx->barrier, &none, block))
		vs_real.cuMemFree_v2(block);
	vs_vmm_unrelax(saved);
}

/*
 * Makes a context's block for vs_capture_barrier, once; where the device is
 * full, in place of what is idle there, but for devices where nothing is.
 */
static void prepare_barrier(struct vs_ctx *ctx, uint64_t *full)
{
	bool is_pushed;

	if (!ctx || atomic_load(&ctx->barrier) || vs_ctx_is_beyond(ctx) ||
	    !vs_ctx_use(ctx))
		return;
	/* not in a green context that is current: the block shall outlive it */
	if (vs_vmm_push(ctx->handle, &is_pushed) == CUDA_SUCCESS) {
		make_barrier(ctx, full);
		vs_vmm_pop(is_pushed);
	}
	vs_ctx_unuse(ctx);
}

/*
 * In all contexts: while one of them captures a barrier is needed in each that
 * can reach the memory, and there is none of another device, either. That which
 * captures first, if there is room for few.
 */
static void prepare_barriers(void)
{
	uint64_t full = 0;
	struct vs_ctx_set set;

	if (vs_pool_count() == 0)
		return;
	prepare_barrier(vs_ctx_current(), &full);
	if (vs_pool_ctx_count() == 1 || !vs_ctx_gather(&set, UINT64_MAX))
		return;
	for (int i = 0; i < set.n; i++)
		prepare_barrier(set.list[i], &full);
	vs_ctx_scatter(&set);
}

void vs_capture_ctx_born(CUcontext ctx)
{
	uint64_t full = 0;

	if (vs_capture_count() > 0 && vs_pool_count() > 0)
		prepare_barrier(vs_ctx_peek(ctx), &full);
}

/*
 * In the current context, which is `ctx`. The next block is made while the old
 * one still holds its 2 MiB of the device, or there might be no room for it.
 */
static bool renew_barrier(struct vs_ctx *ctx)
{
	CUdeviceptr block = atomic_exchange(&ctx->barrier, 0), next, none = 0;
	CUstreamCaptureMode saved;
	CUresult r;

	vs_vmm_relax(&saved);
	r = vs_real.cuMemAlloc_v2(&next, BARRIER_SIZE);
	if (r != CUDA_SUCCESS)
		next = 0;
	if (!block) {
		block = next;
		next = 0;
	}
	if (block)
		r = vs_real.cuMemFree_v2(block);
	if (next && !atomic_compare_exchange_strong(&ctx->barrier, &none, next))
		vs_real.cuMemFree_v2(next);
	vs_vmm_unrelax(saved);
	return r == CUDA_SUCCESS || vs_ctx_failed(ctx, r);
}

bool vs_capture_barrier(struct vs_ctx *ctx)
{
	bool is_pushed, is_done;

	if (vs_vmm_push(ctx->handle, &is_pushed) != CUDA_SUCCESS)
		return false;
	is_done = renew_barrier(ctx);
	vs_vmm_pop(is_pushed);
	return is_done;
}

/* Not that of its green context, which may go before the capture does. */
static CUcontext context_of(CUstream stream)
{
	CUcontext handle = NULL;
	struct vs_ctx *ctx;

	/* a default stream is the current context's */
	if (!vs_vmm_is_created(stream) || !vs_real.cuStreamGetCtx ||
	    vs_real.cuStreamGetCtx(stream, &handle) != CUDA_SUCCESS)
		handle = vs_vmm_current();
	ctx = handle ? vs_ctx_peek(handle) : NULL;
	return ctx ? ctx->handle : handle;
}

void vs_capture_before_begin(CUstream stream)
{
	atomic_store(&is_known, true);
	prepare_barriers();
	pthread_rwlock_wrlock(&gate);
	beginning = context_of(stream);
}

void vs_capture_after_begin(CUstream stream, bool is_per_thread,
			    CUstreamCaptureMode mode, bool is_begun)
{
	if (is_begun) {
		struct capture *c = vs_meta_alloc(sizeof(*c));
		struct capture named = name_of(stream, is_per_thread);

		pthread_mutex_lock(&lock);
		if (c) {
			*c = named;
			c->ctx = beginning;
			if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
				c->strict = vs_sys_gettid();
				atomic_fetch_add(&n_strict, 1);
			}
			c->number = ++begun;
			c->next = open_captures;
			open_captures = c;
		}
		/* without memory the count stays up for good: safe, not thrifty
		 */
		atomic_fetch_add(&count, 1);
		pthread_mutex_unlock(&lock);
	}
	pthread_rwlock_unlock(&gate);
}

/* With the lock. */
static void take_off(struct capture **link)
{
	struct capture *c = *link;

	*link = c->next;
	atomic_fetch_sub(&count, 1);
	if (c->strict)
		atomic_fetch_sub(&n_strict, 1);
	if (c->is_ending)
		atomic_fetch_sub(&n_ending, 1);
	vs_meta_free(c, sizeof(*c));
}

static bool is_same(const struct capture *c, const struct capture *wanted)
{
	return c->stream == wanted->stream && c->thread == wanted->thread &&
	       c->own == wanted->own;
}

/* Of those up to a number. */
static void ended(CUstream stream, bool is_per_thread, uint64_t last)
{
	struct capture wanted, **link, *c;

	if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
		return;
	wanted = name_of(stream, is_per_thread);
	pthread_mutex_lock(&lock);
	for (link = &open_captures; (c = *link); link = &c->next) {
		if (is_same(c, &wanted) && c->number <= last) {
			take_off(link);
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

void vs_capture_ended(CUstream stream, bool is_per_thread)
{
	ended(stream, is_per_thread, UINT64_MAX);
}

uint64_t vs_capture_begun(void)
{
	uint64_t n;

	if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
		return 0;
	pthread_mutex_lock(&lock);
	n = begun;
	pthread_mutex_unlock(&lock);
	return n;
}

void vs_capture_destroyed(CUstream stream, uint64_t last)
{
	ended(stream, false, last);
}

void vs_capture_ctx_dying(CUcontext ctx)
{
	struct capture **link = &open_captures, *c;

	pthread_mutex_lock(&lock);
	while ((c = *link)) {
		if (c->ctx != ctx) {
			link = &c->next;
			continue;
		}
		take_off(link);
	}
	pthread_mutex_unlock(&lock);
}

void vs_capture_thread_ends(int tid)
{
	if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
		return;
	pthread_mutex_lock(&lock);
	for (struct capture *c = open_captures; c; c = c->next) {
		if (c->thread != tid || c->is_ending)
			continue;
		c->is_ending = true;
		atomic_fetch_add(&n_ending, 1);
	}
	pthread_mutex_unlock(&lock);
}

/* No destructor of its thread can come to the driver any more. */
static __attribute__((cold)) void take_off_ended(void)
{
	struct capture **link = &open_captures, *c;

	pthread_mutex_lock(&lock);
	while ((c = *link)) {
		if (c->is_ending && vs_thread_is_gone((int)c->thread))
			take_off(link);
		else
			link = &c->next;
	}
	pthread_mutex_unlock(&lock);
}

int vs_capture_count(void)
{
	if (atomic_load_explicit(&n_ending, memory_order_relaxed) > 0)
		take_off_ended();
	/* what the driver is given for 0 comes after the end of the last one */
	return atomic_load_explicit(&count, memory_order_acquire);
}

int vs_capture_strict(void)
{
	return atomic_load(&n_strict);
}

/* With the lock: a strict capture of the calling thread, or NULL. */
static struct capture *own_strict(void)
{
	long self = vs_sys_gettid();
	struct capture *c = open_captures;

	while (c && c->strict != self)
		c = c->next;
	return c;
}

bool vs_capture_forbids(void)
{
	CUstreamCaptureMode mode;
	bool is_own;

	if (vs_capture_strict() == 0)
		return false;
	pthread_mutex_lock(&lock);
	is_own = own_strict() != NULL;
	pthread_mutex_unlock(&lock);
	if (!is_own)
		return false;
	vs_vmm_relax(&mode);
	vs_vmm_unrelax(mode);
	return mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

void vs_capture_allows(void)
{
	struct capture *c;

	pthread_mutex_lock(&lock);
	while ((c = own_strict())) {
		c->strict = 0;
		atomic_fetch_sub(&n_strict, 1);
	}
	pthread_mutex_unlock(&lock);
}

/* Also where one is just beginning; not for a program that never had any. */
bool vs_capture_relax_beside(CUstreamCaptureMode *saved_out)
{
	if (!atomic_load(&is_known) || vs_capture_forbids())
		return false;
	vs_vmm_relax(saved_out);
	return true;
}

CUresult vs_capture_alloc_beside(CUdeviceptr *out, size_t size)
{
	CUstreamCaptureMode saved;
	bool is_relaxed = vs_capture_relax_beside(&saved);
	CUresult r = vs_real.cuMemAlloc_v2(out, size);

	if (is_relaxed)
		vs_vmm_unrelax(saved);
	return r;
}

CUresult vs_capture_free_beside(CUdeviceptr p)
{
	CUstreamCaptureMode saved;
	bool is_relaxed = vs_capture_relax_beside(&saved);
	CUresult r = vs_real.cuMemFree_v2(p);

	if (is_relaxed)
		vs_vmm_unrelax(saved);
	return r;
}

bool vs_capture_shut_out(void)
{
	if (vs_capture_count() > 0 || pthread_rwlock_tryrdlock(&gate) != 0)
		return false;
	if (vs_capture_count() == 0)
		return true;
	pthread_rwlock_unlock(&gate);
	return false;
}

void vs_capture_let_in(void)
{
	pthread_rwlock_unlock(&gate);
}

void vs_capture_unseen(void)
{
	static _Atomic bool is_told;

	if (!atomic_exchange(&is_told, true))
		vs_error("a stream capture began unseen by the shim and was "
			 "invalidated by a marker: VMMSHIM=off for this "
			 "program");
}

void vs_capture_forked(void)
{
	gate = (pthread_rwlock_t)GATE;
	pthread_mutex_init(&lock, NULL);
	open_captures = NULL;
	atomic_store(&count, 0);
	atomic_store(&n_strict, 0);
	atomic_store(&n_ending, 0);
}
