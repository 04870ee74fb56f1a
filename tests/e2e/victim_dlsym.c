/* SPDX-License-Identifier: MIT
 *
 * victim_dlsym: opens the driver itself and asks dlsym for each function; says
 * so and goes on where there is no driver.
 */
#include <dlfcn.h>

#include "road.h"

int main(void)
{
	struct road road;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		printf("no driver\n");
		return 0;
	}
#define X(symbol, name, since)                                                 \
	*(void **)&road.symbol = dlsym(lib, #symbol);                          \
	CHECK(road.symbol);
	ROAD_CALLS(X)
#undef X
	return road_main(&road);
}
