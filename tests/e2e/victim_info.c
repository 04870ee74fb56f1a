/* SPDX-License-Identifier: MIT
 *
 * victim_info: asks what is free while what was freed goes back to the driver:
 * the answer stays the same.
 */
#include <time.h>

#include "victim_link.h"

enum { BLOCKS = 64, ROUNDS = 10 };

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int main(void)
{
	size_t least = SIZE_MAX, most = 0, before, now, total;
	CUdeviceptr p[BLOCKS];

	victim_start(0);
	TRY(cuMemGetInfo(&before, &total));
	for (int r = 0; r < ROUNDS; r++) {
		uint64_t began;

		for (int i = 0; i < BLOCKS; i++)
			p[i] = victim_alloc((100 + i) * MiB);
		for (int i = 0; i < BLOCKS; i++)
			victim_free(p[i]);
		TRY(cuCtxSynchronize());
		for (began = now_ms(); now_ms() - began < 150;) {
			TRY(cuMemGetInfo(&now, &total));
			least = now < least ? now : least;
			most = now > most ? now : most;
		}
	}
	printf("free: %s\n",
	       least == before && most == before ? "the same" : "changes");
	return 0;
}
