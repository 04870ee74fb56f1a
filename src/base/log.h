/* SPDX-License-Identifier: MIT
 *
 * log: the shim's few words to people, on stderr only.
 *
 * One write(2) a line: `vmmshim[pid] warn: text`. Formats by itself (base/fmt:
 * no stdio, no malloc), so any thread may call it at any time, also under a
 * lock or in a signal handler. At most VS_LOG_MAX lines a process for each
 * level above debug, then one line that says so. Never called on a hot path:
 * test vs_log_on() first where arguments cost something.
 *
 * The function that first knows an error logs it, callers pass it up.
 *
 * Note [Descriptor 2]: a daemon may close all that it has, and what it opens
 * next, a database or a connection, is descriptor 2 then. So stderr is what the
 * program was started with, noted before it runs, and what became of it since
 * is looked at before each line: nothing is written to a socket or a block
 * device that is new there, nor to a file that is open for reading, too, and
 * not for appending, as a log is. In a program that was started without a
 * descriptor 2 the first thing that it opens is just that: nothing is written
 * but to a terminal and to files that are open for appending.
 */
#ifndef VS_BASE_LOG_H
#define VS_BASE_LOG_H

#include <stdbool.h>

enum vs_log_level {
	VS_LOG_NONE,
	VS_LOG_ERROR,
	VS_LOG_WARN,
	VS_LOG_INFO,
	VS_LOG_DEBUG,
};

#define VS_LOG_MAX 1000

/* The level in force (knob LOG); warn until the knobs are read. */
extern int vs_log_level;

static inline bool vs_log_on(enum vs_log_level level)
{
	return (int)level <= vs_log_level;
}

/* What descriptor 2 is now, is stderr. Done once, when the shim is loaded. */
void vs_log_note_stderr(void);
/* Where stderr is: 2, or -1, see Note [Descriptor 2]. Async-signal-safe. */
int vs_log_stderr(void);

/*
 * Writes one line. Understands %s %d %i %u %x %lu %ld %lx %llu %zu %p %c %%
 * (sizes for people: vs_fmt_bytes in base/fmt.h); lower-case, no newline.
 */
void vs_log(enum vs_log_level level, const char *format, ...)
	__attribute__((cold, format(printf, 2, 3)));

/* Longest line with its newline and NUL; more is cut. */
#define VS_LOG_LINE 1024

/*
 * The same in a buffer of the caller's, of VS_LOG_LINE bytes: where the stack
 * may be that of a signal handler.
 */
void vs_log_in(char *line, enum vs_log_level level, const char *format, ...)
	__attribute__((cold, format(printf, 3, 4)));

#define vs_error(...) vs_log(VS_LOG_ERROR, __VA_ARGS__)
#define vs_warn(...) vs_log(VS_LOG_WARN, __VA_ARGS__)
#define vs_info(...) vs_log(VS_LOG_INFO, __VA_ARGS__)
#define vs_debug(...) vs_log(VS_LOG_DEBUG, __VA_ARGS__)

#endif
