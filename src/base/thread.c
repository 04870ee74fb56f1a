/* SPDX-License-Identifier: MIT */
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "base/meta.h"

/* Room for the driver's own calls; only what is used is ever touched. */
#define STACK_BYTES ((size_t)256 * 1024)
#define STACK_ALIGN ((size_t)4096)

__thread struct vs_thread *vs_thread_current
	__attribute__((tls_model("initial-exec")));
void (*vs_thread_on_exit)(struct vs_thread *t);

static _Atomic(struct vs_thread *) all; /* pushed at the front, never popped */
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key; /* written by key_once */

/* A later destructor of the thread may still allocate: it gets a new struct. */
static void thread_ends(void *value)
{
	struct vs_thread *t = value;

	if (vs_thread_on_exit)
		vs_thread_on_exit(t);
	if (vs_thread_current == t)
		vs_thread_current = NULL;
	atomic_store_explicit(&t->in_use, 0, memory_order_release);
}

static void make_key(void)
{
	has_key = pthread_key_create(&key, thread_ends) == 0;
}

/* A struct whose thread has ended. Its counts stay: they are sums. */
static struct vs_thread *take_over(void)
{
	struct vs_thread *t;

	for (t = vs_thread_first(); t; t = t->next) {
		int unused = 0;

		if (!atomic_compare_exchange_strong(&t->in_use, &unused, 1))
			continue;
		/* it may have been cancelled in a driver call from the pool */
		t->depth = 0;
		return t;
	}
	return NULL;
}

struct vs_thread *vs_thread_make(void)
{
	struct vs_thread *t;

	pthread_once(&key_once, make_key);
	t = take_over();
	if (!t) {
		t = vs_meta_alloc(sizeof(*t));
		if (!t)
			return NULL;
		atomic_store_explicit(&t->in_use, 1, memory_order_relaxed);
		t->next = atomic_load(&all);
		while (!atomic_compare_exchange_weak(&all, &t->next, t))
			;
	}
	vs_thread_current = t;
	if (has_key)
		pthread_setspecific(key, t);
	return t;
}

struct vs_thread *vs_thread_first(void)
{
	return atomic_load_explicit(&all, memory_order_acquire);
}

uint64_t vs_thread_calls(enum vs_api api)
{
	uint64_t n = 0;

	for (struct vs_thread *t = vs_thread_first(); t; t = t->next)
		n += atomic_load_explicit(&t->calls[api], memory_order_relaxed);
	return n;
}

void vs_thread_forked(void)
{
	for (struct vs_thread *t = vs_thread_first(); t; t = t->next) {
		t->cache = NULL;
		for (int i = 0; i < VS_API_COUNT; i++)
			atomic_store(&t->calls[i], 0);
		if (t != vs_thread_current)
			atomic_store(&t->in_use, 0);
	}
	vs_meta_forked();
}

static int create(void *(*run)(void *), size_t stack_bytes)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int error = pthread_attr_init(&attributes);

	if (error)
		return error;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (stack_bytes)
		pthread_attr_setstacksize(&attributes, stack_bytes);
	error = pthread_create(&thread, &attributes, run, NULL);
	pthread_attr_destroy(&attributes);
	return error;
}

int vs_thread_start(void *(*run)(void *), size_t tls_bytes)
{
	size_t stack_bytes = (STACK_BYTES + tls_bytes + STACK_ALIGN - 1) /
			     STACK_ALIGN * STACK_ALIGN;
	sigset_t signals, saved;
	int error;

	/* the new thread inherits the mask: no signal ever lands there */
	sigfillset(&signals);
	pthread_sigmask(SIG_SETMASK, &signals, &saved);
	error = create(run, stack_bytes);
	/* the C library may put more of its own there than is known */
	if (error == EINVAL)
		error = create(run, 0);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	return error;
}
