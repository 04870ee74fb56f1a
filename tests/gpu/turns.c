/* SPDX-License-Identifier: MIT
 *
 * turns: PyTorch's own cache and cudaMalloc in turn, in one process; loaded by
 * tests/gpu/turns.py. Puts a function of its own in place of the one virtual
 * function of PyTorch's CUDA allocator that hands out tensors' memory.
 *
 * What it knows of PyTorch 2.11 (c10/core/Allocator.h): the table of virtual
 * functions has two destructors first, then allocate(size); a DataPtr is
 * returned in memory, as below. turns_begin() tries it.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALLOCATOR "_ZN3c104cuda20CUDACachingAllocator9allocatorE"

enum { ALLOCATE = 2 };

const char *turns_begin(void);
void turns_use(int plain);
uint64_t turns_count(void);
uint64_t turns_failures(void);

struct data_ptr {
	void *data;
	void (*free)(void *);
	void *context;
	uint64_t device; /* type and number, in two bytes of it */
};

typedef void allocate_fn(struct data_ptr *out, void *allocator, size_t size);

static allocate_fn *cached;
static int (*cuda_malloc)(void **out, size_t size);
static int (*cuda_free)(void *p);
static int is_plain; /* cudaMalloc is what is used */
static uint64_t n_plain, n_failed;
static uint64_t device; /* that of what the cache handed out last */

static void free_plain(void *p)
{
	n_failed += cuda_free(p) != 0;
}

static void allocate(struct data_ptr *out, void *allocator, size_t size)
{
	void *p = NULL;

	if (!is_plain || size == 0) {
		cached(out, allocator, size);
		device = out->device;
		return;
	}
	n_plain++;
	n_failed += cuda_malloc(&p, size) != 0;
	*out = (struct data_ptr){p, free_plain, p, device};
}

/* As the library of the allocator sees it: there may be several cudarts. */
static void *symbol(const char *name)
{
	void *handle = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);

	return handle ? dlsym(handle, name) : NULL;
}

/* NULL, or what is missing. PyTorch has used the GPU. */
const char *turns_begin(void)
{
	void ***allocator = symbol(ALLOCATOR);
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	void **table, *free_symbol = symbol("cudaFree");
	void *malloc_symbol = symbol("cudaMalloc");
	char *first;

	if (!allocator || !*allocator)
		return "no CUDA allocator in libc10_cuda.so";
	if (!malloc_symbol || !free_symbol)
		return "no cudaMalloc";
	*(void **)&cuda_malloc = malloc_symbol;
	*(void **)&cuda_free = free_symbol;
	table = *(void ***)*allocator;
	first = (char *)((uintptr_t)&table[ALLOCATE] & ~(page - 1));
	if (mprotect(first, (size_t)((char *)&table[ALLOCATE + 1] - first),
		     PROT_READ | PROT_WRITE) != 0)
		return "its virtual functions cannot be replaced";
	*(void **)&cached = table[ALLOCATE];
	table[ALLOCATE] = (void *)(uintptr_t)allocate;
	return NULL;
}

/* Tensors' memory comes from cudaMalloc from now on; or from the cache. */
void turns_use(int plain)
{
	is_plain = plain;
}

/* Allocations by cudaMalloc; calls of it and of cudaFree that failed. */
uint64_t turns_count(void)
{
	return n_plain;
}

uint64_t turns_failures(void)
{
	return n_failed;
}
