/* SPDX-License-Identifier: MIT */
/*
 * The simulator's hooks for programs that must also run without it: each
 * function looks up its sim_* twin in the libcuda that is loaded, and does
 * nothing where there is none (a real driver).  Any thread may call them.
 */
#ifndef SIM_CLIENT_H
#define SIM_CLIENT_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The address of name, remembered in *cache once it was found.  dlsym alone
 * would miss a libcuda that cudart opened RTLD_LOCAL.
 */
static inline void *sim_client_find(void **cache, const char *name)
{
	void *found = __atomic_load_n(cache, __ATOMIC_RELAXED);
	void *lib;

	if (found)
		return found;
	lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	if (!lib)
		return NULL;
	found = dlsym(lib, name);
	dlclose(lib);
	__atomic_store_n(cache, found, __ATOMIC_RELAXED);
	return found;
}

static inline void sim_client_note_alloc(const void *ptr, size_t size)
{
	static void *cache;
	void (*note)(uint64_t, size_t);

	*(void **)&note = sim_client_find(&cache, "sim_note_alloc");
	if (note)
		note((uint64_t)(uintptr_t)ptr, size);
}

static inline void sim_client_note_free(const void *ptr)
{
	static void *cache;
	void (*note)(uint64_t);

	*(void **)&note = sim_client_find(&cache, "sim_note_free");
	if (note)
		note((uint64_t)(uintptr_t)ptr);
}

/* -1: no simulator. */
static inline long sim_client_violations(void)
{
	static void *cache;
	unsigned long (*count)(void);

	*(void **)&count = sim_client_find(&cache, "sim_violations");
	return count ? (long)count() : -1;
}

#endif
