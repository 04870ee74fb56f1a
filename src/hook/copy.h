/* SPDX-License-Identifier: MIT
 *
 * copy: calls that reach memory of the pool from another device.
 *
 * Note [Copies between devices]
 * The driver carries out plain copies of cuMemAlloc memory on any
 * device, peer or not. VMM memory must be open to the device that runs the
 * call; if it is not, the driver answers CUDA_ERROR_INVALID_VALUE and does
 * nothing (seen on two H200). So each call is made as it came; only one that
 * is refused is looked at. If it reaches into the pool of another device, that
 * pool is opened to the devices that run the call, for good, and the call is
 * made again. Where devices cannot be peers it becomes the matching peer copy,
 * for which the driver needs no access. Opening memory (cuMemSetAccess) waits
 * for nothing and harms no capture (seen on an H200).
 *
 * No locks here; nothing of this runs when a call succeeds.
 *
 * Note [Order of copies]
 * A copy in the NULL stream that reaches cuMemAlloc memory of another context
 * begins when the work that context has in its own NULL stream is done, and
 * what that is given later begins after the copy: between devices (CUDA C++
 * Programming Guide, peer-to-peer memory copy), within the other one, and to
 * and from the host (seen on two H200). Memory opened by IPC is that of who
 * opened it; managed memory and arrays have an owner as well, which the driver
 * sees to (an H200). VMM memory belongs to no context, so the driver keeps to
 * that in the current one alone. So two events for each other context do what
 * it would. A peer copy has that order with the contexts of the memory as well,
 * whichever it names, but with those that it names where memory has none (by a
 * green one with the primary one): so it is given those of the memory. Copies
 * in created streams and the thread's own, and sets, have no such order; nor
 * have those in a green context's NULL stream any with other contexts, neither
 * the primary one (tests/e2e/victim_orders.c, an H100, 580.159.04) nor those of
 * another device (victim_devices.c, two H200).
 *
 * Note [Bounds]
 * The driver refuses a copy or a set that leaves the cuMemAlloc memory, opened
 * by IPC too, that it begins in, to the byte, batches and nodes of graphs
 * included, before it looks at captures, which go on
 * (CUDA_ERROR_INVALID_VALUE; an H200). Of VMM memory it knows the mappings at
 * most, and a program that lives with the error would overwrite other blocks of
 * its own, or fault. So it is looked at here. Not refused is what the driver
 * lets pass as well: sets in a stream that is captured, and what begins in
 * memory that cuMemFreeAsync has freed.
 */
#ifndef VS_HOOK_COPY_H
#define VS_HOOK_COPY_H

#include "hook/copier.h"
#include "hook/hook.h"
#include "hook/memops.h"
#include "pool/pool.h"

/* How a call was made: which of the driver's twins, on which stream. */
struct vs_way {
	bool is_async;
	bool is_per_thread; /* the NULL stream is the thread's own */
	CUstream stream;    /* NULL unless async */
};

#define VS_PLAIN ((struct vs_way){false, false, NULL})
#define VS_PLAIN_PT ((struct vs_way){false, true, NULL})
#define VS_ASYNC(stream) ((struct vs_way){true, false, (stream)})
#define VS_ASYNC_PT(stream) ((struct vs_way){true, true, (stream)})

/* A copy of `size` bytes in a row, between any two places. */
static inline CUDA_MEMCPY3D vs_copy_row(CUdeviceptr dst, CUdeviceptr src,
					size_t size)
{
	return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .dstDevice = dst,
			       .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
			       .srcDevice = src,
			       .WidthInBytes = size,
			       .Height = 1,
			       .Depth = 1};
}

/* The contexts that a copy comes between, see Note [Order of copies]. */
struct vs_order {
	CUcontext current, owners[2];
	unsigned n; /* owners */
	/* synchronous, and some of it is SYNC_MEMOPS memory (hook/memops) */
	bool must_wait;
	bool is_per_thread; /* then: in the thread's own NULL stream */
	struct vs_copier copier;
};

static inline bool vs_order_is_due(struct vs_way way)
{
	return way.stream ? way.stream == CU_STREAM_LEGACY : !way.is_per_thread;
}

/*
 * `size` bytes at `p` begin in an allocation and leave it, and the driver has
 * no other error to say first; see Note [Bounds].
 */
bool vs_copy_leaves(CUdeviceptr p, size_t size);
/* The same for either end of a copy. */
bool vs_copy_is_beyond(const CUDA_MEMCPY3D *c);

static inline bool vs_row_is_beyond(CUdeviceptr dst, CUdeviceptr src,
				    size_t size)
{
	return vs_copy_leaves(dst, size) || vs_copy_leaves(src, size);
}

/* Bytes from the first to the last that a set of rows, in bytes, reaches. */
static inline size_t vs_set_extent(size_t pitch, size_t width, size_t height)
{
	return width && height ? (height - 1) * pitch + width : 0;
}

/* There is something to do before the copy. */
static inline bool vs_copy_is_due(struct vs_way way)
{
	return (vs_unlikely(vs_pool_ctx_count() > 1) &&
		(vs_order_is_due(way) || vs_copier_may_be_of_peer())) ||
	       (!way.is_async && vs_unlikely(vs_memops_is_any()));
}

/*
 * Before such a copy, see Note [Order of copies] and Note [Copies of peers] in
 * hook/copier.h, and after it. Cheap unless it reaches other contexts.
 */
void vs_copy_begin(struct vs_order *order, const CUDA_MEMCPY3D *copy,
		   struct vs_way way) __attribute__((cold));
/* The same for bytes in a row. */
void vs_copy_begin_row(struct vs_order *order, CUdeviceptr dst, CUdeviceptr src,
		       size_t size, struct vs_way way) __attribute__((cold));
CUresult vs_order_close(const struct vs_order *order, CUresult result)
	__attribute__((cold));

/* Passes on what the driver answered to the copy, or to a wait for it. */
static inline CUresult vs_order_end(const struct vs_order *order,
				    CUresult result)
{
	if (vs_likely(order->n == 0 && !order->must_wait &&
		      !order->copier.devices))
		return result;
	return vs_order_close(order, result);
}

/* The same for another synchronous call, that reaches `dst`, and `src` or 0. */
static inline CUresult vs_copy_ended(CUresult result, CUdeviceptr dst,
				     CUdeviceptr src, struct vs_way way)
{
	struct vs_order order = {.must_wait = true,
				 .is_per_thread = way.is_per_thread};

	if (vs_likely(!vs_memops_is_any()) || way.is_async ||
	    !(vs_memops_is_set(dst) || vs_memops_is_set(src)))
		return result;
	return vs_order_close(&order, result);
}

/* True when a call may have failed because a device lacks access. */
static inline bool vs_refused(CUresult result)
{
	return vs_unlikely(result == CUDA_ERROR_INVALID_VALUE) &&
	       vs_pool_count() > 0;
}

/*
 * `copy` was refused. Opens the pools that it reaches to the devices that run
 * it; returns whether any was, so that the call is worth another try. A copy
 * that runs past the end of an allocation is not: it is wrong everywhere.
 */
bool vs_copy_open(const CUDA_MEMCPY3D *copy, struct vs_way way)
	__attribute__((cold));
/* The same for `size` bytes at one address. */
bool vs_copy_open_at(CUdeviceptr p, size_t size, struct vs_way way)
	__attribute__((cold));
/* The same for the copy of a node that is made for `ctx` (NULL: current). */
void vs_copy_open_node(const CUDA_MEMCPY3D *copy, CUcontext ctx)
	__attribute__((cold));
/* The same for what such a node sets. */
void vs_copy_open_set(CUdeviceptr p, CUcontext ctx) __attribute__((cold));
/* The same when a node gets another copy: nobody tells where it runs. */
void vs_copy_open_moved(const CUDA_MEMCPY3D *copy) __attribute__((cold));
/* And when one gets another set. */
void vs_copy_open_set_moved(CUdeviceptr p) __attribute__((cold));

/*
 * `copy` is still refused: makes it a peer copy, if that is because devices
 * cannot be peers; else returns CUDA_ERROR_INVALID_VALUE.
 */
CUresult vs_copy_between(const CUDA_MEMCPY3D *copy, struct vs_way way)
	__attribute__((cold));

/* Both for bytes in a row. */
bool vs_copy_open_row(CUdeviceptr dst, CUdeviceptr src, size_t size,
		      struct vs_way way) __attribute__((cold));
CUresult vs_copy_between_row(CUdeviceptr dst, CUdeviceptr src, size_t size,
			     struct vs_way way) __attribute__((cold));

/*
 * A copy, made by the driver's function of this row with the arguments that
 * come last, and its answer. The rest is for a wrapper to say, and may use its
 * `way`: whether it leaves an allocation, what to do first beside other
 * contexts (with `order`), whether a refused call is worth another try, and
 * what to do instead.
 */
#define VS_COPIED(api, way_, beyond_, begin_, open_, between_, ...)            \
	__extension__({                                                        \
		const struct vs_way way = way_;                                \
		struct vs_order order = {.n = 0};                              \
		CUresult result;                                               \
                                                                               \
		if (VS_ENTER_WORK(api, way.stream) && vs_unlikely(beyond_)) {  \
			result = CUDA_ERROR_INVALID_VALUE;                     \
		} else {                                                       \
			if (vs_copy_is_due(way))                               \
				begin_;                                        \
			result = vs_real.api(__VA_ARGS__);                     \
			if (vs_refused(result) && open_) {                     \
				order = (struct vs_order){.n = 0};             \
				begin_;                                        \
				result = vs_real.api(__VA_ARGS__);             \
			}                                                      \
			if (vs_refused(result))                                \
				result = between_;                             \
			result = vs_order_end(&order, result);                 \
		}                                                              \
		vs_seen(result);                                               \
	})

/* Of bytes in a row: what, how, and the driver's arguments. */
#define VS_COPIED_ROW(api, dst, src, size, how, ...)                           \
	VS_COPIED(api, how, vs_row_is_beyond(dst, src, size),                  \
		  vs_copy_begin_row(&order, dst, src, size, way),              \
		  vs_copy_open_row(dst, src, size, way),                       \
		  vs_copy_between_row(dst, src, size, way), __VA_ARGS__)

/*
 * Note [Sets between devices]
 * The driver refuses to set cuMemAlloc memory of a device that is no enabled
 * peer (CUDA_ERROR_INVALID_VALUE, seen on two H200), and so it does with VMM
 * memory that is not open; that copies have opened it may not be seen.
 */
bool vs_copy_refuses_set(struct vs_copier *copier, CUdeviceptr dst,
			 CUstream stream) __attribute__((cold));

/* Before each set, that `copier` (all zero) ends. */
static inline bool vs_set_is_refused(struct vs_copier *copier, CUdeviceptr dst,
				     CUstream stream)
{
	return vs_copier_may_be_of_peer() &&
	       vs_copy_refuses_set(copier, dst, stream);
}

/* Memory may be open to a device without peer access; never withdrawn. */
void vs_copy_note_opened(void);

/*
 * Before a peer copy of the program's own, which needs no access; `copier` (all
 * zero) is to be ended after it. The contexts become those that it is to name,
 * where the program names none (the current one, to the driver) or another, of
 * whatever device: see Note [Order of copies]. One that has ended is left to
 * the driver.
 */
void vs_copy_begin_peer(struct vs_copier *copier, CUdeviceptr dst,
			CUcontext *dst_ctx, CUdeviceptr src, CUcontext *src_ctx,
			CUstream stream);

#endif
