/* SPDX-License-Identifier: MIT
 *
 * thread: what the shim keeps for each thread of the program.
 *
 * A struct vs_thread is made at the thread's first call into the shim and
 * handed to the next thread after its end; it is never given back, so readers
 * of the list need no lock and see valid memory. Only its thread writes it.
 * Nothing here calls malloc, but for the C library: pthread_setspecific does at
 * a thread's first call, where the program has 32 keys or more.
 */
#ifndef VS_BASE_THREAD_H
#define VS_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/api.h"
#include "base/hot.h"

/*
 * A mutex whose holder is quick: who waits spins for a while before it sleeps
 * (where the C library has that).
 */
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#define VS_SPINNING_MUTEX PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#else
#define VS_SPINNING_MUTEX PTHREAD_MUTEX_INITIALIZER
#endif

/* One whose holder may be called back by the driver, and come to it again. */
#ifdef PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP
#define VS_RECURSIVE_MUTEX PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP
#else
#define VS_RECURSIVE_MUTEX PTHREAD_MUTEX_INITIALIZER
#endif

/*
 * Tells the processor that this thread spins, and lets some ns pass: to most
 * that are aarch64, yield is no instruction at all (rust-lang/rust, pull
 * request 84725), and who counts turns would hardly wait.
 */
static inline void vs_relax_cpu(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb");
#endif
}

#define VS_THREAD_NOWHERE UINTPTR_MAX

struct vs_thread {
	/* one cache line that every hit touches */
	void *cache; /* pool/tcache owns it */
	/* what vs_ctx_of() of pool/ctx answered last, and when */
	void *ctx_handle, *ctx;
	uint64_t ctx_turn;
	uintptr_t
		worked_in; /* base/stream owns it: a stream's key, or NOWHERE */
	_Atomic int
		in_use; /* the living thread that owns it, by tid; 0: none */
	unsigned char depth; /* > 0: in the pool, vs_thread_go_within */
	/*
	 * Calls of each intercepted function, those of the first two rows of
	 * api.def in that line; owner writes, anyone reads.
	 */
	_Atomic uint64_t calls[VS_API_COUNT];
	/* pool/trim owns these: by pool, of what was idle; of one call */
	uint64_t seen_moves[VS_MOST_POOLS];
	uint64_t waited_in_vain; /* devices */
	unsigned n_asked;
	struct vs_thread *next; /* all ever made; constant once published */
};

_Static_assert(offsetof(struct vs_thread, calls[2]) <= 64, "see above");

extern __thread struct vs_thread *vs_thread_current
	__attribute__((tls_model("initial-exec")));

/* Makes this thread's struct; NULL only when mmap fails. */
struct vs_thread *vs_thread_make(void) __attribute__((cold));

static inline struct vs_thread *vs_thread_self(void)
{
	struct vs_thread *t = vs_thread_current;

	return __builtin_expect(t != NULL, 1) ? t : vs_thread_make();
}

/* The living thread that owns it, which no other has the number of. */
static inline int vs_thread_tid(const struct vs_thread *t)
{
	return t ? atomic_load_explicit(&t->in_use, memory_order_relaxed) : 0;
}

/* Counts a call of api.def row `api` by this thread. */
static inline void vs_thread_count(struct vs_thread *t, enum vs_api api)
{
	atomic_store_explicit(
		&t->calls[api],
		atomic_load_explicit(&t->calls[api], memory_order_relaxed) + 1,
		memory_order_relaxed);
}

/*
 * Around what may hold the pool's locks over driver calls. The driver may call
 * the program back from there, as profilers want it, and what that calls comes
 * to the hooks again: it is not to wait for locks that its own thread holds,
 * and gets the driver's answer. False if the thread is within already.
 */
static inline bool vs_thread_go_within(struct vs_thread *t)
{
	if (__builtin_expect(!t || t->depth, 0))
		return false;
	t->depth = 1;
	return true;
}

static inline void vs_thread_come_out(struct vs_thread *t)
{
	t->depth = 0;
}

/*
 * The same for what cannot be left to the driver, be it from within: a free,
 * the end of a context or of a thread. `t` may be NULL.
 */
static inline void vs_thread_go_deeper(struct vs_thread *t)
{
	if (t)
		t->depth++;
}

static inline void vs_thread_come_back(struct vs_thread *t)
{
	if (t)
		t->depth--;
}

/* Calls of a row over all threads, living and ended. Async-signal-safe. */
uint64_t vs_thread_calls(enum vs_api api);

/*
 * Runs in each ending thread that owns a struct (set by pool whenever it makes
 * one, to the same); where that cannot be told, in the next thread that takes
 * the struct, before it has it. `tid` is the number of the thread that ends, or
 * has ended.
 */
extern void (*_Atomic vs_thread_on_exit)(struct vs_thread *t, int tid);

/* No thread of this process has the number `tid` now. A system call. */
bool vs_thread_is_gone(int tid) __attribute__((cold));

/* First struct of the list. */
struct vs_thread *vs_thread_first(void);

/* pthread_create; not for who runs on a fake driver, which is one thread's. */
extern int (*vs_thread_create)(pthread_t *, const pthread_attr_t *,
			       void *(*)(void *), void *);

/*
 * Starts `run(argument)` in a thread of the shim's own: detached, on a small
 * stack, and no signal from others ever lands there. 0 or an errno. glibc takes
 * the program's thread-local variables out of the stack, and refuses only when
 * hardly anything is left: `tls_bytes`, of vs_loader_tls, are added.
 */
int vs_thread_start(void *(*run)(void *), void *argument, size_t tls_bytes)
	__attribute__((cold));

/* In a forked child: only this thread is left. */
void vs_thread_forked(void);

#endif
