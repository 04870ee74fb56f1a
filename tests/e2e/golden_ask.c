/* SPDX-License-Identifier: MIT
 *
 * golden_ask: what is asked about one pointer, and how answers are printed.
 */
#include <unistd.h>

#include "golden.h"

struct golden_calls cu, cu_pt;
CUcontext golden_ctx[2];

/* Filled in before a question, so that it can be seen what was written. */
#define UNTOUCHED 0xa5
#define ROOM 16

static struct {
	const char *name;
	CUdeviceptr base;
	size_t size;
} names[32];
static int n_names;

const char *golden_code(CUresult result)
{
	const char *name = "?";

	if (result == CUDA_SUCCESS)
		return "CUDA_SUCCESS";
	cu.cuGetErrorName(result, &name);
	return name;
}

void golden_name(const char *name, CUdeviceptr base, size_t size)
{
	int i = 0;

	while (i < n_names && strcmp(names[i].name, name))
		i++;
	CHECK(i < 32);
	if (i == n_names)
		n_names++;
	names[i].name = name;
	names[i].base = base;
	names[i].size = size;
}

const char *golden_place(CUdeviceptr p)
{
	static char text[8][64];
	static unsigned next;
	char *t = text[next++ % 8];

	if (p == 0)
		return "0";
	/* the latest first: addresses are used again */
	for (int i = n_names - 1; i >= 0; i--) {
		if (p < names[i].base || p > names[i].base + names[i].size)
			continue;
		snprintf(t, sizeof(text[0]), "%s+%#" PRIx64, names[i].name,
			 (uint64_t)(p - names[i].base));
		return t;
	}
	return "elsewhere";
}

CUdeviceptr golden_alloc(const char *name, size_t size)
{
	CUdeviceptr p = 0;

	TRY(cu.cuMemAlloc_v2(&p, size));
	CHECK(p % 512 == 0);
	golden_name(name, p, size);
	return p;
}

static const char *context(uint64_t value)
{
	if (!value)
		return "none";
	for (int i = 0; i < 2; i++)
		if ((CUcontext)(uintptr_t)value == golden_ctx[i])
			return i ? "context 1" : "context 0";
	return "another context";
}

/* Ids of one kind: which were seen before. */
static const char *id(CUpointer_attribute kind, uint64_t value)
{
	static struct {
		CUpointer_attribute kind;
		uint64_t value;
	} seen[512];
	static char text[32];
	static int n;

	for (int i = n - 1; i >= 0; i--) {
		if (seen[i].kind != kind || seen[i].value != value)
			continue;
		snprintf(text, sizeof(text), "as %d before", n - 1 - i);
		return text;
	}
	if (value == 0)
		return "0";
	CHECK(n < 512);
	seen[n].kind = kind;
	seen[n++].value = value;
	return "new";
}

/* Whether the mapping covers the allocation, in blocks of 2 MiB. */
static CUdeviceptr mapping_base;

static void show_value(CUpointer_attribute what, const void *data,
		       unsigned bytes)
{
	uint64_t value = 0;

	memcpy(&value, data, bytes < 8 ? bytes : 8);
	switch (what) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		printf(" %s", context(value));
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		printf(" %s", golden_place(value));
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		printf(" %s", id(what, value));
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		/* small allocations may share a block, or not */
		printf(" %s", value ? "some" : "none");
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		mapping_base = value;
		printf(" %s", !value		       ? "none"
			      : value % (2 * MiB) == 0 ? "of 2 MiB"
						       : "odd");
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		printf(" %s", !value		       ? "none"
			      : value % (2 * MiB) == 0 ? "of 2 MiB"
						       : "odd");
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		printf(" %s", value ? "some" : "none");
		break;
	default:
		printf(" %" PRIu64, value);
	}
}

static unsigned touched(const unsigned char *data)
{
	unsigned n = ROOM;

	while (n > 0 && data[n - 1] == UNTOUCHED)
		n--;
	return n;
}

static void one_by_one(const char *what, CUdeviceptr p)
{
	unsigned char data[ROOM];

	for (int a = 0; a <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE + 2;
	     a++) {
		CUpointer_attribute attribute = (CUpointer_attribute)a;
		CUresult result;

		memset(data, UNTOUCHED, sizeof(data));
		result = cu.cuPointerGetAttribute(data, attribute, p);
		printf("%s: attribute %d: %s", what, a, golden_code(result));
		if (a != CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
			if (result == CUDA_SUCCESS)
				show_value(attribute, data, touched(data));
			printf(", %u bytes", touched(data));
		}
		printf("\n");
	}
	printf("%s: attribute to NULL: %s\n", what,
	       golden_code(cu.cuPointerGetAttribute(
		       NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p)));
}

static void all_at_once(const char *what, CUdeviceptr p)
{
	enum { N = CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE };
	CUpointer_attribute attributes[N];
	unsigned char room[N][ROOM];
	void *data[N];
	CUresult result;
	int n = 0;

	memset(room, UNTOUCHED, sizeof(room));
	for (int a = 1; a <= N; a++) {
		if (a == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
			continue;
		attributes[n] = (CUpointer_attribute)a;
		data[n] = room[n];
		n++;
	}
	result = cu.cuPointerGetAttributes((unsigned)n, attributes, data, p);
	printf("%s: attributes: %s", what, golden_code(result));
	for (int i = 0; i < n; i++) {
		printf("; %d:", attributes[i]);
		show_value(attributes[i], room[i], touched(room[i]));
		printf("/%u", touched(room[i]));
	}
	printf("\n");
	attributes[0] = (CUpointer_attribute)99;
	printf("%s: attributes, a wrong one: %s\n", what,
	       golden_code(cu.cuPointerGetAttributes(1, attributes, data, p)));
	printf("%s: no attributes: %s\n", what,
	       golden_code(cu.cuPointerGetAttributes(0, attributes, data, p)));
}

/* More of what the driver says itself than the shim asks in one call. */
static void many_times(const char *what, CUdeviceptr p)
{
	enum { N = 20 };
	CUpointer_attribute attributes[N];
	CUdeviceptr at[N];
	void *data[N];
	CUresult result;
	int n_same = 0;

	for (int i = 0; i < N; i++) {
		attributes[i] = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
		at[i] = 7;
		data[i] = &at[i];
	}
	result = cu.cuPointerGetAttributes(N, attributes, data, p);
	for (int i = 0; i < N; i++)
		n_same += at[i] == p;
	printf("%s: one attribute %d times: %s, %d the same\n", what, N,
	       golden_code(result), n_same);
}

static void ranges(const char *what, CUdeviceptr p)
{
	CUdeviceptr base = 7;
	size_t size = 7;
	CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, p);

	printf("%s: range: %s", what, golden_code(result));
	if (result == CUDA_SUCCESS)
		printf(" %s %zu", golden_place(base), size);
	else
		printf(" %s", base == 7 && size == 7 ? "kept" : "changed");
	base = 7;
	size = 7;
	result = cu.cuMemGetAddressRange_v2(NULL, &size, p);
	printf("; size alone: %s", golden_code(result));
	result = cu.cuMemGetAddressRange_v2(&base, NULL, p);
	printf("; base alone: %s", golden_code(result));
	result = cu.cuMemGetAddressRange_v2(NULL, NULL, p);
	printf("; neither: %s\n", golden_code(result));
}

void golden_describe(const char *what, CUdeviceptr p)
{
	one_by_one(what, p);
	all_at_once(what, p);
	many_times(what, p);
	ranges(what, p);
}

static void show_access(const char *what, CUdeviceptr p, CUmemLocationType type,
			int number)
{
	CUmemLocation where = {.type = type};
	unsigned long long flags = 7;
	CUresult result;

	where.id = number;
	result = cu.cuMemGetAccess(&flags, &where, p);
	printf("%s: access of %d %d: %s %llu\n", what, (int)type, number,
	       golden_code(result), flags);
}

static void handle_for(const char *what, const char *part, CUdeviceptr p,
		       size_t size)
{
	int fd = -1;
	CUresult result = cu.cuMemGetHandleForAddressRange(
		&fd, p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

	printf("%s: handle of %s: %s\n", what, part, golden_code(result));
	if (result == CUDA_SUCCESS)
		close(fd);
}

static void set(const char *what, CUpointer_attribute attribute, unsigned value,
		CUdeviceptr p)
{
	CUresult result = cu.cuPointerSetAttribute(&value, attribute, p);
	unsigned char data[ROOM] = {0};

	printf("%s: set %d to %u: %s", what, attribute, value,
	       golden_code(result));
	if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
		result = cu.cuPointerGetAttribute(data, attribute, p);
		printf(", then %s %d", golden_code(result), data[0]);
	}
	printf("\n");
}

void golden_codes(const char *what, CUdeviceptr p)
{
	CUdeviceptr around = p & ~(CUdeviceptr)(64 * KiB - 1);
	CUmemGenericAllocationHandle handle;
	CUipcMemHandle ipc;
	CUresult result;

	result = cu.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p);
	printf("%s: retain: %s\n", what, golden_code(result));
	if (result == CUDA_SUCCESS)
		cu.cuMemRelease(handle);
	show_access(what, p, CU_MEM_LOCATION_TYPE_DEVICE, 0);
	show_access(what, p, CU_MEM_LOCATION_TYPE_DEVICE, 99);
	show_access(what, p, CU_MEM_LOCATION_TYPE_INVALID, 0);
	/* cleared, it may be set again by the time of the next look */
	set(what, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 0, p);
	set(what, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 1, p);
	set(what, CU_POINTER_ATTRIBUTE_BUFFER_ID, 1, p);
	set(what, CU_POINTER_ATTRIBUTE_IS_MANAGED, 1, p);
	printf("%s: set to NULL: %s\n", what,
	       golden_code(cu.cuPointerSetAttribute(
		       NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p)));
	handle_for(what, "nothing", p, 0);
	handle_for(what, "the page around", around, 4096);
	handle_for(what, "64 KiB around", around, 64 * KiB);
	handle_for(what, "an odd place", around + 8, 4096);
	handle_for(what, "an odd size", around, 1000);
	printf("%s: ipc: %s\n", what,
	       golden_code(cu.cuIpcGetMemHandle(&ipc, p)));
}

void golden_pages(const char *what, CUdeviceptr p, size_t size)
{
	CUdeviceptr around = p & ~(CUdeviceptr)(64 * KiB - 1);

	/* small ones share theirs */
	if (size >= 64 * KiB)
		handle_for(what, "all its pages", around,
			   (p + size - around) / 4096 * 4096);
}

void golden_mapping(const char *what, CUdeviceptr p, size_t size)
{
	const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = here};
	const CUmemAccessDesc access = {.location = here,
					.flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
	CUdeviceptr at = p & ~(CUdeviceptr)(2 * MiB - 1);
	CUmemGenericAllocationHandle handle;

	TRY(cu.cuMemCreate(&handle, 2 * MiB, &prop, 0));
	printf("%s: set access: %s\n", what,
	       golden_code(cu.cuMemSetAccess(at, 2 * MiB, &access, 1)));
	printf("%s: map: %s\n", what,
	       golden_code(cu.cuMemMap(at, 2 * MiB, 0, handle, 0)));
	printf("%s: unmap: %s\n", what,
	       golden_code(cu.cuMemUnmap(at, 2 * MiB)));
	printf("%s: free addresses: %s\n", what,
	       golden_code(cu.cuMemAddressFree(at, 2 * MiB)));
	TRY(cu.cuMemRelease(handle));
	printf("%s: then set: %s\n", what,
	       golden_code(cu.cuMemsetD8_v2(p, 1, size)));
	TRY(cu.cuCtxSynchronize());
}
