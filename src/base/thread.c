/* SPDX-License-Identifier: MIT */
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

#include "base/meta.h"
#include "base/sys.h"

/* Room for the driver's own calls; only what is used is ever touched. */
#define STACK_BYTES ((size_t)256 * 1024)
#define STACK_ALIGN ((size_t)4096)

/* Structs that a new thread looks at for one that nobody owns any more. */
#define MOST_LOOKS 32

__thread struct vs_thread *vs_thread_current
	__attribute__((tls_model("initial-exec")));
void (*_Atomic vs_thread_on_exit)(struct vs_thread *t, int tid);

static _Atomic(struct vs_thread *) all; /* pushed at the front, never popped */
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int has_key; /* written by key_once */
static pthread_mutex_t orphans = PTHREAD_MUTEX_INITIALIZER;
static struct vs_thread *next_look; /* orphans; NULL: the first */
static pid_t process;		    /* whose threads these are */

/* A later destructor of the thread may still allocate: it gets a new struct. */
static void thread_ends(void *value)
{
	struct vs_thread *t = value;

	if (vs_thread_on_exit)
		vs_thread_on_exit(t, vs_thread_tid(t));
	if (vs_thread_current == t)
		vs_thread_current = NULL;
	atomic_store_explicit(&t->in_use, 0, memory_order_release);
}

static void make_key(void)
{
	process = vs_sys_getpid();
	has_key = pthread_key_create(&key, thread_ends) == 0;
}

static int own_tid(void)
{
	return vs_sys_gettid();
}

/* A struct whose thread has ended. Its counts stay: they are sums. */
static struct vs_thread *take_over(int own)
{
	struct vs_thread *t;

	for (t = vs_thread_first(); t; t = t->next) {
		int unused = 0;

		/* first: others write that line, each time they allocate */
		if (atomic_load_explicit(&t->in_use, memory_order_relaxed) ==
			    0 &&
		    atomic_compare_exchange_strong(&t->in_use, &unused, own))
			return t;
	}
	return NULL;
}

bool vs_thread_is_gone(int tid)
{
	int saved = errno;
	bool is = vs_sys_tgkill(vs_sys_getpid(), tid, 0) && errno == ESRCH;

	errno = saved;
	return is;
}

/*
 * Nobody tells that a thread ends where the program took all keys, or the
 * thread comes here in its last round of destructors, or ends without the C
 * library: its struct and cache are found by its number, which is no thread's
 * any more, or this one's. A few looks at a time: each is a system call. Not in
 * a process that shares this one's memory, where no number is known.
 */
static struct vs_thread *adopt(int own)
{
	struct vs_thread *found = NULL;
	int owner = 0;

	/* a signal handler may have come here while its thread was here */
	if (vs_sys_getpid() != process || pthread_mutex_trylock(&orphans))
		return NULL;
	for (int i = 0; i < MOST_LOOKS && !found; i++) {
		struct vs_thread *t = next_look ? next_look : vs_thread_first();

		if (!t)
			break;
		next_look = t->next;
		owner = atomic_load(&t->in_use);
		/* or it has ended since, and another has taken it over */
		if (owner && (owner == own || vs_thread_is_gone(owner)) &&
		    atomic_compare_exchange_strong(&t->in_use, &owner, own))
			found = t;
	}
	pthread_mutex_unlock(&orphans);
	if (found && vs_thread_on_exit)
		vs_thread_on_exit(found, owner);
	return found;
}

struct vs_thread *vs_thread_make(void)
{
	struct vs_thread *t;
	int own = own_tid();

	pthread_once(&key_once, make_key);
	t = take_over(own);
	if (!t)
		t = adopt(own);
	if (t) {
		/* it may have been cancelled in a driver call from the pool */
		t->depth = 0;
		t->worked_in = VS_THREAD_NOWHERE;
	} else {
		t = vs_meta_alloc(sizeof(*t));
		if (!t)
			return NULL;
		t->worked_in = VS_THREAD_NOWHERE;
		atomic_store_explicit(&t->in_use, own, memory_order_relaxed);
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
		/* who forked has another number here */
		atomic_store(&t->in_use,
			     t == vs_thread_current ? own_tid() : 0);
	}
	pthread_mutex_init(&orphans, NULL);
	next_look = NULL;
	process = vs_sys_getpid();
	vs_meta_forked();
}

int (*vs_thread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
			void *) = pthread_create;

static int create(void *(*run)(void *), void *argument, size_t stack_bytes)
{
	pthread_attr_t attributes;
	pthread_t thread;
	int error = pthread_attr_init(&attributes);

	if (error)
		return error;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (stack_bytes)
		pthread_attr_setstacksize(&attributes, stack_bytes);
	error = vs_thread_create(&thread, &attributes, run, argument);
	pthread_attr_destroy(&attributes);
	return error;
}

int vs_thread_start(void *(*run)(void *), void *argument, size_t tls_bytes)
{
	size_t stack_bytes = (STACK_BYTES + tls_bytes + STACK_ALIGN - 1) /
			     STACK_ALIGN * STACK_ALIGN;
	sigset_t signals, saved;
	int error;

	/* the new thread inherits the mask: none of others' lands there */
	vs_sys_sigset_fill(&signals);
	pthread_sigmask(SIG_SETMASK, &signals, &saved);
	error = create(run, argument, stack_bytes);
	/* the C library may put more of its own there than is known */
	if (error == EINVAL)
		error = create(run, argument, 0);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	return error;
}
