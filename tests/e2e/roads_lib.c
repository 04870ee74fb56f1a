/* SPDX-License-Identifier: MIT
 *
 * roads_lib: a library that is linked against the driver.
 */
#include "roads.h"

void roads_lib_serve(void);
CUresult roads_lib_hold(bool is_wanted);

void roads_lib_serve(void)
{
	static const struct roads bound = {
#define X(symbol, name, since) .symbol = symbol,
		ROADS_CALLS(X)
#undef X
	};

	roads_serve(&bound);
}

/* Retains the primary context of device 0, or releases it. */
CUresult roads_lib_hold(bool is_wanted)
{
	CUcontext ctx;

	return is_wanted ? cuDevicePrimaryCtxRetain(&ctx, 0)
			 : cuDevicePrimaryCtxRelease(0);
}
