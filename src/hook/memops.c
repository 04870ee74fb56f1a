/* SPDX-License-Identifier: MIT */
#include "hook/memops.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/uthash_meta.h"
#include "driver/real.h"
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mark *marks;     /* lock */
static unsigned purge_at = 64; /* lock */
_Atomic int vs_memops_count;   /* written under lock */

/* The same, for who looks at them without the lock. */
struct look {
	CUdeviceptr base;
	uint64_t id;
};

static struct mark *find(uint64_t id)
{
	struct mark *m;

	HASH_FIND(hh, marks, &id, sizeof(id), m);
	return m;
}

/* All marks, if there are so many that some may be stale; else NULL. Lock. */
static struct look *collect(unsigned *n_out)
{
	unsigned n = HASH_COUNT(marks);
	struct look *looks = NULL, *next;
	struct mark *m, *later;

	if (n >= purge_at)
		looks = vs_meta_alloc_dirty(n * sizeof(*looks));
	next = looks;
	if (looks)
		HASH_ITER (hh, marks, m, later)
			*next++ = (struct look){m->base, m->id};
	*n_out = n;
	return looks;
}

/* Lock. */
static void forget(uint64_t id)
{
	struct mark *m = find(id);

	if (!m)
		return;
	HASH_DEL(marks, m);
	vs_meta_free(m, sizeof(*m));
}

/*
 * Forgets what was freed. Whose memory it is now is asked without the lock:
 * that of imports is held over driver calls, from which the program may come
 * here. Frees `looks`.
 */
static void purge(struct look *looks, unsigned n)
{
	struct vs_span span;
	unsigned n_stale = 0;

	for (unsigned i = 0; i < n; i++)
		if (!vs_ipc_find_either(looks[i].base, &span) ||
		    span.id != looks[i].id)
			looks[n_stale++] = looks[i];
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n_stale; i++)
		forget(looks[i].id);
	if (2 * HASH_COUNT(marks) > purge_at)
		purge_at = 2 * HASH_COUNT(marks);
	atomic_store(&vs_memops_count, (int)HASH_COUNT(marks));
	pthread_mutex_unlock(&lock);
	vs_meta_free(looks, n * sizeof(*looks));
}

static bool note(const struct vs_span *span, bool is_sync)
{
	struct mark *m = find(span->id);

	if (m) {
		m->is_sync = is_sync;
		return true;
	}
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

CUresult vs_memops_set(const struct vs_span *span, bool is_sync)
{
	CUresult result = vs_capture_refusal(span->ctx);
	struct look *looks;
	bool is_noted;
	unsigned n;

	if (result != VS_PASS)
		return vs_seen(result);
	if (is_sync)
		vs_pool_pin(span->base);
	pthread_mutex_lock(&lock);
	is_noted = note(span, is_sync);
	looks = collect(&n);
	atomic_store(&vs_memops_count, (int)HASH_COUNT(marks));
	pthread_mutex_unlock(&lock);
	if (looks)
		purge(looks, n);
	return is_noted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

bool vs_memops_is_set(CUdeviceptr p)
{
	struct vs_span span;
	uint64_t is_sync;

	return vs_ipc_find_either(p, &span) && vs_memops_get(&span, &is_sync) &&
	       is_sync;
}
