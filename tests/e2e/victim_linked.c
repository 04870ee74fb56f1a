/* SPDX-License-Identifier: MIT
 *
 * victim_linked: reaches the driver by ELF binding (linked with -lcuda).
 */
#include "road.h"

int main(void)
{
	static const struct road road = {
#define X(symbol, name, since) .symbol = symbol,
		ROAD_CALLS(X)
#undef X
	};

	return road_main(&road);
}
