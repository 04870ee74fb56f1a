/* SPDX-License-Identifier: MIT */
/*
 * What the simulator's own tests share: a fresh driver for each test, short
 * names for common calls, the kernels.
 */
#ifndef SIM_TEST_H
#define SIM_TEST_H

/* Plain names; the tree's flags ask cuda.h for every ABI version. */
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels_ptx.h"
#include "sim.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#define OK(call) assert_int_equal((call), CUDA_SUCCESS)
#define GIVES(call, code) assert_int_equal((call), (code))

/* Exactly one violation so far, of that kind; forget it. */
static inline void expect_violation(enum sim_violation kind)
{
	assert_int_equal(sim_violations_of(kind), 1);
	assert_int_equal(sim_violations(), kind != SIM_V_BAD_FREE);
	sim_violations_clear();
}

static inline void expect_none(void)
{
	assert_int_equal(sim_violations(), 0);
}

/* A test's teardown: the judge has nothing left to say. */
static inline int clean(void **state)
{
	(void)state;
	return sim_violations() != 0;
}

/* A test that begins with its file's fresh(). */
#define SIM_TEST(f) cmocka_unit_test_setup_teardown(f, fresh, clean)

struct kernels {
	CUmodule module;
	CUfunction fill, check, copy, add, spin, sleep;
};

static inline void load_kernels(struct kernels *k)
{
	OK(cuModuleLoadData(&k->module, vs_kernels_ptx));
	OK(cuModuleGetFunction(&k->fill, k->module, "vs_fill"));
	OK(cuModuleGetFunction(&k->check, k->module, "vs_check"));
	OK(cuModuleGetFunction(&k->copy, k->module, "vs_copy"));
	OK(cuModuleGetFunction(&k->add, k->module, "vs_add"));
	OK(cuModuleGetFunction(&k->spin, k->module, "vs_spin_flag"));
	OK(cuModuleGetFunction(&k->sleep, k->module, "vs_sleep"));
}

static inline CUresult launch(CUfunction f, CUstream s, void **params)
{
	return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL);
}

static inline CUresult fill(const struct kernels *k, CUstream s, CUdeviceptr p,
			    uint32_t value, uint64_t n)
{
	void *params[] = {&p, &value, &n};

	return launch(k->fill, s, params);
}

/* Takes ms, then fills n words. */
static inline CUresult slow_fill(const struct kernels *k, CUstream s,
				 uint64_t ms, CUdeviceptr p, uint32_t value,
				 uint64_t n)
{
	uint64_t ns = ms * 1000000;
	void *params[] = {&ns, &p, &value, &n};

	return launch(k->sleep, s, params);
}

/* Runs until *flag, which must be page-locked. */
static inline CUresult spin(const struct kernels *k, CUstream s, uint32_t *flag)
{
	CUdeviceptr p = (CUdeviceptr)flag;
	void *params[] = {&p};

	return launch(k->spin, s, params);
}

static inline void raise_flag(uint32_t *flag)
{
	__atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static inline uint32_t *new_flag(void)
{
	void *p;

	OK(cuMemAllocHost(&p, sizeof(uint32_t)));
	__atomic_store_n((uint32_t *)p, 0, __ATOMIC_RELEASE);
	return p;
}

static inline CUstream new_stream(unsigned flags)
{
	CUstream s;

	OK(cuStreamCreate(&s, flags));
	return s;
}

static inline CUevent new_event(void)
{
	CUevent e;

	OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	return e;
}

static inline CUdeviceptr new_legacy(size_t size)
{
	CUdeviceptr p;

	OK(cuMemAlloc(&p, size));
	return p;
}

static inline uint32_t read_word(CUdeviceptr p)
{
	uint32_t value = 0;

	OK(cuMemcpyDtoH(&value, p, sizeof(value)));
	return value;
}

static inline CUmemAllocationProp prop_of(int device)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = device;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return prop;
}

static inline CUmemGenericAllocationHandle new_handle(int device, size_t size)
{
	CUmemAllocationProp prop = prop_of(device);
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, size, &prop, 0));
	return handle;
}

static inline CUresult grant(CUdeviceptr p, size_t size, int device)
{
	CUmemAccessDesc desc;

	memset(&desc, 0, sizeof(desc));
	desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	desc.location.id = device;
	desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return cuMemSetAccess(p, size, &desc, 1);
}

static inline CUdeviceptr new_space(size_t size)
{
	CUdeviceptr p;

	OK(cuMemAddressReserve(&p, size, 0, 0, 0));
	return p;
}

/* Reserved, created, mapped, accessible for its device; handle released. */
static inline CUdeviceptr new_mapping(int device, size_t size)
{
	CUmemGenericAllocationHandle handle = new_handle(device, size);
	CUdeviceptr p = new_space(size);

	OK(cuMemMap(p, size, 0, handle, 0));
	OK(grant(p, size, device));
	OK(cuMemRelease(handle));
	return p;
}

static inline CUcontext use_device(int device)
{
	CUcontext ctx;

	OK(cuDevicePrimaryCtxRetain(&ctx, device));
	OK(cuCtxSetCurrent(ctx));
	return ctx;
}

/* A driver as after load, under the environment "NAME=VALUE ...". */
static inline void start_with(const char *environment)
{
	static const char *const names[] = {
		"SIM_DEVICES", "SIM_MEMORY",	   "SIM_DRIVER_VERSION",
		"SIM_NO_VMM",  "SIM_PEER",	   "SIM_SET_ACCESS_PEER_FAILS",
		"SIM_STUB",    "SIM_BACKING",	   "SIM_CLOCK",
		"SIM_LAG_US",  "SIM_FAIL",	   "SIM_JUDGE_MODE",
		"SIM_COST",    "SIM_HANDLE_REUSE", "SIM_FREE_AFTER_END",
	};
	char *copy = strdup(environment), *word, *save = NULL;
	unsigned i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	for (word = strtok_r(copy, " ", &save); word;
	     word = strtok_r(NULL, " ", &save)) {
		char *value = strchr(word, '=');

		*value++ = '\0';
		setenv(word, value, 1);
	}
	free(copy);
	sim_reset();
	sim_violations_quiet(true);
}

/* The same, with device 0's primary context current. */
static inline CUcontext boot(const char *environment)
{
	start_with(environment);
	OK(cuInit(0));
	return use_device(0);
}

#endif
