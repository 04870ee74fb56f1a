/* SPDX-License-Identifier: MIT
 *
 * full: fills a device through the real pool on the counting driver (its costs:
 * tests/unit/fake.c) with blocks of any size in a range, frees most of them at
 * random, and tells what can be had of the rest.
 *
 *   full [--gib N] [--fill SHARE] [--keep SHARE] [--churn N] [--seed N]
 *        MIN MAX                                                  (sizes in MB)
 *
 * us_a_block: driver time while the device was filled; us_a_churn: while one
 * was freed at random and another allocated, N times (failed: of those none
 * could be had). held, alone: GiB of the pool and of pages of 2 MiB that belong
 * to one block, or to small ones side by side, when all but SHARE of the bytes
 * are freed and two minutes have passed. create, blocks: percent of what is not
 * live then that the program can have by cuMemCreate, after vs_pool_relieve,
 * and from the pool in blocks of 64 MiB.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/knob.h"
#include "fake.h"
#include "pool/pool.h"

#define MB ((double)1e6)
#define MiB ((uint64_t)1 << 20)
#define GiB ((double)((uint64_t)1 << 30))
#define PAGE (2 * MiB)
#define PIECE (64 * MiB)
#define TICK ((uint64_t)250000000) /* ns, of the service thread */
enum { TICKS = 480 };

static double gib = 80, fill = .9, keep = .3, churn, seed = 1;
static double least, most; /* bytes */

struct block {
	CUdeviceptr at;
	uint64_t size, page; /* page: of a small one */
};

static struct block *blocks;
static size_t n_blocks, room;
static uint64_t live, small_bytes, state;

/* 0 to 1. */
static double chance(void)
{
	state = state * 6364136223846793005 + 1442695040888963407;
	return (double)(state >> 33) / (double)((uint64_t)1 << 31);
}

static int take(void)
{
	uint64_t size = (uint64_t)(least + chance() * (most - least));
	struct block *b;

	if (n_blocks == room) {
		room = room ? 2 * room : 4096;
		blocks = realloc(blocks, room * sizeof(*blocks));
		if (!blocks)
			abort();
	}
	b = &blocks[n_blocks];
	b->size = size;
	b->page = small_bytes / PAGE;
	if (vs_pool_alloc(size, &b->at) != CUDA_SUCCESS)
		return -1;
	n_blocks++;
	live += size;
	small_bytes += size <= PAGE / 2 ? size : 0;
	return 0;
}

/* Its place goes to the last one. */
static void give(size_t i)
{
	if (vs_pool_free(blocks[i].at) != CUDA_SUCCESS)
		abort();
	live -= blocks[i].size;
	blocks[i] = blocks[--n_blocks];
}

static void print_costs(const char *name, double cost_us, double n)
{
	printf("%s=%.1f ", name, n > 0 ? (fake.cost_us - cost_us) / n : 0);
}

static void fill_device(void)
{
	double cost = fake.cost_us;

	while ((double)live < fill * (double)fake.memory) {
		if (take() == 0)
			continue;
		printf("full=%.3f ", (double)live / (double)fake.memory);
		break;
	}
	print_costs("us_a_block", cost, (double)n_blocks);
	printf("handles=%lu ", fake.handles);
}

static void churn_device(void)
{
	double cost = fake.cost_us;
	size_t n_failed = 0;

	for (size_t i = 0; i < (size_t)churn; i++) {
		give((size_t)(chance() * (double)n_blocks));
		fake.now += 100000;
		n_failed += take() != 0;
	}
	if (churn == 0)
		return;
	print_costs("us_a_churn", cost, churn);
	printf("failed=%zu ", n_failed);
}

static void free_most(void)
{
	uint64_t left = (uint64_t)(keep * (double)live);

	while (n_blocks > 0 && live > left)
		give((size_t)(chance() * (double)n_blocks));
	for (int i = 0; i < TICKS; i++) {
		fake.now += TICK;
		vs_pool_tick();
	}
}

/* In pages of their own, but for those of half a page and less. */
static uint64_t held_alone(void)
{
	bool *is_held = calloc(small_bytes / PAGE + 1, sizeof(*is_held));
	uint64_t n = 0;

	if (!is_held)
		abort();
	for (size_t i = 0; i < n_blocks; i++) {
		bool *page = &is_held[blocks[i].page];

		if (blocks[i].size > PAGE / 2)
			n += (blocks[i].size + PAGE - 1) / PAGE;
		else if (!*page)
			n += *page = true;
	}
	free(is_held);
	return n * PAGE;
}

static void print_rest(void)
{
	double rest = (double)(fake.memory - live), pieces = 0;
	CUdeviceptr p;

	printf("live=%.1f held=%.1f alone=%.1f ", (double)live / GiB,
	       (double)fake.held / GiB, (double)held_alone() / GiB);
	vs_pool_relieve(UINT64_MAX, VS_RELIEF_IDLE);
	printf("create=%.0f%% ",
	       100 * (double)(fake.memory - fake.held) / rest);
	while (vs_pool_alloc(PIECE, &p) == CUDA_SUCCESS)
		pieces += (double)PIECE;
	printf("blocks=%.0f%%\n", 100 * pieces / rest);
}

static double number(const char *text)
{
	char *end;
	double n = strtod(text, &end);

	if (*end || end == text || n < 0) {
		fprintf(stderr, "full: not a number: %s\n", text);
		exit(2);
	}
	return n;
}

static double *option(const char *name)
{
	static const struct {
		const char *name;
		double *value;
	} options[] = {
		{"--gib", &gib},     {"--fill", &fill}, {"--keep", &keep},
		{"--churn", &churn}, {"--seed", &seed},
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		if (strcmp(name, options[i].name) == 0)
			return options[i].value;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	double *value;
	int i = 1;

	while (i + 1 < argc && (value = option(argv[i]))) {
		*value = number(argv[i + 1]);
		i += 2;
	}
	if (argc - i != 2) {
		fprintf(stderr, "usage: full [--gib N] [--fill SHARE] "
				"[--keep SHARE] [--churn N] [--seed N] "
				"MIN MAX\n");
		return 2;
	}
	least = number(argv[i]) * MB;
	most = number(argv[i + 1]) * MB;
	state = (uint64_t)seed;
	vs_knob_init();
	fake_install((uint64_t)(gib * GiB));
	printf("gib=%g MB=%s..%s seed=%g ", gib, argv[i], argv[i + 1], seed);
	fill_device();
	churn_device();
	free_most();
	print_rest();
	free(blocks);
	return 0;
}
