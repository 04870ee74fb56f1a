/* SPDX-License-Identifier: MIT
 *
 * victim: what the victims share. A victim is an ordinary CUDA program that
 * knows nothing of the shim; all that it prints must be the same with and
 * without it, on the simulated driver and on a real one.
 */
#ifndef VICTIM_H
#define VICTIM_H

/* The tree's flags ask cuda.h for every ABI version; a program does not. */
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../sim/sim_client.h"

#define KiB ((size_t)1 << 10)
#define MiB ((size_t)1 << 20)

static inline void victim_try(int result, const char *what, int line)
{
	if (result == 0)
		return;
	printf("line %d: %s: error %d\n", line, what, result);
	fflush(stdout);
	_Exit(1);
}

/* Ends the program when a call fails. */
#define TRY(call) victim_try((int)(call), #call, __LINE__)

static inline void victim_check(bool is_true, const char *what, int line)
{
	if (is_true)
		return;
	printf("line %d: not true: %s\n", line, what);
	fflush(stdout);
	_Exit(1);
}

#define CHECK(condition) victim_check((condition), #condition, __LINE__)

#define HASH_START UINT64_C(0xcbf29ce484222325)

/* FNV-1a over 64-bit words and the rest. */
static inline uint64_t victim_hash(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *p = data;
	uint64_t word;

	for (; size >= sizeof(word); size -= sizeof(word), p += sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		hash = (hash ^ word) * UINT64_C(0x100000001b3);
	}
	while (size--)
		hash = (hash ^ *p++) * UINT64_C(0x100000001b3);
	return hash;
}

/* Of the clock that is never set. */
static inline uint64_t victim_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The same sequence on every machine. */
static inline uint32_t victim_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(*state >> 33);
}

/* From 1 byte to 2^max_bits, every power of two as likely. */
static inline size_t victim_size(uint64_t *state, unsigned max_bits)
{
	unsigned bits = victim_random(state) % max_bits;

	return ((size_t)1 << bits) + victim_random(state) % ((size_t)1 << bits);
}

#endif
