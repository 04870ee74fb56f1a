/* SPDX-License-Identifier: MIT */
#include "hook/hook.h"

#include <stdatomic.h>

#include "base/knob.h"
#include "hook/symbols.h"
#include "pool/pool.h"
#include "report/dump.h"
#include "report/service.h"
#include "report/signal.h"
#include "report/trace.h"

char vs_unknown;

bool vs_enter_shut(enum vs_api api)
{
	void *next;

	if (vs_symbols_ensure())
		return vs_gate_is_open();
	/* a program with weak references, or one with a driver of its own */
	next = vs_symbols_next(vs_api_name(api));
	if (next)
		vs_real_lend(api, next);
	return false;
}

static void initialized(void)
{
	vs_real_complete();
	vs_gate_initialized();
	if (!vs_gate_is_open())
		return;
	vs_signal_install();
	vs_dump_init();
	vs_trace_init();
	if (vs_trace_is_on)
		atomic_store(&vs_pool_on_lost, vs_trace_free);
}

bool vs_enter_initialized(void)
{
	static _Atomic bool is_begun, is_done;

	if (!atomic_exchange(&is_begun, true)) {
		initialized();
		atomic_store(&is_done, true);
	}
	return atomic_load(&is_done);
}

void vs_seen_failed(CUresult result)
{
	struct vs_thread *t = vs_thread_self();

	if (result == CUDA_ERROR_DEINITIALIZED) {
		vs_gate_deinitialized();
		return;
	}
	/* who is within hears it from the driver as well */
	if (!vs_thread_go_within(t))
		return;
	if (vs_real_is_for_good(result))
		vs_pool_broken();
	vs_pool_faulted(result);
	vs_thread_come_out(t);
}

bool vs_mark_freed_now(void)
{
	struct vs_thread *t = vs_thread_self();

	if (!vs_thread_go_within(t))
		return false;
	vs_pool_synchronizing();
	vs_thread_come_out(t);
	return true;
}

uint64_t vs_device_here(void)
{
	return vs_device_bit(vs_pool_ctx_device(vs_vmm_current()));
}

/* Whichever is current, by cuda.h: memory for a stream, and where it launches.
 */
uint64_t vs_devices_of(CUstream stream)
{
	CUcontext ctx;

	if (!vs_vmm_is_created(stream))
		return vs_device_here();
	if (!vs_real.cuStreamGetCtx ||
	    vs_real.cuStreamGetCtx(stream, &ctx) != CUDA_SUCCESS)
		return VS_ANY_DEVICE;
	return vs_device_bit(vs_pool_ctx_device(ctx));
}

void vs_look_before(uint64_t devices)
{
	struct vs_thread *t = vs_thread_self();

	if (!vs_thread_go_within(t))
		return;
	vs_pool_look(devices);
	vs_thread_come_out(t);
}

bool vs_again_relieved(uint64_t devices, enum vs_relief relief)
{
	struct vs_thread *t = vs_thread_self();
	bool is_relieved;

	if (!vs_gate_is_open() || !vs_thread_go_within(t))
		return false;
	/* which knows where other processes are, and may have no pool here */
	if (vs_knobs.neighbours)
		vs_service_start();
	is_relieved = vs_pool_relieve(devices, relief) > 0;
	vs_thread_come_out(t);
	return is_relieved;
}
