/* SPDX-License-Identifier: MIT */
/* cuMemAlloc memory: sizes, errors, and what it answers, as on an H200. */
#include "../sim/sim_test.h"

#include <unistd.h>

static struct sim_books books(void)
{
	struct sim_books b;

	sim_books(0, &b);
	return b;
}

static int fresh(void **state)
{
	(void)state;
	boot("");
	return 0;
}

static void small_blocks_share_2_mib(void **state)
{
	CUdeviceptr p[64];
	unsigned i, j, n_neighbours = 0;

	(void)state;
	for (i = 0; i < 64; i++) {
		p[i] = new_legacy(256);
		assert_int_equal(p[i] % 512, 0);
	}
	for (i = 0; i < 64; i++)
		for (j = 0; j < 64; j++)
			n_neighbours += p[j] == p[i] + 512;
	assert_int_equal(n_neighbours, 63);
	assert_int_equal(books().physical, 2 * MIB);
	for (i = 0; i < 64; i++)
		OK(cuMemFree(p[i]));
	assert_int_equal(books().physical, 0);
}

static uint64_t physical_for(size_t size)
{
	CUdeviceptr p = new_legacy(size);
	uint64_t bytes = books().physical;

	OK(cuMemFree(p));
	assert_int_equal(books().physical, 0);
	return bytes;
}

static void larger_sizes_take_2_mib_steps(void **state)
{
	(void)state;
	assert_int_equal(physical_for(MIB), 2 * MIB);
	assert_int_equal(physical_for(MIB + 1), 2 * MIB);
	assert_int_equal(physical_for(3 * MIB / 2), 2 * MIB);
	assert_int_equal(physical_for(5 * MIB / 2), 4 * MIB);
	assert_int_equal(physical_for(64 * MIB), 64 * MIB);
}

static void edges_give_the_drivers_codes(void **state)
{
	CUdeviceptr p;
	int local;

	(void)state;
	GIVES(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAlloc(NULL, 1), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAlloc(&p, (size_t)1 << 50), CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cuMemAlloc(&p, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree(0));
	p = new_legacy(1000);
	GIVES(cuMemFree(p + 256), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_BAD_FREE);
	OK(cuMemFree(p));
	GIVES(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_BAD_FREE);
	GIVES(cuMemFree((CUdeviceptr)&local), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_BAD_FREE);
	p = new_mapping(0, 2 * MIB);
	GIVES(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_BAD_FREE);
}

static void pitch_is_the_width_in_steps_of_512(void **state)
{
	size_t pitch, size;
	CUdeviceptr p, base;

	(void)state;
	OK(cuMemAllocPitch(&p, &pitch, 1000, 10, 4));
	assert_int_equal(pitch, 1024);
	OK(cuMemGetAddressRange(&base, &size, p));
	assert_int_equal(size, 10240);
	OK(cuMemFree(p));
	OK(cuMemAllocPitch(&p, &pitch, 512, 1, 16));
	assert_int_equal(pitch, 512);
	OK(cuMemFree(p));
	GIVES(cuMemAllocPitch(&p, &pitch, 100, 10, 3),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAllocPitch(&p, &pitch, 0, 10, 4), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAllocPitch(&p, &pitch, 100, 0, 4), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemAllocPitch(&p, &pitch, SIZE_MAX - 1, 2, 4),
	      CUDA_ERROR_OUT_OF_MEMORY);
}

static void memory_reads_as_zero(void **state)
{
	CUdeviceptr p = new_legacy(512), keep = new_legacy(512), q;

	(void)state;
	OK(cuMemsetD8(p, 0xff, 512));
	OK(cuMemFree(p));
	q = new_legacy(512);
	assert_int_equal(q, p);
	assert_int_equal(read_word(q), 0);
	OK(cuMemFree(q));
	OK(cuMemFree(keep));
}

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr p)
{
	uint64_t value = 0;

	OK(cuPointerGetAttribute(&value, which, p));
	return value;
}

#define ATTRIBUTE(which, p) attribute(CU_POINTER_ATTRIBUTE_##which, p)

static void legacy_answers(void **state)
{
	CUdeviceptr p = new_legacy(3000), base;
	CUcontext ctx;
	size_t size;
	unsigned one = 1;

	(void)state;
	OK(cuCtxGetCurrent(&ctx));
	assert_int_equal(ATTRIBUTE(CONTEXT, p + 7), (uintptr_t)ctx);
	assert_int_equal(ATTRIBUTE(RANGE_START_ADDR, p + 7), p);
	assert_int_equal(ATTRIBUTE(RANGE_SIZE, p), 3000);
	assert_int_equal(ATTRIBUTE(MAPPING_SIZE, p), 2 * MIB);
	assert_int_equal(ATTRIBUTE(MAPPING_BASE_ADDR, p),
			 p / (2 * MIB) * (2 * MIB));
	assert_int_equal(ATTRIBUTE(IS_LEGACY_CUDA_IPC_CAPABLE, p), 1);
	assert_int_equal(ATTRIBUTE(IS_GPU_DIRECT_RDMA_CAPABLE, p), 1);
	assert_int_equal(ATTRIBUTE(IS_HW_DECOMPRESS_CAPABLE, p), 1);
	assert_int_equal(ATTRIBUTE(ALLOWED_HANDLE_TYPES, p), 0);
	assert_int_equal(ATTRIBUTE(MEMPOOL_HANDLE, p), 0);
	assert_int_equal(ATTRIBUTE(IS_MANAGED, p), 0);
	assert_int_equal(ATTRIBUTE(MEMORY_TYPE, p), 2);
	assert_int_equal(ATTRIBUTE(MAPPED, p), 1);
	assert_int_equal(ATTRIBUTE(ACCESS_FLAGS, p), 3);
	assert_int_equal(ATTRIBUTE(DEVICE_ORDINAL, p), 0);
	GIVES(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_HOST_POINTER,
				    p),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
	assert_int_equal(ATTRIBUTE(SYNC_MEMOPS, p), 1);
	OK(cuMemGetAddressRange(&base, &size, p + 2999));
	assert_int_equal(base, p);
	assert_int_equal(size, 3000);
	GIVES(cuMemGetAddressRange(&base, &size, p + 3000),
	      CUDA_ERROR_NOT_FOUND);
	OK(cuMemFree(p));
}

static void vmm_answers(void **state)
{
	CUdeviceptr p = new_space(8 * MIB), base;
	CUmemGenericAllocationHandle h = new_handle(0, 2 * MIB);
	CUipcMemHandle ipc;
	size_t size;
	unsigned one = 1;

	(void)state;
	OK(cuMemMap(p, 2 * MIB, 0, h, 0));
	OK(grant(p, 2 * MIB, 0));
	assert_int_equal(ATTRIBUTE(CONTEXT, p), 0);
	assert_int_equal(ATTRIBUTE(RANGE_START_ADDR, p), p);
	assert_int_equal(ATTRIBUTE(RANGE_SIZE, p), 8 * MIB);
	assert_int_equal(ATTRIBUTE(MAPPING_BASE_ADDR, p + 9), p);
	assert_int_equal(ATTRIBUTE(MAPPING_SIZE, p), 2 * MIB);
	assert_int_equal(ATTRIBUTE(IS_LEGACY_CUDA_IPC_CAPABLE, p), 0);
	assert_int_equal(ATTRIBUTE(IS_GPU_DIRECT_RDMA_CAPABLE, p), 0);
	assert_int_equal(ATTRIBUTE(IS_HW_DECOMPRESS_CAPABLE, p), 0);
	assert_int_equal(ATTRIBUTE(MEMORY_TYPE, p), 2);
	GIVES(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p),
	      CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuIpcGetMemHandle(&ipc, p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetAddressRange(&base, &size, p + 5));
	assert_int_equal(base, p);
	assert_int_equal(size, 2 * MIB);
	GIVES(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				    p + 2 * MIB),
	      CUDA_ERROR_INVALID_VALUE);
}

static void freed_memory_is_unknown(void **state)
{
	CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_CONTEXT};
	unsigned type = 9;
	void *ctx = &type, *data[] = {&type, &ctx};
	CUdeviceptr p = new_legacy(3 * MIB);
	uint64_t id = ATTRIBUTE(BUFFER_ID, p), value;

	(void)state;
	OK(cuMemFree(p));
	GIVES(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				    p),
	      CUDA_ERROR_INVALID_VALUE);
	/* the plural calls nothing an error */
	OK(cuPointerGetAttributes(2, asked, data, p));
	assert_int_equal(type, 0);
	assert_null(ctx);
	p = new_legacy(3 * MIB);
	assert_int_not_equal(ATTRIBUTE(BUFFER_ID, p), id);
	OK(cuMemFree(p));
}

static void legacy_memory_has_no_vmm_handle(void **state)
{
	CUdeviceptr p = new_legacy(2 * MIB);
	CUmemGenericAllocationHandle h;
	int fd;

	(void)state;
	GIVES(cuMemRetainAllocationHandle(&h, (void *)p),
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemGetHandleForAddressRange(
		&fd, p, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	close(fd);
	OK(cuMemFree(p));
}

static void free_waits_for_the_device(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	struct kernels k;

	(void)state;
	load_kernels(&k);
	OK(slow_fill(&k, s, 100, p, 1, 1));
	GIVES(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(cuMemFree(q));
	OK(cuStreamQuery(s));
	OK(cuMemFree(p));
}

static void info_counts_everything(void **state)
{
	size_t before, after, total;
	CUDA_ARRAY_DESCRIPTOR desc = {.Width = 1024,
				      .Height = 1024,
				      .Format = CU_AD_FORMAT_FLOAT,
				      .NumChannels = 1};
	CUdeviceptr p;
	CUarray array;

	(void)state;
	OK(cuMemGetInfo(&before, &total));
	assert_int_equal(before, total);
	p = new_mapping(0, 6 * MIB);
	OK(cuArrayCreate(&array, &desc));
	OK(cuMemGetInfo(&after, &total));
	assert_int_equal(before - after, 10 * MIB);
	OK(cuArrayDestroy(array));
	OK(cuMemUnmap(p, 6 * MIB));
	OK(cuMemGetInfo(&after, &total));
	assert_int_equal(before, after);
}

static void pools_keep_up_to_their_threshold(void **state)
{
	CUmemoryPool pool;
	cuuint64_t threshold = UINT64_MAX, reserved;
	CUdeviceptr p;

	(void)state;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&p, 4 * MIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	assert_int_equal(books().physical, 0);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				 &threshold));
	OK(cuMemAllocAsync(&p, 4 * MIB, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	assert_int_equal(books().physical, 4 * MIB);
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
				 &reserved));
	assert_int_equal(reserved, 4 * MIB);
	/* and give way to others */
	sim_set_memory(0, 4 * MIB);
	p = new_legacy(4 * MIB);
	OK(cuMemFree(p));
	GIVES(cuMemFreeAsync(p, NULL), CUDA_ERROR_INVALID_VALUE);
	expect_violation(SIM_V_BAD_FREE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(small_blocks_share_2_mib),
		SIM_TEST(larger_sizes_take_2_mib_steps),
		SIM_TEST(edges_give_the_drivers_codes),
		SIM_TEST(pitch_is_the_width_in_steps_of_512),
		SIM_TEST(memory_reads_as_zero),
		SIM_TEST(legacy_answers),
		SIM_TEST(vmm_answers),
		SIM_TEST(freed_memory_is_unknown),
		SIM_TEST(legacy_memory_has_no_vmm_handle),
		SIM_TEST(free_waits_for_the_device),
		SIM_TEST(info_counts_everything),
		SIM_TEST(pools_keep_up_to_their_threshold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
