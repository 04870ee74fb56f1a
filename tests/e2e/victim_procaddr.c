/* SPDX-License-Identifier: MIT
 *
 * victim_procaddr: asks cuGetProcAddress for each function, as cudart does;
 * with the argument "v1" by the older of its two signatures.
 */
#include "road.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>

int main(int argc, char **argv)
{
	bool is_v1 = argc > 1 && strcmp(argv[1], "v1") == 0;
	struct road road;
	PFN_cuGetProcAddress_v11030 ask_v1;
	PFN_cuGetProcAddress_v12000 ask;
	CUdriverProcAddressQueryResult found;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		printf("no driver\n");
		return 0;
	}
	*(void **)&ask_v1 = dlsym(lib, "cuGetProcAddress");
	*(void **)&ask = dlsym(lib, "cuGetProcAddress_v2");
	CHECK(ask_v1 && ask);
#define X(symbol, name, since)                                                 \
	TRY(is_v1 ? ask_v1(name, (void **)&road.symbol, since, 0)              \
		  : ask(name, (void **)&road.symbol, since, 0, &found));       \
	CHECK(road.symbol);
	ROAD_CALLS(X)
#undef X
	return road_main(&road);
}
