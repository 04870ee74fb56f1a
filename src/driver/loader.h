/* SPDX-License-Identifier: MIT
 *
 * loader: what the dynamic loader has in memory, read from its own tables.
 *
 * The shim exports dlsym and dlvsym, so the real ones cannot be asked for by
 * name: they are found by walking the objects behind the shim's own. Reading
 * takes no lock of the shim, calls no malloc and leaves dlerror alone. Nothing
 * is called back while the loader iterates.
 */
#ifndef VS_DRIVER_LOADER_H
#define VS_DRIVER_LOADER_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A loaded object. Stays true as long as the object is loaded. */
struct vs_image {
	uintptr_t bias;		   /* to add to the file's addresses */
	const ElfW(Dyn) * dynamic; /* NULL: a static object */
	const char *path;	   /* as the loader knows it */
};

/*
 * For definitions that hook/dlsym.c uses: assembler is nothing to a compiler
 * that optimizes when it links (-flto), which would take them away.
 */
#define VS_ASKED_BY_ASM __attribute__((used))

/*
 * The dlsym and dlvsym behind the shim in link order: libc's, or those of
 * another preloaded library. Zero until vs_loader_find ran; both are set
 * before it returns. hook/dlsym.c jumps through them.
 */
extern void *(*vs_loader_dlsym)(void *handle, const char *name);
extern void *(*vs_loader_dlvsym)(void *handle, const char *name,
				 const char *version);

/* Sets the two; any thread, any number of times. */
void vs_loader_find(void);

/*
 * Calls the one (`version` NULL) or the other. For RTLD_NEXT and RTLD_DEFAULT
 * the shim's own object is the caller.
 */
void *vs_loader_look(void *handle, const char *name, const char *version);

/*
 * dl_iterate_phdr, never in the middle of a fork: its lock would be held in the
 * child for good. Each fork calls the other two, in the parent.
 */
int vs_loader_iterate(int (*look)(struct dl_phdr_info *, size_t, void *),
		      void *data);
void vs_loader_before_fork(void);
void vs_loader_after_fork(void);

/*
 * Bytes of thread-local variables of all objects, with room to align them. They
 * are counted at the first call and kept: what glibc takes out of a stack is
 * fixed when the program starts. Later calls need none of the loader's locks.
 */
size_t vs_loader_tls(void);

/* The shim's own object. */
bool vs_loader_self(struct vs_image *image_out);
/*
 * What the program meets before the shim's own object: a libcuda, or another
 * copy of the shim, which is one by two functions that it has.
 */
bool vs_loader_before(struct vs_image *image_out);
/* Whether `address` lies in the shim's own object. */
bool vs_loader_is_own(const void *address);
/* Whether the object that holds `address` comes after the shim's. */
bool vs_loader_is_behind(const void *address);

/*
 * The libcuda that holds `address`; with NULL the first in link order. It is
 * one by its file name and by the functions it has.
 */
bool vs_loader_libcuda(const void *address, struct vs_image *image_out);

/* The first function `name` behind the shim's object, in any scope, or NULL. */
void *vs_loader_behind(const char *name);

/* The function that an object exports as `name` (default version), or NULL. */
void *vs_loader_symbol(const struct vs_image *image, const char *name);

#endif
