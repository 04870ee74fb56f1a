/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fmt.h"
#include "base/sys.h"

int vs_log_level = VS_LOG_WARN;

static const char *const level_names[] = {"none", "error", "warn", "info",
					  "debug"};

/* Lines asked for so far, by level; debug is not counted. */
static _Atomic unsigned n_lines[VS_LOG_DEBUG];

/* Note [Descriptor 2]; constant once noted. */
static struct stat noted;
static bool was_closed;
static _Atomic bool is_noted;

void vs_log_note_stderr(void)
{
	int saved = errno;

	was_closed = vs_sys_fstat(STDERR_FILENO, &noted) != 0;
	if (was_closed)
		noted = (struct stat){0};
	atomic_store(&is_noted, true);
	errno = saved;
}

static void __attribute__((constructor)) at_start(void)
{
	if (!atomic_load(&is_noted))
		vs_log_note_stderr();
}

/* Whether `now`, which is not what was noted, is for people to read. */
static bool is_for_people(const struct stat *now, int fd)
{
	int flags;

	if (!S_ISREG(now->st_mode))
		return was_closed ? vs_sys_isatty(fd)
				  : !S_ISSOCK(now->st_mode) &&
					    !S_ISBLK(now->st_mode);
	flags = vs_sys_fcntl(fd, F_GETFL, 0);
	return (flags & O_APPEND) ||
	       (!was_closed && (flags & O_ACCMODE) != O_RDWR);
}

int vs_log_stderr(void)
{
	int saved = errno, fd = STDERR_FILENO;
	struct stat now;

	/* a constructor of the program's may come before the one above */
	if (!atomic_load(&is_noted))
		vs_log_note_stderr();
	if (vs_sys_fstat(fd, &now) != 0)
		fd = -1;
	else if ((was_closed || !vs_fd_is_same(&now, &noted)) &&
		 !is_for_people(&now, fd))
		fd = -1;
	errno = saved;
	return fd;
}

static struct vs_fmt start_line(enum vs_log_level level, char *line)
{
	/* one byte is kept for the newline */
	struct vs_fmt f = vs_fmt_start(line, VS_LOG_LINE - 1);

	vs_fmt_f(&f, "vmmshim[%d] %s: ", (int)vs_sys_getpid(),
		 level_names[level]);
	return f;
}

static void end_line(struct vs_fmt *f)
{
	/* an argument with a newline in it must not look like a second line */
	for (size_t i = 0; i < f->len; i++)
		if ((unsigned char)f->text[i] < ' ' || f->text[i] == 0x7f)
			f->text[i] = '?';
	f->size++;
	vs_fmt_char(f, '\n');
	vs_fmt_write(f, vs_log_stderr());
}

/* Counts the line; `line` is a buffer for the notice that comes at the cap. */
static bool is_capped(enum vs_log_level level, char *line)
{
	struct vs_fmt f;
	unsigned n;

	if (level >= VS_LOG_DEBUG)
		return false;
	/* stops counting, so that it never wraps */
	if (atomic_load_explicit(&n_lines[level], memory_order_relaxed) >
	    VS_LOG_MAX)
		return true;
	n = atomic_fetch_add_explicit(&n_lines[level], 1, memory_order_relaxed);
	if (n < VS_LOG_MAX)
		return false;
	if (n == VS_LOG_MAX) {
		f = start_line(level, line);
		vs_fmt_f(&f, "%d lines of this level written, more are not",
			 VS_LOG_MAX);
		end_line(&f);
	}
	return true;
}

static void put_line(char *line, enum vs_log_level level, const char *format,
		     va_list args)
{
	struct vs_fmt f;

	if (level <= VS_LOG_NONE || level > VS_LOG_DEBUG || !vs_log_on(level) ||
	    is_capped(level, line))
		return;
	f = start_line(level, line);
	vs_fmt_v(&f, format, args);
	end_line(&f);
}

void vs_log(enum vs_log_level level, const char *format, ...)
{
	char line[VS_LOG_LINE];
	va_list args;

	va_start(args, format);
	put_line(line, level, format, args);
	va_end(args);
}

void vs_log_in(char *line, enum vs_log_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	put_line(line, level, format, args);
	va_end(args);
}
