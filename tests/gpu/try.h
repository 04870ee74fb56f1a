/* SPDX-License-Identifier: MIT
 *
 * try: for the programs that nvcc builds. An error of the runtime's ends the
 * program, which says where.
 */
#ifndef TESTS_GPU_TRY_H
#define TESTS_GPU_TRY_H

#include <cstdio>
#include <cstdlib>

#define TRY(call) try_call((call), #call, __LINE__)

/* No macro's variable: the arguments of a call may have any name. */
static inline void try_call(cudaError_t result, const char *call, int line)
{
	if (result == cudaSuccess)
		return;
	std::printf("line %d: failed, %s: %s\n", line, call,
		    cudaGetErrorName(result));
	std::fflush(stdout);
	std::_Exit(1);
}

#endif
