/* SPDX-License-Identifier: MIT */
#include "pool/ctx.h"

#include <pthread.h>

#include "base/log.h"
#include "driver/real.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vs_ctx *table; /* uthash; lock */
static struct vs_ctx *all;   /* lock */

static struct vs_ctx *find(CUcontext handle)
{
	struct vs_ctx *c;

	HASH_FIND_PTR(table, &handle, c);
	return c;
}

struct vs_ctx *vs_ctx_peek(CUcontext handle)
{
	struct vs_ctx *c;

	pthread_mutex_lock(&lock);
	c = find(handle);
	pthread_mutex_unlock(&lock);
	return c;
}

struct vs_ctx *vs_ctx_born(CUcontext handle, CUdevice device)
{
	struct vs_ctx *c, *fresh = vs_meta_alloc(sizeof(*fresh));

	pthread_mutex_lock(&lock);
	c = find(handle);
	if (!c && fresh) {
		fresh->handle = handle;
		fresh->device = device;
		HASH_ADD_PTR(table, handle, fresh);
		/* uthash leaves hh.tbl NULL when it had no memory */
		if (fresh->hh.tbl) {
			fresh->next = all;
			all = fresh;
			c = fresh;
			fresh = NULL;
		}
	}
	pthread_mutex_unlock(&lock);
	vs_meta_free(fresh, sizeof(*fresh));
	if (!c)
		vs_warn("no memory to note a context");
	return c;
}

/* Asks the driver for the device of a context that was never seen. */
static bool device_of(CUcontext handle, CUdevice *device_out)
{
	CUcontext current = NULL, popped;
	CUresult r;

	vs_real.cuCtxGetCurrent(&current);
	if (current == handle)
		return vs_real.cuCtxGetDevice(device_out) == CUDA_SUCCESS;
	if (vs_real.cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS)
		return false;
	r = vs_real.cuCtxGetDevice(device_out);
	vs_real.cuCtxPopCurrent_v2(&popped);
	return r == CUDA_SUCCESS;
}

struct vs_ctx *vs_ctx_get(CUcontext handle)
{
	struct vs_ctx *c = vs_ctx_peek(handle);
	CUdevice device;

	if (c || !device_of(handle, &device))
		return c;
	return vs_ctx_born(handle, device);
}

void vs_ctx_bury(struct vs_ctx *ctx)
{
	pthread_mutex_lock(&lock);
	if (!atomic_load(&ctx->is_dead)) {
		struct vs_ctx **link = &all;

		atomic_store(&ctx->is_dead, true);
		HASH_DEL(table, ctx);
		while (*link != ctx)
			link = &(*link)->next;
		*link = ctx->next;
	}
	pthread_mutex_unlock(&lock);
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

void vs_ctx_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	table = NULL;
	all = NULL;
}
