/* SPDX-License-Identifier: MIT
 *
 * knob: what the environment asks for, read once. The only user of the
 * environment in the tree.
 *
 * vs_knobs is written by vs_knob_init (once, before any other thread of the
 * shim exists) and constant afterwards. A bad value: one warning with the
 * variable, its text and the allowed range; the default stays. An unknown
 * VMMSHIM_ variable: one warning with the nearest name.
 */
#ifndef VS_BASE_KNOB_H
#define VS_BASE_KNOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The variable of a row, by its name. */
#define VS_KNOB_PREFIX "VMMSHIM_"
#define VS_KNOB_VARIABLE(name)                                                 \
	(sizeof(name) == 1 ? "VMMSHIM" : VS_KNOB_PREFIX name)

/* Words of the CHOICE knobs, in the order of their enums. */
#define VS_WORDS_mode "pool|sync|off"
enum vs_mode { VS_MODE_POOL, VS_MODE_SYNC, VS_MODE_OFF };
#define VS_WORDS_reuse "complete|auto|stream|ordered"
enum vs_reuse {
	VS_REUSE_COMPLETE,
	VS_REUSE_AUTO,
	VS_REUSE_STREAM,
	VS_REUSE_ORDERED
};
#define VS_WORDS_zero "never|always"
enum vs_zero { VS_ZERO_NEVER, VS_ZERO_ALWAYS };
#define VS_WORDS_ipc "emulate|native"
enum vs_ipc { VS_IPC_EMULATE, VS_IPC_NATIVE };
#define VS_WORDS_format "text|json"
enum vs_format { VS_FORMAT_TEXT, VS_FORMAT_JSON };

/* A number of bytes, or a share of the device's memory. */
struct vs_size {
	uint64_t value;	 /* bytes, or percent */
	bool is_percent; /* value is 0..100 */
	bool is_given;	 /* by the environment */
};

/*
 * Bytes of s on a device of `total` bytes: 100 % is all of it, to the byte, and
 * 0 % is 0, which most knobs take for "none".
 */
static inline uint64_t vs_size_bytes(struct vs_size s, uint64_t total)
{
	if (!s.is_percent)
		return s.value;
	/* total * value may not fit */
	return total / 100 * s.value + total % 100 * s.value / 100;
}

/* Field types, by the TYPE column of knobs.def. */
#define VS_KNOB_TYPE_SIZE struct vs_size
#define VS_KNOB_TYPE_MS uint64_t
#define VS_KNOB_TYPE_BOOL bool
#define VS_KNOB_TYPE_SIGNAL int
#define VS_KNOB_TYPE_LEVEL int
#define VS_KNOB_TYPE_TEXT const char *
#define VS_KNOB_TYPE_CHOICE(words) int

struct vs_knobs {
#define KNOB(field, name, type, def, min, max, help) VS_KNOB_TYPE_##type field;
#include "knobs.def"
#undef KNOB
};

extern struct vs_knobs vs_knobs;

/* Where a value came from. */
enum vs_knob_source { VS_FROM_DEFAULT, VS_FROM_ENV, VS_FROM_REJECTED };

/*
 * Reads the environment; further calls do nothing. Warns, never fails. That of
 * a set-user-ID program is not read: there the mode is off.
 */
void vs_knob_init(void);

/*
 * Whether HELP is set; reads the rest of the environment only if it is. May
 * be called before anything else.
 */
bool vs_knob_wants_help(void);

/*
 * For the dump, the help and the man page: row `i` of knobs.def, false when
 * there is none. The texts live as long as the process.
 */
struct vs_knob_row {
	const char *variable; /* "VMMSHIM_DECAY_MS" */
	const char *value;    /* text in force: the user's or the default's */
	const char *fallback; /* default, as text */
	const char *allowed;  /* "pool|sync|off", "0..86400000", "size or %" */
	const char *help;
	enum vs_knob_source source;
};
bool vs_knob_row(size_t i, struct vs_knob_row *row_out);
/* That of the row of a variable; VS_FROM_DEFAULT if there is none. */
enum vs_knob_source vs_knob_source_of(const char *variable);

/* Digits: the rank that the launcher gave this process, "0" without one. */
const char *vs_knob_rank(void);

/*
 * Whether the knobs EXCLUDE and ONLY leave a program to the shim: by the last
 * part of its file's path (python3.11), or by the name it was started by, which
 * users see (python3). A list that has either has the program.
 */
bool vs_knob_serves_program(const char *file, const char *name);

#endif
