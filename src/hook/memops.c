/* SPDX-License-Identifier: MIT */
#include "hook/memops.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/uthash_meta.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "hook/capture.h"
#include "hook/hook.h"
#include "hook/ipc.h"

/* What was set for an allocation. Its id is never used again. */
struct mark {
	uint64_t id; /* of the span; key */
	CUdeviceptr base;
	bool is_sync;
	UT_hash_handle hh;
};

/*
 * A context whose CU_CTX_SYNC_MEMOPS is the shim's: the program does not see
 * it. Kept for ever; another context of that handle has another id.
 */
struct loan {
	struct loan *next;
	CUcontext ctx;
	unsigned long long id; /* of the context; OWN: the program's flags */
};
#define OWN (~0ULL)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct loan *) loans; /* written under lock; the list: lock */
static struct mark *marks;	     /* lock */
static _Atomic int n_marks;	     /* written under lock */
static unsigned purge_at = 64;	     /* lock */

static bool is_stale(const struct mark *m)
{
	struct vs_span span;

	return !vs_ipc_find_either(m->base, &span) || span.id != m->id;
}

static void purge(void)
{
	struct mark *m, *next;

	HASH_ITER (hh, marks, m, next) {
		if (!is_stale(m))
			continue;
		HASH_DEL(marks, m);
		vs_meta_free(m, sizeof(*m));
	}
	if (2 * HASH_COUNT(marks) > purge_at)
		purge_at = 2 * HASH_COUNT(marks);
}

static struct mark *find(uint64_t id)
{
	struct mark *m;

	HASH_FIND(hh, marks, &id, sizeof(id), m);
	return m;
}

static bool note(const struct vs_span *span, bool is_sync)
{
	struct mark *m = find(span->id);

	if (m) {
		m->is_sync = is_sync;
		return true;
	}
	if (HASH_COUNT(marks) >= purge_at)
		purge();
	m = vs_meta_alloc(sizeof(*m));
	if (!m)
		return false;
	m->id = span->id;
	m->base = span->base;
	m->is_sync = is_sync;
	HASH_ADD(hh, marks, id, sizeof(m->id), m);
	/* uthash leaves hh.tbl NULL when it had no memory */
	if (m->hh.tbl)
		return true;
	vs_meta_free(m, sizeof(*m));
	return false;
}

/* Drivers that have the flag have ids, too. */
static unsigned long long id_of(CUcontext ctx)
{
	unsigned long long id = 0;

	if (vs_real.cuCtxGetId)
		vs_real.cuCtxGetId(ctx, &id);
	return id;
}

static struct loan *find_loan(CUcontext ctx)
{
	struct loan *l = atomic_load(&loans);

	while (l && l->ctx != ctx)
		l = l->next;
	return l;
}

/* The flag is about to be set for the shim. Without memory it is shown. */
static void lend(CUcontext ctx)
{
	unsigned long long id = id_of(ctx);
	struct loan *l;

	pthread_mutex_lock(&lock);
	l = find_loan(ctx);
	if (!l) {
		l = vs_meta_alloc(sizeof(*l));
		if (l) {
			l->ctx = ctx;
			l->next = atomic_load(&loans);
			atomic_store(&loans, l);
		}
	}
	if (l)
		l->id = id;
	pthread_mutex_unlock(&lock);
}

/* What a living context's flags are without the shim's. */
static unsigned int without_loan(CUcontext ctx, unsigned int flags)
{
	unsigned long long id = id_of(ctx);
	struct loan *l;

	pthread_mutex_lock(&lock);
	l = find_loan(ctx);
	if (l && l->id == id)
		flags &= ~(unsigned int)CU_CTX_SYNC_MEMOPS;
	pthread_mutex_unlock(&lock);
	return flags;
}

/* The program has set all flags of the context. */
static void end_loan(CUcontext ctx)
{
	struct loan *l;

	pthread_mutex_lock(&lock);
	l = find_loan(ctx);
	if (l)
		l->id = OWN;
	pthread_mutex_unlock(&lock);
}

static bool is_any_lent(void)
{
	return atomic_load_explicit(&loans, memory_order_relaxed) != NULL;
}

/* Every synchronous copy of the context, not only those of one allocation. */
static CUresult sync_context(CUcontext ctx)
{
	unsigned int flags = 0;
	CUresult result;
	bool is_pushed;

	if (!vs_real.cuCtxGetFlags)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = vs_vmm_push(ctx, &is_pushed);
	if (result != CUDA_SUCCESS)
		return result;
	result = vs_real.cuCtxGetFlags(&flags);
	if (result == CUDA_SUCCESS && !(flags & CU_CTX_SYNC_MEMOPS)) {
		lend(ctx);
		result = vs_real.cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
	}
	vs_vmm_pop(is_pushed);
	return result;
}

CUresult vs_memops_set(const struct vs_span *span, bool is_sync)
{
	static _Atomic bool is_told;
	CUresult result = vs_capture_refusal(span->ctx);
	bool is_noted;

	if (result != VS_PASS)
		return vs_seen(result);
	if (is_sync) {
		result = sync_context(span->ctx);
		/* the capture of another thread, which it spoils as well */
		if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
			return vs_seen(result);
		if (result != CUDA_SUCCESS && !atomic_exchange(&is_told, true))
			vs_warn("synchronous copies cannot be switched on for "
				"the context (%s): a copy may still run when "
				"it returns",
				vs_real_error(result));
		vs_pool_pin(span->base);
	}
	pthread_mutex_lock(&lock);
	is_noted = note(span, is_sync);
	atomic_store(&n_marks, (int)HASH_COUNT(marks));
	pthread_mutex_unlock(&lock);
	return is_noted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool vs_memops_is_any(void)
{
	return atomic_load_explicit(&n_marks, memory_order_relaxed) > 0;
}

bool vs_memops_get(const struct vs_span *span, uint64_t *value_out)
{
	struct mark *m;

	if (!vs_memops_is_any())
		return false;
	pthread_mutex_lock(&lock);
	m = find(span->id);
	if (m)
		*value_out = m->is_sync;
	pthread_mutex_unlock(&lock);
	return m != NULL;
}

/* The least context above `last` that holds memory for which it is set. */
static CUcontext next_context(CUcontext last)
{
	CUcontext least = NULL;
	struct mark *m, *next;

	pthread_mutex_lock(&lock);
	HASH_ITER (hh, marks, m, next) {
		struct vs_span span;

		if (m->is_sync && vs_ipc_find_either(m->base, &span) &&
		    span.id == m->id && span.ctx > last &&
		    (!least || span.ctx < least))
			least = span.ctx;
	}
	pthread_mutex_unlock(&lock);
	return least;
}

/* Whose flags a call is about: it names no device for the current context. */
#define CURRENT CU_DEVICE_INVALID

static CUcontext context_of(CUdevice device)
{
	return device == CURRENT ? vs_vmm_current() : vs_vmm_primary(device);
}

/*
 * The program has set the flags of a context, all of them: it does not know
 * that one stands for an attribute of its memory.
 */
static CUresult flags_set(bool is_open, CUresult result, CUdevice device)
{
	CUcontext ctx = NULL;

	if (result == CUDA_SUCCESS && is_open &&
	    (vs_memops_is_any() || is_any_lent())) {
		end_loan(context_of(device));
		while ((ctx = next_context(ctx)))
			sync_context(ctx);
	}
	return vs_seen(result);
}

static CUresult flags_read(bool is_open, CUresult result, CUdevice device,
			   unsigned int *flags)
{
	CUcontext ctx;

	if (result == CUDA_SUCCESS && is_open && is_any_lent()) {
		ctx = context_of(device);
		if (ctx)
			*flags = without_loan(ctx, *flags);
	}
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags)
{
	bool is_open = vs_enter(VS_API_cuCtxGetFlags);

	return flags_read(is_open, vs_real.cuCtxGetFlags(flags), CURRENT,
			  flags);
}

VS_EXPORT CUresult CUDAAPI cuCtxSetFlags(unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuCtxSetFlags);

	return flags_set(is_open, vs_real.cuCtxSetFlags(flags), CURRENT);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device,
						      unsigned int *flags,
						      int *is_active)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxGetState);
	CUresult result =
		vs_real.cuDevicePrimaryCtxGetState(device, flags, is_active);

	return flags_read(is_open, result, device, flags);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device,
						      unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxSetFlags);

	return flags_set(is_open,
			 vs_real.cuDevicePrimaryCtxSetFlags(device, flags),
			 device);
}

VS_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device,
							 unsigned int flags)
{
	bool is_open = vs_enter(VS_API_cuDevicePrimaryCtxSetFlags_v2);

	return flags_set(is_open,
			 vs_real.cuDevicePrimaryCtxSetFlags_v2(device, flags),
			 device);
}
