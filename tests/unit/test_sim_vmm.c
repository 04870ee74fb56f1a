/* SPDX-License-Identifier: MIT */
/* The rules of virtual memory management (an H200), each broken once. */
#include "../sim/sim_test.h"

#include <unistd.h>

static struct sim_books books(void)
{
	struct sim_books b;

	sim_books(-1, &b);
	return b;
}

static int fresh(void **state)
{
	(void)state;
	boot("");
	return 0;
}

/* Every test must leave the books balanced and no violation behind. */
static int balanced(void **state)
{
	struct sim_books b = books();

	(void)state;
	return b.n_handles || b.n_mappings || b.n_reservations || b.physical ||
	       sim_violations();
}

static void granularity_is_2_mib(void **state)
{
	CUmemAllocationProp prop = prop_of(0);
	size_t size;

	(void)state;
	OK(cuMemGetAllocationGranularity(&size, &prop,
					 CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	assert_int_equal(size, 2 * MIB);
	prop.allocFlags.gpuDirectRDMACapable = 1;
	OK(cuMemGetAllocationGranularity(&size, &prop,
					 CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	assert_int_equal(size, 2 * MIB);
}

static void create_wants_whole_granules(void **state)
{
	CUmemAllocationProp prop = prop_of(0);
	CUmemGenericAllocationHandle h;

	(void)state;
	GIVES(cuMemCreate(&h, 3 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemCreate(&h, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemCreate(&h, 2 * MIB, &prop, 1), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	prop.location.id = 7;
	GIVES(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
	prop = prop_of(0);
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	GIVES(cuMemCreate(&h, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
}

static void create_stops_at_the_budget(void **state)
{
	CUmemAllocationProp prop = prop_of(0);
	CUmemGenericAllocationHandle h, other;

	(void)state;
	sim_set_memory(0, 64 * MIB);
	h = new_handle(0, 62 * MIB);
	GIVES(cuMemCreate(&other, 4 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemCreate(&other, 2 * MIB, &prop, 0));
	OK(cuMemRelease(h));
	OK(cuMemRelease(other));
}

static void reserve_checks_its_arguments(void **state)
{
	CUdeviceptr p;

	(void)state;
	GIVES(cuMemAddressReserve(&p, MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemAddressReserve(&p, 2 * MIB, 3 * MIB, 0, 0),
	      CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemAddressReserve(&p, (size_t)128 << 40, 0, 0, 0),
	      CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemAddressReserve(&p, 2 * MIB, GIB, 0, 0));
	assert_int_equal(p % GIB, 0);
	OK(cuMemAddressFree(p, 2 * MIB));
}

static void address_free_wants_the_reservation(void **state)
{
	CUdeviceptr p = new_space(8 * MIB);

	(void)state;
	GIVES(cuMemAddressFree(p, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemAddressFree(p + 2 * MIB, 6 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	OK(cuMemAddressFree(p, 8 * MIB));
	GIVES(cuMemAddressFree(p, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
}

static void address_free_wants_it_unmapped(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB);

	(void)state;
	GIVES(cuMemAddressFree(p, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemAddressFree(p, 2 * MIB));
}

static void map_breaks(CUdeviceptr p, size_t size, size_t offset,
		       CUmemGenericAllocationHandle h, CUresult code)
{
	GIVES(cuMemMap(p, size, offset, h, 0), code);
	expect_violation(SIM_V_RULE);
}

static void map_wants_whole_handles(void **state)
{
	CUdeviceptr p = new_space(16 * MIB);
	CUmemGenericAllocationHandle h = new_handle(0, 4 * MIB);

	(void)state;
	map_breaks(p, 2 * MIB, 2 * MIB, h, CUDA_ERROR_NOT_SUPPORTED);
	map_breaks(p, 2 * MIB, 0, h, CUDA_ERROR_NOT_SUPPORTED);
	map_breaks(p, 6 * MIB, 0, h, CUDA_ERROR_INVALID_VALUE);
	map_breaks(p + MIB, 4 * MIB, 0, h, CUDA_ERROR_INVALID_VALUE);
	map_breaks(p + 14 * MIB, 4 * MIB, 0, h, CUDA_ERROR_INVALID_VALUE);
	map_breaks(p, 4 * MIB, 0, 12345, CUDA_ERROR_INVALID_VALUE);
	OK(cuMemMap(p, 4 * MIB, 0, h, 0));
	map_breaks(p + 2 * MIB, 4 * MIB, 0, h, CUDA_ERROR_INVALID_VALUE);
	/* one handle at two places works (an H200) */
	OK(cuMemMap(p + 8 * MIB, 4 * MIB, 0, h, 0));
	OK(cuMemRelease(h));
	OK(cuMemUnmap(p, 4 * MIB));
	OK(cuMemUnmap(p + 8 * MIB, 4 * MIB));
	OK(cuMemAddressFree(p, 16 * MIB));
}

static void unmap_wants_whole_mappings(void **state)
{
	CUdeviceptr p = new_space(16 * MIB);
	CUmemGenericAllocationHandle a = new_handle(0, 4 * MIB);
	CUmemGenericAllocationHandle b = new_handle(0, 4 * MIB);

	(void)state;
	OK(cuMemMap(p, 4 * MIB, 0, a, 0));
	OK(cuMemMap(p + 4 * MIB, 4 * MIB, 0, b, 0));
	GIVES(cuMemUnmap(p, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemUnmap(p + 2 * MIB, 6 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(cuMemUnmap(p, 12 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	OK(cuMemUnmap(p, 8 * MIB));
	GIVES(cuMemUnmap(p, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	OK(cuMemAddressFree(p, 16 * MIB));
}

static void access_wants_everything_mapped(void **state)
{
	CUdeviceptr p = new_space(8 * MIB);
	CUmemGenericAllocationHandle h = new_handle(0, 4 * MIB);

	(void)state;
	OK(cuMemMap(p, 4 * MIB, 0, h, 0));
	GIVES(grant(p, 8 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(grant(p, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	GIVES(grant(p, 4 * MIB, 3), CUDA_ERROR_INVALID_DEVICE);
	OK(grant(p, 4 * MIB, 0));
	OK(cuMemRelease(h));
	OK(cuMemUnmap(p, 4 * MIB));
	OK(cuMemAddressFree(p, 8 * MIB));
}

static void a_mapping_needs_access_to_be_used(void **state)
{
	CUdeviceptr p = new_space(2 * MIB);
	CUmemGenericAllocationHandle h = new_handle(0, 2 * MIB);
	CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	unsigned long long flags;

	(void)state;
	OK(cuMemMap(p, 2 * MIB, 0, h, 0));
	GIVES(cuMemsetD8(p, 1, 4), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetAccess(&flags, &here, p));
	assert_int_equal(flags, 0);
	OK(grant(p, 2 * MIB, 0));
	OK(cuMemGetAccess(&flags, &here, p));
	assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemsetD8(p, 1, 4));
	assert_int_equal(read_word(p), 0x01010101);
	OK(cuMemUnmap(p, 2 * MIB));
	GIVES(cuMemsetD8(p, 1, 4), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRelease(h));
	OK(cuMemAddressFree(p, 2 * MIB));
}

static void memory_lives_as_long_as_anything_refers(void **state)
{
	CUdeviceptr p = new_space(4 * MIB);
	CUmemGenericAllocationHandle h = new_handle(0, 2 * MIB), again;

	(void)state;
	OK(cuMemMap(p, 2 * MIB, 0, h, 0));
	OK(cuMemRelease(h));
	assert_int_equal(books().physical, 2 * MIB);
	GIVES(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	OK(cuMemRetainAllocationHandle(&again, (void *)(p + 5)));
	OK(cuMemUnmap(p, 2 * MIB));
	assert_int_equal(books().physical, 2 * MIB);
	OK(cuMemMap(p + 2 * MIB, 2 * MIB, 0, again, 0));
	OK(cuMemRelease(again));
	OK(cuMemUnmap(p + 2 * MIB, 2 * MIB));
	assert_int_equal(books().physical, 0);
	OK(cuMemAddressFree(p, 4 * MIB));
}

static void contents_move_with_the_handle(void **state)
{
	CUdeviceptr p = new_space(4 * MIB);
	CUmemGenericAllocationHandle h = new_handle(0, 2 * MIB);

	(void)state;
	OK(cuMemMap(p, 2 * MIB, 0, h, 0));
	OK(grant(p, 2 * MIB, 0));
	assert_int_equal(read_word(p), 0);
	OK(cuMemsetD32(p, 77, 1));
	OK(cuCtxSynchronize());
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemMap(p + 2 * MIB, 2 * MIB, 0, h, 0));
	OK(grant(p + 2 * MIB, 2 * MIB, 0));
	assert_int_equal(read_word(p + 2 * MIB), 77);
	OK(cuMemUnmap(p + 2 * MIB, 2 * MIB));
	OK(cuMemRelease(h));
	OK(cuMemAddressFree(p, 4 * MIB));
}

static void handles_travel_as_files(void **state)
{
	CUmemGenericAllocationHandle h = new_handle(0, 2 * MIB), copy;
	CUmemAllocationProp prop = prop_of(0);
	CUdeviceptr p = new_mapping(0, 2 * MIB);
	int fd;

	(void)state;
	OK(cuMemExportToShareableHandle(
		&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(
		&copy, (void *)(intptr_t)fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	assert_int_equal(books().vmm_bytes, 4 * MIB);
	OK(cuMemRelease(copy));
	OK(cuMemRelease(h));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
	GIVES(cuMemExportToShareableHandle(
		      &fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	      CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_RULE);
	OK(cuMemRelease(h));
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemAddressFree(p, 2 * MIB));
}

static void memory_of_a_device_is_not_registered(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB), q;

	(void)state;
	OK(cuMemAlloc(&q, 4096));
	GIVES(cuMemHostRegister((void *)p, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemHostRegister((void *)q, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(q));
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemAddressFree(p, 2 * MIB));
}

static void books_alone_need_no_memory(void **state)
{
	CUdeviceptr p;

	(void)state;
	boot("SIM_BACKING=none SIM_MEMORY=64G");
	p = new_mapping(0, 32 * GIB);
	OK(cuMemsetD8(p, 1, 32 * GIB));
	OK(cuCtxSynchronize());
	OK(cuMemUnmap(p, 32 * GIB));
	OK(cuMemAddressFree(p, 32 * GIB));
}

#define VMM_TEST(f) cmocka_unit_test_setup_teardown(f, fresh, balanced)

int main(void)
{
	const struct CMUnitTest tests[] = {
		VMM_TEST(granularity_is_2_mib),
		VMM_TEST(create_wants_whole_granules),
		VMM_TEST(create_stops_at_the_budget),
		VMM_TEST(reserve_checks_its_arguments),
		VMM_TEST(address_free_wants_the_reservation),
		VMM_TEST(address_free_wants_it_unmapped),
		VMM_TEST(map_wants_whole_handles),
		VMM_TEST(unmap_wants_whole_mappings),
		VMM_TEST(access_wants_everything_mapped),
		VMM_TEST(a_mapping_needs_access_to_be_used),
		VMM_TEST(memory_lives_as_long_as_anything_refers),
		VMM_TEST(contents_move_with_the_handle),
		VMM_TEST(handles_travel_as_files),
		VMM_TEST(memory_of_a_device_is_not_registered),
		VMM_TEST(books_alone_need_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
