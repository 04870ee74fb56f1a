/* SPDX-License-Identifier: MIT */
#include "sim_life.h"

#include <unistd.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_call.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_graph.h"
#include "sim_handle.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_module.h"
#include "sim_ipc.h"
#include "sim_physical.h"
#include "sim_pool.h"
#include "sim_vmm.h"
#include "sim_work.h"

struct sim_life sim_life;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* With the lock held, everything as if the library had just been loaded. */
static void start(void)
{
	sim_config_read();
	sim_device_reset();
	sim_judge_reset();
	sim_fail_reset();
	sim_fail_read_env();
	sim_cost_clear();
	sim_life.initialized = false;
	sim_life.deinitialized = false;
}

void sim_reset(void)
{
	sim_lock();
	sim_capture_reset();
	sim_work_reset();
	sim_judge_reset();
	sim_context_reset();
	sim_graph_reset();
	sim_module_reset();
	sim_ipc_reset();
	sim_legacy_reset();
	sim_pool_reset();
	sim_host_reset();
	sim_vmm_reset();
	sim_physical_reset();
	sim_handle_reset();
	start();
	sim_unlock();
	sim_calls_clear();
}

/*
 * A child may not use the driver of its parent. The driver hears of the child
 * by a handler that cuInit sets: to those that the program set before that,
 * and in a child that is made without any, it is as ever, but does not allocate
 * (an H200). By then ours is the only thread.
 */
static void forked(void)
{
	sim_lock_forget();
	sim_worker_forget();
}

static void forked_after_init(void)
{
	sim_life.forked = sim_life.initialized;
}

static void note_forks(void)
{
	pthread_atfork(NULL, NULL, forked_after_init);
}

__attribute__((constructor)) static void loaded(void)
{
	sim_lock();
	start();
	sim_unlock();
	pthread_atfork(NULL, NULL, forked);
}

/* Later calls, from other libraries' destructors, find the driver gone. */
__attribute__((destructor)) static void unloaded(void)
{
	const char *path = sim_env("SIM_REPORT");

	if (sim_life.forked)
		return;
	if (path)
		sim_report(path);
	sim_lock();
	sim_life.deinitialized = true;
	sim_unlock();
}

void sim_set_deinitialized(bool deinitialized)
{
	sim_lock();
	sim_life.deinitialized = deinitialized;
	sim_unlock();
}

/* ---- driver functions ------------------------------------------------ */

CUresult sim_cuInit(unsigned int Flags)
{
	if (Flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_config.stub)
		return CUDA_ERROR_STUB_LIBRARY;
	pthread_once(&fork_once, note_forks);
	if (!sim_life.initialized)
		sim_life.process = getpid();
	sim_life.initialized = true;
	return CUDA_SUCCESS;
}

CUresult sim_cuDriverGetVersion(int *driverVersion)
{
	if (!driverVersion)
		return CUDA_ERROR_INVALID_VALUE;
	*driverVersion = sim_config.version;
	return CUDA_SUCCESS;
}
