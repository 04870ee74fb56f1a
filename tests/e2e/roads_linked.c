/* SPDX-License-Identifier: MIT
 *
 * roads_linked ROAD [ARG]: linked against the driver (-lcuda).
 */
#include "roads.h"

static const struct roads bound = {
#define X(symbol, name, since) .symbol = symbol,
	ROADS_CALLS(X)
#undef X
};

/* Calls of another library's cuMemAlloc_v2 around the real one. */
static void show_wrapper(void)
{
	int (*calls)(void);

	*(void **)&calls = dlsym(RTLD_DEFAULT, "roads_wrap_calls");
	if (calls)
		printf("wrapper called %d\n", calls());
}

int main(int argc, char **argv)
{
	const char *road = argc > 1 ? argv[1] : "bound";
	void *copy;

	if (!strcmp(road, "next")) {
		roads_serve_from(RTLD_NEXT);
	} else if (!strcmp(road, "default")) {
		roads_serve_from(RTLD_DEFAULT);
	} else if (!strcmp(road, "program")) {
		roads_serve_from(dlopen(NULL, RTLD_NOW));
	} else if (!strcmp(road, "copy")) {
		/* another copy is seen before the one that is linked */
		copy = roads_open(argv[2], RTLD_NOW);
		printf("untouched %s\n",
		       roads_is_in(dlsym(copy, "cuMemAlloc_v2"), argv[2])
			       ? "yes"
			       : "no");
		roads_serve(&bound);
	} else {
		roads_serve(&bound);
	}
	show_wrapper();
	return 0;
}
