/* SPDX-License-Identifier: MIT */
#include "base/stat.h"

#define NO_HIGH SIZE_MAX

enum kind { GAUGE, COUNTER };
enum unit { BYTES, COUNT, NS };

#define HIGH_GAUGE(name) offsetof(struct vs_stats, name##_high)
#define HIGH_COUNTER(name) NO_HIGH

static const struct {
	const char *name, *help;
	size_t at, high_at; /* offsets in struct vs_stats */
	enum kind kind;
	enum unit unit;
} rows[] = {
#define STAT(name, kind, unit, help)                                           \
	{#name, help, offsetof(struct vs_stats, name), HIGH_##kind(name),      \
	 kind,	unit},
#include "stats.def"
#undef STAT
};

static uint64_t read_at(const struct vs_stats *stats, size_t at)
{
	const void *field = (const char *)stats + at;

	return atomic_load_explicit((const _Atomic uint64_t *)field,
				    memory_order_relaxed);
}

bool vs_stat_row(const struct vs_stats *stats, size_t i,
		 struct vs_stat_row *row_out)
{
	if (i >= sizeof(rows) / sizeof(rows[0]))
		return false;
	*row_out = (struct vs_stat_row){
		.name = rows[i].name,
		.help = rows[i].help,
		.value = read_at(stats, rows[i].at),
		.high = rows[i].kind == GAUGE ? read_at(stats, rows[i].high_at)
					      : 0,
		.is_gauge = rows[i].kind == GAUGE,
		.is_bytes = rows[i].unit == BYTES,
		.is_ns = rows[i].unit == NS,
	};
	return true;
}
