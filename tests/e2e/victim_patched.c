/* SPDX-License-Identifier: MIT
 *
 * victim_patched: a library overwrites the beginning of an allocator with a
 * jump to its own hook, as UCX's bistro does: first of the function that dlsym
 * returns, then of the one in the driver's image. The hook calls the original.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "victim_link.h"

#include "image.h"

enum { JUMP = 12 };

typedef CUresult alloc_fn(CUdeviceptr *, size_t);

static unsigned char *place; /* what is patched */
static unsigned char saved[JUMP];
static int n_seen;

static CUresult hook(CUdeviceptr *out, size_t size);

static void write_code(const unsigned char *code)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t start = (uintptr_t)place / page * page;
	size_t size = (uintptr_t)place + JUMP - start;

	CHECK(mprotect((void *)start, size,
		       PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	memcpy(place, code, JUMP);
	__builtin___clear_cache((char *)place, (char *)place + JUMP);
	CHECK(mprotect((void *)start, size, PROT_READ | PROT_EXEC) == 0);
}

/* movabs $hook, %rax; jmp *%rax */
static void patch(void *function)
{
	unsigned char code[JUMP] = {0x48, 0xb8, [10] = 0xff, [11] = 0xe0};
	alloc_fn *target = hook;

	memcpy(code + 2, &target, sizeof(target));
	place = function;
	memcpy(saved, place, JUMP);
	write_code(code);
}

static CUresult hook(CUdeviceptr *out, size_t size)
{
	alloc_fn *original;
	CUresult result;

	memcpy(&original, &place, sizeof(place));
	n_seen++;
	write_code(saved);
	result = original(out, size);
	patch(place);
	return result;
}

static void work(const char *what)
{
	static const size_t sizes[] = {100, 300 * KiB, 3 * MiB, 40 * MiB};
	bool is_good = true;

	for (int i = 0; i < 40; i++) {
		size_t size = sizes[i % 4];
		CUdeviceptr p = victim_alloc(size);

		TRY(cuMemsetD8(p, (unsigned char)i, size));
		is_good = is_good && victim_is_filled(p, size, i);
		victim_free(p);
	}
	printf("%s: %d\n", what, is_good);
}

int main(void)
{
	void *handle, *function;

#ifndef __x86_64__
	return 0;
#endif
	victim_start(0);
	handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	CHECK(handle);
	work("before");
	function = dlsym(handle, "cuMemAlloc_v2");
	CHECK(function);
	patch(function);
	work("what dlsym returns");
	printf("seen: %d\n", n_seen);
	write_code(saved);
	function = in_image(handle, "cuMemAlloc_v2");
	CHECK(function);
	patch(function);
	work("what the driver has");
	write_code(saved);
	work("after");
	return 0;
}
