/* SPDX-License-Identifier: MIT */
#include "pool/quota.h"

#include <pthread.h>

#include "driver/vmm.h"
#include "pool/state.h"

/*
 * Clock, ns: how long what is fetched must last, for each MiB. The 600 of 16
 * threads on two processors lasted 14 ms (simulated), and the more processors,
 * the longer all wait for the lock. 4 MiB are left of a batch.
 */
#define LASTS_PER_MIB ((uint64_t)60000)
#define RELAX_NS ((uint64_t)500000000)
enum { HALVED_MOST = 4 };

void vs_quota_emptied(struct vs_pool *pool, uint64_t bytes, uint64_t began)
{
	struct vs_quota *quota = &pool->quota;
	uint64_t lasts = (bytes >> 20) * LASTS_PER_MIB, now;
	unsigned halved;

	pthread_mutex_lock(&pool->lock);
	now = vs_vmm_clock();
	halved = atomic_load(&quota->halved);
	/* threads that are short at once empty them one after another */
	if (began >= quota->emptied && now < quota->emptied + lasts &&
	    halved < HALVED_MOST) {
		atomic_store(&quota->halved, halved + 1);
		quota->changed = now;
	}
	quota->emptied = now;
	pthread_mutex_unlock(&pool->lock);
}

void vs_quota_least(struct vs_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	atomic_store(&pool->quota.halved, HALVED_MOST);
	pool->quota.changed = vs_vmm_clock();
	pthread_mutex_unlock(&pool->lock);
}

void vs_quota_relax(struct vs_pool *pool, uint64_t now)
{
	struct vs_quota *quota = &pool->quota;
	unsigned halved = atomic_load(&quota->halved);

	if (halved == 0 || now < quota->changed + RELAX_NS)
		return;
	atomic_store(&quota->halved, halved - 1);
	quota->changed = now;
}
