/* SPDX-License-Identifier: MIT
 *
 * symbols: how programs find the driver's functions. Ask the real look-up
 * first; only if it returned exactly the address of a real function that the
 * shim knows, return the wrapper for that function. Never answer from a name.
 */
#ifndef VS_HOOK_SYMBOLS_H
#define VS_HOOK_SYMBOLS_H

/*
 * For a wrapper reached by ELF binding before any look-up: binds vs_real to
 * the libcuda of the process. Returns false if there is none.
 */
int vs_symbols_ensure(void);

/* The wrapper for the real function at `address`, else `address` itself. */
void *vs_symbols_replace(void *address);

/* The real dlsym, found behind the shim; NULL only without a dynamic libc. */
void *vs_symbols_real_dlsym(void *handle, const char *name);

#endif
