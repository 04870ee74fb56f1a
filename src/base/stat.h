/* SPDX-License-Identifier: MIT
 *
 * stat: the numbers of one pool, from stats.def.
 *
 * The pool owns its struct vs_stats and is the only writer; fields are relaxed
 * atomics, so that the dump (also in a signal handler) may read them at any
 * time without a lock. A dump is therefore not one instant: sums may be off by
 * what ran meanwhile.
 */
#ifndef VS_BASE_STAT_H
#define VS_BASE_STAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VS_STAT_GAUGE(name) _Atomic uint64_t name, name##_high;
#define VS_STAT_COUNTER(name) _Atomic uint64_t name;

struct vs_stats {
#define STAT(name, kind, unit, help) VS_STAT_##kind(name)
#include "stats.def"
#undef STAT
};

#define vs_stat_add(stats, name, n)                                            \
	atomic_fetch_add_explicit(&(stats)->name, (n), memory_order_relaxed)
/* The same where only one thread at a time writes: no locked instruction. */
#define vs_stat_bump(stats, name, n)                                           \
	atomic_store_explicit(&(stats)->name,                                  \
			      vs_stat_get(stats, name) + (uint64_t)(n),        \
			      memory_order_relaxed)
#define vs_stat_get(stats, name)                                               \
	atomic_load_explicit(&(stats)->name, memory_order_relaxed)

/* Sets a gauge and lifts its high-water mark; one writer at a time. */
static inline void vs_stat_level(_Atomic uint64_t *gauge,
				 _Atomic uint64_t *high, uint64_t level)
{
	atomic_store_explicit(gauge, level, memory_order_relaxed);
	if (level > atomic_load_explicit(high, memory_order_relaxed))
		atomic_store_explicit(high, level, memory_order_relaxed);
}
#define vs_stat_set(stats, name, level)                                        \
	vs_stat_level(&(stats)->name, &(stats)->name##_high, (level))
/* The same where others set it, too: none of them lowers the mark. */
static inline void vs_stat_level_shared(_Atomic uint64_t *gauge,
					_Atomic uint64_t *high, uint64_t level)
{
	uint64_t was = atomic_load_explicit(high, memory_order_relaxed);

	atomic_store_explicit(gauge, level, memory_order_relaxed);
	while (level > was && !atomic_compare_exchange_weak_explicit(
				      high, &was, level, memory_order_relaxed,
				      memory_order_relaxed))
		;
}
#define vs_stat_set_shared(stats, name, level)                                 \
	vs_stat_level_shared(&(stats)->name, &(stats)->name##_high, (level))

/* Row `i` of stats.def as values read from `stats`; false past the end. */
struct vs_stat_row {
	const char *name; /* "reserved" */
	const char *help;
	uint64_t value;
	uint64_t high; /* gauges only */
	bool is_gauge, is_bytes, is_ns;
};
bool vs_stat_row(const struct vs_stats *stats, size_t i,
		 struct vs_stat_row *row_out);

#endif
