/* SPDX-License-Identifier: MIT */
#include "report/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fmt.h"
#include "base/kernel.h"
#include "base/knob.h"
#include "base/log.h"
#include "base/sys.h"
#include "pool/pool.h"
#include "report/emit.h"
#include "report/path.h"

/* How long a dump waits for another thread's. */
#define BUSY_MS 200

/* Written by vs_dump_init, constant afterwards. */
static _Atomic pid_t owner; /* the process that dumps; 0: none yet */
static char path[PATH_MAX]; /* STATS_FILE resolved, "" for stderr */
static const char *given;   /* the part of it that the user gave */
static char program[64];
static char mode[8];
static char host[HOST_NAME_MAX + 1];
static uint64_t started_ns;

static _Atomic pid_t writer; /* the thread inside a dump; 0: none */
/* Of its warnings: a signal handler's stack may be small. */
static char warning[VS_LOG_LINE];
static atomic_flag has_warned = ATOMIC_FLAG_INIT; /* of open_file */
static atomic_flag has_failed = ATOMIC_FLAG_INIT; /* writing, and was told */

static void copy(char *to, size_t size, const char *from)
{
	struct vs_fmt f = vs_fmt_start(to, size);

	vs_fmt_str(&f, from);
}

/* Word `index` of "a|b|c". */
static void copy_word(char *to, size_t size, const char *words, int index)
{
	struct vs_fmt f = vs_fmt_start(to, size);

	for (; *words && index >= 0; words++) {
		if (*words == '|')
			index--;
		else if (index == 0)
			vs_fmt_char(&f, *words);
	}
}

/*
 * A program may have gone elsewhere (daemons go to /) when it is asked. What is
 * too long, or in a folder that cannot be named, stays as it is.
 */
static void make_path_absolute(void)
{
	static char folder[PATH_MAX];
	size_t size = strlen(path) + 1;
	long n;

	given = path;
	if (!path[0] || path[0] == '/')
		return;
	n = vs_kernel(SYS_getcwd, folder, sizeof(folder)); /* with the NUL */
	if (n <= 1 || folder[0] != '/' || (size_t)n + size > sizeof(path))
		return;
	folder[n - 1] = '/';
	memmove(path + n, path, size);
	memcpy(path, folder, (size_t)n);
	given = path + n;
}

void vs_dump_init(void)
{
	const char *pattern;

	if (atomic_load(&owner) == vs_sys_getpid())
		return;
	vs_knob_init();
	pattern = vs_knobs.stats_file;
	started_ns = vs_clock_ns(CLOCK_MONOTONIC);
	copy(program, sizeof(program), vs_sys_program_name());
	copy_word(mode, sizeof(mode), VS_WORDS_mode, vs_knobs.mode);
	if (vs_sys_hostname(host, sizeof(host) - 1))
		host[0] = '\0';
	path[0] = '\0';
	if (pattern && *pattern && !vs_path_expand(pattern, path, sizeof(path)))
		vs_warn("VMMSHIM_STATS_FILE: the name is too long, "
			"statistics go to stderr");
	make_path_absolute();
	atomic_store(&writer, 0);
	atomic_store(&owner, vs_sys_getpid());
}

/*
 * False when this thread is in a dump already (the signal came in the middle
 * of it) or another thread's does not end.
 */
static bool enter(void)
{
	pid_t self = vs_sys_gettid();

	for (int i = 0; i < BUSY_MS; i++) {
		pid_t nobody = 0;

		if (atomic_compare_exchange_strong(&writer, &nobody, self))
			return true;
		if (nobody == self)
			return false;
		vs_cancel_free_sleep(VS_MS);
	}
	return false;
}

static void leave(void)
{
	atomic_store(&writer, 0);
}

/*
 * STATS_FILE, -1 where stderr is meant. O_NONBLOCK: a pipe that nobody reads
 * must not hold a signal handler.
 */
static int open_file(void)
{
	const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY |
			  O_NONBLOCK;
	int fd;

	if (!path[0])
		return -1;
	fd = vs_sys_open(path, flags, 0644);
	/* the folder has another name by now, or is the root */
	if (fd < 0 && given != path && (errno == ENOENT || errno == EACCES))
		fd = vs_sys_open(given, flags, 0644);
	fd = vs_fd_clear(fd);
	if (fd < 0 && !atomic_flag_test_and_set(&has_warned))
		vs_log_in(warning, VS_LOG_WARN,
			  "VMMSHIM_STATS_FILE: cannot write %s (%s), "
			  "statistics go to stderr",
			  path, vs_path_why(errno));
	return fd;
}

/* Bytes in the file, -1: it is none. Not inline: the stack may be small. */
static off_t __attribute__((noinline)) size_of(int fd)
{
	struct stat now;

	return vs_sys_fstat(fd, &now) || !S_ISREG(now.st_mode) ? -1
							       : now.st_size;
}

/*
 * `is_torn`: what is there ends in a part of a dump, to which a whole one must
 * not be added as if it were its rest.
 */
static bool emit(const struct vs_dump_head *head, int fd, bool *is_torn)
{
	static char newline[] = "\n";
	const struct vs_fmt end = {.text = newline, .size = 2, .len = 1};
	off_t size = size_of(fd);
	bool is_written = !*is_torn || vs_fmt_write(&end, fd);

	if (is_written)
		is_written = vs_knobs.stats_format == VS_FORMAT_JSON
				     ? vs_emit_json(head, fd)
				     : vs_emit_text(head, fd);
	if (is_written)
		*is_torn = false;
	else if (size < 0 || size_of(fd) != size)
		*is_torn = true;
	return is_written;
}

/* To STATS_FILE; false: not all of it, or there is none. */
static bool emit_to_file(const struct vs_dump_head *head)
{
	static bool is_torn;
	int file = open_file();
	bool is_written;

	if (file < 0)
		return false;
	is_written = emit(head, file, &is_torn);
	/* a file system of another host may tell only now that it is full */
	if (vs_sys_close(file) && errno != EINTR) {
		is_written = false;
		is_torn = true;
	}
	if (!is_written && !atomic_flag_test_and_set(&has_failed))
		vs_log_in(warning, VS_LOG_WARN,
			  "VMMSHIM_STATS_FILE: cannot write %s "
			  "(writing failed), statistics go to stderr",
			  path);
	return is_written;
}

void vs_dump_write(const char *why)
{
	static bool is_torn; /* stderr */
	int saved_errno = errno, cancel = vs_cancel_hold();
	struct vs_dump_head head;

	if (atomic_load(&owner) != vs_sys_getpid() || !enter())
		goto out;
	for (int i = 0; i < vs_pool_count(); i++)
		vs_pool_refresh(i);
	head = (struct vs_dump_head){
		.why = why,
		.program = program,
		.host = host,
		.mode = mode,
		.pid = vs_sys_getpid(),
		.uptime_ns = vs_clock_ns(CLOCK_MONOTONIC) - started_ns,
		.time_s = vs_clock_ns(CLOCK_REALTIME) / 1000000000,
	};
	if (!emit_to_file(&head))
		emit(&head, vs_log_stderr(), &is_torn);
	leave();
out:
	vs_cancel_let(cancel);
	errno = saved_errno;
}

/* Host-side numbers only: the driver may be gone. */
static void __attribute__((destructor)) at_exit(void)
{
	if (vs_knobs.stats_at_exit)
		vs_dump_write("exit");
}
