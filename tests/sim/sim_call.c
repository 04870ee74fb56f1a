/* SPDX-License-Identifier: MIT */
#include "sim_call.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "sim_base.h"
#include "sim_capture.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_life.h"

__thread struct sim_thread sim_thread;
unsigned long sim_call_counts[SIM_N_FUNCTIONS];

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool has_key;

static void (*subscriber)(const char *symbol);

void sim_on_call(void (*callback)(const char *symbol))
{
	__atomic_store_n(&subscriber, callback, __ATOMIC_RELEASE);
}

static void thread_ended(void *unused)
{
	(void)unused;
	if (sim_thread.in_call || sim_life.forked)
		return;
	sim_lock();
	sim_capture_thread_ended();
	sim_unlock();
}

static void make_key(void)
{
	has_key = pthread_key_create(&key, thread_ended) == 0;
}

uint64_t sim_thread_id(void)
{
	static uint64_t last_id;

	if (!sim_thread.id) {
		sim_thread.id =
			__atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
		pthread_once(&key_once, make_key);
		if (has_key)
			pthread_setspecific(key, &sim_thread);
	}
	return sim_thread.id;
}

/* What holds for every function, whatever its arguments. */
static CUresult check_state(const struct sim_function *f)
{
	if (sim_life.deinitialized)
		return CUDA_ERROR_DEINITIALIZED;
	if (f->since > sim_config.version)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (sim_thread.in_host_function)
		return CUDA_ERROR_NOT_PERMITTED;
	if ((f->flags & SIM_NEEDS_INIT) && !sim_life.initialized)
		return CUDA_ERROR_NOT_INITIALIZED;
	if ((f->flags & SIM_IS_VMM) && sim_config.no_vmm)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

/* Whoever made it: a child without handlers may find the lock held. */
static bool is_of_a_child(void)
{
	return sim_life.initialized && sim_life.process != getpid();
}

CUresult sim_call_enter(enum sim_id id)
{
	const struct sim_function *f = &sim_functions[id];
	void (*callback)(const char *) =
		__atomic_load_n(&subscriber, __ATOMIC_ACQUIRE);
	CUresult result;

	if (sim_life.forked)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (id == SIM_cuMemAlloc_v2 && is_of_a_child())
		return CUDA_ERROR_NOT_PERMITTED;
	if (callback)
		callback(f->symbol);
	sim_lock();
	sim_thread.in_call = true;
	sim_thread.call = f->symbol;
	sim_thread.per_thread = f->flags & SIM_PER_THREAD;
	sim_thread.cost_us = 0;
	sim_call_counts[id]++;
	result = sim_fail_check(id);
	if (result == CUDA_SUCCESS)
		result = check_state(f);
	if (result == CUDA_SUCCESS && (f->flags & SIM_NEEDS_CTX))
		result = sim_context_current(&sim_thread.current);
	if (result == CUDA_SUCCESS && (f->flags & SIM_CAPTURE_UNSAFE))
		result = sim_capture_check_unsafe();
	return result;
}

CUresult sim_call_leave(enum sim_id id, CUresult result)
{
	double cost_us = sim_thread.cost_us;

	if (!sim_thread.in_call)
		return result;
	if (sim_config.trace)
		sim_say("sim: %s = %d", sim_functions[id].symbol, (int)result);
	sim_thread.in_call = false;
	sim_unlock();
	if (sim_config.cost_sleep)
		sim_cost_spend(cost_us);
	return result;
}

unsigned sim_call_match(const char *name, void (*visit)(enum sim_id, void *),
			void *arg)
{
	bool all = strcmp(name, "*") == 0;
	unsigned i, n = 0;

	for (i = 0; i < SIM_N_FUNCTIONS; i++) {
		if (!all && strcmp(name, sim_functions[i].symbol) &&
		    strcmp(name, sim_functions[i].base))
			continue;
		visit((enum sim_id)i, arg);
		n++;
	}
	return n;
}

static void add_count(enum sim_id id, void *arg)
{
	*(unsigned long *)arg += sim_call_counts[id];
}

unsigned long sim_calls(const char *name)
{
	unsigned long n = 0;

	sim_lock();
	sim_call_match(name, add_count, &n);
	sim_unlock();
	return n;
}

void sim_calls_clear(void)
{
	sim_lock();
	memset(sim_call_counts, 0, sizeof(sim_call_counts));
	sim_unlock();
}
