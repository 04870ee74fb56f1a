/* SPDX-License-Identifier: MIT */
/*
 * The simulator's hooks for programs that must also run without it: each
 * function looks up its sim_* twin once, in the libcuda that is loaded, and
 * does nothing where there is none (a real driver).
 */
#ifndef SIM_CLIENT_H
#define SIM_CLIENT_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

/* dlsym alone would miss a libcuda that cudart opened RTLD_LOCAL. */
static inline void *sim_client_find(const char *name)
{
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

	return lib ? dlsym(lib, name) : NULL;
}

static inline void sim_client_note_alloc(const void *ptr, size_t size)
{
	static void (*note)(uint64_t, size_t);

	if (!note)
		*(void **)&note = sim_client_find("sim_note_alloc");
	if (note)
		note((uint64_t)(uintptr_t)ptr, size);
}

static inline void sim_client_note_free(const void *ptr)
{
	static void (*note)(uint64_t);

	if (!note)
		*(void **)&note = sim_client_find("sim_note_free");
	if (note)
		note((uint64_t)(uintptr_t)ptr);
}

/* -1: no simulator. */
static inline long sim_client_violations(void)
{
	static unsigned long (*count)(void);

	if (!count)
		*(void **)&count = sim_client_find("sim_violations");
	return count ? (long)count() : -1;
}

#endif
