/* SPDX-License-Identifier: MIT */
/*
 * The simulator's hooks for programs that must also run without it: each
 * function looks up its sim_* twin in the libcuda that is loaded, and does
 * nothing where there is none (a real driver).  Any thread may call them.
 */
#ifndef SIM_CLIENT_H
#define SIM_CLIENT_H

#include <dlfcn.h>
#include <stdbool.h>
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

/* Each call of the driver is told, before it is made; NULL: no more. */
static inline void sim_client_on_call(void (*callback)(const char *call))
{
	static void *cache;
	void (*tell)(void (*)(const char *));

	*(void **)&tell = sim_client_find(&cache, "sim_on_call");
	if (tell)
		tell(callback);
}

/* The n-th coming call of this function fails; see sim_fail(). */
static inline void sim_client_fail(const char *call, unsigned long n, int error)
{
	static void *cache;
	int (*fail)(const char *, unsigned long, int);

	*(void **)&fail = sim_client_find(&cache, "sim_fail");
	if (fail)
		fail(call, n, error);
}

/* Every call answers that the driver has shut down, or none does any more. */
static inline void sim_client_set_deinitialized(bool is)
{
	static void *cache;
	void (*set)(bool);

	*(void **)&set = sim_client_find(&cache, "sim_set_deinitialized");
	if (set)
		set(is);
}

/* None does any more. */
static inline void sim_client_fail_clear(void)
{
	static void *cache;
	void (*clear)(void);

	*(void **)&clear = sim_client_find(&cache, "sim_fail_clear");
	if (clear)
		clear();
}

#endif
