/* SPDX-License-Identifier: MIT
 *
 * victim_info [back]: asks what is free while what was freed goes back to the
 * driver: the answer stays the same. back: frees all, waits for the context,
 * and asks for it all to go back: nothing is kept.
 */

#include "victim_link.h"

#include "blocks.h"

enum { BLOCKS = 64, ROUNDS = 10 };

static void give_back(size_t size)
{
	CUdeviceptr p[BLOCKS];
	uint64_t (*trim)(void);

	for (int i = 0; i < BLOCKS; i++) {
		p[i] = victim_alloc(size);
		TRY(cuMemsetD8Async(p[i], 1, size, NULL));
	}
	for (int i = 0; i < BLOCKS; i++)
		victim_free(p[i]);
	TRY(cuCtxSynchronize());
	*(void **)&trim = dlsym(RTLD_DEFAULT, "vmmshim_trim");
	if (trim)
		trim();
	printf("of %zu bytes each: %s\n", size,
	       pool_reserved() == 0 ? "all is back" : "some is kept");
}

int main(int argc, char **argv)
{
	size_t least = SIZE_MAX, most = 0, before, now, total;
	CUdeviceptr p[BLOCKS];

	victim_start(0);
	if (argc > 1 && !strcmp(argv[1], "back")) {
		give_back(5000);
		give_back(MiB);
		give_back(10 * MiB);
		return 0;
	}
	TRY(cuMemGetInfo(&before, &total));
	for (int r = 0; r < ROUNDS; r++) {
		uint64_t began;

		for (int i = 0; i < BLOCKS; i++)
			p[i] = victim_alloc((100 + i) * MiB);
		for (int i = 0; i < BLOCKS; i++)
			victim_free(p[i]);
		TRY(cuCtxSynchronize());
		for (began = victim_now_ns();
		     victim_now_ns() - began < 150000000;) {
			TRY(cuMemGetInfo(&now, &total));
			least = now < least ? now : least;
			most = now > most ? now : most;
		}
	}
	printf("free: %s\n",
	       least == before && most == before ? "the same" : "changes");
	return 0;
}
