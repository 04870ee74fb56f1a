/* SPDX-License-Identifier: MIT
 *
 * victim_query: what the driver tells of an allocation, which must be what it
 * tells of memory of cuMemAlloc.
 */
#include "victim_link.h"

static CUresult attribute(CUpointer_attribute what, CUdeviceptr p,
			  uint64_t *value)
{
	*value = 0;
	return cuPointerGetAttribute(value, what, p);
}

static void show(const char *name, CUpointer_attribute what, CUdeviceptr p)
{
	uint64_t value;
	CUresult result = attribute(what, p, &value);

	printf("%s: %s %" PRIu64 "\n", name, victim_name(result),
	       result ? 0 : value);
}

static void describe(size_t size, CUcontext ctx)
{
	CUdeviceptr p = victim_alloc(size), base;
	size_t range;
	uint64_t value, id, second_id;
	unsigned yes = 1;
	CUmemGenericAllocationHandle handle;
	CUpointer_attribute both[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	unsigned type = 0;
	size_t range_size = 0;
	void *values[] = {&type, &range_size};
	CUresult result;

	printf("-- %zu bytes\n", size);
	TRY(cuMemGetAddressRange(&base, &range, p + size - 1));
	printf("range +%" PRIu64 " %zu\n", (uint64_t)(p - base), range);
	printf("range of the end: %s\n",
	       victim_name(cuMemGetAddressRange(&base, &range, p + size)));
	result = attribute(CU_POINTER_ATTRIBUTE_CONTEXT, p, &value);
	printf("context: %s %d\n", victim_name(result),
	       (CUcontext)(uintptr_t)value == ctx);
	result = attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p, &value);
	printf("start: %s %d\n", victim_name(result), value == p);
	show("range size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + size / 2);
	show("memory type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
	show("managed", CU_POINTER_ATTRIBUTE_IS_MANAGED, p);
	show("mapped", CU_POINTER_ATTRIBUTE_MAPPED, p);
	show("ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p);
	show("legacy ipc", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p);
	show("handle types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p);
	show("access", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p);
	show("mempool", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
	show("host pointer", CU_POINTER_ATTRIBUTE_HOST_POINTER, p);
	TRY(cuPointerGetAttributes(2, both, values, p));
	printf("both: %u %zu\n", type, range_size);
	printf("sync memops: %s\n",
	       victim_name(cuPointerSetAttribute(
		       &yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p)));
	printf("host's: %s, flags %s\n",
	       victim_name(cuMemHostGetDevicePointer(&base,
						     (void *)(uintptr_t)p, 0)),
	       victim_name(cuMemHostGetFlags(&type, (void *)(uintptr_t)p)));
	printf("retain handle: %s\n", victim_name(cuMemRetainAllocationHandle(
					      &handle, (void *)(uintptr_t)p)));
	TRY(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, p, &id));
	victim_free(p);
	printf("freed: %s\n",
	       victim_name(
		       attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p, &value)));
	p = victim_alloc(size);
	TRY(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, p, &second_id));
	printf("new id: %d\n", id != second_id);
	victim_free(p);
}

/* From a host function the driver answers nothing. */
static void CUDA_CB ask_from_host_function(void *argument)
{
	CUdeviceptr p = *(CUdeviceptr *)argument, base;
	CUpointer_attribute type = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	unsigned value = 1;
	void *values = &value;
	CUipcMemHandle handle;
	size_t range;

	/* nor the names of errors */
	printf("host function: range %d, handle %d\n",
	       (int)cuMemGetAddressRange(&base, &range, p),
	       (int)cuIpcGetMemHandle(&handle, p));
	printf("attribute %d, attributes %d, set %d\n",
	       (int)cuPointerGetAttribute(&value, type, p),
	       (int)cuPointerGetAttributes(1, &type, &values, p),
	       (int)cuPointerSetAttribute(&value,
					  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
}

int main(void)
{
	CUcontext ctx = victim_start(0);
	size_t before, live, after, total;
	CUdeviceptr p;

	describe(1000, ctx);
	describe(3 * MiB + 5, ctx);
	describe(40 * MiB, ctx);
	TRY(cuMemGetInfo(&before, &total));
	p = victim_alloc(64 * MiB);
	TRY(cuMemGetInfo(&live, &total));
	victim_free(p);
	TRY(cuMemGetInfo(&after, &total));
	printf("info: %d %d\n", before - live >= 64 * MiB,
	       after + 2 * MiB >= before);
	p = victim_alloc(3 * MiB);
	TRY(cuLaunchHostFunc(NULL, ask_from_host_function, &p));
	TRY(cuCtxSynchronize());
	victim_free(p);
	return 0;
}
