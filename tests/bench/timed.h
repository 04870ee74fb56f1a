/* SPDX-License-Identifier: MIT
 *
 * timed: what the programs that take times share.
 */
#ifndef TESTS_BENCH_TIMED_H
#define TESTS_BENCH_TIMED_H

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Ends the program if a call failed. */
static inline void try(CUresult result, const char *what)
{
	const char *name = "unknown error";

	if (result == CUDA_SUCCESS)
		return;
	cuGetErrorName(result, &name);
	fprintf(stderr, "%s: %s\n", what, name);
	exit(1);
}
#define TRY(call) try(call, #call)

/* ns */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline int compare_times(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static inline void sort_times(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), compare_times);
}

#endif
