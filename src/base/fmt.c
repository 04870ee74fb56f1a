/* SPDX-License-Identifier: MIT */
#include "base/fmt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/sys.h"

struct vs_fmt vs_fmt_start(char *buffer, size_t size)
{
	buffer[0] = '\0';
	return (struct vs_fmt){.text = buffer, .size = size, .len = 0};
}

void vs_fmt_char(struct vs_fmt *f, char c)
{
	if (f->len + 1 >= f->size)
		return;
	f->text[f->len++] = c;
	f->text[f->len] = '\0';
}

static void put(struct vs_fmt *f, const char *s, size_t n)
{
	size_t room = f->size - f->len - 1;

	if (n > room)
		n = room;
	memcpy(f->text + f->len, s, n);
	f->len += n;
	f->text[f->len] = '\0';
}

void vs_fmt_str(struct vs_fmt *f, const char *s)
{
	if (!s)
		s = "(null)";
	put(f, s, strlen(s));
}

static void put_base(struct vs_fmt *f, uint64_t v, unsigned base)
{
	char digits[20]; /* of UINT64_MAX in base 10 */
	size_t at = sizeof(digits);

	do {
		digits[--at] = "0123456789abcdef"[v % base];
		v /= base;
	} while (v);
	put(f, digits + at, sizeof(digits) - at);
}

void vs_fmt_u64(struct vs_fmt *f, uint64_t v)
{
	put_base(f, v, 10);
}

void vs_fmt_i64(struct vs_fmt *f, int64_t v)
{
	if (v < 0)
		vs_fmt_char(f, '-');
	/* unsigned, since -INT64_MIN overflows */
	put_base(f, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, 10);
}

void vs_fmt_hex(struct vs_fmt *f, uint64_t v)
{
	vs_fmt_str(f, "0x");
	put_base(f, v, 16);
}

void vs_fmt_uuid(struct vs_fmt *f, const unsigned char *uuid)
{
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			vs_fmt_char(f, '-');
		put_base(f, uuid[i] / 16, 16);
		put_base(f, uuid[i] % 16, 16);
	}
}

/* "12.3 unit" */
static void put_tenths(struct vs_fmt *f, uint64_t tenths, const char *unit)
{
	vs_fmt_u64(f, tenths / 10);
	vs_fmt_char(f, '.');
	vs_fmt_u64(f, tenths % 10);
	vs_fmt_char(f, ' ');
	vs_fmt_str(f, unit);
}

void vs_fmt_bytes(struct vs_fmt *f, uint64_t bytes)
{
	static const char *const units[] = {"KiB", "MiB", "GiB",
					    "TiB", "PiB", "EiB"};
	size_t n_units = sizeof(units) / sizeof(units[0]);

	if (bytes < 1024) {
		vs_fmt_u64(f, bytes);
		vs_fmt_str(f, " B");
		return;
	}
	for (size_t i = 0; i < n_units; i++) {
		unsigned shift = 10 * (unsigned)(i + 1);
		uint64_t rest = bytes & ((1ull << shift) - 1);
		/* rest * 10 fits: rest is below 2^60 */
		uint64_t tenths =
			(bytes >> shift) * 10 +
			((rest * 10 + (1ull << (shift - 1))) >> shift);

		/* rounded up to 1024.0: the next unit says it as 1.0 */
		if (tenths < 10240 || i + 1 == n_units) {
			put_tenths(f, tenths, units[i]);
			return;
		}
	}
}

void vs_fmt_ns(struct vs_fmt *f, uint64_t ns)
{
	static const char *const units[] = {"us", "ms", "s"};
	uint64_t scale = 1000;

	if (ns < 1000) {
		vs_fmt_u64(f, ns);
		vs_fmt_str(f, " ns");
		return;
	}
	for (size_t i = 0; i < 3; i++, scale *= 1000) {
		uint64_t tenth = scale / 10;
		uint64_t tenths = ns / tenth + (ns % tenth >= tenth / 2);

		if (tenths < 10000 || i == 2) {
			put_tenths(f, tenths, units[i]);
			return;
		}
	}
}

/*
 * Bytes of the well-formed UTF-8 sequence at s (Unicode, table 3-7), 0 when it
 * is none. Reads no further than the NUL.
 */
static size_t utf8_len(const unsigned char *s)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t n;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		n = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		n = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		n = 4;
	else
		return 0;
	if (s[0] == 0xe0)
		low = 0xa0; /* overlong */
	if (s[0] == 0xed)
		high = 0x9f; /* surrogates */
	if (s[0] == 0xf0)
		low = 0x90; /* overlong */
	if (s[0] == 0xf4)
		high = 0x8f; /* above U+10FFFF */
	if (s[1] < low || s[1] > high)
		return 0;
	for (size_t i = 2; i < n; i++)
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	return n;
}

void vs_fmt_json(struct vs_fmt *f, const char *s)
{
	const unsigned char *p = (const unsigned char *)(s ? s : "");
	size_t n;

	for (; *p; p += n) {
		n = utf8_len(p);
		if (*p == '"' || *p == '\\') {
			vs_fmt_char(f, '\\');
			vs_fmt_char(f, (char)*p);
		} else if (*p < ' ') {
			vs_fmt_str(f, *p < 0x10 ? "\\u000" : "\\u001");
			put_base(f, *p & 0xf, 16);
		} else if (n == 0) {
			/* JSON is UTF-8; an environment need not be */
			vs_fmt_str(f, "\\ufffd");
			n = 1;
		} else {
			put(f, (const char *)p, n);
		}
	}
}

void vs_fmt_line(struct vs_fmt *f, const char *s)
{
	const unsigned char *p = (const unsigned char *)(s ? s : "(null)");

	for (; *p; p++) {
		if (*p >= ' ' && *p != 0x7f) {
			vs_fmt_char(f, (char)*p);
			continue;
		}
		vs_fmt_str(f, *p < 0x10 ? "\\x0" : "\\x");
		put_base(f, *p, 16);
	}
}

void vs_fmt_pad(struct vs_fmt *f, size_t width)
{
	while (f->len < width && f->len + 1 < f->size)
		vs_fmt_char(f, ' ');
}

enum length { LENGTH_INT, LENGTH_LONG, LENGTH_LLONG, LENGTH_SIZE };

/* The length modifier at *p, and *p behind it. */
static enum length take_length(const char **p)
{
	enum length length = LENGTH_INT;

	if (**p == 'z') {
		(*p)++;
		return LENGTH_SIZE;
	}
	for (; **p == 'l' && length < LENGTH_LLONG; (*p)++)
		length++;
	return length;
}

/* A va_list may be an array, which a function cannot take by address. */
struct arguments {
	va_list list;
};

static int64_t take_signed(struct arguments *args, enum length length)
{
	switch (length) {
	case LENGTH_LONG:
		return va_arg(args->list, long);
	case LENGTH_LLONG:
		return va_arg(args->list, long long);
	case LENGTH_SIZE:
		return va_arg(args->list, ssize_t);
	default:
		return va_arg(args->list, int);
	}
}

static uint64_t take_unsigned(struct arguments *args, enum length length)
{
	switch (length) {
	case LENGTH_LONG:
		return va_arg(args->list, unsigned long);
	case LENGTH_LLONG:
		return va_arg(args->list, unsigned long long);
	case LENGTH_SIZE:
		return va_arg(args->list, size_t);
	default:
		return va_arg(args->list, unsigned);
	}
}

/* Writes one argument; false when the conversion is none of ours. */
static bool convert(struct vs_fmt *f, char conversion, enum length length,
		    struct arguments *args)
{
	bool is_plain = length == LENGTH_INT;

	switch (conversion) {
	case 'd':
	case 'i':
		vs_fmt_i64(f, take_signed(args, length));
		return true;
	case 'u':
		vs_fmt_u64(f, take_unsigned(args, length));
		return true;
	case 'x':
		put_base(f, take_unsigned(args, length), 16);
		return true;
	case 's':
		if (is_plain)
			vs_fmt_str(f, va_arg(args->list, const char *));
		return is_plain;
	case 'p':
		if (is_plain)
			vs_fmt_hex(f, (uintptr_t)va_arg(args->list, void *));
		return is_plain;
	case 'c':
		if (is_plain)
			vs_fmt_char(f, (char)va_arg(args->list, int));
		return is_plain;
	case '%':
		if (is_plain)
			vs_fmt_char(f, '%');
		return is_plain;
	default:
		return false;
	}
}

void vs_fmt_v(struct vs_fmt *f, const char *format, va_list args)
{
	struct arguments arguments;
	const char *p = format;

	va_copy(arguments.list, args);
	while (*p) {
		const char *percent = strchr(p, '%');
		enum length length;

		if (!percent)
			break;
		put(f, p, (size_t)(percent - p));
		p = percent + 1;
		length = take_length(&p);
		if (!convert(f, *p, length, &arguments)) {
			/*
			 * The size of its argument is not known, so the
			 * arguments behind it cannot be found either.
			 */
			p = percent;
			break;
		}
		p++;
	}
	vs_fmt_str(f, p);
	va_end(arguments.list);
}

void vs_fmt_f(struct vs_fmt *f, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vs_fmt_v(f, format, args);
	va_end(args);
}

/* Whether fd takes bytes again within a time nobody minds. */
static bool wait_writable(int fd)
{
	uint64_t end = vs_clock_ms() + 100;
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	uint64_t now;

	while ((now = vs_clock_ms()) < end) {
		int n = vs_sys_poll(&p, 1, (int)(end - now));

		/* it cannot be asked (RLIMIT_NOFILE is 0, a sandbox) */
		if (n < 0 && errno != EINTR)
			return errno != EAGAIN;
		if (n >= 0)
			return n == 1 && (p.revents & POLLOUT);
	}
	return false;
}

/*
 * Whether who is to read it may have stopped: the program's own pipe, socket or
 * terminal. Of other devices poll() need not tell (/dev/kmsg). Not inline, as
 * the next: a signal handler's stack may be small.
 */
static bool __attribute__((noinline)) may_block(int fd, bool *is_device_out)
{
	struct stat now;

	*is_device_out = false;
	if (fd != STDERR_FILENO || vs_sys_fstat(fd, &now))
		return false;
	*is_device_out = S_ISCHR(now.st_mode);
	return S_ISFIFO(now.st_mode) || S_ISSOCK(now.st_mode);
}

/*
 * A terminal that is writable may have room for less than a line, so it is
 * opened once more, not to block; -1: it may not be opened.
 */
static int __attribute__((noinline)) open_terminal(void)
{
	return vs_fd_clear(
		vs_sys_open("/proc/self/fd/2",
			    O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0));
}

static bool write_all(const char *text, size_t len, int fd, bool is_careful)
{
	while (len) {
		/* what a pipe that is writable has room for */
		size_t part = is_careful && len > PIPE_BUF ? PIPE_BUF : len;
		ssize_t n;

		if (is_careful && !wait_writable(fd))
			return false;
		n = vs_sys_write(fd, text, part);

		if (n > 0) {
			text += n;
			len -= (size_t)n;
		} else if (n < 0 && errno == EINTR) {
			continue;
		} else if (n < 0 && errno == EAGAIN && wait_writable(fd)) {
			continue;
		} else {
			return false;
		}
	}
	return true;
}

/* Takes a pending signal of this thread back. */
static void swallow(int number)
{
	const struct timespec now = {0};
	sigset_t set;

	vs_sys_sigset_empty(&set);
	vs_sys_sigset_add(&set, number);
	while (vs_sys_sigtimedwait(&set, NULL, &now) < 0 && errno == EINTR)
		;
}

/*
 * A reader that went away, or a file at its limit, is no reason to kill a
 * program that itself wrote nothing there, so the signal is kept from it.
 */
bool vs_fmt_write(const struct vs_fmt *f, int fd)
{
	sigset_t deadly, saved, pending;
	int saved_errno = errno, number = 0, cancel = vs_cancel_hold();
	bool is_written;
	bool is_careful, is_device;
	int terminal = -1;

	vs_sys_sigset_empty(&deadly);
	vs_sys_sigset_add(&deadly, SIGPIPE);
	vs_sys_sigset_add(&deadly, SIGXFSZ);
	pthread_sigmask(SIG_BLOCK, &deadly, &saved);
	vs_sys_sigset_empty(&pending);
	vs_sys_sigpending(&pending);
	is_careful = may_block(fd, &is_device);
	if (is_device && vs_sys_isatty(fd)) {
		terminal = open_terminal();
		is_careful = terminal < 0;
	}
	errno = 0; /* of the write, if it is set then */
	is_written = write_all(f->text, f->len, terminal < 0 ? fd : terminal,
			       is_careful);
	if (!is_written && errno == EPIPE)
		number = SIGPIPE;
	else if (!is_written && errno == EFBIG)
		number = SIGXFSZ;
	if (number && !vs_sys_sigset_has(&pending, number))
		swallow(number);
	if (terminal >= 0)
		vs_sys_close(terminal);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	vs_cancel_let(cancel);
	errno = saved_errno;
	return is_written;
}
