/* SPDX-License-Identifier: MIT
 *
 * roads_local: a library that is linked against a driver of another name.
 */
#include "roads.h"

void roads_local_serve(void);

void roads_local_serve(void)
{
	CUdeviceptr p;

	printf("cuInit %d\n", (int)cuInit(0));
	printf("cuMemAlloc %d\n", (int)cuMemAlloc_v2(&p, 1000));
}
