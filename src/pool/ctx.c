/* SPDX-License-Identifier: MIT */
#include "pool/ctx.h"

#include <pthread.h>

#include "base/log.h"
#include "driver/real.h"
#include "driver/vmm.h"
#include "pool/capture.h"
#include "pool/pool.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vs_ctx *table;	 /* uthash; lock */
static struct vs_ctx *all;	 /* lock */
static _Atomic int n_all;	 /* written under it, read anywhere */
static _Atomic uint64_t seen_on; /* devices of all there ever were; the same */
static uint64_t n_ends;		 /* ends that have begun, ever; lock */
/* changes with what vs_ctx_get() answers of a handle that it knows */
static _Atomic uint64_t turn = 1;

/* A green context; there are few. */
struct alias {
	struct alias *next;
	CUcontext green, primary;
};
static struct alias *aliases; /* lock */

static struct vs_ctx *find(CUcontext handle)
{
	struct vs_ctx *c;

	HASH_FIND_PTR(table, &handle, c);
	return c;
}

/* The context that `handle` stands for; lock held. */
static CUcontext resolve(CUcontext handle)
{
	for (const struct alias *a = aliases; a; a = a->next) {
		if (a->green == handle)
			return a->primary;
	}
	return handle;
}

CUcontext vs_pool_ctx_owning(CUcontext ctx)
{
	CUcontext owning;

	pthread_mutex_lock(&lock);
	owning = resolve(ctx);
	pthread_mutex_unlock(&lock);
	return owning;
}

struct vs_ctx *vs_ctx_peek(CUcontext handle)
{
	struct vs_ctx *c;

	pthread_mutex_lock(&lock);
	c = find(resolve(handle));
	/* with the lock: one that was never seen is freed with its end */
	if (c && atomic_load(&c->is_dead))
		c = NULL;
	pthread_mutex_unlock(&lock);
	return c;
}

struct vs_ctx *vs_ctx_current(void)
{
	CUcontext current = vs_vmm_current();

	return current ? vs_ctx_peek(current) : NULL;
}

void vs_ctx_alias(CUcontext green, CUcontext primary)
{
	struct alias *a, *fresh = vs_meta_alloc(sizeof(*fresh));

	pthread_mutex_lock(&lock);
	for (a = aliases; a && a->green != green; a = a->next)
		;
	if (a) {
		a->primary = primary;
		atomic_fetch_add(&turn, 1);
	} else if (fresh && green != primary) {
		fresh->green = green;
		fresh->primary = primary;
		fresh->next = aliases;
		aliases = fresh;
		a = fresh;
		fresh = NULL;
		atomic_fetch_add(&turn, 1);
	}
	pthread_mutex_unlock(&lock);
	vs_meta_free(fresh, sizeof(*fresh));
	if (!a && green != primary)
		vs_warn("no host memory to note a green context: it counts as "
			"a context of its own");
}

/* Takes the entries of one green context, or of one primary one; lock held. */
static struct alias *take_aliases(CUcontext green, CUcontext primary)
{
	struct alias **link = &aliases, *a, *taken = NULL;

	while ((a = *link)) {
		if (a->green != green && a->primary != primary) {
			link = &a->next;
			continue;
		}
		*link = a->next;
		a->next = taken;
		taken = a;
	}
	if (taken)
		atomic_fetch_add(&turn, 1);
	return taken;
}

static void free_aliases(struct alias *list)
{
	while (list) {
		struct alias *next = list->next;

		vs_meta_free(list, sizeof(*list));
		list = next;
	}
}

void vs_ctx_unalias(CUcontext green)
{
	struct alias *taken;

	pthread_mutex_lock(&lock);
	taken = take_aliases(green, NULL);
	pthread_mutex_unlock(&lock);
	free_aliases(taken);
}

/*
 * Takes a dead context out of the table. A primary one takes its green ones
 * along: the caller frees them. Lock held.
 */
static struct alias *unlist(struct vs_ctx *c)
{
	HASH_DEL(table, c);
	return take_aliases(NULL, c->handle);
}

/* Enters a new struct; NULL if there is no memory. Lock held. */
static struct vs_ctx *enter(struct vs_ctx *fresh, CUcontext handle,
			    CUdevice device)
{
	if (!fresh)
		return NULL;
	fresh->handle = handle;
	fresh->device = device;
	HASH_ADD_PTR(table, handle, fresh);
	/* uthash leaves hh.tbl NULL when it had no memory */
	return fresh->hh.tbl ? fresh : NULL;
}

/* What there is of this handle, or a new live one. Lock held. */
static struct vs_ctx *find_or_enter(struct vs_ctx *fresh, CUcontext handle,
				    CUdevice device)
{
	struct vs_ctx *c = find(handle);

	if (c || !(c = enter(fresh, handle, device)))
		return c;
	c->next = all;
	all = c;
	atomic_fetch_add(&n_all, 1);
	atomic_fetch_or(&seen_on, (uint64_t)1 << device);
	return c;
}

/* Outside the lock: what was not used of `fresh`. */
static void settle_memory(struct vs_ctx *fresh, const struct vs_ctx *c)
{
	if (c != fresh)
		vs_meta_free(fresh, sizeof(*fresh));
	if (!c)
		vs_warn("no host memory to note a context: its allocations "
			"stay the driver's until there is");
}

struct vs_ctx *vs_ctx_born(CUcontext handle, CUdevice device)
{
	struct vs_ctx *c, *fresh = vs_meta_alloc(sizeof(*fresh));
	struct alias *taken = NULL, *stale;

	pthread_mutex_lock(&lock);
	/* a green one that was destroyed may have had this handle, too */
	stale = take_aliases(handle, NULL);
	c = find(handle);
	if (c && atomic_load(&c->is_dead))
		taken = unlist(c);
	c = find_or_enter(fresh, handle, device);
	pthread_mutex_unlock(&lock);
	free_aliases(stale);
	free_aliases(taken);
	settle_memory(fresh, c);
	return c;
}

/*
 * A context that was never seen, whose device the driver has told. False: some
 * context has ended since, when `ends` had begun to. Perhaps it was this one.
 */
static bool seen(CUcontext handle, CUdevice device, uint64_t ends,
		 struct vs_ctx **out)
{
	struct vs_ctx *c = NULL, *fresh = vs_meta_alloc(sizeof(*fresh));
	bool is_recent;

	pthread_mutex_lock(&lock);
	is_recent = n_ends == ends;
	if (is_recent)
		c = find_or_enter(fresh, handle, device);
	pthread_mutex_unlock(&lock);
	if (is_recent)
		settle_memory(fresh, c);
	else
		vs_meta_free(fresh, sizeof(*fresh));
	*out = c;
	return is_recent;
}

struct vs_ctx *vs_ctx_get(CUcontext handle)
{
	struct vs_ctx *c;
	CUcontext owner;
	CUdevice device;
	uint64_t ends;
	bool is_dead;

	do {
		pthread_mutex_lock(&lock);
		owner = resolve(handle);
		c = find(owner);
		ends = n_ends;
		is_dead = c && atomic_load(&c->is_dead);
		pthread_mutex_unlock(&lock);
		if (c)
			return is_dead ? NULL : c;
		device = vs_vmm_device_of(owner);
		if (device == CU_DEVICE_INVALID)
			return NULL;
	} while (!seen(owner, device, ends, &c));
	return c;
}

struct vs_ctx *vs_ctx_ending(CUcontext handle)
{
	struct vs_ctx *c, *found, *fresh = vs_meta_alloc(sizeof(*fresh));

	pthread_mutex_lock(&lock);
	n_ends++;
	handle = resolve(handle);
	c = found = find(handle);
	if (found && atomic_load(&found->is_dead))
		c = NULL;
	else if (!found && (c = enter(fresh, handle, -1)))
		atomic_store(&c->is_dead, true);
	pthread_mutex_unlock(&lock);
	if (c != fresh)
		vs_meta_free(fresh, sizeof(*fresh));
	return c;
}

/* Of vs_ctx_of(): this handle was asked for last, and nothing has changed. */
static bool is_last(const struct vs_thread *t, CUcontext handle, uint64_t now)
{
	return t->ctx && t->ctx_handle == handle && t->ctx_turn == now;
}

static struct vs_ctx *remember(struct vs_thread *t, CUcontext handle,
			       uint64_t now, struct vs_ctx *c)
{
	t->ctx = c;
	t->ctx_handle = handle;
	t->ctx_turn = now;
	return c;
}

struct vs_ctx *vs_ctx_of(struct vs_thread *t, CUcontext handle)
{
	/* first: an end that the look-up did not see changes it */
	uint64_t now = atomic_load(&turn);

	return is_last(t, handle, now)
		       ? t->ctx
		       : remember(t, handle, now, vs_ctx_get(handle));
}

CUdevice vs_pool_ctx_device(CUcontext ctx)
{
	struct vs_thread *t = vs_thread_self();
	uint64_t now = atomic_load(&turn);
	struct vs_ctx *c;

	if (!ctx)
		return CU_DEVICE_INVALID;
	if (t && is_last(t, ctx, now)) {
		c = t->ctx;
	} else {
		c = vs_ctx_peek(ctx);
		if (c && t)
			remember(t, ctx, now, c);
	}
	return c ? c->device : vs_vmm_device_of(ctx);
}

bool vs_ctx_failed(struct vs_ctx *ctx, CUresult result)
{
	if (!vs_real_is_for_good(result))
		return false;
	if (!(atomic_fetch_or(&ctx->trouble, VS_CTX_BEYOND) & VS_CTX_BEYOND))
		vs_info("context %p failed for good (%s): its work is not "
			"waited for any more",
			(void *)ctx->handle, vs_real_error(result));
	return true;
}

void vs_ctx_bury(struct vs_ctx *ctx)
{
	pthread_mutex_lock(&lock);
	if (!atomic_load(&ctx->is_dead)) {
		struct vs_ctx **link = &all;

		atomic_store(&ctx->is_dead, true);
		atomic_fetch_add(&turn, 1);
		while (*link != ctx)
			link = &(*link)->next;
		*link = ctx->next;
		atomic_fetch_sub(&n_all, 1);
	}
	pthread_mutex_unlock(&lock);
	for (unsigned round = 0; atomic_load(&ctx->users) > 0; round++)
		vs_vmm_pause(round);
}

void vs_pool_ctx_gone(struct vs_ctx *ctx)
{
	struct alias *taken = NULL;

	if (!ctx)
		return;
	pthread_mutex_lock(&lock);
	/* or a new one of this handle has been made meanwhile */
	if (find(ctx->handle) == ctx) {
		/* what began while its end was under way */
		vs_capture_ctx_dying(ctx->handle);
		taken = unlist(ctx);
	}
	pthread_mutex_unlock(&lock);
	free_aliases(taken);
	if (ctx->device < 0) /* nobody was given it */
		vs_meta_free(ctx, sizeof(*ctx));
}

bool vs_pool_ctx_is_ending(CUcontext handle)
{
	const struct vs_ctx *c;
	bool is;

	pthread_mutex_lock(&lock);
	c = find(resolve(handle));
	is = c && atomic_load(&c->is_dead);
	pthread_mutex_unlock(&lock);
	return is;
}

bool vs_ctx_use(struct vs_ctx *ctx)
{
	/* first, so that one of the two sees the other (vs_ctx_bury) */
	atomic_fetch_add(&ctx->users, 1);
	if (!atomic_load(&ctx->is_dead))
		return true;
	vs_ctx_unuse(ctx);
	return false;
}

void vs_ctx_unuse(struct vs_ctx *ctx)
{
	atomic_fetch_sub(&ctx->users, 1);
}

int vs_pool_ctx_count(void)
{
	return atomic_load_explicit(&n_all, memory_order_relaxed);
}

bool vs_pool_ctx_apart(void)
{
	uint64_t devices = atomic_load_explicit(&seen_on, memory_order_relaxed);

	return (devices & (devices - 1)) != 0;
}

int vs_ctx_list(uint64_t devices, struct vs_ctx **list, int max)
{
	int n = 0;

	pthread_mutex_lock(&lock);
	for (struct vs_ctx *c = all; c; c = c->next) {
		if (!(devices >> c->device & 1))
			continue;
		if (n < max)
			list[n] = c;
		n++;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

bool vs_ctx_gather(struct vs_ctx_set *set, uint64_t devices)
{
	set->list = set->few;
	set->room = 0;
	set->n = vs_ctx_list(devices, set->list, VS_CTX_FEW);
	/* others may be born meanwhile */
	while (set->n > (set->room ? set->room : VS_CTX_FEW)) {
		int room = 2 * set->n;

		vs_ctx_scatter(set);
		set->list = vs_meta_alloc((size_t)room * sizeof(*set->list));
		if (!set->list)
			return false;
		set->room = room;
		set->n = vs_ctx_list(devices, set->list, room);
	}
	return true;
}

void vs_ctx_scatter(struct vs_ctx_set *set)
{
	if (set->room)
		vs_meta_free(set->list, (size_t)set->room * sizeof(*set->list));
	set->room = 0;
}

void vs_ctx_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	table = NULL;
	all = NULL;
	atomic_store(&n_all, 0);
	aliases = NULL;
	atomic_fetch_add(&turn, 1);
}
