/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "report/emit.h"

#include "base/api.h"
#include "base/fmt.h"
#include "base/knob.h"
#include "base/stat.h"
#include "base/thread.h"
#include "driver/vmm.h"
#include "pool/pool.h"

/*
 * Upper bound of the line, so that it is never cut: a number of struct vs_stats
 * has 8 bytes and becomes at most 48 (name, quotes, 20 digits); a call has its
 * name and a number; the rest is the knobs, whose texts hold 16 KiB and may
 * grow sixfold when every byte is escaped. Pages never written cost nothing.
 */
#define DEVICES_BYTES (VS_MAX_DEVICES * (sizeof(struct vs_stats) * 6 + 96))
#define CALLS_BYTES (VS_API_COUNT * 80)
#define REST_BYTES (128 * 1024)

#define STAT(name, kind, unit, help)                                           \
	_Static_assert(sizeof(#name) <= 20, "raise DEVICES_BYTES: " #name);
#include "stats.def"
#undef STAT
#define API(symbol, base, since, flags)                                        \
	_Static_assert(sizeof(#symbol) <= 56, "raise CALLS_BYTES: " #symbol);
#include "api.def"

static char text[DEVICES_BYTES + CALLS_BYTES + REST_BYTES];
static struct vs_fmt f;

/* Items of a list are told apart by a comma before all but the first. */
static void comma(bool *is_first)
{
	if (!*is_first)
		vs_fmt_char(&f, ',');
	*is_first = false;
}

static void put_string(const char *key, const char *value)
{
	vs_fmt_f(&f, "\"%s\":\"", key);
	vs_fmt_json(&f, value);
	vs_fmt_char(&f, '"');
}

static void put_number(const char *key, const char *suffix, uint64_t v)
{
	vs_fmt_f(&f, "\"%s%s\":%llu", key, suffix, (unsigned long long)v);
}

static void emit_device(int i)
{
	CUdevice device = i;
	const struct vs_stats *stats = vs_pool_stats(i, &device);
	const unsigned char *uuid = vs_pool_uuid(i);
	struct vs_stat_row row;

	vs_fmt_f(&f, "{\"device\":%d,\"uuid\":\"", (int)device);
	if (uuid)
		vs_fmt_uuid(&f, uuid);
	vs_fmt_char(&f, '"');
	for (size_t n = 0; vs_stat_row(stats, n, &row); n++) {
		vs_fmt_char(&f, ',');
		put_number(row.name, "", row.value);
		if (!row.is_gauge)
			continue;
		vs_fmt_char(&f, ',');
		put_number(row.name, "_high", row.high);
	}
	vs_fmt_char(&f, '}');
}

static void emit_devices(void)
{
	int n_pools = vs_pool_count();
	bool is_first = true;

	vs_fmt_str(&f, ",\"devices\":[");
	for (int i = 0; i < n_pools && i < VS_MAX_DEVICES; i++) {
		comma(&is_first);
		emit_device(i);
	}
	vs_fmt_char(&f, ']');
}

static void emit_calls(void)
{
	bool is_first = true;

	vs_fmt_str(&f, ",\"calls\":{");
	for (int api = 0; api < VS_API_COUNT; api++) {
		uint64_t n = vs_thread_calls(api);

		if (!n)
			continue;
		comma(&is_first);
		put_number(vs_api_name(api), "", n);
	}
	vs_fmt_char(&f, '}');
}

static const char *source_name(enum vs_knob_source source)
{
	switch (source) {
	case VS_FROM_ENV:
		return "environment";
	case VS_FROM_REJECTED:
		return "rejected";
	default:
		return "default";
	}
}

static void emit_knobs(void)
{
	struct vs_knob_row row;
	bool is_first = true;

	vs_fmt_str(&f, ",\"knobs\":{");
	for (size_t i = 0; vs_knob_row(i, &row); i++) {
		comma(&is_first);
		vs_fmt_f(&f, "\"%s\":{", row.variable);
		put_string("value", row.value);
		vs_fmt_char(&f, ',');
		put_string("source", source_name(row.source));
		vs_fmt_char(&f, '}');
	}
	vs_fmt_char(&f, '}');
}

bool vs_emit_json(const struct vs_dump_head *head, int fd)
{
	f = vs_fmt_start(text, sizeof(text));
	vs_fmt_f(&f, "{\"version\":%d,", VS_JSON_VERSION);
	put_string("vmmshim", PACKAGE_VERSION);
	vs_fmt_f(&f, ",\"pid\":%d,", head->pid);
	put_string("program", head->program);
	vs_fmt_char(&f, ',');
	put_string("host", head->host);
	vs_fmt_char(&f, ',');
	put_string("rank", vs_knob_rank());
	vs_fmt_char(&f, ',');
	put_string("why", head->why);
	vs_fmt_char(&f, ',');
	put_number("time", "", head->time_s);
	vs_fmt_char(&f, ',');
	put_number("uptime_ns", "", head->uptime_ns);
	vs_fmt_char(&f, ',');
	put_string("mode", head->mode);
	emit_devices();
	emit_calls();
	emit_knobs();
	vs_fmt_str(&f, "}\n");
	return vs_fmt_write(&f, fd);
}
