/* SPDX-License-Identifier: MIT
 *
 * symbols: how programs find the driver's functions. Ask the real look-up
 * first; only if it returned exactly the address of a real function that the
 * shim knows, return the wrapper for that function. Never answer from a name.
 *
 * Any thread, also one that has the loader's locks, as a constructor does. The
 * table of wrappers is filled before the gate opens, and constant from then on.
 */
#ifndef VS_HOOK_SYMBOLS_H
#define VS_HOOK_SYMBOLS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * For a wrapper reached by ELF binding before any look-up: binds vs_real to
 * the libcuda of the process. Returns false if there is none.
 */
bool vs_symbols_ensure(void);

/*
 * The function that the program would get for `name` if the shim were not
 * there and no libcuda either; NULL: none.
 */
void *vs_symbols_next(const char *name);

/*
 * What becomes of a look-up of a name cu[A-Z]..., and of dlvsym for a name
 * d...: hook/dlsym.c, its only caller, returns `answer`, or jumps to the real
 * look-up with all arguments and the return address as they came. Two registers
 * on both processors.
 */
struct vs_look {
	void *answer;
	uintptr_t is_answered;
};

/* `version`: NULL for dlsym. `caller`: return address of the look-up. */
struct vs_look vs_symbols_look(void *handle, const char *name,
			       const char *version, const void *caller);

#endif
