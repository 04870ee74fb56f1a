/* SPDX-License-Identifier: MIT
 *
 * query: what the program is told of its memory. An allocation of the pool
 * looks like one of cuMemAlloc in every answer, an interior pointer too; an
 * address of the pool that is not allocated is unknown, as a freed one of the
 * driver's. tests/e2e/golden.test compares.
 */
#include "hook/hook.h"

#include <string.h>

#include "driver/vmm.h"
#include "hook/ipc.h"
#include "hook/memops.h"
#include "hook/peer.h"
#include "pool/pool.h"
#include "pool/share.h"

#define BLOCK ((CUdeviceptr)2 << 20) /* what the driver maps cuMemAlloc in */
/* Keeps our ids out of the driver's, which count up from 1. */
#define ID_BASE (UINT64_C(1) << 62)

static bool base(const struct vs_span *s, uint64_t *out)
{
	*out = s->base;
	return true;
}

static bool size(const struct vs_span *s, uint64_t *out)
{
	*out = s->size;
	return true;
}

static bool mapping_base(const struct vs_span *s, uint64_t *out)
{
	*out = s->base & ~(BLOCK - 1);
	return true;
}

static bool mapping_size(const struct vs_span *s, uint64_t *out)
{
	CUdeviceptr end = (s->base + s->size + BLOCK - 1) & ~(BLOCK - 1);

	*out = end - (s->base & ~(BLOCK - 1));
	return true;
}

static bool context(const struct vs_span *s, uint64_t *out)
{
	*out = (uintptr_t)s->ctx;
	return true;
}

static bool ordinal(const struct vs_span *s, uint64_t *out)
{
	*out = (uint64_t)s->device;
	return true;
}

static bool id(const struct vs_span *s, uint64_t *out)
{
	*out = ID_BASE | s->id;
	return true;
}

static bool device_memory(const struct vs_span *s, uint64_t *out)
{
	(void)s;
	*out = CU_MEMORYTYPE_DEVICE;
	return true;
}

static bool yes(const struct vs_span *s, uint64_t *out)
{
	(void)s;
	*out = 1;
	return true;
}

/* Memory of another process cannot be exported again. */
static bool ipc_capable(const struct vs_span *s, uint64_t *out)
{
	*out = vs_pool_is_inside(s->base) && vs_share_is_capable(s->device);
	return true;
}

static bool no(const struct vs_span *s, uint64_t *out)
{
	(void)s;
	*out = 0;
	return true;
}

#if CUDA_VERSION >= 12080
/*
 * cuMemAlloc memory says yes, also on a card that has no such hardware, and
 * what was opened by IPC no (an H100); where there is some, chunks are made
 * for it and the driver knows best.
 */
static bool decompressible(const struct vs_span *s, uint64_t *out)
{
	int mask = 0;

	*out = vs_pool_is_inside(s->base);
	return vs_real.cuDeviceGetAttribute(
		       &mask, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
		       s->device) == CUDA_SUCCESS &&
	       mask == 0;
}
#endif

/*
 * The device of the current context, `current`, as a rule the memory's own.
 * CU_DEVICE_INVALID: none, or the driver has an error to say.
 */
static inline CUdevice device_of(CUcontext current, const struct vs_span *span)
{
	return current && current == span->ctx ? span->device
					       : vs_pool_ctx_device(current);
}

/*
 * The pool is open to the device of the current context by more than the
 * program knows: by copies between devices, or by peer access that it has
 * switched off again.
 */
static bool is_closed(const struct vs_span *span, CUcontext current,
		      CUdevice device)
{
	return device != span->device && vs_pool_is_inside(span->base) &&
	       !vs_peer_is_enabled(current, span->ctx);
}

/* Of memory that the current context cannot reach, too (on two H200). */
static bool read_write(const struct vs_span *s, uint64_t *out)
{
	(void)s;
	*out = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	return true;
}

/*
 * What cuMemAlloc memory answers; false: what the driver says of the pool's
 * is the same. So it is for attributes without a row.
 */
static bool (*const answers[])(const struct vs_span *s, uint64_t *value_out) = {
	[CU_POINTER_ATTRIBUTE_CONTEXT] = context,
	[CU_POINTER_ATTRIBUTE_MEMORY_TYPE] = device_memory,
	[CU_POINTER_ATTRIBUTE_SYNC_MEMOPS] = vs_memops_get,
	[CU_POINTER_ATTRIBUTE_BUFFER_ID] = id,
	[CU_POINTER_ATTRIBUTE_IS_MANAGED] = no,
	[CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL] = ordinal,
	[CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] = ipc_capable,
	[CU_POINTER_ATTRIBUTE_RANGE_START_ADDR] = base,
	[CU_POINTER_ATTRIBUTE_RANGE_SIZE] = size,
	[CU_POINTER_ATTRIBUTE_MAPPED] = yes,
	[CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES] = no,
	[CU_POINTER_ATTRIBUTE_ACCESS_FLAGS] = read_write,
	[CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE] = no,
	[CU_POINTER_ATTRIBUTE_MAPPING_SIZE] = mapping_size,
	[CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR] = mapping_base,
	[CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID] = id,
#if CUDA_VERSION >= 12080
	[CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE] = decompressible,
#endif
};

#define N_ANSWERS (sizeof(answers) / sizeof(answers[0]))

/*
 * How many bytes the driver writes: nobody says whether a flag is a bool or an
 * int. Asked once for each attribute, of the memory in question. 0: it has an
 * error to say, be it the attribute that it does not know.
 */
static size_t width_of(CUpointer_attribute attribute, CUdeviceptr p)
{
	enum { UNTOUCHED = 0xa5, ROOM = 16 };
	static _Atomic unsigned char known[N_ANSWERS];
	unsigned char data[ROOM], n = known[attribute];

	if (n)
		return n;
	memset(data, UNTOUCHED, sizeof(data));
	if (vs_real.cuPointerGetAttribute(data, attribute, p) != CUDA_SUCCESS)
		return 0;
	for (n = ROOM; n > 1 && data[n - 1] == UNTOUCHED; n--)
		;
	known[attribute] = n;
	return n;
}

static bool answer(void *data, CUpointer_attribute attribute, CUdeviceptr p,
		   const struct vs_span *span)
{
	uint64_t value[2] = {0, 0};
	size_t width;

	if ((size_t)attribute >= N_ANSWERS || !answers[attribute] ||
	    !answers[attribute](span, value))
		return false;
	width = width_of(attribute, p);
	memcpy(data, value, width);
	return width > 0;
}

/* The address on the current device of what that cannot reach. */
static bool is_hidden(CUpointer_attribute attribute, const struct vs_span *span,
		      CUcontext current)
{
	CUdevice device = CU_DEVICE_INVALID;

	if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
		device = device_of(current, span);
	return device != CU_DEVICE_INVALID && is_closed(span, current, device);
}

/* Whose an address is. */
enum owner {
	FOREIGN, /* the driver knows */
	FREE,	 /* the pool's or an import's, but nobody's allocation */
	OURS,
};

static enum owner owner_of(CUdeviceptr p, struct vs_span *span_out)
{
	if (vs_ipc_find_either(p, span_out))
		return OURS;
	return vs_pool_is_inside(p) || vs_ipc_is_inside(p) ? FREE : FOREIGN;
}

/*
 * What the driver may have to say where no context is current, as in a host
 * function: an error, whatever is asked.
 */
static bool is_refusal(CUresult result)
{
	return result == CUDA_ERROR_INVALID_CONTEXT ||
	       result == CUDA_ERROR_NOT_PERMITTED;
}

VS_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void *data,
						 CUpointer_attribute attribute,
						 CUdeviceptr p)
{
	enum owner owner = FOREIGN;
	CUcontext current = NULL;
	struct vs_span span;
	CUresult result;

	if (vs_enter(VS_API_cuPointerGetAttribute))
		owner = owner_of(p, &span);
	if (owner == OURS && !(current = vs_vmm_current())) {
		result = vs_real.cuPointerGetAttribute(data, attribute, p);
		if (is_refusal(result))
			return result;
	}
	if (owner == OURS && data && answer(data, attribute, p, &span))
		return CUDA_SUCCESS;
	if (owner == OURS && data && is_hidden(attribute, &span, current)) {
		*(CUdeviceptr *)data = 0;
		return CUDA_ERROR_INVALID_VALUE;
	}
	return vs_seen(vs_real.cuPointerGetAttribute(
		data, attribute, owner == FREE ? vs_unknown_address() : p));
}

/* The driver may say of an unknown address that it is the host's. */
static CUresult get_unknown(unsigned int n, CUpointer_attribute *attributes,
			    void **data, CUdeviceptr p)
{
	CUresult result = vs_seen(vs_real.cuPointerGetAttributes(
		n, attributes, data, vs_unknown_address()));

	for (unsigned int i = 0; i < n && result == CUDA_SUCCESS; i++)
		if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER &&
		    *(CUdeviceptr *)data[i] == vs_unknown_address())
			*(CUdeviceptr *)data[i] = p;
	return result;
}

/* What the driver is to say, by one call as a rule. */
struct rest {
	unsigned int n;
	CUpointer_attribute attributes[8];
	void *data[8];
};

static CUresult get_rest(struct rest *rest, CUdeviceptr p)
{
	unsigned int n = rest->n;

	rest->n = 0;
	return n > 0 ? vs_real.cuPointerGetAttributes(n, rest->attributes,
						      rest->data, p)
		     : CUDA_SUCCESS;
}

static CUresult get_later(struct rest *rest, CUpointer_attribute attribute,
			  void *data, CUdeviceptr p)
{
	rest->attributes[rest->n] = attribute;
	rest->data[rest->n++] = data;
	return rest->n < sizeof(rest->data) / sizeof(rest->data[0])
		       ? CUDA_SUCCESS
		       : get_rest(rest, p);
}

static CUresult get_ours(unsigned int n, CUpointer_attribute *attributes,
			 void **data, CUdeviceptr p, const struct vs_span *span,
			 CUcontext current)
{
	CUresult result = CUDA_SUCCESS;
	struct rest rest;

	rest.n = 0;
	for (unsigned int i = 0; i < n && result == CUDA_SUCCESS; i++) {
		if (data[i] && answer(data[i], attributes[i], p, span))
			continue;
		result = is_hidden(attributes[i], span, current)
				 ? vs_real.cuPointerGetAttributes(
					   1, &attributes[i], &data[i],
					   vs_unknown_address())
				 : get_later(&rest, attributes[i], data[i], p);
	}
	if (result == CUDA_SUCCESS)
		result = get_rest(&rest, p);
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI
cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes,
		       void **data, CUdeviceptr p)
{
	enum owner owner = FOREIGN;
	CUcontext current = NULL;
	struct vs_span span;
	CUresult result;

	if (vs_enter(VS_API_cuPointerGetAttributes))
		owner = owner_of(p, &span);
	if (owner == OURS && !(current = vs_vmm_current())) {
		result = vs_real.cuPointerGetAttributes(n, attributes, data, p);
		if (is_refusal(result))
			return result;
	}
	if (owner == OURS && n && attributes && data)
		return get_ours(n, attributes, data, p, &span, current);
	if (owner == FREE)
		return get_unknown(n, attributes, data, p);
	return vs_seen(vs_real.cuPointerGetAttributes(n, attributes, data, p));
}

VS_EXPORT CUresult CUDAAPI cuPointerSetAttribute(const void *value,
						 CUpointer_attribute attribute,
						 CUdeviceptr p)
{
	enum owner owner = FOREIGN;
	CUcontext current = NULL;
	struct vs_span span;
	CUresult result;

	if (vs_enter(VS_API_cuPointerSetAttribute))
		owner = owner_of(p, &span);
	if (owner == OURS && !(current = vs_vmm_current())) {
		result = vs_real.cuPointerSetAttribute(value, attribute, p);
		if (is_refusal(result))
			return result;
	}
	/* that of a thread whose context has ended (an H200) */
	if (current && device_of(current, &span) == CU_DEVICE_INVALID)
		return CUDA_ERROR_INVALID_VALUE;
	if (owner == OURS && value &&
	    attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return vs_memops_set(&span, *(const unsigned int *)value != 0);
	/* nothing else can be set, of any memory; VMM memory's error differs */
	return vs_seen(vs_real.cuPointerSetAttribute(
		value, attribute, owner == FOREIGN ? p : vs_unknown_address()));
}

VS_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base_out,
						   size_t *size_out,
						   CUdeviceptr p)
{
	CUdevice device = CU_DEVICE_INVALID;
	enum owner owner = FOREIGN;
	CUcontext current = NULL;
	struct vs_span span;

	if (vs_enter(VS_API_cuMemGetAddressRange_v2))
		owner = owner_of(p, &span);
	if (owner == OURS) {
		current = vs_vmm_current();
		device = device_of(current, &span);
	}
	/* the driver knows what the current context can reach */
	if (device != CU_DEVICE_INVALID && is_closed(&span, current, device))
		owner = FREE;
	if (owner != OURS || device == CU_DEVICE_INVALID)
		return vs_seen(vs_real.cuMemGetAddressRange_v2(
			base_out, size_out,
			owner == FREE ? vs_unknown_address() : p));
	if (base_out)
		*base_out = span.base;
	if (size_out)
		*size_out = span.size;
	return CUDA_SUCCESS;
}

/* Of cuMemAlloc memory the driver says success, and no access. */
VS_EXPORT CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags,
					  const CUmemLocation *location,
					  CUdeviceptr p)
{
	enum owner owner = FOREIGN;
	struct vs_span span;
	CUresult result;

	if (vs_enter(VS_API_cuMemGetAccess))
		owner = owner_of(p, &span);
	result = vs_seen(vs_real.cuMemGetAccess(
		flags, location, owner == FREE ? vs_unknown_address() : p));
	if (result == CUDA_SUCCESS && owner == OURS)
		*flags = 0;
	return result;
}

/*
 * The driver takes VMM memory for the host's in the two below, and refuses that
 * of cuMemAlloc (an H200).
 */
static bool is_no_hosts(const void *p)
{
	struct vs_span span;

	return owner_of((uintptr_t)p, &span) != FOREIGN;
}

VS_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *out,
							void *p,
							unsigned int flags)
{
	bool is_ours =
		vs_enter(VS_API_cuMemHostGetDevicePointer_v2) && is_no_hosts(p);
	CUdeviceptr unused;
	CUresult result = vs_real.cuMemHostGetDevicePointer_v2(
		is_ours && out ? &unused : out, p, flags);

	if (is_ours && result == CUDA_SUCCESS)
		result = CUDA_ERROR_INVALID_VALUE;
	return vs_seen(result);
}

VS_EXPORT CUresult CUDAAPI cuMemHostGetFlags(unsigned int *out, void *p)
{
	bool is_ours = vs_enter(VS_API_cuMemHostGetFlags) && is_no_hosts(p);
	unsigned int unused;
	CUresult result =
		vs_real.cuMemHostGetFlags(is_ours && out ? &unused : out, p);

	if (is_ours && result == CUDA_SUCCESS)
		result = CUDA_ERROR_INVALID_VALUE;
	return vs_seen(result);
}

#define PAGE ((CUdeviceptr)64 << 10) /* what programs round a range to */

/*
 * Pins what a range reaches into; whether there is anything. Programs round to
 * pages: it may begin before the allocation and end behind it.
 */
static bool pin(CUdeviceptr p, size_t length)
{
	bool is_begun;

	if (length <= 2 * PAGE)
		return vs_pool_pin_between(p, p + length);
	is_begun = vs_pool_pin_between(p, p + PAGE);
	return vs_pool_pin_between(p + length - PAGE, p + length) || is_begun;
}

/*
 * The handle stays with whoever asked for it, so the memory is not used for
 * anything else after its free.
 */
VS_EXPORT CUresult CUDAAPI cuMemGetHandleForAddressRange(
	void *handle, CUdeviceptr p, size_t length, CUmemRangeHandleType type,
	unsigned long long flags)
{
	if (vs_enter(VS_API_cuMemGetHandleForAddressRange) && length > 0 &&
	    vs_pool_is_inside(p) && !pin(p, length))
		p = vs_unknown_address() & ~(PAGE / 16 - 1);
	return vs_seen(vs_real.cuMemGetHandleForAddressRange(handle, p, length,
							     type, flags));
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * The pool's idle and pending memory is free to the program, and the card is
 * no larger than knob MEMORY_LIMIT.
 */
static void add_reclaimable(struct vs_pool *pool, size_t *free_out,
			    size_t *total_out)
{
	uint64_t limit = 0, held = 0;
	uint64_t reclaimable = vs_pool_reclaimable(pool, &limit, &held);
	uint64_t free = *free_out + reclaimable, total = *total_out;

	if (limit && limit < total) {
		uint64_t live = held - lesser(held, reclaimable);

		total = limit;
		free = lesser(free, limit - lesser(limit, live));
	}
	*free_out = lesser(free, total);
	*total_out = total;
}

enum { INFO_TRIES = 8 };

static CUresult get_info(struct vs_pool *pool, size_t *free_out,
			 size_t *total_out)
{
	CUresult result = vs_real.cuMemGetInfo_v2(free_out, total_out);
	size_t free, total;

	if (result != CUDA_SUCCESS)
		return result;
	if (free_out && total_out) {
		free = *free_out;
		total = *total_out;
	} else if (vs_real.cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) {
		return result;
	}
	add_reclaimable(pool, &free, &total);
	if (free_out)
		*free_out = free;
	if (total_out)
		*total_out = total;
	return result;
}

/* What goes back meanwhile would count twice, or not at all. */
static CUresult get_info_at_rest(struct vs_pool *pool, size_t *free_out,
				 size_t *total_out)
{
	uint64_t before, after = vs_pool_moves(pool);
	CUresult result;
	int n = 0;

	do {
		before = after;
		result = get_info(pool, free_out, total_out);
		after = vs_pool_moves(pool);
	} while (result == CUDA_SUCCESS && after != before && ++n < INFO_TRIES);
	return result;
}

VS_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
	struct vs_pool *pool;
	struct vs_thread *t;
	CUresult result;

	t = vs_enter(VS_API_cuMemGetInfo_v2) ? vs_thread_self() : NULL;
	if (!vs_thread_go_within(t))
		return vs_seen(vs_real.cuMemGetInfo_v2(free_out, total_out));
	pool = vs_pool_current();
	result = pool ? get_info_at_rest(pool, free_out, total_out)
		      : vs_real.cuMemGetInfo_v2(free_out, total_out);
	vs_thread_come_out(t);
	return vs_seen(result);
}
