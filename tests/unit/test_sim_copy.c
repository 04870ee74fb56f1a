/* SPDX-License-Identifier: MIT */
/* Copies and sets: data, bounds, who waits, two devices, as on two H200. */
#include "../sim/sim_test.h"

static struct kernels k;

static int fresh(void **state)
{
	(void)state;
	boot("SIM_DEVICES=2");
	load_kernels(&k);
	return 0;
}

static void every_kind_moves_the_bytes(void **state)
{
	CUdeviceptr p = new_legacy(8), q = new_mapping(0, 2 * MIB);
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	char in[8] = "seven..", out[8] = "";

	(void)state;
	OK(cuMemcpyHtoD(p, in, 8));
	OK(cuMemcpyDtoD(q, p, 8));
	OK(cuMemcpyDtoH(out, q, 8));
	assert_string_equal(out, in);
	OK(cuMemcpy((CUdeviceptr)in, q + 1, 5));
	assert_memory_equal(in, "even.", 5);
	OK(cuMemcpyHtoDAsync(p, in, 8, s));
	OK(cuMemcpyAsync(q, p, 8, s));
	OK(cuMemcpyDtoHAsync(out, q, 8, s));
	assert_memory_equal(out, in, 8);
	OK(cuMemsetD16(p, 0x4142, 2));
	assert_int_equal(read_word(p), 0x41424142);
	OK(cuMemsetD2D8(q, 16, 9, 2, 3));
	OK(cuMemcpyDtoH(out, q + 32, 4));
	assert_memory_equal(out, "\t\t\0", 3);
}

static void copies_have_two_and_three_dimensions(void **state)
{
	CUdeviceptr p = new_legacy(64 * 4 * 2);
	char in[24], out[24] = "";
	CUDA_MEMCPY2D flat = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = in,
		.srcPitch = 6,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = p,
		.dstPitch = 64,
		.WidthInBytes = 6,
		.Height = 4,
	};
	CUDA_MEMCPY3D cube = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = p,
		.srcPitch = 64,
		.srcHeight = 2,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = out,
		.dstPitch = 6,
		.dstHeight = 2,
		.WidthInBytes = 6,
		.Height = 2,
		.Depth = 2,
	};
	unsigned i;

	(void)state;
	for (i = 0; i < sizeof(in); i++)
		in[i] = (char)i;
	OK(cuMemcpy2D(&flat));
	OK(cuMemcpy3D(&cube));
	assert_memory_equal(in, out, sizeof(in));
	flat.dstPitch = 4;
	GIVES(cuMemcpy2D(&flat), CUDA_ERROR_INVALID_VALUE);
}

static void legacy_ends_where_it_was_asked_to(void **state)
{
	CUdeviceptr p = new_legacy(100), q = new_mapping(0, 2 * MIB);
	char host[101];

	(void)state;
	OK(cuMemsetD8(p, 1, 100));
	GIVES(cuMemsetD8(p, 1, 101), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpyDtoH(host, p, 101), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpyHtoD(p + 1, host, 100), CUDA_ERROR_INVALID_VALUE);
	/* VMM only where the mapping does */
	OK(cuMemsetD8(q, 1, 2 * MIB));
	GIVES(cuMemsetD8(q, 1, 2 * MIB + 1), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpyHtoD((CUdeviceptr)host, host, 1),
	      CUDA_ERROR_INVALID_VALUE);
}

static void plain_copies_to_the_host_wait(void **state)
{
	CUdeviceptr p = new_legacy(4);
	uint32_t value = 0;

	(void)state;
	OK(slow_fill(&k, NULL, 20, p, 6, 1));
	OK(cuMemcpyDtoH(&value, p, 4));
	assert_int_equal(value, 6);
	OK(cuStreamQuery(NULL));
}

static void device_copies_and_sets_do_not(void **state)
{
	CUdeviceptr p = new_legacy(4), q = new_legacy(4);

	(void)state;
	OK(slow_fill(&k, NULL, 100, p, 6, 1));
	OK(cuMemcpyDtoD(q, p, 4));
	OK(cuMemsetD32(p, 1, 1));
	GIVES(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	assert_int_equal(read_word(q), 6);
}

/* The buffer may be used again as soon as the call returns. */
static void pageable_sources_are_taken_at_once(void **state)
{
	CUdeviceptr p = new_legacy(4);
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	uint32_t *flag = new_flag(), value = 8;

	(void)state;
	OK(spin(&k, s, flag));
	OK(cuMemcpyHtoDAsync(p, &value, 4, s));
	value = 9;
	raise_flag(flag);
	OK(cuStreamSynchronize(s));
	assert_int_equal(read_word(p), 8);
}

static void page_locked_sources_are_read_late(void **state)
{
	CUdeviceptr p = new_legacy(4);
	CUstream s = new_stream(CU_STREAM_NON_BLOCKING);
	uint32_t *flag = new_flag(), *value = new_flag();

	(void)state;
	*value = 8;
	OK(spin(&k, s, flag));
	OK(cuMemcpyHtoDAsync(p, value, 4, s));
	__atomic_store_n(value, 9, __ATOMIC_RELEASE);
	raise_flag(flag);
	OK(cuStreamSynchronize(s));
	assert_int_equal(read_word(p), 9);
}

/* ---- two devices (two H200) ------------------------------------------- */

static void legacy_copies_between_devices(void **state)
{
	CUdeviceptr p = new_legacy(4), q;
	CUcontext ctx0, ctx1;

	(void)state;
	OK(cuCtxGetCurrent(&ctx0));
	ctx1 = use_device(1);
	q = new_legacy(4);
	OK(cuMemsetD32(q, 3, 1));
	OK(cuMemcpyDtoD(p, q, 4));
	OK(cuMemcpyPeer(p, ctx0, q, ctx1, 4));
	assert_int_equal(read_word(p), 3);
}

static void vmm_copies_need_access_to_both(void **state)
{
	CUdeviceptr p = new_mapping(0, 2 * MIB), q = new_mapping(1, 2 * MIB);
	CUcontext ctx0, ctx1;

	(void)state;
	OK(cuCtxGetCurrent(&ctx0));
	ctx1 = use_device(1);
	OK(cuMemsetD32(q, 4, 1));
	OK(cuCtxSynchronize());
	OK(cuCtxSetCurrent(ctx0));
	GIVES(cuMemcpyDtoD(p, q, 4), CUDA_ERROR_INVALID_VALUE);
	GIVES(cuMemcpy(p, q, 4), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemcpyPeer(p, ctx0, q, ctx1, 4));
	OK(cuCtxSynchronize());
	/* access of the other device is no help */
	OK(grant(p, 2 * MIB, 1));
	GIVES(cuMemcpyDtoD(p, q, 4), CUDA_ERROR_INVALID_VALUE);
	OK(grant(q, 2 * MIB, 0));
	OK(cuMemcpyDtoD(p, q, 4));
	assert_int_equal(read_word(p), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SIM_TEST(every_kind_moves_the_bytes),
		SIM_TEST(copies_have_two_and_three_dimensions),
		SIM_TEST(legacy_ends_where_it_was_asked_to),
		SIM_TEST(plain_copies_to_the_host_wait),
		SIM_TEST(device_copies_and_sets_do_not),
		SIM_TEST(pageable_sources_are_taken_at_once),
		SIM_TEST(page_locked_sources_are_read_late),
		SIM_TEST(legacy_copies_between_devices),
		SIM_TEST(vmm_copies_need_access_to_both),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
