/* SPDX-License-Identifier: MIT
 *
 * copier: which devices copy and set memory of others.
 *
 * Note [Copies of peers]
 * The driver's cuMemFree waits for copies and sets of other devices, not for
 * their kernels (Note [Peers] in pool/fence.h). So the pool is told of each,
 * before it and when it was given to its stream: only then is it known which
 * markers cover it. Of what may be captured, and of nodes of graphs and
 * batches, it is told once and for good. Where no device can reach another's
 * memory that is one flag.
 *
 * Note [Graphs of several devices]
 * A graph that is launched in a stream of one device may have nodes of others,
 * on memory there. The driver's cuMemFree waits for them; but a marker of
 * their device counts as complete at once (two H200, 580.159.04): only one of
 * the stream's covers them. So each launch counts as a copy of all other
 * devices' memory: what nodes a graph has is not looked at.
 *
 * No locks here but the pool's and hook/ipc_import's.
 */
#ifndef VS_HOOK_COPIER_H
#define VS_HOOK_COPIER_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hook/hook.h"

/* A device may reach memory of another one, or may have; never false again. */
extern _Atomic bool vs_copier_has_peers;

static inline bool vs_copier_may_be_of_peer(void)
{
	return vs_unlikely(atomic_load_explicit(&vs_copier_has_peers,
						memory_order_relaxed));
}

/* As a set of devices. None: it is not known, or there is none. */
static inline uint64_t vs_copier_bit(CUdevice device)
{
	return device >= 0 && device < VS_MAX_DEVICES ? (uint64_t)1 << device
						      : 0;
}

/*
 * The devices that may run a call: the current one and that of the stream. The
 * driver copies in batches and frees without a context, too (an H100), but
 * answers this in one alone: that of some memory that is reached, or NULL.
 */
uint64_t vs_copier_runners(CUstream stream, CUcontext owner);

/* The same, found out once, if need be. */
struct vs_runners {
	CUstream stream;
	bool is_known;
	uint64_t devices;
};

/*
 * Before a call that may run later, or more than once, reaches `p`, if
 * vs_copier_may_be_of_peer().
 */
void vs_copier_stays(CUdeviceptr p, struct vs_runners *by)
	__attribute__((cold));

/* What was given to `stream` by now has reached `p`, if that. */
void vs_copier_came(CUdeviceptr p, CUstream stream) __attribute__((cold));

/* A call that is made now; all zero: it reaches no memory of other devices. */
struct vs_copier {
	uint64_t devices; /* that run it, or may */
	CUstream stream;
	CUdeviceptr ends[2];
};

/*
 * Before a call reaches `dst`, and `src` or 0, if vs_copier_may_be_of_peer(),
 * and after it, whatever the driver answered.
 */
void vs_copier_begin(struct vs_copier *copier, CUdeviceptr dst, CUdeviceptr src,
		     CUstream stream) __attribute__((cold));
/* The same for a peer copy, which needs no access. */
void vs_copier_begin_peer(struct vs_copier *copier, CUdeviceptr dst,
			  CUdeviceptr src, CUstream stream)
	__attribute__((cold));
void vs_copier_close(const struct vs_copier *copier) __attribute__((cold));

/*
 * The same for the launch of a graph, where several devices have contexts: that
 * which launches it need not have a pool.
 */
void vs_copier_begin_graph(struct vs_copier *copier, CUstream stream)
	__attribute__((cold));
void vs_copier_end_graph(const struct vs_copier *copier) __attribute__((cold));

static inline void vs_copier_end(const struct vs_copier *copier)
{
	if (vs_unlikely(copier->devices))
		vs_copier_close(copier);
}

#endif
