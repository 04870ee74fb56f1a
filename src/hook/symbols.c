/* SPDX-License-Identifier: MIT */
#include "hook/symbols.h"

#include <dlfcn.h>
#include <string.h>

#include "driver/loader.h"
#include "hook/hook.h"

/* The shim's own functions, by row; filled before the gate opens. */
static void *wrappers[VS_API_COUNT];

static void find_wrappers(void)
{
	struct vs_image self;

	/* by the own table: a reference could be bound to another library's */
	if (!vs_loader_self(&self))
		return;
	for (int api = 0; api < VS_API_COUNT; api++)
		__atomic_store_n(&wrappers[api],
				 vs_loader_symbol(&self, vs_api_name(api)),
				 __ATOMIC_RELAXED);
}

static void bind(const void *address)
{
	struct vs_image before;

	vs_gate_init();
	/* of memory and work that go past it the shim would not know */
	if (vs_loader_before(&before))
		vs_gate_behind(before.path);
	/* threads are started under locks that the loader's come before */
	vs_loader_tls();
	find_wrappers();
	if (vs_real_bind(address))
		vs_gate_open();
}

static bool is_libcuda(const void *address)
{
	struct vs_image image;

	return vs_loader_libcuda(address, &image);
}

/*
 * Whoever comes in the moment between the two opens as well: what it looks up
 * it keeps, and a half of it would not be the shim's.
 */
static bool is_bound(void)
{
	if (!vs_real_bound())
		return false;
	if (!vs_gate_is_open() && vs_real_ready())
		vs_gate_open();
	return true;
}

bool vs_symbols_ensure(void)
{
	if (is_bound())
		return true;
	if (!is_libcuda(NULL))
		return false;
	bind(NULL);
	return true;
}

/*
 * The wrapper for the real function at `address`, else `address` itself. The
 * first address in a libcuda binds vs_real to that image.
 */
static void *replace(void *address)
{
	void *wrapper = NULL;
	int api;

	if (!is_bound() && is_libcuda(address))
		bind(address);
	api = vs_real_row(address);
	if (api >= 0 && vs_gate_is_open())
		wrapper = __atomic_load_n(&wrappers[api], __ATOMIC_RELAXED);
	return wrapper ? wrapper : address;
}

void *vs_symbols_next(const char *name)
{
	void *function = vs_loader_look(RTLD_NEXT, name, NULL);

	if (function)
		return function;
	dlerror(); /* the program has not asked */
	/* of a library opened with RTLD_LOCAL that brings its driver along */
	return vs_loader_behind(name);
}

static bool is_exported(const char *name)
{
	struct vs_image self;

	return vs_loader_self(&self) && vs_loader_symbol(&self, name);
}

/* Some driver in the process has it. */
static bool is_drivers(const char *name)
{
	struct vs_image image;

	return vs_loader_libcuda(NULL, &image) &&
	       vs_loader_symbol(&image, name);
}

/*
 * Programs ask the global scope what their driver can do. Whoever is before the
 * shim, as the program itself is, has no other: a driver that was opened local
 * is not there, and one half of it is not to be found. A library may have a
 * driver in a scope of its own, which cannot be asked past the shim.
 */
static bool may_find(const char *name, const char *version, const void *caller)
{
	if (vs_loader_is_behind(caller))
		return is_drivers(name);
	return vs_loader_look(RTLD_NEXT, name, version) != NULL;
}

/*
 * What no libcuda in the process has must not be found as the shim's own.
 * What comes next is asked for from here, which is behind the caller, unless
 * the caller is behind the shim: then its own look-up passes the shim by.
 */
static struct vs_look look_past(void *handle, const char *name,
				const char *version, const void *caller)
{
	struct vs_look look = {NULL, false};

	if (handle == RTLD_NEXT && vs_loader_is_behind(caller))
		return look;
	if (handle == RTLD_DEFAULT &&
	    !vs_loader_is_own(vs_loader_look(RTLD_DEFAULT, name, version)))
		return look;
	look.answer = vs_loader_look(RTLD_NEXT, name, version);
	look.is_answered = true;
	return look;
}

/*
 * Another preloaded library that wraps dlsym asks dlvsym for the next one, with
 * a version of libc's. The shim's own has none, since a library with versions
 * would not be found by others, and the loader passes it by.
 */
static struct vs_look look_for_dlsym(void *handle, const char *name,
				     const void *caller)
{
	struct vs_look look = {NULL, false};
	struct vs_image self;

	if (handle != RTLD_NEXT ||
	    (strcmp(name, "dlsym") && strcmp(name, "dlvsym")) ||
	    vs_loader_is_own(caller) || vs_loader_is_behind(caller) ||
	    !vs_loader_self(&self))
		return look;
	look.answer = vs_loader_symbol(&self, name);
	look.is_answered = look.answer != NULL;
	return look;
}

/* A driver's own handle: who looks there means the driver's function. */
static bool is_of_driver(const void *handle)
{
	struct vs_image image;
	void *driver;

	if (!vs_loader_libcuda(NULL, &image))
		return false;
	driver = dlopen(image.path, RTLD_LAZY | RTLD_NOLOAD);
	if (driver)
		dlclose(driver);
	return driver == handle;
}

/*
 * The shim's own function was found: in the program's scope, which is the
 * shim's, or by another library's dlsym, which answers with its function of
 * that name, and the linker took the shim's for it.
 */
static void *own_or_next(void *own, void *handle, const char *name,
			 const char *version)
{
	bool is_known = is_drivers(name);
	void *next;

	if (is_known && is_of_driver(handle))
		return own;
	/* last: where there is none, its error is the program's to ask for */
	next = vs_loader_look(RTLD_NEXT, name, version);
	return next && is_known ? own : next;
}

VS_ASKED_BY_ASM struct vs_look vs_symbols_look(void *handle, const char *name,
					       const char *version,
					       const void *caller)
{
	struct vs_look look = {NULL, false};

	if (name[0] == 'd')
		return look_for_dlsym(handle, name, caller);
	if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
		if (!is_exported(name) || may_find(name, version, caller))
			return look;
		return look_past(handle, name, version, caller);
	}
	/*
	 * A libcuda that stands before another (Windows' Linux subsystem has
	 * one) passes calls on to what it finds there: with a wrapper instead
	 * the call would come back here for ever.
	 */
	if (is_libcuda(caller))
		return look;
	look.answer = vs_loader_look(handle, name, version);
	look.is_answered = true;
	if (!look.answer)
		return look;
	if (vs_loader_is_own(look.answer)) {
		look.answer = own_or_next(look.answer, handle, name, version);
		return look;
	}
	/* another library's dlsym may have answered for a libcuda */
	if (!vs_real_bound() && !is_libcuda(look.answer) && is_exported(name))
		vs_symbols_ensure();
	look.answer = replace(look.answer);
	return look;
}

VS_EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **out,
					    int version, cuuint64_t flags)
{
	CUresult result;

	vs_enter(VS_API_cuGetProcAddress);
	result = vs_seen(vs_real.cuGetProcAddress(symbol, out, version, flags));
	if (result == CUDA_SUCCESS && out && *out)
		*out = replace(*out);
	return result;
}

VS_EXPORT CUresult CUDAAPI
cuGetProcAddress_v2(const char *symbol, void **out, int version,
		    cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	CUresult result;

	vs_enter(VS_API_cuGetProcAddress_v2);
	result = vs_seen(vs_real.cuGetProcAddress_v2(symbol, out, version,
						     flags, status));
	if (result == CUDA_SUCCESS && out && *out)
		*out = replace(*out);
	return result;
}
