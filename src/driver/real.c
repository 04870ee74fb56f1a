/* SPDX-License-Identifier: MIT */
#include "driver/real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

#include "base/api.h"
#include "base/log.h"
#include "base/meta.h"
#include "driver/loader.h"

enum { OPT = 0, REQ = 1, PTSZ = 2 };

struct row {
	const char *symbol, *base;
	size_t member; /* offset in struct vs_real */
	int api;       /* enum vs_api, -1: never intercepted */
	int since;
	unsigned flags;
};

static const struct row rows[] = {
#define API(symbol, base, since, flags)                                        \
	{#symbol,	  base,	 offsetof(struct vs_real, symbol),             \
	 VS_API_##symbol, since, flags},
#define USE(symbol, base, since, flags)                                        \
	{#symbol, base, offsetof(struct vs_real, symbol), -1, since, flags},
#include "api.def"
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/*
 * All driver functions return CUresult and leave the arguments to the caller,
 * so these two can stand for any of them.
 */
static CUresult no_driver(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult no_function(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

struct vs_real vs_real = {
#define API(symbol, base, since, flags) .symbol = (void *)no_driver,
#include "api.def"
};
_Atomic bool vs_real_is_ready;

/* The two ABIs of cuGetProcAddress, either may be NULL. */
struct asker {
	__typeof__(cuGetProcAddress) *v1;
	__typeof__(cuGetProcAddress_v2) *v2;
	int version; /* the driver's; 0: unknown */
};

/*
 * What one thread found; the first to commit wins. Too large for a stack: any
 * thread of the program may be the first that looks, and some have 16 KiB.
 */
struct found {
	struct asker asker;
	void *call[N_ROWS];	/* by the program's own way, dlsym */
	void *exported[N_ROWS]; /* in the image's own table */
	void *asked[N_ROWS];	/* by cuGetProcAddress */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool is_bound;
static struct asker asker; /* constant once bound */
static __thread struct found *mine __attribute__((tls_model("initial-exec")));
static __thread bool is_binding __attribute__((tls_model("initial-exec")));

/*
 * Address -> API row: open addressing, only grows. Written by one thread at a
 * time, read without a lock: the row is written before the address.
 */
#define MAP_BITS 11
static struct {
	_Atomic uintptr_t address;
	int api;
} map[1 << MAP_BITS];

_Static_assert(6 * VS_API_COUNT < 1 << MAP_BITS, "the map would fill up");

static size_t slot_of(uintptr_t address)
{
	return address * UINT64_C(0x9e3779b97f4a7c15) >> (64 - MAP_BITS);
}

/* An address that is known already keeps its row: exact names come first. */
static void note(void *function, int api)
{
	uintptr_t address = (uintptr_t)function;
	size_t i = slot_of(address);
	uintptr_t there;

	if (!function || api < 0)
		return;
	while ((there = atomic_load(&map[i].address)) != 0) {
		if (there == address)
			return;
		i = (i + 1) % (1 << MAP_BITS);
	}
	map[i].api = api;
	atomic_store(&map[i].address, address);
}

int vs_real_row(const void *address)
{
	size_t i = slot_of((uintptr_t)address);
	uintptr_t there;

	while ((there = atomic_load_explicit(&map[i].address,
					     memory_order_acquire)) != 0) {
		if (there == (uintptr_t)address)
			return map[i].api;
		i = (i + 1) % (1 << MAP_BITS);
	}
	return -1;
}

static void **member(const struct row *row)
{
	return (void **)((char *)&vs_real + row->member);
}

static void set_member(const struct row *row, void *function)
{
	__atomic_store_n(member(row), function, __ATOMIC_RELEASE);
}

/* Needs no cuInit. */
static int version_of(__typeof__(cuDriverGetVersion) *get)
{
	int version = 0;

	return get && get(&version) == CUDA_SUCCESS ? version : 0;
}

/*
 * Nothing that is newer than the driver: that is an error, which a profiler or
 * compute-sanitizer would tell as one of the program's (seen with 13.0).
 */
static void *ask(const struct asker *a, const struct row *row)
{
	cuuint64_t flags =
		row->flags & PTSZ
			? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
			: CU_GET_PROC_ADDRESS_DEFAULT;
	CUdriverProcAddressQueryResult status;
	CUresult result = CUDA_ERROR_NOT_FOUND;
	void *function = NULL;

	if (a->version && row->since > a->version)
		return NULL;
	if (a->v2)
		result =
			a->v2(row->base, &function, row->since, flags, &status);
	else if (a->v1)
		result = a->v1(row->base, &function, row->since, flags);
	if (result != CUDA_SUCCESS || !function || vs_loader_is_own(function))
		return NULL;
	return function;
}

static bool is_in(const struct vs_image *image, const void *address)
{
	struct vs_image other;

	return vs_loader_libcuda(address, &other) && other.bias == image->bias;
}

/*
 * The image that serves. Where a libcuda is in the global scope, unwrapped
 * functions are bound to that one, so the wrapped ones must call it, too.
 */
static bool pick(const void *address, struct vs_image *image)
{
	void *bound = vs_loader_look(RTLD_NEXT, "cuInit", NULL);

	if (bound && vs_loader_libcuda(bound, image))
		return true;
	return vs_loader_libcuda(address, image);
}

/* A handle that keeps the image loaded; NULL: it cannot be had. */
static void *hold(const struct vs_image *image)
{
	void *handle = dlopen(image->path, RTLD_LAZY | RTLD_NOLOAD);
	void *function = handle ? vs_loader_look(handle, "cuInit", NULL) : NULL;

	if (function && is_in(image, function))
		return handle;
	if (handle)
		dlclose(handle);
	return NULL;
}

/* What the program gets for `exported`: another library may wrap dlsym. */
static void *chained(void *handle, const char *symbol, void *exported)
{
	void *function;

	if (!handle || !exported)
		return exported;
	function = vs_loader_look(handle, symbol, NULL);
	if (function == exported || !function || vs_loader_is_own(function))
		return exported;
	return function;
}

static void *find_one(const struct vs_image *image, void *handle,
		      const char *symbol)
{
	return chained(handle, symbol, vs_loader_symbol(image, symbol));
}

static void find_all(const struct vs_image *image, struct found *found)
{
	void *handle = hold(image);

	*(void **)&found->asker.v1 =
		find_one(image, handle, "cuGetProcAddress");
	*(void **)&found->asker.v2 =
		find_one(image, handle, "cuGetProcAddress_v2");
	found->asker.version =
		version_of(find_one(image, handle, "cuDriverGetVersion"));
	for (size_t i = 0; i < N_ROWS; i++) {
		void *exported = vs_loader_symbol(image, rows[i].symbol);
		void *function = chained(handle, rows[i].symbol, exported);

		found->exported[i] = exported;
		found->asked[i] = ask(&found->asker, &rows[i]);
		found->call[i] = function ? function : found->asked[i];
	}
}

static void commit(void)
{
	const struct found *found = mine;
	bool is_ready = true;

	for (size_t i = 0; i < N_ROWS; i++) {
		void *function = found->call[i];

		if (!function && rows[i].flags & REQ && is_ready) {
			vs_info("this libcuda has no %s: left alone",
				rows[i].symbol);
			is_ready = false;
		}
		if (!function && rows[i].api >= 0)
			function = (void *)no_function;
		set_member(&rows[i], function);
	}
	for (size_t i = 0; i < N_ROWS; i++) {
		note(found->call[i], rows[i].api);
		note(found->exported[i], rows[i].api);
	}
	for (size_t i = 0; i < N_ROWS; i++)
		note(found->asked[i], rows[i].api);
	asker = found->asker;
	/* first: who sees that it is bound goes by this */
	atomic_store_explicit(&vs_real_is_ready, is_ready,
			      memory_order_release);
	atomic_store(&is_bound, true);
}

bool vs_real_bound(void)
{
	return atomic_load_explicit(&is_bound, memory_order_acquire);
}

bool vs_real_bind(const void *address)
{
	struct vs_image image;
	struct found *found = NULL;

	/* a look-up below may come back here, through another interposer */
	if (vs_real_bound() || is_binding)
		return vs_real_ready();
	is_binding = true;
	if (pick(address, &image))
		found = vs_meta_alloc(sizeof(*found));
	if (found) {
		find_all(&image, found);
		mine = found;
		pthread_once(&once, commit);
		mine = NULL;
		vs_meta_free(found, sizeof(*found));
	}
	/* a program that has just found a driver function has no error left */
	dlerror();
	is_binding = false;
	return vs_real_ready();
}

void vs_real_lend(int api, void *function)
{
	for (size_t i = 0; i < N_ROWS; i++)
		if (rows[i].api == api && !vs_real_bound())
			set_member(&rows[i], function);
}

void vs_real_complete(void)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		void *function = ask(&asker, &rows[i]), *there;

		if (!function)
			continue;
		there = *member(&rows[i]);
		if (!there || there == (void *)no_function)
			set_member(&rows[i], function);
		note(function, rows[i].api);
	}
}

void vs_real_set(const struct vs_real *functions)
{
	vs_real = *functions;
	atomic_store_explicit(&vs_real_is_ready, true, memory_order_release);
}

const char *vs_real_error(CUresult result)
{
	const char *name = NULL;

	if (vs_real.cuGetErrorName &&
	    vs_real.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
		return name;
	return "unknown error";
}

bool vs_real_is_for_good(CUresult result)
{
	/* by number what the oldest cuda.h does not name */
	switch ((int)result) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case 226: /* CONTAINED */
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case 721: /* TENSOR_MEMORY_LEAK */
	case 810: /* MPS_CLIENT_TERMINATED */
	case 911: /* EXTERNAL_DEVICE */
		return true;
	default:
		return false;
	}
}
