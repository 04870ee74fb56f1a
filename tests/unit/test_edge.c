/* SPDX-License-Identifier: MIT
 *
 * Life where the device, a limit or the addresses are used up, on the counting
 * driver (fake.h).
 */
#include "driver/real.h"
#include "fake_test.h"
#include "pool/share.h"
#include "pool/state.h"

static int fresh(void **state)
{
	(void)state;
	fresh_driver(139 * GiB);
	return 0;
}

/* One that needs all the rest of the device, of which a chunk has 2 MiB. */
static void take_all_the_rest(void)
{
	CUdeviceptr p = take(fake.memory - fake.held + 2 * MiB);

	assert_non_null(fake_mapping(p));
	assert_int_equal(fake.held, fake.memory);
	assert_int_equal(stats()->live, fake.memory);
}

static void test_the_last_granule_is_had(void **state)
{
	CUdeviceptr p;

	/* idle is the end of a chunk */
	fresh_driver(GiB / 2);
	give(take(64 * MiB));
	take(62 * MiB);
	take_all_the_rest();
	/* its begin */
	fresh_driver(GiB / 2);
	give(take(64 * MiB));
	p = take(10 * MiB);
	take(54 * MiB);
	give(p);
	take(8 * MiB);
	take_all_the_rest();
	fresh(state);
}

enum { EDGE = 16000, EDGE_BLOCKS = 4096 };

/*
 * A program at the edge of its device: 95 % live, in blocks of 4 to 100 MB,
 * some freed at random for each new one. Returns how many allocations failed.
 */
static unsigned live_at_the_edge(unsigned n, uint64_t seed)
{
	static struct {
		CUdeviceptr p;
		uint64_t span;
	} block[EDGE_BLOCKS];
	uint64_t most = fake.memory / 100 * 95, live = 0;
	unsigned n_live = 0, n_failed = 0;

	for (unsigned i = 0; i < n; i++) {
		size_t size = 4000 * KiB + next_random(&seed) % (96000 * KiB);
		uint64_t span = (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
		CUdeviceptr p;

		while (live + span > most) {
			unsigned k = next_random(&seed) % n_live;

			give(block[k].p);
			live -= block[k].span;
			block[k] = block[--n_live];
		}
		fake.now += 20000;
		if (vs_pool_alloc(size, &p) != CUDA_SUCCESS) {
			n_failed++;
			continue;
		}
		live += span;
		block[n_live].p = p;
		block[n_live++].span = span;
	}
	while (n_live > 0)
		give(block[--n_live].p);
	return n_failed;
}

/* The same four times, on 4 GiB with so many bytes of addresses (0: many). */
static unsigned live_on_four_gib(uint64_t space)
{
	unsigned n_failed = 0;

	for (uint64_t seed = 1; seed <= 4; seed++) {
		fresh_driver(4 * GiB);
		if (space)
			fake.space = space;
		n_failed += live_at_the_edge(EDGE, seed);
	}
	return n_failed;
}

/* With chunks of one size one in 11 failed, though there was memory for all. */
static void test_life_at_the_edge_of_the_device(void **state)
{
	(void)state;
	/* 4 to 64 of each, as chance will have it */
	assert_in_range(live_on_four_gib(0), 0, 4 * EDGE / 400);
}

/*
 * The same where the process may not map much. Views that nobody needed kept
 * their addresses: 1,177 to 1,302 of each failed, and 6 to 24 do.
 */
static void test_life_with_little_address_space(void **state)
{
	(void)state;
	assert_in_range(live_on_four_gib(16 * GiB), 0, 4 * EDGE / 200);
}

/*
 * A real one's memory is no whole number of granules, but where a heap begins
 * is, also where its addresses are as few as its memory.
 */
static void test_a_device_of_an_odd_size(void **state)
{
	static const size_t sizes[] = {64 * KiB, 4 * MiB, 64 * MiB};

	(void)state;
	for (int i = 0; i < 3; i++) {
		fresh_driver(GiB + 5 * MiB + 64 * KiB);
		fake.space = 8 * GiB;
		give(take(sizes[i]));
		for (size_t n = 0; n * sizes[i] < GiB / 10 * 9; n++)
			take(sizes[i]);
		assert_int_equal(fake.natives, 0);
	}
}

static CUresult map_after_fault(CUdeviceptr at, size_t size, size_t offset,
				CUmemGenericAllocationHandle handle,
				unsigned long long flags)
{
	(void)at, (void)size, (void)offset, (void)handle, (void)flags;
	return CUDA_ERROR_INVALID_ADDRESS_SPACE;
}

/* A kernel's fault, which any call may tell, is no want of addresses. */
static void test_a_fault_is_the_drivers_to_word(void **state)
{
	struct vs_real real;
	CUdeviceptr p;

	(void)state;
	vs_knobs.memory_limit.value = 4 * GiB;
	take(4 * MiB);
	real = vs_real;
	real.cuMemMap = map_after_fault;
	vs_real_set(&real);
	assert_int_equal(vs_pool_alloc(400 * MiB, &p), VS_PASS);
}

/*
 * Nor does one allocation pay for all: with chunks of 2 MiB one unmapped up to
 * 9,000 views, for a quarter of a second.
 */
static void test_addresses_come_back_little_by_little(void **state)
{
	static CUdeviceptr p[2048];
	static size_t size[2048];
	uint64_t seed = 1, live = 0;
	unsigned n = 0;

	(void)state;
	fresh_driver(16 * GiB);
	fake.space = 64 * GiB;
	vs_knobs.chunk_size.value = 2 * MiB;
	for (unsigned i = 0; i < 8000; i++) {
		size_t bytes = (8 + next_random(&seed) % 52) * MiB;
		unsigned long before;

		while (live + bytes > 14 * GiB) {
			unsigned k = next_random(&seed) % n;

			give(p[k]);
			live -= size[k];
			p[k] = p[--n];
			size[k] = size[n];
		}
		before = fake.unmaps;
		p[n] = take(bytes);
		size[n++] = bytes;
		live += bytes;
		assert_in_range(fake.unmaps - before, 0, 2500);
	}
}

/* A request for more than there is tells nothing about chunks. */
static void test_a_vain_request_makes_no_small_chunks(void **state)
{
	CUdeviceptr p;

	(void)state;
	fresh_driver(4 * GiB);
	take(2048 * MiB);
	for (int i = 0; i < 10; i++)
		assert_int_equal(vs_pool_alloc(3 * GiB, &p),
				 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(vs_pool_of(0)->tight, 0);
}

/*
 * At the edge of the device each growth within what was live at most is refused
 * by the driver. Where idle chunks serve it nothing lies scattered, and chunks
 * that were made small once are to grow again.
 */
static void test_idle_chunks_at_the_edge_make_no_small_ones(void **state)
{
	CUdeviceptr p[33], q[8];

	(void)state;
	fresh_driver(4 * GiB);
	for (int i = 0; i < 33; i++)
		p[i] = take(120 * MiB);
	fake.others = 100 * MiB;
	for (int i = 0; i < 33; i += 2)
		give(p[i]);
	vs_pool_of(0)->tight = 64;
	for (int i = 0; i < 8; i++)
		q[i] = take(130 * MiB);
	assert_int_equal(fake.natives, 0);
	assert_in_range(fake.refused, 1, 8);
	assert_int_equal(vs_pool_of(0)->tight, 64 - 8);
	for (int i = 0; i < 8; i++)
		give(q[i]);
}

/* What is freed but in use by a GPU far behind is not scattered either. */
static void test_pending_memory_makes_no_small_chunks(void **state)
{
	CUdeviceptr p[3];

	(void)state;
	fresh_driver(4 * GiB);
	for (int i = 0; i < 3; i++)
		p[i] = take(1200 * MiB);
	fake.lag_ns = GiB; /* a second */
	for (int i = 0; i < 3; i++)
		give(p[i]);
	take(1250 * MiB);
	assert_int_equal(fake.natives, 0);
	assert_int_equal(vs_pool_of(0)->tight, 0);
}

/* Nor is what slabs have free. */
static void test_slabs_in_part_make_no_small_chunks(void **state)
{
	enum { N = 8000 };
	static CUdeviceptr p[N];
	unsigned n = 0;

	(void)state;
	fresh_driver(GiB / 2);
	while (n < N && vs_pool_alloc(64 * KiB, &p[n]) == CUDA_SUCCESS)
		n++;
	vs_pool_of(0)->tight = 0;
	for (unsigned i = 0; i < n; i += 2)
		give(p[i]);
	while (vs_pool_alloc(MiB, &p[0]) == CUDA_SUCCESS)
		;
	assert_int_equal(vs_pool_of(0)->tight, 0);
}

/* A request of more than half of what lies scattered would have fit, too. */
static void test_a_large_request_finds_memory_scattered(void **state)
{
	enum { N = 2600 };
	static CUdeviceptr p[N];
	CUdeviceptr out;

	(void)state;
	fresh_driver(4 * GiB);
	for (int i = 0; i < N; i++)
		p[i] = take(1536 * KiB);
	for (int i = 0; i < N; i += 2)
		give(p[i]);
	assert_int_equal(vs_pool_alloc(1200 * MiB, &out),
			 CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(vs_pool_of(0)->tight, 64);
}

/*
 * Fills nine tenths of the device with blocks of some size each, and frees
 * seven in ten of them at random. Returns what is live.
 */
static uint64_t fill_and_free(size_t least, size_t most)
{
	enum { N = 20000 };
	static CUdeviceptr p[N];
	static size_t size[N];
	uint64_t seed = 1, live = 0, left;
	unsigned n = 0;

	for (; live < fake.memory / 10 * 9; live += size[n++]) {
		size[n] = least + next_random(&seed) % (most - least);
		p[n] = take(size[n]);
	}
	for (left = live / 10 * 3; live > left; n--) {
		unsigned k = next_random(&seed) % n;

		give(p[k]);
		live -= size[k];
		p[k] = p[n - 1];
		size[k] = size[n - 1];
	}
	return live;
}

/*
 * What small blocks leave can be had again, by others than the pool as well:
 * half and a quarter of it when tens of them were in a chunk.
 */
static void test_most_of_a_device_full_of_small_blocks_comes_back(void **state)
{
	uint64_t rest, had = 0;
	CUdeviceptr p;

	(void)state;
#if defined(__SANITIZE_THREAD__)
	skip(); /* it leaves few addresses */
#endif
	fresh_driver(80 * GiB);
	rest = fake.memory - fill_and_free(100 * KiB, 8 * MiB);
	vs_pool_trim();
	assert_in_range(fake.memory - fake.held, rest / 100 * 80, rest);
	while (vs_pool_alloc(64 * MiB, &p) == CUDA_SUCCESS)
		had += 64 * MiB;
	assert_in_range(had, rest / 100 * 80, rest);
}

/* As long as there are few, they cost little. */
static void test_few_small_blocks_share_chunks(void **state)
{
	unsigned n = 0;

	(void)state;
	for (; n * 3 * MiB < fake.memory / 20; n++)
		take(3 * MiB);
	assert_in_range(fake.creates, n / 4, n / 2);
	for (; n * 3 * MiB < fake.memory / 10; n++)
		take(3 * MiB);
	assert_in_range(fake.creates, n / 2, 2 * n);
}

static CUresult no_chunk(CUmemGenericAllocationHandle *handle, size_t size,
			 const CUmemAllocationProp *prop,
			 unsigned long long flags)
{
	(void)handle, (void)size, (void)prop, (void)flags;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult few_bytes(CUdeviceptr *p, size_t size)
{
	(void)size;
	*p = 0x5000;
	return CUDA_SUCCESS;
}

/* What the driver serves in the end did not fail, be it small or large. */
static void test_the_drivers_last_bytes_are_counted(void **state)
{
	CUdeviceptr out;

	(void)state;
	take(512);
	vs_real.cuMemCreate = no_chunk;
	vs_real.cuMemAlloc_v2 = few_bytes;
	assert_int_equal(vs_pool_alloc(10 * MiB, &out), CUDA_SUCCESS);
	assert_int_equal(out, 0x5000);
	do /* what is there already */
		assert_int_equal(vs_pool_alloc(900 * KiB, &out), CUDA_SUCCESS);
	while (out != 0x5000);
	assert_int_equal(stats()->native, 2);
	assert_int_equal(stats()->oom_native, 2);
	assert_int_equal(stats()->failed, 0);
}

/* Chunks of a fixed size leave no part of the limit that nobody can have. */
static void test_large_chunks_below_a_limit(void **state)
{
	(void)state;
	vs_knobs.chunk_size.value = 12 * MiB;
	vs_knobs.memory_limit.value = 100 * MiB;
	take(10 * MiB);
	take(4 * MiB);
	give(take(84 * MiB));
	assert_int_equal(fake.held, 100 * MiB);
	fresh(state);
	vs_knobs.chunk_size.value = GiB;
	vs_knobs.memory_limit.value = 100 * MiB;
	take(10 * MiB);
	take(80 * MiB);
}

/* Nor does the chunk of one heap take all of it. */
static void test_a_chunk_is_a_part_of_the_limit(void **state)
{
	(void)state;
	vs_knobs.chunk_size.value = GiB;
	vs_knobs.memory_limit.value = GiB;
	take(512);
	take(4 * MiB);
	take(10 * MiB);
	assert_true(fake.held_high <= GiB);
}

/* What the device refuses to make chunks with, and what they were made with. */
enum { DECOMPRESSED = 1, FOR_RDMA = 2, SHAREABLE = 4, ALL_KINDS = 8 };
static unsigned refused, made_with;
static CUresult (*create)(CUmemGenericAllocationHandle *, size_t,
			  const CUmemAllocationProp *, unsigned long long);

static unsigned kinds_of(const CUmemAllocationProp *prop)
{
	return (prop->allocFlags.usage ? DECOMPRESSED : 0) |
	       (prop->allocFlags.gpuDirectRDMACapable ? FOR_RDMA : 0) |
	       (prop->requestedHandleTypes ? SHAREABLE : 0);
}

static CUresult choosy(CUmemGenericAllocationHandle *handle, size_t size,
		       const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	if (refused & (kinds_of(prop) | ALL_KINDS))
		return CUDA_ERROR_NOT_SUPPORTED;
	made_with = kinds_of(prop);
	return create(handle, size, prop, flags);
}

static CUresult has_all(int *out, CUdevice_attribute which, CUdevice device)
{
	(void)which, (void)device;
	*out = 1;
	return CUDA_SUCCESS;
}

static void choosy_driver(unsigned what)
{
	fresh_driver(8 * GiB);
	create = vs_real.cuMemCreate;
	vs_real.cuMemCreate = choosy;
	vs_real.cuDeviceGetAttribute = has_all;
	refused = what;
}

/* A device without some features has a pool all the same. */
static void test_chunks_without_what_a_device_refuses(void **state)
{
	static const struct {
		unsigned refused, made_with;
	} cases[] = {
		{0, DECOMPRESSED | FOR_RDMA | SHAREABLE},
		{DECOMPRESSED, FOR_RDMA | SHAREABLE},
		{FOR_RDMA, SHAREABLE},
		{SHAREABLE, 0},
		{DECOMPRESSED | FOR_RDMA | SHAREABLE, 0},
	};
	CUdeviceptr p;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		choosy_driver(cases[i].refused);
		take(10 * MiB);
		assert_int_equal(made_with, cases[i].made_with);
		assert_int_equal(vs_share_is_capable(0),
				 (made_with & SHAREABLE) != 0);
	}
	choosy_driver(ALL_KINDS);
	assert_int_equal(vs_pool_alloc(10 * MiB, &p), VS_PASS);
}

#define OF_A_LONG_JOB (45000 * MS)

/* The driver's free waits for as long as it takes. */
static void test_what_a_thread_freed_is_waited_for(void **state)
{
	(void)state;
	fresh_driver(8 * GiB);
	fake.lag_ns = OF_A_LONG_JOB;
	for (int i = 0; i < 3; i++)
		give(take(5 * GiB + i * 512 * MiB));
	assert_int_equal(fake.natives, 0);
	assert_in_range(fake.now, 2 * OF_A_LONG_JOB, 3 * OF_A_LONG_JOB);
}

static void *give_it(void *p)
{
	give(*(CUdeviceptr *)p);
	return NULL;
}

/* Nor would it have held up this one, which may have work to give yet. */
static void test_not_what_another_freed(void **state)
{
	CUdeviceptr p;

	(void)state;
	for (int i = 0; i < 3; i++) {
		fresh_driver(8 * GiB);
		fake.lag_ns = OF_A_LONG_JOB;
		p = take(4096);
		/* a little of its own, whose marker comes when it is needed */
		if (i == 1)
			give(p);
		p = take(5 * GiB);
		if (i < 2) {
			in_a_thread(give_it, &p);
		} else {
			give(p);
			vs_pool_ctx_born((CUcontext)0x99, 0);
		}
		assert_int_equal(vs_pool_alloc(5632 * MiB, &p),
				 CUDA_ERROR_OUT_OF_MEMORY);
		assert_in_range(fake.now, 0, OF_A_LONG_JOB);
	}
}

int main(void)
{
#define T(f) cmocka_unit_test_setup(test_##f, fresh)
	const struct CMUnitTest tests[] = {
		T(the_last_granule_is_had),
		T(life_at_the_edge_of_the_device),
		T(life_with_little_address_space),
		T(a_device_of_an_odd_size),
		T(a_fault_is_the_drivers_to_word),
		T(addresses_come_back_little_by_little),
		T(a_vain_request_makes_no_small_chunks),
		T(idle_chunks_at_the_edge_make_no_small_ones),
		T(pending_memory_makes_no_small_chunks),
		T(slabs_in_part_make_no_small_chunks),
		T(a_large_request_finds_memory_scattered),
		T(most_of_a_device_full_of_small_blocks_comes_back),
		T(few_small_blocks_share_chunks),
		T(what_a_thread_freed_is_waited_for),
		T(not_what_another_freed),
		T(large_chunks_below_a_limit),
		T(a_chunk_is_a_part_of_the_limit),
		T(the_drivers_last_bytes_are_counted),
		T(chunks_without_what_a_device_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
