/* SPDX-License-Identifier: MIT */
#include "driver/vmm.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sys.h"
#include "driver/real.h"

static uint64_t monotonic_ns(void)
{
	return vs_clock_ns(CLOCK_MONOTONIC);
}

static uint64_t counter_ns(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc() / 2; /* 1.5 to 4 GHz */
#elif defined(__aarch64__)
	uint64_t count, per_s;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
	__asm__("mrs %0, cntfrq_el0" : "=r"(per_s));
	return per_s && per_s < 1000000000 ? count * (1000000000 / per_s)
					   : count;
#else
	return monotonic_ns();
#endif
}

/* Most waits end within some microseconds: these rounds. Later ones sleep. */
#define ROUNDS_AWAKE 100
#define PAUSE_NS 20000

static void pause_a_while(unsigned round)
{
	if (round < ROUNDS_AWAKE)
		vs_sys_sched_yield();
	else
		vs_cancel_free_sleep(PAUSE_NS);
}

uint64_t (*vs_vmm_clock)(void) = monotonic_ns;
uint64_t (*vs_vmm_ticks)(void) = counter_ns;
void (*vs_vmm_pause)(unsigned round) = pause_a_while;

void vs_vmm_relax(CUstreamCaptureMode *saved_out)
{
	*saved_out = CU_STREAM_CAPTURE_MODE_RELAXED;
	vs_real.cuThreadExchangeStreamCaptureMode(saved_out);
}

void vs_vmm_unrelax(CUstreamCaptureMode saved)
{
	if (saved != CU_STREAM_CAPTURE_MODE_RELAXED)
		vs_real.cuThreadExchangeStreamCaptureMode(&saved);
}

/*
 * The same call failed in the same way the last time, and not 1, 2, 4, 8 ...
 * times in a row now: a driver that refuses every chunk does so for each
 * allocation. Threads that come at once may miscount: no matter.
 */
static bool is_old_news(CUresult result, const char *call)
{
	static const char *_Atomic last_call;
	static _Atomic int last_result;
	static _Atomic unsigned n;
	bool is_same = atomic_exchange(&last_call, call) == call;
	unsigned times = 0;

	is_same &= atomic_exchange(&last_result, (int)result) == (int)result;
	if (is_same)
		times = atomic_fetch_add(&n, 1) + 1;
	else
		atomic_store(&n, 0);
	return (times & (times + 1)) != 0;
}

/*
 * Logs a failed call once, here where it is first known. Of a kernel that
 * faulted the program hears by its own next call.
 */
static CUresult checked(CUresult result, const char *call)
{
	static const char text[] = "%s failed: %s";

	if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED)
		return result;
	if (is_old_news(result, call))
		vs_debug(text, call, vs_real_error(result));
	else if (vs_real_is_for_good(result))
		vs_info(text, call, vs_real_error(result));
	else
		vs_warn(text, call, vs_real_error(result));
	return result;
}

static int attribute(CUdevice device, CUdevice_attribute which)
{
	int value = 0;

	if (vs_real.cuDeviceGetAttribute(&value, which, device) != CUDA_SUCCESS)
		return 0;
	return value;
}

/*
 * Tries to create one granule with the properties in *d. A device that is full
 * says nothing of them: other processes may have idle memory to give.
 */
static bool accepts(struct vs_vmm_device *d)
{
	CUmemGenericAllocationHandle handle;
	size_t granularity;
	CUresult r;

	if (vs_real.cuMemGetAllocationGranularity(
		    &granularity, &d->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
		    CUDA_SUCCESS ||
	    granularity == 0 || (granularity & (granularity - 1)) != 0)
		return false;
	d->granularity = granularity;
	r = vs_real.cuMemCreate(&handle, granularity, &d->prop, 0);
	if (r != CUDA_SUCCESS)
		return r == CUDA_ERROR_OUT_OF_MEMORY;
	/* nobody keeps this handle: try twice rather than lose a granule */
	if (vs_real.cuMemRelease(handle) != CUDA_SUCCESS)
		checked(vs_real.cuMemRelease(handle), "cuMemRelease");
	return true;
}

static void wish_properties(struct vs_vmm_device *d)
{
	memset(&d->prop, 0, sizeof(d->prop));
	d->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	d->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	d->prop.location.id = d->device;
	if (attribute(
		    d->device,
		    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		d->prop.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (attribute(
		    d->device,
		    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
		d->prop.allocFlags.gpuDirectRDMACapable = 1;
#if CUDA_VERSION >= 12080
	if (attribute(d->device,
		      CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK))
		d->prop.allocFlags.usage |= CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
#endif
}

static uint64_t ask_id(CUdevice device, unsigned char uuid_out[16])
{
	uint64_t half[2];
	CUuuid uuid;

	_Static_assert(sizeof(uuid.bytes) == sizeof(half), "16 bytes");
	if (!vs_real.cuDeviceGetUuid_v2 ||
	    vs_real.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
		return 0;
	memcpy(uuid_out, uuid.bytes, sizeof(half));
	memcpy(half, uuid.bytes, sizeof(half));
	/* parts of one card differ in few bits, which may be in either half */
	return (half[0] * UINT64_C(0x9e3779b97f4a7c15)) ^ half[1];
}

uint64_t vs_vmm_device_id(CUdevice device)
{
	unsigned char uuid[16];

	return ask_id(device, uuid);
}

bool vs_vmm_probe(CUdevice device, struct vs_vmm_device *d)
{
	CUstreamCaptureMode saved;
	size_t total = 0;
	int version = 0;

	memset(d, 0, sizeof(*d));
	d->device = device;
	vs_real.cuDriverGetVersion(&version);
	d->has_context_events = version >= 12050 && vs_real.cuCtxRecordEvent;
	if (vs_real.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS ||
	    total == 0) {
		vs_info("device %d does not tell its memory: its allocations "
			"stay the driver's",
			device);
		return false;
	}
	d->total = total;
	d->id = ask_id(device, d->uuid);
	if (!attribute(
		    device,
		    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
		vs_info("device %d has no virtual memory management: its "
			"allocations stay the driver's",
			device);
		return false;
	}
	vs_vmm_relax(&saved);
	wish_properties(d);
	d->is_usable = accepts(d);
	if (!d->is_usable) {
		d->prop.allocFlags.usage = 0;
		d->is_usable = accepts(d);
	}
	if (!d->is_usable) {
		d->prop.allocFlags.gpuDirectRDMACapable = 0;
		d->is_usable = accepts(d);
	}
	if (!d->is_usable) {
		d->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
		d->is_usable = accepts(d);
	}
	vs_vmm_unrelax(saved);
	d->has_posix_fd = d->prop.requestedHandleTypes != 0;
	if (!d->is_usable)
		vs_info("device %d refuses every kind of physical chunk: its "
			"allocations stay the driver's",
			device);
	return d->is_usable;
}

CUresult vs_vmm_reserve(size_t size, size_t alignment, CUdeviceptr *base_out)
{
	CUstreamCaptureMode saved;
	CUresult r;

	vs_vmm_relax(&saved);
	r = vs_real.cuMemAddressReserve(base_out, size, alignment, 0, 0);
	vs_vmm_unrelax(saved);
	return r; /* the caller tries smaller sizes: not worth a line */
}

CUresult vs_vmm_unreserve(CUdeviceptr base, size_t size)
{
	return checked(vs_real.cuMemAddressFree(base, size),
		       "cuMemAddressFree");
}

CUresult vs_vmm_create(const struct vs_vmm_device *d, size_t size,
		       CUmemGenericAllocationHandle *handle_out)
{
	CUmemGenericAllocationHandle handle;
	CUresult r = vs_real.cuMemCreate(&handle, size, &d->prop, 0);

	if (r == CUDA_SUCCESS)
		*handle_out = handle;
	else if (r != CUDA_ERROR_OUT_OF_MEMORY)
		checked(r, "cuMemCreate");
	return r;
}

CUresult vs_vmm_release(CUmemGenericAllocationHandle handle)
{
	return checked(vs_real.cuMemRelease(handle), "cuMemRelease");
}

CUresult vs_vmm_map(CUdeviceptr at, size_t size,
		    CUmemGenericAllocationHandle handle)
{
	return checked(vs_real.cuMemMap(at, size, 0, handle, 0), "cuMemMap");
}

CUresult vs_vmm_unmap(CUdeviceptr at, size_t size)
{
	return checked(vs_real.cuMemUnmap(at, size), "cuMemUnmap");
}

CUresult vs_vmm_allow(CUdeviceptr at, size_t size, CUdevice owner,
		      uint64_t peers)
{
	CUmemAccessDesc access[VS_MAX_DEVICES];
	size_t n = 0;

	memset(access, 0, sizeof(access));
	for (int d = 0; d < VS_MAX_DEVICES; d++) {
		if (d != owner && !(peers >> d & 1))
			continue;
		access[n].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access[n].location.id = d;
		access[n].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		n++;
	}
	return checked(vs_real.cuMemSetAccess(at, size, access, n),
		       "cuMemSetAccess");
}

CUcontext vs_vmm_current(void)
{
	CUcontext current = NULL;

	return vs_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS ? current
								 : NULL;
}

/*
 * Whether `ctx`, or the current one if NULL, is alive: the driver lets one that
 * has ended be made current, and then cuCtxGetDevice reads its struct, which
 * may be gone (an H200: it answers, or crashes), and so may what makes the next
 * one current. This function looks, and by the handle reads nothing of the
 * context. One whose work has failed is alive.
 */
static CUresult look_at(CUcontext ctx)
{
	unsigned int version;
	CUresult r = vs_real.cuCtxGetApiVersion(ctx, &version);

	return vs_real_is_for_good(r) ? CUDA_SUCCESS : r;
}

bool vs_vmm_is_current_sound(void)
{
	unsigned int version;

	return vs_real.cuCtxGetApiVersion(NULL, &version) == CUDA_SUCCESS;
}

bool vs_vmm_is_current_alive(void)
{
	return look_at(NULL) == CUDA_SUCCESS;
}

/* Where neither is there to be asked the question would be an error itself. */
bool vs_vmm_is_permitted(CUcontext ctx)
{
	CUcontext current = NULL;

	if (vs_real.cuCtxGetCurrent(&current) == CUDA_ERROR_NOT_PERMITTED)
		return false;
	return (!ctx && !current) || look_at(ctx) != CUDA_ERROR_NOT_PERMITTED;
}

CUresult vs_vmm_current_device(CUdevice *device_out)
{
	CUresult r = look_at(NULL);

	return r == CUDA_SUCCESS ? vs_real.cuCtxGetDevice(device_out) : r;
}

/* Other answers, as in a host function, are for the push to give. */
static bool has_ended(CUcontext ctx)
{
	CUresult r = look_at(ctx);

	return r == CUDA_ERROR_INVALID_CONTEXT ||
	       r == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult vs_vmm_push(CUcontext ctx, bool *is_pushed_out)
{
	bool is_pushed = vs_vmm_current() != ctx;
	CUresult r = CUDA_SUCCESS;

	if (is_pushed)
		r = has_ended(ctx) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
				   : vs_real.cuCtxPushCurrent_v2(ctx);
	if (r == CUDA_SUCCESS)
		*is_pushed_out = is_pushed;
	return r;
}

void vs_vmm_pop(bool is_pushed)
{
	CUcontext popped;

	if (is_pushed)
		vs_real.cuCtxPopCurrent_v2(&popped);
}

CUdevice vs_vmm_device_of(CUcontext ctx)
{
	CUdevice device;
	bool is_pushed;
	CUresult r;

	if (vs_vmm_push(ctx, &is_pushed) != CUDA_SUCCESS)
		return CU_DEVICE_INVALID;
	r = vs_vmm_current_device(&device);
	vs_vmm_pop(is_pushed);
	return r == CUDA_SUCCESS ? device : CU_DEVICE_INVALID;
}

CUresult vs_vmm_unused(CUcontext ctx, uint64_t *bytes_out)
{
	size_t unused, total;
	bool is_pushed;
	CUresult r = vs_vmm_push(ctx, &is_pushed);

	if (r != CUDA_SUCCESS)
		return r;
	r = vs_real.cuMemGetInfo_v2(&unused, &total);
	vs_vmm_pop(is_pushed);
	if (r == CUDA_SUCCESS)
		*bytes_out = unused;
	return r;
}

/* Of the current context. */
static CUresult create_event(CUevent *event_out)
{
	CUevent event;
	CUresult r = vs_real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

	if (r != CUDA_SUCCESS)
		return checked(r, "cuEventCreate");
	*event_out = event;
	return CUDA_SUCCESS;
}

CUresult vs_vmm_event_create(CUcontext ctx, CUevent *event_out)
{
	bool is_pushed;
	CUresult r = vs_vmm_push(ctx, &is_pushed);

	if (r != CUDA_SUCCESS)
		return checked(r, "cuCtxPushCurrent");
	r = create_event(event_out);
	vs_vmm_pop(is_pushed);
	return r;
}

void vs_vmm_event_destroy(CUevent event)
{
	vs_real.cuEventDestroy_v2(event);
}

CUresult vs_vmm_event_query(CUevent event)
{
	return vs_real.cuEventQuery(event);
}

/*
 * A call about `ctx` answered `result`. If another context is current, that may
 * have answered for itself: then `ctx` is now, and the call is made again.
 */
static CUresult again(CUresult (*call)(CUcontext, CUevent), CUcontext ctx,
		      CUevent event, CUresult result)
{
	bool is_pushed;

	if (!vs_real_is_for_good(result) ||
	    vs_vmm_push(ctx, &is_pushed) != CUDA_SUCCESS)
		return result;
	if (is_pushed)
		result = call(ctx, event);
	vs_vmm_pop(is_pushed);
	return result;
}

static CUresult query(CUcontext ctx, CUevent event)
{
	(void)ctx;
	return vs_real.cuEventQuery(event);
}

CUresult vs_vmm_record_again(CUcontext ctx, CUevent event, CUresult result)
{
	return again(vs_real.cuCtxRecordEvent, ctx, event, result);
}

CUresult vs_vmm_query_again(CUcontext ctx, CUevent event, CUresult result)
{
	return again(query, ctx, event, result);
}

CUresult vs_vmm_follow_again(CUcontext ctx, CUevent event, CUresult result)
{
	return again(vs_real.cuCtxWaitEvent, ctx, event, result);
}

CUresult vs_vmm_event_wait(CUevent event)
{
	CUstreamCaptureMode saved;
	CUresult r;

	vs_vmm_relax(&saved);
	r = vs_real.cuEventSynchronize(event);
	vs_vmm_unrelax(saved);
	return r;
}

CUresult vs_vmm_event_mark(CUcontext ctx, CUevent *event_out)
{
	CUevent event = NULL;
	bool is_pushed;
	CUresult r = vs_vmm_push(ctx, &is_pushed);

	if (r != CUDA_SUCCESS)
		return checked(r, "cuCtxPushCurrent");
	r = create_event(&event);
	if (r == CUDA_SUCCESS) {
		r = vs_real.cuEventRecord(event, CU_STREAM_LEGACY);
		if (r == CUDA_SUCCESS)
			*event_out = event;
		else
			vs_vmm_event_destroy(event);
	}
	vs_vmm_pop(is_pushed);
	return r;
}

CUresult vs_vmm_event_follow(CUcontext ctx, CUevent event)
{
	bool is_pushed;
	CUresult r = vs_vmm_push(ctx, &is_pushed);

	if (r == CUDA_SUCCESS) {
		r = vs_real.cuStreamWaitEvent(CU_STREAM_LEGACY, event, 0);
		vs_vmm_pop(is_pushed);
	}
	return r;
}

CUresult vs_vmm_ctx_wait(CUcontext ctx)
{
	CUstreamCaptureMode saved;
	bool is_pushed;
	CUresult r = vs_vmm_push(ctx, &is_pushed);

	if (r != CUDA_SUCCESS)
		return r;
	vs_vmm_relax(&saved);
	r = vs_real.cuCtxSynchronize();
	vs_vmm_unrelax(saved);
	vs_vmm_pop(is_pushed);
	return r;
}

CUcontext vs_vmm_primary(CUdevice device)
{
	CUcontext ctx = NULL;
	unsigned flags;
	int is_active = 0;

	if (vs_real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) !=
		    CUDA_SUCCESS ||
	    !is_active ||
	    vs_real.cuDevicePrimaryCtxRetain(&ctx, device) != CUDA_SUCCESS)
		return NULL;
	vs_real.cuDevicePrimaryCtxRelease_v2(device);
	return ctx;
}
