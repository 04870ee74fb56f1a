/* SPDX-License-Identifier: MIT */
/* The books, as a structure for tests and as text for scripts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "sim_array.h"
#include "sim_base.h"
#include "sim_call.h"
#include "sim_context.h"
#include "sim_cost.h"
#include "sim_device.h"
#include "sim_handle.h"
#include "sim_judge.h"
#include "sim_memory.h"
#include "sim_physical.h"
#include "sim_vmm.h"
#include "sim_work.h"

static void add_memory(int device, struct sim_books *b)
{
	struct sim_memory_sums m = {.n = {0}};
	struct sim_physical_sums p = {0};
	struct sim_vmm_sums v = {0};

	sim_memory_sum(device, &m);
	sim_physical_sum(device, &p);
	sim_vmm_sum(device, &v);
	b->n_reservations += v.n_reservations;
	b->reserved_bytes += v.reserved;
	b->n_handles += p.n_handles;
	b->n_physical += p.n_physical;
	b->vmm_bytes += p.bytes;
	b->n_mappings += v.n_mappings;
	b->mapped_bytes += v.mapped;
	b->n_legacy += m.n[SIM_LEGACY];
	b->legacy_bytes += m.bytes[SIM_LEGACY];
	b->legacy_physical += sim_legacy_physical(device);
	b->n_async += m.n[SIM_ASYNC];
	b->async_bytes += m.bytes[SIM_ASYNC];
	b->n_host += m.n[SIM_HOST] + m.n[SIM_REGISTERED];
	b->n_ipc += m.n[SIM_IMPORTED];
	sim_array_sum(device, &b->n_arrays, &b->array_bytes);
	b->physical += sim_devices[device].used;
	b->peak_physical += sim_devices[device].peak;
	b->memory += sim_devices[device].memory;
	b->n_contexts += sim_context_count(device);
}

/* What belongs to no device is counted once. */
static void add_global(struct sim_books *b)
{
	b->n_streams = sim_handle_count(SIM_STREAM);
	b->n_events = sim_handle_count(SIM_EVENT);
	b->n_graphs = sim_handle_count(SIM_GRAPH);
	b->n_graph_execs = sim_handle_count(SIM_GRAPH_EXEC);
	b->n_modules = sim_handle_count(SIM_MODULE);
	b->n_pending = sim_work_pending();
	sim_judge_notes(&b->n_notes, &b->note_bytes);
}

static void fill_books(int device, struct sim_books *b)
{
	int i;

	memset(b, 0, sizeof(*b));
	for (i = 0; i < sim_config.n_devices; i++)
		if (device < 0 || device == i)
			add_memory(i, b);
	if (device <= 0)
		add_global(b);
}

void sim_books(int device, struct sim_books *out)
{
	sim_lock();
	fill_books(device, out);
	sim_unlock();
}

/* ---- text ------------------------------------------------------------ */

/* Key and value, one a line, so that scripts can grep and awk. */
static void line(FILE *file, const char *key, uint64_t value)
{
	fprintf(file, "%s %llu\n", key, (unsigned long long)value);
}

static void write_violations(FILE *file)
{
	unsigned i;

	line(file, "violations", sim_violations());
	for (i = 0; i < SIM_V_KINDS; i++)
		fprintf(file, "violations.%s %lu\n",
			sim_violation_name((enum sim_violation)i),
			sim_violations_of((enum sim_violation)i));
	line(file, "captures.killed", sim_captures_killed());
	line(file, "failures.injected", sim_failures());
}

static void write_books(FILE *file, const struct sim_books *b)
{
	line(file, "reservations", b->n_reservations);
	line(file, "reserved.bytes", b->reserved_bytes);
	line(file, "handles", b->n_handles);
	line(file, "vmm.physical", b->n_physical);
	line(file, "vmm.bytes", b->vmm_bytes);
	line(file, "mappings", b->n_mappings);
	line(file, "mapped.bytes", b->mapped_bytes);
	line(file, "legacy", b->n_legacy);
	line(file, "legacy.bytes", b->legacy_bytes);
	line(file, "legacy.physical", b->legacy_physical);
	line(file, "async", b->n_async);
	line(file, "async.bytes", b->async_bytes);
	line(file, "arrays", b->n_arrays);
	line(file, "host", b->n_host);
	line(file, "ipc", b->n_ipc);
	line(file, "contexts", b->n_contexts);
	line(file, "streams", b->n_streams);
	line(file, "events", b->n_events);
	line(file, "graphs", b->n_graphs);
	line(file, "pending", b->n_pending);
	line(file, "notes", b->n_notes);
	line(file, "notes.bytes", b->note_bytes);
	line(file, "physical", b->physical);
	line(file, "physical.peak", b->peak_physical);
	line(file, "memory", b->memory);
}

static void write_calls(FILE *file)
{
	unsigned i;

	fprintf(file, "cost.us %.1f\n", sim_cost_us());
	fprintf(file, "cost.vmm.us %.1f\n", sim_cost_vmm_us());
	for (i = 0; i < SIM_N_FUNCTIONS; i++)
		if (sim_call_counts[i])
			fprintf(file, "calls.%s %lu\n", sim_functions[i].symbol,
				sim_call_counts[i]);
}

/* FILE with %p replaced by the process id. */
static FILE *open_report(const char *path)
{
	const char *at = strstr(path, "%p");
	char name[4096];

	if (!at)
		return fopen(path, "w");
	snprintf(name, sizeof(name), "%.*s%d%s", (int)(at - path), path,
		 (int)getpid(), at + 2);
	return fopen(name, "w");
}

void sim_report(const char *path)
{
	struct sim_books books;
	char *text = NULL;
	size_t size = 0;
	FILE *file, *out;

	sim_books(-1, &books);
	file = open_memstream(&text, &size);
	if (!file)
		return;
	write_violations(file);
	write_books(file, &books);
	write_calls(file);
	fclose(file);
	out = strcmp(path, "-") == 0 ? stderr : open_report(path);
	if (!out)
		sim_say("sim: no report: %s: %s", path, strerror(errno));
	else
		fwrite(text, 1, size, out);
	if (out && out != stderr)
		fclose(out);
	free(text);
}
