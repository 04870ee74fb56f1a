/* SPDX-License-Identifier: MIT */
#include "hook/gate.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/knob.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"
#include "driver/loader.h"
#include "hook/ipc.h"
#include "pool/pool.h"
#include "report/service.h"
#include "report/trace.h"

/* Of a C library older than the kernel. */
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { NOT_YET, OPEN, CLOSED };

static _Atomic int state;
static _Atomic bool is_initialized;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Atomic bool is_decided; /* a libcuda was seen */
static pid_t process;		/* whose this is: by once, and in a child */

static void in_child(void);

void vs_gate_open(void)
{
	int not_yet = NOT_YET;

	if (!atomic_load(&vs_hot.is_known))
		in_child();
	/* where it is closed for good many calls come here */
	if (atomic_load(&state) == CLOSED)
		return;
	atomic_compare_exchange_strong(&state, &not_yet, OPEN);
	/* another may have said so, and be about to */
	atomic_store(&vs_hot.is_open, true);
	/*
	 * A close in between must have the last word: this look must not come
	 * before the store (release would let it).
	 */
	if (atomic_load(&state) == CLOSED)
		atomic_store(&vs_hot.is_open, false);
}

/* For good; logged once at info level with the reason. */
static void close_gate(const char *why)
{
	if (atomic_exchange(&state, CLOSED) == CLOSED)
		return;
	atomic_store(&vs_hot.is_open, false);
	vs_info("out of the way: %s", why);
}

void vs_gate_behind(const char *path)
{
	vs_info("%s comes before this library", path);
	close_gate("some of the program's calls would go past it");
}

static int is_sanitizer(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	return info->dlpi_name &&
	       strstr(info->dlpi_name, "/libsanitizer-collection.so") != NULL;
}

/*
 * compute-sanitizer takes all that is mapped for allocated, so it would find
 * nothing in the pool's memory. The driver loads its library in cuInit.
 */
void vs_gate_initialized(void)
{
	atomic_store(&is_initialized, true);
	if (vs_pool_count() == 0 &&
	    vs_knob_source_of("VMMSHIM") != VS_FROM_ENV &&
	    vs_loader_iterate(is_sanitizer, NULL))
		close_gate("compute-sanitizer is to see each allocation; "
			   "VMMSHIM=pool serves all the same");
}

void vs_gate_deinitialized(void)
{
	close_gate("the driver is shutting down");
}

/*
 * Note [Children]: the driver's state is of no use in a child of a process that
 * has initialised it, and all its answers are errors; a child that comes before
 * starts afresh. Neither must be served what is the parent's, nor wait for a
 * lock that a thread of the parent's held.
 *
 * A handler of forks tells of most children, but not of those that are made
 * without the C library (clone, _Fork), and it comes late where a handler of
 * the program's was set before. So the kernel clears in each child what is
 * looked at before all else (Linux 4.14): the gate is shut there, whoever comes
 * to it asks for it to be opened, and is_known tells that this is a child. A
 * process that shares its parent's memory is none.
 */
static void in_child(void)
{
	if (!atomic_load(&is_decided))
		return;
	/* the first of handler and caller; without the clearing: the handler */
	if (atomic_exchange(&vs_hot.is_known, true) &&
	    process == vs_sys_getpid())
		return;
	process = vs_sys_getpid();
	vs_pool_forked();
	vs_ipc_forked();
	vs_service_forked();
	vs_trace_forked();
	vs_thread_forked();
	if (atomic_load(&is_initialized))
		close_gate("forked from a process that uses CUDA");
}

static void note_forks(void)
{
	pthread_atfork(NULL, NULL, in_child);
}

/*
 * From the start of the program on, where the kernel clears nothing: a child's
 * handlers run in the order in which they were set, and one that the program
 * set before it used CUDA may allocate and free.
 */
static void __attribute__((constructor)) at_start(void)
{
	pthread_once(&fork_once, note_forks);
}

/*
 * The last part of the path of the program's file; the name it was started by
 * if that is hidden.
 */
static const char *program_file(char *path, size_t size)
{
	ssize_t n = vs_sys_readlink("/proc/self/exe", path, size - 1);
	char *slash;

	if (n <= 0)
		return vs_sys_program_name();
	path[n] = '\0';
	slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* Does nothing on a kernel older than 4.14, or where its pages are larger. */
static void clear_in_children(void)
{
	int saved = errno;

	vs_sys_madvise(&vs_hot, sizeof(vs_hot), MADV_WIPEONFORK);
	errno = saved;
}

static void decide(void)
{
	static char path[PATH_MAX]; /* the stack may be small */

	vs_knob_init();
	/* a constructor of the program's may come before the one above */
	pthread_once(&fork_once, note_forks);
	clear_in_children();
	process = vs_sys_getpid();
	atomic_store(&vs_hot.is_known, true);
	atomic_store(&is_decided, true);
	if (vs_knobs.mode == VS_MODE_OFF)
		close_gate("VMMSHIM is off");
	else if (!vs_knob_serves_program(program_file(path, sizeof(path)),
					 vs_sys_program_name()))
		close_gate("the program is excluded by its name");
}

void vs_gate_init(void)
{
	pthread_once(&once, decide);
}
