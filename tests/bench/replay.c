/* SPDX-License-Identifier: MIT
 *
 * replay: runs recorded traces through the real pool on the counting driver
 * with its cost model (tests/unit/fake.h), as fast as it can.
 *
 *   replay [--lag MS] TRACE.gz...
 *
 * One line a trace and lag. eff: peak of live bytes over peak of memory held.
 * --lag: freed memory is complete so much later, as behind a GPU that runs
 * behind the host; without it 0 and then 20 ms. Trace lines: `a ID SIZE T_US
 * THREAD`, `f ID T_US THREAD`.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#include "base/knob.h"
#include "base/thread.h"
#include "fake.h"
#include "pool/pool.h"

struct op {
	uint64_t t_us, size; /* size 0: a free */
	uint32_t id;
};

struct trace {
	struct op *ops;
	size_t n, room;
	uint32_t n_ids;
};

static int add_op(struct trace *t, struct op op)
{
	if (t->n == t->room) {
		size_t room = t->room ? t->room * 2 : 4096;
		struct op *ops = realloc(t->ops, room * sizeof(*ops));

		if (!ops)
			return -1;
		t->ops = ops;
		t->room = room;
	}
	t->ops[t->n++] = op;
	if (op.id >= t->n_ids)
		t->n_ids = op.id + 1;
	return 0;
}

/* Reads a trace, plain or gzipped; -1 with a message. */
static int read_trace(const char *path, struct trace *t)
{
	gzFile f = gzopen(path, "rb");
	char line[256];
	size_t number = 0;

	memset(t, 0, sizeof(*t));
	if (!f) {
		fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
		return -1;
	}
	while (gzgets(f, line, sizeof(line))) {
		unsigned long long id, a, b;
		struct op op = {0};

		number++;
		if (sscanf(line, "a %llu %llu %llu", &id, &a, &b) == 3)
			op = (struct op){b, a, (uint32_t)id};
		else if (sscanf(line, "f %llu %llu", &id, &a) == 2)
			op = (struct op){a, 0, (uint32_t)id};
		else if (line[0] == '#' || line[0] == '\n')
			continue;
		else {
			fprintf(stderr, "replay: %s:%zu: not a trace line\n",
				path, number);
			gzclose(f);
			return -1;
		}
		if (add_op(t, op)) {
			fprintf(stderr, "replay: out of memory\n");
			gzclose(f);
			return -1;
		}
	}
	gzclose(f);
	if (t->n == 0) {
		fprintf(stderr, "replay: %s: empty\n", path);
		return -1;
	}
	return 0;
}

static uint64_t host_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

struct outcome {
	uint64_t allocs, live, live_high, ns, late_ns;
};

/*
 * Host time goes on by the trace's own gaps; what the pool waits makes the
 * program late.
 */
static int run(const struct trace *t, struct outcome *o)
{
	CUdeviceptr *p = calloc(t->n_ids, sizeof(*p));
	uint64_t *size = calloc(t->n_ids, sizeof(*size));
	uint64_t last_us = 0, tick = fake.now, began = host_ns();

	for (size_t i = 0; i < t->n; i++) {
		const struct op *op = &t->ops[i];

		if (op->t_us > last_us) {
			fake.now += (op->t_us - last_us) * 1000;
			last_us = op->t_us;
		}
		if (fake.now - tick > 250000000) {
			vs_pool_tick();
			tick = fake.now;
		}
		if (op->size == 0) {
			if (p[op->id] && vs_pool_free(p[op->id]))
				goto fail;
			o->live -= size[op->id];
			p[op->id] = 0;
			continue;
		}
		if (vs_pool_alloc(op->size, &p[op->id]))
			goto fail;
		size[op->id] = op->size;
		o->allocs++;
		o->live += op->size;
		if (o->live > o->live_high)
			o->live_high = o->live;
	}
	o->ns = host_ns() - began;
	free(p);
	free(size);
	return 0;
fail:
	fprintf(stderr, "replay: the pool failed\n");
	return -1;
}

/* The file's name without folder and ending. */
static void print_name(const char *path)
{
	static const char ending[] = ".trace.gz";
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t n = strlen(name), end = strlen(ending);

	if (n > end && strcmp(name + n - end, ending) == 0)
		n -= end;
	printf("trace %.*s ", (int)n, name);
}

static void print(const char *path, double lag_ms, const struct trace *t,
		  const struct outcome *o)
{
	const struct vs_stats *s;
	CUdevice device;

	s = vs_pool_stats(0, &device);
	vs_pool_refresh(0);
	print_name(path);
	printf("eff=%.3f vmm_us_per_alloc=%.2f ns_per_op=%.0f "
	       "reserved_peak_mib=%.0f live_peak_mib=%.0f misses=%llu "
	       "moved=%llu waits=%llu ",
	       (double)o->live_high / (double)fake.held_high,
	       fake.cost_us / (double)o->allocs, (double)o->ns / (double)t->n,
	       (double)fake.held_high / (1 << 20),
	       (double)o->live_high / (1 << 20),
	       (unsigned long long)(s->large_miss + s->small_miss),
	       (unsigned long long)s->chunks_moved,
	       (unsigned long long)s->waits);
	printf("lag_ms=%g created=%llu markers=%lu waited_ms=%.0f\n", lag_ms,
	       (unsigned long long)s->chunks_created, fake.records,
	       (double)s->wait_ns / 1e6);
}

static int replay(const char *path, double lag_ms)
{
	struct outcome o = {0};
	struct trace t;

	if (read_trace(path, &t))
		return 1;
	fake_install((uint64_t)139 << 30);
	fake.lag_ns = (uint64_t)(lag_ms * 1e6);
	vs_pool_forked(); /* forget the pool of the trace before */
	vs_thread_forked();
	if (run(&t, &o))
		return 1;
	print(path, lag_ms, &t, &o);
	free(t.ops);
	return 0;
}

int main(int argc, char **argv)
{
	double lag_ms = -1; /* both */
	int status = 0, n = 0;

	vs_knob_init();
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--lag") && i + 1 < argc) {
			char *end;

			lag_ms = strtod(argv[++i], &end);
			if (*end || lag_ms < 0) {
				fprintf(stderr,
					"replay: --lag: not a number "
					"of milliseconds: %s\n",
					argv[i]);
				return 2;
			}
			continue;
		}
		status |= replay(argv[i], lag_ms < 0 ? 0 : lag_ms);
		if (lag_ms < 0)
			status |= replay(argv[i], 20);
		n++;
	}
	if (n == 0) {
		fprintf(stderr, "usage: replay [--lag MS] TRACE.gz...\n");
		return 2;
	}
	return status;
}
