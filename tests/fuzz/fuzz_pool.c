/* SPDX-License-Identifier: MIT
 *
 * fuzz_pool [--ops N] [--seed S] [--threads T] [--devices D] [--streams K]
 *           [--rare N] [--live N] [--max-bits B] [--no-capture]
 *
 * Random allocations, frees, launches, waits and captures on several streams,
 * threads and devices, against the simulated driver's judge: every allocation
 * is announced to it (sim_note_alloc), and it reports memory that is handed
 * out, unmapped or released while work not yet seen complete can reach it. A
 * block may be freed by another thread than the one that made it. `--rare`: but
 * one of N pieces of work each time is in the first stream. At the end
 * everything is freed, the pool is trimmed, and nothing may be left.
 *
 * A plain program of the driver API; run it under the preload (fuzz.test).
 * Exit status 1 and the seed when anything is wrong.
 */
#include <pthread.h>
#include <unistd.h>

#include "../e2e/victim.h"
#include "../sim/kernels_ptx.h"

#define MAX_DEVICES 4
#define MAX_STREAMS 8
#define MAX_THREADS 16
#define MAX_LIVE 512

struct options {
	long ops, threads, devices, streams, rare, live, max_bits;
	uint64_t seed;
	bool has_captures;
};

static struct options options = {
	.ops = 100000,
	.threads = 4,
	.devices = 2,
	.streams = 3,
	.rare = 1,
	.live = 64,
	.max_bits = 24,
	.seed = 1,
	.has_captures = true,
};

struct device {
	CUdevice device;
	CUcontext ctx;
	CUfunction fill;
};

static struct device devices[MAX_DEVICES];

struct block {
	CUdeviceptr p;
	size_t size;
};

/* Blocks that change hands between threads, by device. */
static struct {
	pthread_mutex_t lock;
	struct block block[16];
} mailbox[MAX_DEVICES];

struct worker {
	pthread_t thread;
	uint64_t random;
	long n_failed; /* allocations that ended in out of memory */
	CUstream streams[MAX_DEVICES][MAX_STREAMS];
	struct block live[MAX_DEVICES][MAX_LIVE];
	long n_live[MAX_DEVICES];
};

static struct worker workers[MAX_THREADS];

static void take(struct worker *w, int d)
{
	struct block b = {.size = victim_size(&w->random, options.max_bits)};
	CUresult r;

	if (w->n_live[d] >= options.live)
		return;
	r = cuMemAlloc(&b.p, b.size);
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		w->n_failed++;
		return;
	}
	TRY(r);
	CHECK(b.p % 512 == 0);
	sim_client_note_alloc((void *)(uintptr_t)b.p, b.size);
	w->live[d][w->n_live[d]++] = b;
}

static void drop(struct block b)
{
	sim_client_note_free((void *)(uintptr_t)b.p);
	TRY(cuMemFree(b.p));
}

static struct block pick(struct worker *w, int d)
{
	long k = victim_random(&w->random) % w->n_live[d];
	struct block b = w->live[d][k];

	w->live[d][k] = w->live[d][--w->n_live[d]];
	return b;
}

static void give(struct worker *w, int d)
{
	if (w->n_live[d] > 0)
		drop(pick(w, d));
}

/* Trades a block with whoever left one. */
static void trade(struct worker *w, int d)
{
	struct block mine = {0}, theirs;
	unsigned slot = victim_random(&w->random) % 16;

	if (w->n_live[d] > 0)
		mine = pick(w, d);
	pthread_mutex_lock(&mailbox[d].lock);
	theirs = mailbox[d].block[slot];
	mailbox[d].block[slot] = mine;
	pthread_mutex_unlock(&mailbox[d].lock);
	if (theirs.p)
		w->live[d][w->n_live[d]++] = theirs;
}

static CUstream any_stream(struct worker *w, int d)
{
	uint64_t which = victim_random(&w->random);

	return w->streams[d][which % options.rare
				     ? 0
				     : which / options.rare % options.streams];
}

static void launch_on(struct worker *w, int d, CUstream stream)
{
	uint32_t value = victim_random(&w->random);
	struct block *b;
	uint64_t words;
	void *arguments[3];

	if (w->n_live[d] == 0)
		return;
	b = &w->live[d][victim_random(&w->random) % w->n_live[d]];
	words = b->size / 4 < 4096 ? b->size / 4 : 4096;
	arguments[0] = &b->p;
	arguments[1] = &value;
	arguments[2] = &words;
	if (words > 0)
		TRY(cuLaunchKernel(devices[d].fill, 1, 1, 1, 32, 1, 1, 0,
				   stream, arguments, NULL));
}

/* A capture in any mode; allocations and frees go on in the middle of it. */
static void capture(struct worker *w, int d)
{
	static const CUstreamCaptureMode modes[] = {
		CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
		CU_STREAM_CAPTURE_MODE_RELAXED};
	CUstream stream = any_stream(w, d);
	CUstreamCaptureMode mode = modes[victim_random(&w->random) % 2];
	CUgraph graph = NULL;

	TRY(cuStreamBeginCapture(stream, mode));
	launch_on(w, d, stream);
	if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
		take(w, d);
		give(w, d);
	}
	TRY(cuStreamEndCapture(stream, &graph));
	TRY(cuGraphDestroy(graph));
}

static void step(struct worker *w, int d)
{
	size_t free_bytes, total_bytes;

	switch (victim_random(&w->random) % 64) {
	case 0 ... 25:
		take(w, d);
		break;
	case 26 ... 49:
		give(w, d);
		break;
	case 50 ... 59:
		launch_on(w, d, any_stream(w, d));
		break;
	case 60:
		trade(w, d);
		break;
	case 61:
		if (victim_random(&w->random) % 16 == 0)
			TRY(cuStreamSynchronize(any_stream(w, d)));
		break;
	case 62:
		if (options.has_captures && victim_random(&w->random) % 8 == 0)
			capture(w, d);
		break;
	default:
		TRY(cuMemGetInfo(&free_bytes, &total_bytes));
		CHECK(free_bytes <= total_bytes);
		break;
	}
}

static void *work(void *argument)
{
	struct worker *w = argument;
	long ops = options.ops / options.threads;
	int d = 0;

	for (int i = 0; i < options.devices; i++) {
		TRY(cuCtxSetCurrent(devices[i].ctx));
		for (int k = 0; k < options.streams; k++)
			TRY(cuStreamCreate(&w->streams[i][k],
					   k ? CU_STREAM_NON_BLOCKING
					     : CU_STREAM_DEFAULT));
	}
	for (long n = 0; n < ops; n++) {
		if (n % 32 == 0) {
			d = (int)(victim_random(&w->random) % options.devices);
			TRY(cuCtxSetCurrent(devices[d].ctx));
		}
		step(w, d);
	}
	for (d = 0; d < options.devices; d++) {
		TRY(cuCtxSetCurrent(devices[d].ctx));
		while (w->n_live[d] > 0)
			give(w, d);
	}
	return NULL;
}

static void start(void)
{
	TRY(cuInit(0));
	for (int d = 0; d < options.devices; d++) {
		CUmodule module;

		pthread_mutex_init(&mailbox[d].lock, NULL);
		TRY(cuDeviceGet(&devices[d].device, d));
		TRY(cuDevicePrimaryCtxRetain(&devices[d].ctx,
					     devices[d].device));
		TRY(cuCtxSetCurrent(devices[d].ctx));
		TRY(cuModuleLoadData(&module, vs_kernels_ptx));
		TRY(cuModuleGetFunction(&devices[d].fill, module, "vs_fill"));
	}
}

/* Everything is freed: after a wait and a trim the pool must hold nothing. */
static void finish(void)
{
	uint64_t (*trim)(void);

	for (int d = 0; d < options.devices; d++) {
		TRY(cuCtxSetCurrent(devices[d].ctx));
		for (int i = 0; i < 16; i++) {
			if (mailbox[d].block[i].p)
				drop(mailbox[d].block[i]);
		}
		TRY(cuCtxSynchronize());
	}
	*(void **)&trim = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	if (trim)
		trim();
}

static void read_options(int argc, char **argv)
{
	static const struct {
		const char *name;
		long *value, min, max;
	} table[] = {
		{"--ops", &options.ops, 1, 1L << 40},
		{"--threads", &options.threads, 1, MAX_THREADS},
		{"--devices", &options.devices, 1, MAX_DEVICES},
		{"--streams", &options.streams, 1, MAX_STREAMS},
		{"--rare", &options.rare, 1, 1L << 20},
		{"--live", &options.live, 1, MAX_LIVE / 2},
		{"--max-bits", &options.max_bits, 1, 36},
	};

	for (int i = 1; i < argc; i++) {
		bool is_known = false;

		if (!strcmp(argv[i], "--no-capture")) {
			options.has_captures = false;
			continue;
		}
		if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
			options.seed = strtoull(argv[++i], NULL, 0);
			continue;
		}
		for (size_t k = 0; k < sizeof(table) / sizeof(*table); k++) {
			if (strcmp(argv[i], table[k].name) || i + 1 >= argc)
				continue;
			*table[k].value = strtol(argv[++i], NULL, 0);
			is_known = *table[k].value >= table[k].min &&
				   *table[k].value <= table[k].max;
			break;
		}
		if (!is_known) {
			fprintf(stderr, "fuzz_pool: bad argument %s\n",
				argv[i]);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	long n_failed = 0, violations;

	read_options(argc, argv);
	start();
	for (long i = 0; i < options.threads; i++) {
		workers[i].random = options.seed * 1000003 + (uint64_t)i;
		CHECK(pthread_create(&workers[i].thread, NULL, work,
				     &workers[i]) == 0);
	}
	for (long i = 0; i < options.threads; i++) {
		CHECK(pthread_join(workers[i].thread, NULL) == 0);
		n_failed += workers[i].n_failed;
	}
	finish();
	violations = sim_client_violations();
	printf("fuzz seed %llu: %ld ops, %ld out of memory, %ld violations\n",
	       (unsigned long long)options.seed, options.ops, n_failed,
	       violations);
	return violations > 0;
}
