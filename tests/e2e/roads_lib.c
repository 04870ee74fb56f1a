/* SPDX-License-Identifier: MIT
 *
 * roads_lib: a library that is linked against the driver.
 */
#include "roads.h"

void roads_lib_serve(void);

void roads_lib_serve(void)
{
	static const struct roads bound = {
#define X(symbol, name, since) .symbol = symbol,
		ROADS_CALLS(X)
#undef X
	};

	roads_serve(&bound);
}
