/* SPDX-License-Identifier: MIT
 *
 * roads_other: a library of somebody else's whose names look like a driver's.
 */
#define FUNCTION(name, value)                                                  \
	int name(void);                                                        \
	int name(void)                                                         \
	{                                                                      \
		return value;                                                  \
	}

FUNCTION(cuInit, 1)
FUNCTION(cuMemAlloc_v2, 2)
FUNCTION(cuSomething, 3)
FUNCTION(cudnnCreate, 4)
FUNCTION(cublasCreate, 5)
FUNCTION(curl_easy_init, 6)
FUNCTION(cu, 7)
FUNCTION(c, 8)
