/* SPDX-License-Identifier: MIT
 *
 * real: the functions of the real driver. With driver/vmm the only door to it.
 *
 * vs_real is filled once, from the image of libcuda that the program itself
 * found (what that did not have yet is looked up once more when the driver is
 * initialised: vs_real_complete), and constant afterwards; a second image is
 * never mixed in (its functions stay untouched). A member of an OPT row of kind
 * USE may be NULL; those of kind API never are: without a driver, or in a
 * driver that has no such function, they only answer an error. Unit tests fill
 * vs_real by vs_real_set with functions of their own.
 */
#ifndef VS_DRIVER_REAL_H
#define VS_DRIVER_REAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/newer.h"

struct vs_real {
#define API(symbol, base, since, flags) __typeof__(symbol) *symbol;
#define USE(symbol, base, since, flags) __typeof__(symbol) *symbol;
#include "api.def"
};

extern struct vs_real vs_real;
extern _Atomic bool vs_real_is_ready;

/* True once vs_real is filled with all REQ rows. Acquire. */
static inline bool vs_real_ready(void)
{
	return atomic_load_explicit(&vs_real_is_ready, memory_order_acquire);
}

/* True once an image was bound for good, whether it has all REQ rows or not. */
bool vs_real_bound(void);

/*
 * Fills vs_real from the image that ELF binding reaches, if there is one; else
 * from the one that holds `address` (an address that a look-up of the program
 * returned), or, with NULL, from the libcuda first in link order. Finds each
 * row by its exact symbol and asks cuGetProcAddress for it too, since the two
 * may return different addresses. Returns whether vs_real is ready. Any
 * thread, no lock held over calls into loader or driver; never loads a
 * library, but keeps the image loaded for good.
 */
bool vs_real_bind(const void *address);

/*
 * Before an image is bound: row `api` calls `function` (of an object that is
 * no libcuda).
 */
void vs_real_lend(int api, void *function);

/*
 * Row number (enum vs_api) of the intercepted function at `address`, -1 when
 * it is none of the bound image. Lock-free.
 */
int vs_real_row(const void *address);

/*
 * Resolves rows that could not be asked for before cuInit (cuGetProcAddress
 * may answer more then). Called once, after the first cuInit that succeeded.
 */
void vs_real_complete(void);

/* For unit tests: takes `functions` as the driver. */
void vs_real_set(const struct vs_real *functions);

/* "CUDA_ERROR_OUT_OF_MEMORY", or "unknown error". */
const char *vs_real_error(CUresult result);
/*
 * Work ended in it, and its context answers with it ever after: cuda.h says so,
 * or that the process is to be relaunched; but for the two UNCORRECTABLE ones,
 * after which data are lost.
 */
bool vs_real_is_for_good(CUresult result);

#endif
