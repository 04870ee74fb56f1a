/* SPDX-License-Identifier: MIT
 *
 * roads_weak: calls the driver only if it is there. With the shim the functions
 * are there, and say that there is no device.
 */
#include "roads.h"

#pragma weak cuInit
#pragma weak cuMemAlloc_v2
#pragma weak cuMemGetInfo_v2

int main(void)
{
	CUdeviceptr p;
	size_t free, total;

	if (!cuInit) {
		printf("no driver\n");
		return 0;
	}
	printf("cuInit %d\n", (int)cuInit(0));
	printf("cuMemAlloc %d\n", (int)cuMemAlloc_v2(&p, 1000));
	printf("cuMemGetInfo %d\n", (int)cuMemGetInfo_v2(&free, &total));
	return 0;
}
