/* SPDX-License-Identifier: MIT
 *
 * vmmshim: for programs that want to look at the shim or trim it from inside.
 *
 * Optional: the shim needs no recompiling. Find the functions by dlsym
 * (RTLD_DEFAULT, "vmmshim_stats"), so that the program also runs without the
 * shim. All are safe from any thread; none waits for the GPU.
 */
#ifndef VMMSHIM_H
#define VMMSHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the shim: major * 10000 + minor * 100 + patch. */
int vmmshim_version(void);

/* Bytes, one device. struct_size lets later versions add fields at the end. */
struct vmmshim_stats {
	size_t struct_size; /* in: sizeof(struct vmmshim_stats) */
	uint64_t reserved, reserved_high;
	uint64_t live, live_high;
	uint64_t pending;
	uint64_t idle;
	uint64_t blocks;
};

/*
 * Fills *stats for a CUDA device ordinal. Returns 0; -1 if that has no pool
 * (stats is then all 0 but struct_size), or stats is NULL or its struct_size
 * too small.
 */
int vmmshim_stats(int device, struct vmmshim_stats *stats);

/*
 * Gives all idle memory of every device back. Returns the bytes released; 0 in
 * a callback that the driver makes from one of the shim's own calls.
 */
uint64_t vmmshim_trim(void);

#ifdef __cplusplus
}
#endif

#endif
