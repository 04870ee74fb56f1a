/* SPDX-License-Identifier: MIT
 *
 * jitter: the runtime of a library that is built with -fsanitize=thread, which
 * calls it for each access to memory and each atomic operation. It does what
 * was asked for, and is slow at it by chance, so that other threads come in
 * between where they hardly ever do: one place of some hundred in the code
 * sleeps for 1 us to 20 ms, each second to sixteenth time that a thread comes
 * by, all others now and then. VS_JITTER, a number, chooses the places; none is
 * slow without it.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/sys.h"
#include "base/thread.h"
#include "jitter.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { N_PLACES = 1 << 14, OTHERS = 8192 };

static uint64_t seed, began;
static unsigned apart;			    /* of so many places one is slow */
static _Atomic uint64_t slept_ns[N_PLACES]; /* of those of the same hash */
static __thread uint64_t random_state
	__attribute__((tls_model("initial-exec")));

/* Where the library begins: a place is the same one in each process. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t next_random(void)
{
	if (!random_state)
		random_state = mix(seed ^ (uint64_t)vs_sys_gettid()) | 1;
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static void rest(uint64_t ns)
{
	struct timespec time = {.tv_nsec = (long)ns};
	int saved = errno;

	if (ns > 1000)
		vs_sys_nanosleep(&time, NULL);
	else
		for (uint64_t i = 0; i < ns / 40; i++)
			vs_relax_cpu();
	errno = saved;
}

static uint64_t how_slow(uint64_t place)
{
	static const uint64_t ns[] = {1000,   50000,   50000,	300000,
				      300000, 1000000, 5000000, 20000000};
	uint64_t chance = next_random() >> 8;

	if (place % apart == 0)
		return chance % (2 << (place >> 16) % 4) ? 0
							 : ns[place >> 32 & 7];
	if (chance % OTHERS)
		return 0;
	return chance / OTHERS % 16 ? 1000 : 60000;
}

/* Side 1: behind what is done there. A place has a quarter of the time. */
static void pass(const void *address, unsigned side)
{
	_Atomic uint64_t *slept;
	uint64_t place, ns;

	if (!seed)
		return;
	place = mix(seed + ((uintptr_t)address - (uintptr_t)__ehdr_start) * 2 +
		    side);
	ns = how_slow(place);
	slept = &slept_ns[place >> 40 & (N_PLACES - 1)];
	if (!ns || *slept > (vs_clock_ns(CLOCK_MONOTONIC) - began) / 4)
		return;
	*slept += ns;
	rest(ns);
}

__attribute__((constructor(101))) static void start(void)
{
	static const unsigned choice[] = {30, 100, 300, 1000};
	const char *text = getenv("VS_JITTER");

	began = vs_clock_ns(CLOCK_MONOTONIC);
	seed = text ? mix(strtoull(text, NULL, 0)) : 0;
	apart = choice[seed % 4];
}

#define HERE __builtin_return_address(0)

void vs_jitter(void)
{
	pass(HERE, 0);
}

void __tsan_init(void)
{
}

#define ACCESS(name)                                                           \
	void __tsan_##name(void *p)                                            \
	{                                                                      \
		(void)p;                                                       \
		pass(HERE, 0);                                                 \
	}
#define ACCESSES(bytes)                                                        \
	ACCESS(read##bytes)                                                    \
	ACCESS(write##bytes)                                                   \
	ACCESS(unaligned_read##bytes)                                          \
	ACCESS(unaligned_write##bytes)                                         \
	ACCESS(volatile_read##bytes)                                           \
	ACCESS(volatile_write##bytes)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

#define RANGE(name)                                                            \
	void __tsan_##name(void *p, size_t size)                               \
	{                                                                      \
		(void)p, (void)size;                                           \
		pass(HERE, 0);                                                 \
	}
RANGE(read_range)
RANGE(write_range)

/* clang's; orders are the strongest here and below. */
void *__tsan_memcpy(void *to, const void *from, size_t size)
{
	return memcpy(to, from, size);
}

void *__tsan_memmove(void *to, const void *from, size_t size)
{
	return memmove(to, from, size);
}

void *__tsan_memset(void *to, int byte, size_t size)
{
	return memset(to, byte, size);
}

void __tsan_atomic_thread_fence(int order)
{
	(void)order;
	pass(HERE, 0);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void __tsan_atomic_signal_fence(int order)
{
	(void)order;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Slow before and behind it. */
#define ATOMIC(type, name, parameters, operation)                              \
	type __tsan_atomic##name parameters                                    \
	{                                                                      \
		type result;                                                   \
                                                                               \
		(void)order;                                                   \
		pass(HERE, 0);                                                 \
		result = operation;                                            \
		pass(HERE, 1);                                                 \
		return result;                                                 \
	}
#define CHANGE(bits, type, name, function)                                     \
	ATOMIC(type, bits##_##name, (type * p, type value, int order),         \
	       function(p, value, __ATOMIC_SEQ_CST))
#define EXCHANGE(bits, type, name)                                             \
	ATOMIC(bool, bits##_compare_exchange_##name,                           \
	       (type * p, type * expected, type value, int order, int failed), \
	       ((void)failed, __atomic_compare_exchange_n(                     \
				      p, expected, value, false,               \
				      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)))
#define ATOMICS(bits, type)                                                    \
	ATOMIC(type, bits##_load, (type * p, int order),                       \
	       __atomic_load_n(p, __ATOMIC_SEQ_CST))                           \
	ATOMIC(type, bits##_store, (type * p, type value, int order),          \
	       (__atomic_store_n(p, value, __ATOMIC_SEQ_CST), value))          \
	CHANGE(bits, type, exchange, __atomic_exchange_n)                      \
	CHANGE(bits, type, fetch_add, __atomic_fetch_add)                      \
	CHANGE(bits, type, fetch_sub, __atomic_fetch_sub)                      \
	CHANGE(bits, type, fetch_and, __atomic_fetch_and)                      \
	CHANGE(bits, type, fetch_or, __atomic_fetch_or)                        \
	CHANGE(bits, type, fetch_xor, __atomic_fetch_xor)                      \
	EXCHANGE(bits, type, strong)                                           \
	EXCHANGE(bits, type, weak)                                             \
	/* clang's: what was there */                                          \
	ATOMIC(type, bits##_compare_exchange_val,                              \
	       (type * p, type expected, type value, int order, int failed),   \
	       ((void)failed,                                                  \
		__atomic_compare_exchange_n(p, &expected, value, false,        \
					    __ATOMIC_SEQ_CST,                  \
					    __ATOMIC_SEQ_CST),                 \
		expected))
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
