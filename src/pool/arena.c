/* SPDX-License-Identifier: MIT */
#include "pool/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include "base/knob.h"
#include "base/meta.h"
#include "base/sys.h"
#include "driver/real.h"
#include "pool/owner.h"
#include "pool/slab.h"

/*
 * The program may not map what it likes, so it may need what is left: address
 * space (the arena is reserved there) or data (the arena's tables are), its own
 * or the system's.
 */
static bool is_limited(bool *is_data_out)
{
	struct rlimit space, data;

	*is_data_out = (vs_sys_getrlimit(RLIMIT_DATA, &data) == 0 &&
			data.rlim_cur != RLIM_INFINITY) ||
		       vs_meta_is_counted();
	return *is_data_out || (vs_sys_getrlimit(RLIMIT_AS, &space) == 0 &&
				space.rlim_cur != RLIM_INFINITY);
}

#define ALL_ARENAS ((uint64_t)64 << 40)

/*
 * Whether three times as much is left beside it. Without limits, too, a process
 * may have fewer than 47 bits of addresses, or have used most of them: of 4 TiB
 * eight arenas left it 64 GiB; but there the first device is served if it can.
 */
static bool has_room(uint64_t size, uint64_t least, bool is_modest)
{
	return vs_meta_has_room(4 * size) ||
	       (!is_modest && size / 2 < least && vs_pool_count() == 0);
}

bool vs_arena_reserve(struct vs_pool *pool)
{
	bool is_data, is_modest = is_limited(&is_data);
	uint64_t size = (uint64_t)8 << 40, least = (uint64_t)1 << 30;
	int n_devices = 1;

	if (least < pool->dev.total * 2)
		least = pool->dev.total * 2;
	vs_real.cuDeviceGetCount(&n_devices);
	while (size * (uint64_t)n_devices > ALL_ARENAS &&
	       size / 2 >= pool->dev.total * 4)
		size /= 2;
	while (is_modest && size / 2 >= pool->dev.total * (is_data ? 4 : 8))
		size /= 2;
	while (size >= least) {
		if (has_room(size, least, is_modest) &&
		    vs_vmm_reserve(size, 0, &pool->base) == CUDA_SUCCESS) {
			pool->end = pool->base + size;
			/* gcore would write terabytes of zeros */
			vs_sys_madvise((void *)pool->base, size, MADV_DONTDUMP);
			return true;
		}
		size /= 2;
	}
	return false;
}

/*
 * Addresses of slabs: a sixteenth, but enough to fill the device with where
 * there are: what finds none is out of memory, as far as the pool can tell, and
 * was looked for in all ways for 1 to 4 ms each time on 139 GiB (simulated).
 */
static uint64_t slab_space(const struct vs_pool *pool, uint64_t sixteenth)
{
	uint64_t wanted = pool->dev.total / 8 * 9;

	if (wanted > 3 * sixteenth)
		wanted = 3 * sixteenth;
	return sixteenth >= wanted || vs_knobs.guard
		       ? sixteenth
		       : wanted / VS_GRANULE * VS_GRANULE;
}

/*
 * Addresses of a heap's trunk (Note [Trunk] in pool/heap): for the whole device
 * twice, as what was released leaves holes there; but most are for what is
 * moved. None where they would not do for the device once: what stays mapped
 * there keeps addresses that are few from what is moved. (Random programs in an
 * arena of three times the device: 141 of 48,000 requests were refused, and
 * 47 without a trunk.)
 */
static uint64_t trunk_space(const struct vs_pool *pool, uint64_t heap)
{
	uint64_t wanted = 2 * pool->dev.total;

	if (pool->is_contiguous)
		return 0;
	if (wanted > heap / 4)
		wanted = heap / 4;
	if (wanted < pool->dev.total)
		return 0;
	return wanted / VS_GRANULE * VS_GRANULE;
}

static bool make_heaps(struct vs_pool *pool, CUdeviceptr slabs_end,
		       CUdeviceptr middle_end, CUdeviceptr large_end)
{
	return vs_heap_init(pool, &pool->heap[VS_HEAP_SLABS], pool->base, 0,
			    slabs_end) &&
	       vs_heap_init(pool, &pool->heap[VS_HEAP_MIDDLE], slabs_end,
			    trunk_space(pool, middle_end - slabs_end),
			    middle_end) &&
	       vs_heap_init(pool, &pool->heap[VS_HEAP_LARGE], middle_end,
			    trunk_space(pool, large_end - middle_end),
			    large_end);
}

/* The tables are one mapping: what fails leaves nothing of it behind. */
bool vs_arena_lay_out(struct vs_pool *pool)
{
	uint64_t sixteenth = (pool->end - pool->base) / 16;
	uint64_t slabs = slab_space(pool, sixteenth);
	CUdeviceptr slabs_end = pool->base + slabs;
	CUdeviceptr middle_end = slabs_end + 3 * sixteenth;
	CUdeviceptr large_end = pool->end;
	size_t by_slab = slabs / VS_SLAB_PAGE * sizeof(*pool->slab_at);
	size_t by_chunk = vs_chunks_table(pool);
	size_t size = by_slab + by_chunk + vs_owner_table(pool);
	char *table = vs_meta_table(size);

	if (!table)
		return false;
	if (vs_knobs.guard) {
		large_end -= 8 * sixteenth;
		vs_guard_init(pool, large_end);
	}
	pool->slabs_end = slabs_end;
	pool->slab_at = (void *)table;
	vs_chunks_init(pool, table + by_slab);
	vs_owner_init(pool, table + by_slab + by_chunk);
	if (make_heaps(pool, slabs_end, middle_end, large_end))
		return true;
	for (int k = 0; k < VS_N_HEAPS; k++)
		vs_heap_drop(&pool->heap[k]);
	vs_heap_unstock(pool);
	vs_meta_drop_table(table, size);
	return false;
}
