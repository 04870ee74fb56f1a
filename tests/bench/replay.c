/* SPDX-License-Identifier: MIT
 *
 * replay: runs recorded traces through the real pool on the counting driver
 * with its cost model (tests/unit/fake.h), as fast as it can.
 *
 *   replay [--lag MS | --gpu RATIO] TRACE.gz...
 *
 * One line a trace and lag. eff: peak of live bytes over peak of memory held.
 * --lag: freed memory is complete so much later, as behind a GPU that runs
 * behind the host; without it 0 and then 20 ms. --gpu: each allocation gives
 * the GPU some work, with its size; all of it takes so many times as long as
 * the host needs for its part. lost_percent: of the time that this takes with
 * memory without end; the rest is a host that waits for memory, and a GPU that
 * waits for such a host. Trace lines: `a ID SIZE T_US THREAD`, `f ID T_US
 * THREAD`.
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
	uint64_t allocs, live, live_high, ns;
	double lost_percent; /* with --gpu */
};

/*
 * A program with a GPU. As PyTorch on an H200 (train_transformer): host time
 * for each allocation or free, work of the GPU that the smallest kernels take,
 * and of what is launched so much at most has not begun.
 */
#define HOST_NS ((uint64_t)25000)
#define KERNEL_NS ((uint64_t)15000)
enum { QUEUE = 800 };

static struct {
	double ratio;	     /* GPU time over host time; 0: a constant lag */
	double ns_a_byte;    /* of work, beyond KERNEL_NS */
	uint64_t n;	     /* launched so far */
	uint64_t end[QUEUE]; /* of the last ones */
} gpu;

static void gpu_reset(const struct trace *t)
{
	uint64_t allocs = 0, bytes = 0;
	double work;

	for (size_t i = 0; i < t->n; i++) {
		allocs += t->ops[i].size > 0;
		bytes += t->ops[i].size;
	}
	work = gpu.ratio * (double)(t->n * HOST_NS) -
	       (double)(allocs * KERNEL_NS);
	gpu.ns_a_byte = bytes > 0 && work > 0 ? work / (double)bytes : 0;
	gpu.n = 0;
	memset(gpu.end, 0, sizeof(gpu.end));
	fake.gpu_free = fake.now;
}

static void launch(uint64_t size)
{
	uint64_t *end = &gpu.end[gpu.n++ % QUEUE];

	if (*end > fake.now)
		fake.now = *end; /* the queue is full */
	if (fake.gpu_free < fake.now)
		fake.gpu_free = fake.now; /* it was without work */
	fake.gpu_free += KERNEL_NS + (uint64_t)(gpu.ns_a_byte * (double)size);
	*end = fake.gpu_free;
}

static uint64_t gpu_end(void)
{
	return fake.now > fake.gpu_free ? fake.now : fake.gpu_free;
}

/* How long it takes with memory without end. */
static uint64_t run_without(const struct trace *t)
{
	uint64_t began = fake.now, took;

	gpu_reset(t);
	for (size_t i = 0; i < t->n; i++) {
		fake.now += HOST_NS;
		if (t->ops[i].size > 0)
			launch(t->ops[i].size);
	}
	took = gpu_end() - began;
	fake.now = began;
	return took;
}

/*
 * Host time goes on by the trace's own gaps, or by HOST_NS; what the pool waits
 * makes the program late.
 */
static void pass_time(const struct op *op, uint64_t *last_us)
{
	if (gpu.ratio > 0) {
		fake.now += HOST_NS;
	} else if (op->t_us > *last_us) {
		fake.now += (op->t_us - *last_us) * 1000;
		*last_us = op->t_us;
	}
}

static int run(const struct trace *t, struct outcome *o)
{
	CUdeviceptr *p = calloc(t->n_ids, sizeof(*p));
	uint64_t *size = calloc(t->n_ids, sizeof(*size));
	uint64_t last_us = 0, tick = fake.now, began = host_ns();

	for (size_t i = 0; i < t->n; i++) {
		const struct op *op = &t->ops[i];

		pass_time(op, &last_us);
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
		vs_pool_before_work();
		if (gpu.ratio > 0)
			launch(op->size);
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
	if (gpu.ratio > 0)
		printf("gpu_ratio=%g lost_percent=%.2f ", gpu.ratio,
		       o->lost_percent);
	else
		printf("lag_ms=%g ", lag_ms);
	printf("created=%llu tables=%lu markers=%lu waited_ms=%.0f\n",
	       (unsigned long long)s->chunks_created, fake.tables, fake.records,
	       (double)s->wait_ns / 1e6);
}

/* The same beside memory without end. */
static int run_with_gpu(const struct trace *t, struct outcome *o)
{
	uint64_t without = run_without(t), began = fake.now;

	gpu_reset(t);
	if (run(t, o))
		return -1;
	o->lost_percent =
		((double)(gpu_end() - began) / (double)without - 1) * 100;
	return 0;
}

static int replay(const char *path, double lag_ms)
{
	struct outcome o = {0};
	struct trace t;
	int status;

	if (read_trace(path, &t))
		return 1;
	fake_install((uint64_t)139 << 30);
	fake.lag_ns = (uint64_t)(lag_ms * 1e6);
	vs_pool_forked(); /* forget the pool of the trace before */
	vs_thread_forked();
	status = gpu.ratio > 0 ? run_with_gpu(&t, &o) : run(&t, &o);
	if (status == 0)
		print(path, lag_ms, &t, &o);
	free(t.ops);
	return status != 0;
}

/* The number of an option; -1 with a message. */
static double number(const char *option, const char *text)
{
	char *end;
	double n = strtod(text, &end);

	if (!*end && end != text && n >= 0)
		return n;
	fprintf(stderr, "replay: %s: not a number: %s\n", option, text);
	return -1;
}

int main(int argc, char **argv)
{
	double lag_ms = -1; /* both */
	int status = 0, n = 0;

	vs_knob_init();
	for (int i = 1; i < argc; i++) {
		double *option = !strcmp(argv[i], "--lag")   ? &lag_ms
				 : !strcmp(argv[i], "--gpu") ? &gpu.ratio
							     : NULL;

		if (option && i + 1 < argc) {
			*option = number(argv[i], argv[i + 1]);
			if (*option < 0)
				return 2;
			i++;
			continue;
		}
		n++;
		if (gpu.ratio > 0 || lag_ms >= 0) {
			status |= replay(argv[i], lag_ms < 0 ? 0 : lag_ms);
			continue;
		}
		status |= replay(argv[i], 0);
		status |= replay(argv[i], 20);
	}
	if (n == 0) {
		fprintf(stderr, "usage: replay [--lag MS | --gpu RATIO] "
				"TRACE.gz...\n");
		return 2;
	}
	return status;
}
