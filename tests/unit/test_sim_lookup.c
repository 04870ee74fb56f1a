/* SPDX-License-Identifier: MIT */
/* How functions are found, and what holds before and after the driver lives. */
#include "../sim/sim_test.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

static void *ask(const char *name, int version, cuuint64_t flags,
		 CUresult result, CUdriverProcAddressQueryResult wanted)
{
	CUdriverProcAddressQueryResult status =
		(CUdriverProcAddressQueryResult)99;
	void *f = &f;

	GIVES(cuGetProcAddress(name, &f, version, flags, &status), result);
	assert_int_equal(status, wanted);
	return f;
}

static void *found(const char *name, int version, cuuint64_t flags)
{
	return ask(name, version, flags, CUDA_SUCCESS,
		   CU_GET_PROC_ADDRESS_SUCCESS);
}

static void *symbol(const char *name)
{
	void *f = dlsym(RTLD_DEFAULT, name);

	assert_non_null(f);
	return f;
}

static void versions_choose_the_abi(void **state)
{
	(void)state;
	start_with("");
	assert_ptr_equal(found("cuMemAlloc", 3020, 0), symbol("cuMemAlloc_v2"));
	assert_ptr_equal(found("cuMemAlloc", 12000, 0),
			 symbol("cuMemAlloc_v2"));
	assert_ptr_equal(found("cuStreamBeginCapture", 10000, 0),
			 symbol("cuStreamBeginCapture"));
	assert_ptr_equal(found("cuStreamBeginCapture", 10010, 0),
			 symbol("cuStreamBeginCapture_v2"));
	assert_ptr_equal(found("cuGetProcAddress", 11030, 0),
			 symbol("cuGetProcAddress"));
	assert_ptr_equal(found("cuGetProcAddress", 12000, 0),
			 symbol("cuGetProcAddress_v2"));
	assert_ptr_equal(found("cuStreamGetCaptureInfo", 11030, 0),
			 symbol("cuStreamGetCaptureInfo_v2"));
}

static void flag_chooses_the_twin(void **state)
{
	const cuuint64_t twin = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

	(void)state;
	start_with("");
	assert_ptr_equal(found("cuMemcpyAsync", 12000, twin),
			 symbol("cuMemcpyAsync_ptsz"));
	assert_ptr_equal(found("cuMemcpyHtoD", 12000, twin),
			 symbol("cuMemcpyHtoD_v2_ptds"));
	assert_ptr_equal(found("cuStreamGetCaptureInfo", 11030, twin),
			 symbol("cuStreamGetCaptureInfo_v2_ptsz"));
	/* none there: the legacy one */
	assert_ptr_equal(found("cuMemAlloc", 12000, twin),
			 symbol("cuMemAlloc_v2"));
	/* older than the twin */
	assert_ptr_equal(found("cuMemcpyAsync", 4000, twin),
			 symbol("cuMemcpyAsync"));
}

static void misses_tell_why(void **state)
{
	(void)state;
	start_with("");
	assert_null(ask("cuMemAlloc", 2000, 0, CUDA_SUCCESS,
			CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
	assert_null(ask("cuNothing", 12000, 0, CUDA_SUCCESS,
			CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
	assert_null(ask("", 0, 0, CUDA_SUCCESS,
			CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
	assert_null(ask("cuMemAlloc", 14000, 0, CUDA_ERROR_INVALID_VALUE,
			CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
}

static void older_drivers_lack_functions(void **state)
{
	CUevent event = NULL;

	(void)state;
	boot("SIM_DRIVER_VERSION=12040");
	assert_null(ask("cuCtxRecordEvent", 12040, 0, CUDA_SUCCESS,
			CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
	GIVES(cuCtxRecordEvent(NULL, event), CUDA_ERROR_NOT_SUPPORTED);
	GIVES(cuCtxWaitEvent(NULL, event), CUDA_ERROR_NOT_SUPPORTED);
	assert_ptr_equal(found("cuMemMap", 12040, 0), symbol("cuMemMap"));
}

static void nothing_works_before_init(void **state)
{
	const char *name;
	CUdeviceptr p;
	int n;

	(void)state;
	start_with("");
	GIVES(cuMemAlloc(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0),
	      CUDA_ERROR_NOT_INITIALIZED);
	GIVES(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	OK(cuDriverGetVersion(&n));
	assert_int_equal(n, 13000);
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
	assert_string_equal(name, "CUDA_ERROR_OUT_OF_MEMORY");
}

static void nothing_works_without_a_context(void **state)
{
	CUdeviceptr p;
	CUevent e;

	(void)state;
	start_with("");
	OK(cuInit(0));
	GIVES(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cuEventCreate(&e, 0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuMemFree(0));
	/* all VMM calls do (an H200) */
	p = new_mapping(0, 2 * MIB);
	OK(cuMemUnmap(p, 2 * MIB));
	OK(cuMemAddressFree(p, 2 * MIB));
	expect_none();
}

static void a_stub_refuses(void **state)
{
	(void)state;
	start_with("SIM_STUB=1");
	GIVES(cuInit(0), CUDA_ERROR_STUB_LIBRARY);
}

static void a_driver_in_shutdown_says_so(void **state)
{
	CUdeviceptr p;

	(void)state;
	boot("");
	p = new_legacy(1);
	sim_set_deinitialized(true);
	GIVES(cuMemFree(p), CUDA_ERROR_DEINITIALIZED);
	GIVES(cuInit(0), CUDA_ERROR_DEINITIALIZED);
	sim_set_deinitialized(false);
	OK(cuMemFree(p));
}

/* In a child: 0 if every call is refused. */
static int try_in_child(CUdeviceptr p)
{
	size_t a, b;

	if (cuMemFree(p) != CUDA_ERROR_NOT_INITIALIZED ||
	    cuMemGetInfo(&a, &b) != CUDA_ERROR_NOT_INITIALIZED ||
	    cuInit(0) != CUDA_ERROR_NOT_INITIALIZED)
		return 1;
	return 0;
}

static void a_forked_child_has_no_driver(void **state)
{
	CUdeviceptr p;
	int status;
	pid_t pid;

	(void)state;
	boot("");
	p = new_legacy(1);
	pid = fork();
	if (pid == 0)
		_exit(try_in_child(p));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	OK(cuMemFree(p));
}

static void devices_without_vmm_say_so(void **state)
{
	CUdeviceptr p;
	int value;

	(void)state;
	boot("SIM_NO_VMM=1");
	OK(cuDeviceGetAttribute(
		&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		0));
	assert_int_equal(value, 0);
	GIVES(cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0),
	      CUDA_ERROR_NOT_SUPPORTED);
	OK(cuMemAlloc(&p, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(versions_choose_the_abi),
		cmocka_unit_test(flag_chooses_the_twin),
		cmocka_unit_test(misses_tell_why),
		cmocka_unit_test(older_drivers_lack_functions),
		cmocka_unit_test(nothing_works_before_init),
		cmocka_unit_test(nothing_works_without_a_context),
		cmocka_unit_test(a_stub_refuses),
		cmocka_unit_test(a_driver_in_shutdown_says_so),
		cmocka_unit_test(a_forked_child_has_no_driver),
		cmocka_unit_test(devices_without_vmm_say_so),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
