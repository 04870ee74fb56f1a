/* SPDX-License-Identifier: MIT
 *
 * state: struct vs_pool, the memory of one device. Private to the room.
 *
 * Owned by pool/pool.c, made once a device, never unmade. `lock` guards all
 * fields without another note; `grow` is held by whoever changes which chunk
 * is mapped where (one thread at a time, over driver calls); it is taken
 * before `lock`, never after.
 */
#ifndef VS_POOL_STATE_H
#define VS_POOL_STATE_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stat.h"
#include "driver/vmm.h"
#include "pool/census.h"
#include "pool/chunk.h"
#include "pool/cover.h"
#include "pool/fence.h"
#include "pool/guard.h"
#include "pool/heap.h"
#include "pool/kept.h"
#include "pool/quota.h"
#include "pool/shelf.h"
#include "pool/toll.h"
#include "pool/turnover.h"

#define VS_SMALL_MAX ((size_t)1 << 20) /* larger requests are ranges */
#define VS_N_CLASSES 72		       /* of them (pool/slab) */
#define VS_GRANULE ((size_t)2 << 20)   /* what a chunk is a multiple of */
#define VS_ALIGN ((size_t)512)	       /* bytes, as cuMemAlloc's */

/* So many bytes, rounded up to whole granules. */
static inline uint64_t vs_granules_up(uint64_t bytes)
{
	return (bytes + VS_GRANULE - 1) / VS_GRANULE * VS_GRANULE;
}

/* Ranges below this are kept apart, in chunks of their own size. */
#define VS_MIDDLE_MAX ((uint64_t)8 << 20)

/* Memory that is held without asking whether it is needed (see pool/grow). */
#define VS_FLOOR ((uint64_t)64 << 20)

/* Heaps of a pool: stretches of the arena, one store of chunks. */
enum vs_heap_kind {
	VS_HEAP_LARGE,	/* ranges of VS_MIDDLE_MAX and more */
	VS_HEAP_MIDDLE, /* smaller ranges */
	VS_HEAP_SLABS,
	VS_N_HEAPS
};

struct vs_slab;

TAILQ_HEAD(vs_slab_list, vs_slab);

/* What waits brought: pool/ladder's, Note [Late] there; pool.lock. */
struct vs_late {
	unsigned markers;    /* waited for in vain, less what was forgiven */
	unsigned good_waits; /* short ones since */
	unsigned lags;	     /* waits for the lag, in vain */
	uint64_t marker;     /* epoch of the last of `markers` */
};

/* pool/repack's, in bytes of small objects; pool.lock to write. */
struct vs_repack {
	_Atomic uint64_t returned; /* to slabs or batches, so far */
	_Atomic uint64_t at;	   /* the next is due then; 0: none */
	uint64_t tag;		   /* the one under way is up to; 0: none */
	unsigned looks_left;
};

/* Chunks that pool/grow makes anew at once, at most. */
enum { VS_CRUMBS_MOST = 256 };

/* In the order of use: what a hit touches is together, at the top. */
struct vs_pool {
	CUdeviceptr base, end;		   /* the arena; constant */
	_Atomic(struct vs_range *) *owner; /* by 1 MiB of the arena */
	struct vs_slab **slab_at; /* by VS_SLAB_PAGE of the slab heap; atomic */
	CUdeviceptr slabs_end;	  /* the slab heap begins the arena; constant */
	/* frees take the slow path: see vs_trouble_beware(); lock */
	_Atomic bool is_wary;
	bool is_fussy;	    /* sync, zero, junk, guard; constant */
	bool is_sync;	    /* constant */
	bool is_contiguous; /* constant */

	pthread_mutex_t lock;
	struct vs_range_list pending; /* oldest first, by tag */
	uint64_t pending_bytes;	      /* of that list and guard's */
	uint64_t shelved_bytes;	      /* of both shelves, and kept */
	uint64_t unmarked_bytes;      /* freed (pending, dead), no marker yet */
	uint64_t unmarked_since;      /* the first of them; ticks */
	_Atomic bool is_much_bare;    /* they are much; read anywhere */
	/* ticks; see Note [Before work] in pool/mark.h; any thread */
	_Atomic uint64_t rations_used;
	uint64_t marked;      /* last, without need; ticks */
	int orders_left;      /* tries to order that may yet be in vain */
	bool is_trunk_first;  /* pool/toll's; see Note [Trunk] in pool/heap.h */
	uint64_t bare_bytes;  /* freed, small objects too, since... */
	uint64_t bare_tag;    /* ... a marker last covered this tag */
	uint64_t need;	      /* bytes; see Note [Need] in pool/grow.h */
	uint64_t most_now;    /* bytes live in the window of decay's */
	uint64_t fall_now;    /* how far below need, at an allocation there */
	uint64_t small_bytes; /* live small objects, when last added up */
	/* ranges, asked for and given; written under lock, read anywhere */
	_Atomic uint64_t live_bytes, live_spans, live_blocks;
	_Atomic uint64_t refused; /* the driver had no more; ns, 0: long ago */
	/* bytes: held at most; dev.total, beside what a hit reads; constant */
	uint64_t most, total;
	struct vs_stock stock; /* of pool/heap */
	struct vs_chunks chunks;
	struct vs_turnover turnover;
	struct vs_quota quota;
	struct vs_fence fence;
	struct vs_stats stats;
	struct vs_heap heap[VS_N_HEAPS];
	struct vs_shelf shelf[VS_HEAP_SLABS]; /* by size, SLABS has none */
	struct vs_kept kept;

	/* what a hit does not touch */
	uint64_t now; /* clock, ns, as of the last tick */
	struct vs_late late;
	/* pool/greed's: bytes that were not to be had, the last; 0: none; clock
	 */
	uint64_t greed_span, greed_since;
	struct vs_toll toll;
	/* threads that are out of memory, see Note [Hoards] in pool/ladder.c */
	_Atomic unsigned n_short;
	/* the last range that had its marker in its free: whose, which; lock */
	int held_up; /* a thread, by tid */
	uint64_t held_up_epoch;
	/* what was freed outlived the device's last context, see pool/end */
	_Atomic bool is_left;
	/* tag that pool/trim waited for in vain for others; in one thread */
	uint64_t give_way_vain;
	pthread_mutex_t grow;
	struct vs_guard guard;
	struct vs_range_list dead;	  /* oldest first, by tag */
	struct vs_slab_list dead_slabs;	  /* with dead objects; the same */
	uint64_t dead_bytes, dead_small;  /* of ranges; of those objects */
	struct vs_chunk_list noted;	  /* chunks that may be all dead */
	struct vs_chunk_list spent;	  /* chunks that were all dead */
	struct vs_vmm_device dev;	  /* constant */
	int index;			  /* among the pools; constant */
	uint64_t seen_calls, quiet_since; /* decay's; count, clock */
	unsigned n_quiet_looks;		  /* decay's, since quiet_since */
	uint64_t swept, swept_tag;	  /* decay's; clock or 0, tag then */
	uint64_t need_since;		  /* clock; begin of a window */
	uint64_t shrinks_until;		  /* decay's; clock: need fell */
	uint64_t shrunk, shrunk_from;	  /* decay's; last look: went, of all */
	unsigned n_vain_looks;		  /* decay's, in a row */
	uint64_t most_before;		  /* most_now of the last */
	uint64_t fall_before;		  /* fall_now of the last */
	_Atomic bool is_prepared;	  /* once; see pool/prepare.c */

	/* small objects: what left the slabs for threads and is not back */
	struct vs_slabs *slabs; /* of every context with small objects */
	/* every one made for this pool; pushed under lock, read anywhere */
	_Atomic(struct vs_tcache *) tcaches;
	struct vs_census census; /* which of them threads have */
	uint64_t flushes;	 /* of all these, so far */
	unsigned tight;		 /* see Note [Tight] in pool/plan.h */
	/* a heap had no addresses left: when; 0: never */
	_Atomic uint64_t cramped[VS_N_HEAPS];
	_Atomic uint64_t cramped_span[VS_N_HEAPS]; /* for so much */
	bool is_varied; /* see Note [Whole] in pool/chunk.h */
	/* of ranges that are slabs; written under lock, read anywhere */
	_Atomic uint64_t slab_bytes;
	struct vs_slab *spare_slabs[VS_N_CLASSES]; /* to be used again */
	struct vs_repack repack;
	/* small frees that went past the caches */
	_Atomic uint64_t odd_frees, odd_free_bytes, odd_free_spans;
	/* small objects that died with their context */
	_Atomic uint64_t lost_blocks, lost_bytes, lost_spans;

	_Atomic uint64_t peers;	   /* devices with access to our chunks */
	_Atomic uint64_t reach;	   /* whose work may: itself, peers, others */
	_Atomic uint64_t welcomed; /* of these, who has been: pool/newcomer */
	_Atomic uint64_t
		counting; /* for good, see Note [Peers] in pool/fence.h */

	/* knobs, in bytes of this device; constant */
	uint64_t memory_limit; /* UINT64_MAX: none */
	uint64_t pending_limit;
	uint64_t release_threshold;
	uint64_t chunk_size; /* 0: by the growth rule */

	/* that pool/grow makes anew, on no stack; grow */
	struct vs_chunk *crumbs[VS_CRUMBS_MOST];
	uint64_t anew; /* their bytes, gone, while as much is created; grow */
};

/*
 * The lock, held, is given up for a moment, and whoever waits for it has it: a
 * thread that takes it again at once may go on for ever.
 */
static inline void vs_pool_let_in(struct vs_pool *pool)
{
	pthread_mutex_unlock(&pool->lock);
	vs_vmm_pause(UINT_MAX);
	pthread_mutex_lock(&pool->lock);
}

/* What goes on until `stop` is true; NULL: to its end. */
static inline bool vs_pool_is_over(const _Atomic bool *stop)
{
	return stop && atomic_load(stop);
}

/* Entries of the chunk table over an address of the arena; lock, or grow. */
static inline struct vs_spot *vs_spot_at(const struct vs_pool *pool,
					 CUdeviceptr p)
{
	return &pool->chunks.spots[(p - pool->base) / VS_GRANULE];
}

static inline struct vs_spot *vs_stretch_at(const struct vs_pool *pool,
					    CUdeviceptr p)
{
	return &pool->chunks.stretches[(p - pool->base) / VS_STRETCH];
}

/* Pools by device ordinal, NULL where none was made. */
struct vs_pool *vs_pool_of(CUdevice device);
/* The same, made if need be; NULL where there can be none. */
struct vs_pool *vs_pool_for(CUdevice device);
/* Pool number i in the order of their making, or NULL. */
struct vs_pool *vs_pool_by_index(int i);
/* The pool whose arena holds `p`, or NULL. Lock-free. */
struct vs_pool *vs_pool_at(CUdeviceptr p);

#endif
