/* SPDX-License-Identifier: MIT
 *
 * fmt: text into a fixed buffer, async-signal-safe: no stdio, no malloc, no
 * locale, no lock. What does not fit is cut, the text always ends in NUL.
 */
#ifndef VS_BASE_FMT_H
#define VS_BASE_FMT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vs_fmt {
	char *text;  /* caller's buffer */
	size_t size; /* its size, at least 1 */
	size_t len;  /* bytes in it, without the NUL */
};

/* Starts an empty text in the caller's buffer. */
struct vs_fmt vs_fmt_start(char *buffer, size_t size);

void vs_fmt_char(struct vs_fmt *f, char c);
void vs_fmt_str(struct vs_fmt *f, const char *s); /* NULL: "(null)" */
void vs_fmt_u64(struct vs_fmt *f, uint64_t v);
void vs_fmt_i64(struct vs_fmt *f, int64_t v);
void vs_fmt_hex(struct vs_fmt *f, uint64_t v); /* 0x1f */
/* 16 bytes as nvidia-smi -L writes them: 0f1e2d3c-4b5a-... */
void vs_fmt_uuid(struct vs_fmt *f, const unsigned char *uuid);
/* For people: 0 B, 512 B, 12.3 MiB, 64.0 GiB. */
void vs_fmt_bytes(struct vs_fmt *f, uint64_t bytes);
/* For people: 812 ns, 1.2 us, 3.4 ms, 5.6 s. */
void vs_fmt_ns(struct vs_fmt *f, uint64_t ns);
/*
 * The inside of a JSON string: quotes, backslashes and controls of s escaped,
 * U+FFFD for what is not UTF-8.
 */
void vs_fmt_json(struct vs_fmt *f, const char *s);
/* s as part of one line: a newline as \x0a, and so all controls. */
void vs_fmt_line(struct vs_fmt *f, const char *s);
/* Pads with spaces up to column `width`. */
void vs_fmt_pad(struct vs_fmt *f, size_t width);
/*
 * printf's %s %d %i %u %x %p %c %% with l, ll and z, without width or flags.
 * Anything else, and all behind it, stands as written.
 */
void vs_fmt_v(struct vs_fmt *f, const char *format, va_list args);
void vs_fmt_f(struct vs_fmt *f, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Writes the whole text to fd, again after EINTR and short writes; false when
 * that fails. Keeps errno, raises no signal. What stderr, unless it is a
 * file, does not take for a tenth of a second is lost.
 */
bool vs_fmt_write(const struct vs_fmt *f, int fd);

#endif
