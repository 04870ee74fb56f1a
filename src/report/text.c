/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "report/emit.h"

#include <string.h>

#include "base/api.h"
#include "base/fmt.h"
#include "base/knob.h"
#include "base/stat.h"
#include "base/thread.h"
#include "pool/pool.h"

/* Right edges of the columns, counted from the end of the prefix. */
enum { NOW_EDGE = 29, EXACT_EDGE = 45, HIGH_EDGE = 57, HIGH_EXACT_EDGE = 73 };

/* Longest value of a knob is a path. */
static char line[4096 + 256];
static struct vs_fmt f;
static size_t prefix;	/* its length: where column 0 is */
static int to;		/* the file descriptor */
static bool is_written; /* all so far */

static void start(const struct vs_dump_head *head)
{
	/* one byte is kept for the newline */
	f = vs_fmt_start(line, sizeof(line) - 1);
	vs_fmt_f(&f, "vmmshim[%d] stats: ", head->pid);
	prefix = f.len;
}

static void finish(void)
{
	f.size = sizeof(line);
	vs_fmt_char(&f, '\n');
	is_written = is_written && vs_fmt_write(&f, to);
}

/* `text` with its end at column `edge`, or one space behind what is there. */
static void put_right(const char *text, size_t edge)
{
	size_t len = strlen(text);

	vs_fmt_char(&f, ' ');
	vs_fmt_pad(&f, prefix + (edge > len ? edge - len : 0));
	vs_fmt_str(&f, text);
}

static void put_number(uint64_t v, size_t edge)
{
	char text[24];
	struct vs_fmt number = vs_fmt_start(text, sizeof(text));

	vs_fmt_u64(&number, v);
	put_right(text, edge);
}

/* One level: for people at `edge`, and exactly at `exact_edge`. */
static void put_level(const struct vs_stat_row *row, uint64_t v, size_t edge,
		      size_t exact_edge)
{
	char text[24];
	struct vs_fmt number = vs_fmt_start(text, sizeof(text));

	if (row->is_bytes) {
		vs_fmt_bytes(&number, v);
	} else if (row->is_ns) {
		vs_fmt_ns(&number, v);
	} else {
		put_number(v, edge);
		return;
	}
	put_right(text, edge);
	put_number(v, exact_edge);
}

static void emit_header(const struct vs_dump_head *head)
{
	start(head);
	vs_fmt_f(&f, "libvmmshim %s, ", PACKAGE_VERSION);
	vs_fmt_line(&f, head->program);
	vs_fmt_f(&f, ", %s, up ", head->why);
	vs_fmt_ns(&f, head->uptime_ns);
	vs_fmt_f(&f, ", mode %s", head->mode);
	finish();
}

/* How many allocations were served without growing, of how many. */
static void emit_hits(const struct vs_dump_head *head,
		      const struct vs_stats *stats)
{
	uint64_t hits =
		vs_stat_get(stats, small_hit) + vs_stat_get(stats, large_hit);
	uint64_t all = hits + vs_stat_get(stats, small_miss) +
		       vs_stat_get(stats, large_miss);
	uint64_t permille = all ? hits * 1000 / all : 0;

	if (!all)
		return;
	start(head);
	vs_fmt_f(&f, "  %llu.%llu %% of %llu allocations served by a hit",
		 (unsigned long long)permille / 10,
		 (unsigned long long)permille % 10, (unsigned long long)all);
	finish();
}

static void emit_device(const struct vs_dump_head *head, int i)
{
	CUdevice device = i;
	const struct vs_stats *stats = vs_pool_stats(i, &device);
	const unsigned char *uuid = vs_pool_uuid(i);
	struct vs_stat_row row;

	start(head);
	vs_fmt_f(&f, "device %d", (int)device);
	put_right("now", NOW_EDGE);
	put_right("exact", EXACT_EDGE);
	put_right("high", HIGH_EDGE);
	put_right("exact", HIGH_EXACT_EDGE);
	finish();
	if (uuid) {
		start(head);
		vs_fmt_str(&f, "  uuid ");
		vs_fmt_uuid(&f, uuid);
		finish();
	}
	for (size_t n = 0; vs_stat_row(stats, n, &row); n++) {
		/* what never happened is not worth a line */
		if (!row.is_gauge && !row.value)
			continue;
		start(head);
		vs_fmt_f(&f, "  %s", row.name);
		put_level(&row, row.value, NOW_EDGE, EXACT_EDGE);
		if (row.is_gauge)
			put_level(&row, row.high, HIGH_EDGE, HIGH_EXACT_EDGE);
		finish();
	}
	emit_hits(head, stats);
}

static void emit_calls(const struct vs_dump_head *head)
{
	bool has_title = false;

	for (int api = 0; api < VS_API_COUNT; api++) {
		uint64_t n = vs_thread_calls(api);

		if (!n)
			continue;
		if (!has_title) {
			start(head);
			vs_fmt_str(&f, "calls");
			finish();
			has_title = true;
		}
		start(head);
		vs_fmt_f(&f, "  %s", vs_api_name(api));
		put_number(n, EXACT_EDGE);
		finish();
	}
}

static void emit_knobs(const struct vs_dump_head *head)
{
	struct vs_knob_row row;

	for (size_t i = 0; vs_knob_row(i, &row); i++) {
		if (row.source == VS_FROM_DEFAULT)
			continue;
		start(head);
		vs_fmt_f(&f, "knob %s=", row.variable);
		vs_fmt_line(&f, row.value);
		vs_fmt_str(&f, row.source == VS_FROM_ENV
				       ? " (environment)"
				       : " (default, the environment's was "
					 "rejected)");
		finish();
	}
}

bool vs_emit_text(const struct vs_dump_head *head, int fd)
{
	int n_pools = vs_pool_count();

	to = fd;
	is_written = true;
	emit_header(head);
	for (int i = 0; i < n_pools; i++)
		emit_device(head, i);
	if (!n_pools) {
		start(head);
		vs_fmt_str(&f, "no device has a pool yet");
		finish();
	}
	emit_calls(head);
	emit_knobs(head);
	return is_written;
}
