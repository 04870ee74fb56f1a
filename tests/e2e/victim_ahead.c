/* SPDX-License-Identifier: MIT
 *
 * victim_ahead MIB PARTS [other]: a thread allocates and frees blocks of so
 * many MiB, gives each work, and never waits; the second has 20 of so many
 * parts of the device live, frees some of that and asks for as much in other
 * sizes, time and again. All of it is served without the shim, where each free
 * waits for the work of the memory's own context: with `other` another one is
 * current to it.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "victim_link.h"

#define N_BLOCKS 20
#define N_ROUNDS 15

static CUcontext ctx, other; /* that frees are made under */
static size_t size;
static atomic_bool is_over;

static void *run_ahead(void *unused)
{
	TRY(cuCtxSetCurrent(ctx));
	while (!is_over) {
		CUdeviceptr p = victim_alloc(size);

		TRY(cuMemsetD8Async(p, 1, 1, NULL));
		TRY(cuCtxSetCurrent(other));
		victim_free(p);
		TRY(cuCtxSetCurrent(ctx));
	}
	return unused;
}

/* A part of what is left to have, that each of the others gets some of, too. */
static size_t part_of(size_t left, unsigned n_others, uint64_t *random)
{
	size_t part = left / (n_others + 1);

	if (n_others > 0)
		part = part / 2 + part / 100 * (victim_random(random) % 100);
	return part / MiB * MiB + (part < MiB ? MiB : 0);
}

static void turn_over(CUdeviceptr *p, size_t *sizes, uint64_t *random)
{
	unsigned freed[N_BLOCKS], n = 0;
	size_t left = 0;

	for (unsigned i = 0; i < N_BLOCKS; i++) {
		if (victim_random(random) % 2)
			continue;
		victim_free(p[i]);
		left += sizes[i];
		freed[n++] = i;
	}
	for (unsigned i = 0; i < n; i++) {
		unsigned at = freed[i];

		sizes[at] = part_of(left, n - 1 - i, random);
		left -= sizes[at] < left ? sizes[at] : left;
		p[at] = victim_alloc(sizes[at]);
	}
}

int main(int argc, char **argv)
{
	CUdeviceptr p[N_BLOCKS];
	size_t sizes[N_BLOCKS], available, total, n_parts;
	uint64_t random = 9;
	pthread_t thread;

	CHECK(argc > 2);
	size = strtoul(argv[1], NULL, 10) * MiB;
	n_parts = strtoul(argv[2], NULL, 10);
	ctx = other = victim_start(0);
	if (argc > 3) {
		TRY(cuCtxCreate_v2(&other, 0, 0));
		TRY(cuCtxSetCurrent(ctx));
	}
	TRY(cuMemGetInfo(&available, &total));
	for (int i = 0; i < N_BLOCKS; i++) {
		sizes[i] = available / n_parts / MiB * MiB;
		p[i] = victim_alloc(sizes[i]);
	}
	TRY(pthread_create(&thread, NULL, run_ahead, NULL));
	for (int i = 0; i < N_ROUNDS; i++) {
		usleep(20000);
		turn_over(p, sizes, &random);
	}
	is_over = true;
	pthread_join(thread, NULL);
	for (int i = 0; i < N_BLOCKS; i++)
		victim_free(p[i]);
	printf("done\n");
	return 0;
}
