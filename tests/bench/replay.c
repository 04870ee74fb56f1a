/* SPDX-License-Identifier: MIT
 *
 * replay: runs recorded traces through the real pool on the counting driver
 * with its cost model (tests/unit/fake.h), as fast as it can.
 *
 *   replay [--lag MS | --gpu RATIO] TRACE...
 *
 * One line a trace and lag. eff: peak of live bytes over peak of memory held.
 * --lag: freed memory is complete so much later, as behind a GPU that runs
 * behind the host; without it 0 and then 20 ms. Behind each allocation comes
 * work of the GPU's (Note [Before work] in pool/mark.h). --gpu: each allocation
 * gives the GPU some work, with its size; all of it takes so many times as long
 * as the host needs for its part. lost_percent: of the time that this takes
 * with memory without end; the rest is a host that waits for memory, and a GPU
 * that waits for such a host. All work comes in one stream, but policy auto is
 * complete here, whatever the machine. Trace lines: `a ID SIZE T_US THREAD`, `f
 * ID T_US THREAD`.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#define uthash_fatal(message)                                                  \
	(fputs("replay: " message "\n", stderr), exit(FAILED))
#include <uthash.h>

#include "base/knob.h"
#include "base/thread.h"
#include "fake.h"
#include "pool/pool.h"
#include "base/stream.h"

enum { FAILED = 1, BAD_INPUT = 2 }; /* exit status */

/* Of an option: nanoseconds of so many milliseconds can be counted. */
#define NUMBER_MAX 1e9

/* Microseconds: times are nanoseconds below, and the pool adds to them. */
#define T_US_MAX (UINT64_MAX / 4000)

struct op {
	uint64_t t_us, size; /* size 0: a free */
	size_t block;	     /* which allocation of the trace */
	size_t line;
};

/* An allocation that was read and not yet its free. */
struct live {
	UT_hash_handle hh;
	uint64_t id, size;
	size_t block;
};

struct trace {
	const char *path;
	struct op *ops;
	size_t n, room;
	size_t n_blocks;
	struct live *live; /* while it is read; by id */
	size_t n_strays, first_stray;
};

static const char no_memory[] = "out of memory";
static const char no_line[] = "not a trace line";

static const char *add_op(struct trace *t, struct op op)
{
	if (t->n == t->room) {
		size_t room = t->room ? t->room * 2 : 4096;
		struct op *ops = realloc(t->ops, room * sizeof(*ops));

		if (!ops)
			return no_memory;
		t->ops = ops;
		t->room = room;
	}
	t->ops[t->n++] = op;
	return NULL;
}

static void note_stray(struct trace *t, size_t line)
{
	if (t->n_strays++ == 0)
		t->first_stray = line;
}

/*
 * What was allocated as another thread ended the context may be looked up when
 * its address is another's already: that one is there twice. Such a line is
 * counted and left out.
 */
static const char *add_alloc(struct trace *t, uint64_t id, struct op op)
{
	struct live *l;

	if (op.size == 0)
		return "an allocation of 0 bytes";
	HASH_FIND(hh, t->live, &id, sizeof(id), l);
	if (l && l->size == op.size) {
		note_stray(t, op.line);
		return NULL;
	}
	if (l)
		return "an id that is live already: traces of two programs?";
	l = calloc(1, sizeof(*l));
	if (!l)
		return no_memory;
	l->id = id;
	l->size = op.size;
	l->block = op.block = t->n_blocks++;
	HASH_ADD(hh, t->live, id, sizeof(id), l);
	return add_op(t, op);
}

/*
 * Of what is not live: freed twice, perhaps, where two threads did, or a
 * context ended beside its free. Counted and left out, too.
 */
static const char *add_free(struct trace *t, uint64_t id, struct op op)
{
	struct live *l;

	HASH_FIND(hh, t->live, &id, sizeof(id), l);
	if (!l) {
		note_stray(t, op.line);
		return NULL;
	}
	op.block = l->block;
	HASH_DEL(t->live, l);
	free(l);
	return add_op(t, op);
}

/* Blanks and a number, and *s behind them. */
static bool take_number(const char **s, uint64_t *out)
{
	const char *digits = *s + strspn(*s, " \t");
	char *end;

	if (digits == *s || *digits < '0' || *digits > '9')
		return false;
	errno = 0;
	*out = strtoull(digits, &end, 10);
	*s = end;
	return errno == 0;
}

/* NULL, or what is wrong with the line. */
static const char *add_line(struct trace *t, const char *text, size_t line)
{
	bool is_alloc = text[0] == 'a';
	struct op op = {.line = line};
	const char *s = text + 1;
	uint64_t id, thread;

	if (text[0] == '#' || text[0] == '\n')
		return NULL;
	if ((!is_alloc && text[0] != 'f') || !take_number(&s, &id) ||
	    (is_alloc && !take_number(&s, &op.size)) ||
	    !take_number(&s, &op.t_us) || !take_number(&s, &thread) ||
	    s[strspn(s, " \t\r\n")])
		return no_line;
	if (op.t_us > T_US_MAX)
		return "a time of more than a hundred years";
	return is_alloc ? add_alloc(t, id, op) : add_free(t, id, op);
}

/* What zlib says of the file, without its name; NULL: nothing. */
static const char *damage(gzFile f, const char *path)
{
	int code;
	const char *text = gzerror(f, &code);

	if (code == Z_OK || code == Z_STREAM_END)
		return NULL;
	if (code == Z_ERRNO)
		return strerror(errno);
	if (!strncmp(text, path, strlen(path)))
		text += strlen(path) + strspn(text + strlen(path), ": ");
	return text;
}

/*
 * -1 with a message. A disk that is full, or SIGKILL, ends a trace in the
 * middle of a line: what comes before it is all there.
 */
static int read_lines(struct trace *t, gzFile f)
{
	const char *why = NULL, *damaged;
	bool is_whole = true;
	char text[256];
	size_t line = 0;

	while (!why && gzgets(f, text, sizeof(text))) {
		line++;
		is_whole = strchr(text, '\n') != NULL;
		why = is_whole || gzeof(f) ? add_line(t, text, line) : no_line;
	}
	/* rather than what is wrong with half a line */
	damaged = damage(f, t->path);
	if (why == no_line && !damaged && !is_whole && gzeof(f)) {
		fprintf(stderr, "replay: %s:%zu: half a line, left out\n",
			t->path, line);
		why = NULL;
	}
	if (!why && damaged)
		line++;
	if (!why && !damaged)
		return 0;
	fprintf(stderr, "replay: %s:%zu: %s\n", t->path, line,
		damaged ? damaged : why);
	return -1;
}

static void forget_live(struct trace *t)
{
	struct live *l, *next;

	HASH_ITER (hh, t->live, l, next) {
		HASH_DEL(t->live, l);
		free(l);
	}
}

/* Reads a trace, plain or gzipped; -1 with a message. */
static int read_trace(const char *path, struct trace *t)
{
	gzFile f = gzopen(path, "rb");
	int status;

	*t = (struct trace){.path = path};
	if (!f) {
		fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
		return -1;
	}
	status = read_lines(t, f);
	if (gzclose(f) != Z_OK && !status) {
		fprintf(stderr, "replay: %s: it is damaged\n", path);
		status = -1;
	}
	forget_live(t);
	if (status)
		return -1;
	if (t->n_blocks == 0) {
		fprintf(stderr, "replay: %s: no allocation in it\n", path);
		return -1;
	}
	if (t->n_strays > 0)
		fprintf(stderr,
			"replay: %s:%zu: a free of what is not live, or what "
			"is live already, left out (%zu in all)\n",
			path, t->first_stray, t->n_strays);
	return 0;
}

/* As an H200 has. */
#define DEVICE_BYTES ((uint64_t)139 << 30)

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

/*
 * What the driver's calls take of the host, which a program that works pays,
 * its caches cold (train_resnet on an H100, each call timed; HACKING.md), ns.
 * Memory calls take theirs anyway (spend() of the fake).
 */
#define RECORD_NS 1360
#define LOOK_NS 460
#define SEEN_NS 2110 /* more, if the event is complete */
#define ORDER_NS 980

static uint64_t calls_ns(void)
{
	return fake.records * RECORD_NS + fake.queries * LOOK_NS +
	       fake.seen * SEEN_NS + fake.orders * ORDER_NS;
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

struct block {
	CUdeviceptr p;
	uint64_t size;
};

static bool do_op(const struct op *op, struct block *b, struct outcome *o)
{
	if (op->size == 0) {
		o->live -= b->size;
		return vs_pool_free(b->p) == CUDA_SUCCESS;
	}
	if (vs_pool_alloc(op->size, &b->p) != CUDA_SUCCESS)
		return false;
	vs_stream_given(NULL, false);
	vs_pool_before_work();
	if (gpu.ratio > 0)
		launch(op->size);
	b->size = op->size;
	o->allocs++;
	o->live += op->size;
	if (o->live > o->live_high)
		o->live_high = o->live;
	return true;
}

/* As seen from the program; with --gpu the calls take their time. */
static bool do_timed(const struct op *op, struct block *b, struct outcome *o)
{
	uint64_t before = calls_ns();
	bool is_good = do_op(op, b, o);

	if (gpu.ratio > 0)
		fake.now += calls_ns() - before;
	return is_good;
}

static int run(const struct trace *t, struct outcome *o)
{
	struct block *blocks = calloc(t->n_blocks, sizeof(*blocks));
	uint64_t last_us = 0, tick = fake.now, began = host_ns(), limit;
	size_t i;

	if (!blocks) {
		fprintf(stderr, "replay: %s: %s\n", t->path, no_memory);
		return -1;
	}
	for (i = 0; i < t->n; i++) {
		const struct op *op = &t->ops[i];

		pass_time(op, &last_us);
		if (fake.now - tick > 250000000) {
			vs_pool_tick();
			tick = fake.now;
		}
		if (!do_timed(op, &blocks[op->block], o))
			break;
	}
	o->ns = host_ns() - began;
	free(blocks);
	if (i == t->n)
		return 0;
	limit = vs_size_bytes(vs_knobs.memory_limit, DEVICE_BYTES);
	if (limit == 0 || limit > DEVICE_BYTES)
		limit = DEVICE_BYTES;
	fprintf(stderr,
		"replay: %s:%zu: the pool failed, with %.0f MiB live of "
		"%" PRIu64 "\n",
		t->path, t->ops[i].line, (double)o->live / (1 << 20),
		limit >> 20);
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

static void print(double lag_ms, const struct trace *t, const struct outcome *o)
{
	const struct vs_stats *s;
	CUdevice device;

	s = vs_pool_stats(0, &device);
	vs_pool_refresh(0);
	print_name(t->path);
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
	printf("created=%llu tables=%lu markers=%lu waited_ms=%.0f polls=%llu "
	       "orders=%llu\n",
	       (unsigned long long)s->chunks_created, fake.tables, fake.records,
	       (double)s->wait_ns / 1e6, (unsigned long long)s->polls,
	       (unsigned long long)s->orders);
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

static int replay_once(const struct trace *t, double lag_ms)
{
	struct outcome o = {0};

	fake_install(DEVICE_BYTES);
	fake.lag_ns = (uint64_t)(lag_ms * 1e6);
	vs_pool_forked(); /* forget the pool of the trace before */
	vs_thread_forked();
	if (gpu.ratio > 0 ? run_with_gpu(t, &o) : run(t, &o))
		return FAILED;
	print(lag_ms, t, &o);
	return 0;
}

/* `lag_ms` below 0: none was given. Returns an exit status. */
static int replay(const char *path, double lag_ms)
{
	int status = BAD_INPUT;
	struct trace t;

	if (read_trace(path, &t) == 0) {
		status = replay_once(&t, lag_ms < 0 ? 0 : lag_ms);
		if (lag_ms < 0 && gpu.ratio <= 0 && status == 0)
			status = replay_once(&t, 20);
	}
	free(t.ops);
	return status;
}

static int usage(void)
{
	fprintf(stderr, "usage: replay [--lag MS | --gpu RATIO] TRACE...\n");
	return BAD_INPUT;
}

/* How many words the option at *argv took; 0, with a message: it is none. */
static int take_option(char **argv, double *lag_ms)
{
	double *option = !strcmp(argv[0], "--lag")   ? lag_ms
			 : !strcmp(argv[0], "--gpu") ? &gpu.ratio
						     : NULL;
	char *end;

	if (!option) {
		fprintf(stderr, "replay: no option %s\n", argv[0]);
		return 0;
	}
	if (!argv[1]) {
		fprintf(stderr, "replay: %s needs a number\n", argv[0]);
		return 0;
	}
	*option = strtod(argv[1], &end);
	if (!*end && end != argv[1] && *option >= 0 && *option <= NUMBER_MAX)
		return 2;
	fprintf(stderr, "replay: %s: not a number from 0 to %g: %s\n", argv[0],
		NUMBER_MAX, argv[1]);
	return 0;
}

int main(int argc, char **argv)
{
	double lag_ms = -1; /* both */
	int status = 0, n = 0, one, taken;

	vs_knob_init();
	for (int i = 1; i < argc; i += taken) {
		taken = 1;
		if (argv[i][0] == '-') {
			taken = take_option(argv + i, &lag_ms);
			if (!taken)
				return usage();
			continue;
		}
		n++;
		one = replay(argv[i], lag_ms);
		if (one > status)
			status = one;
	}
	return n > 0 ? status : usage();
}
