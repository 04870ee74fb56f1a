/* SPDX-License-Identifier: MIT
 *
 * parse: the text of a knob as a value. Each returns false, and writes
 * nothing, for whatever it does not wholly understand: no partial matches, no
 * overflow, no sign. Case does not matter.
 */
#ifndef VS_BASE_PARSE_H
#define VS_BASE_PARSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fmt.h"
#include "base/knob.h"

bool vs_parse_u64(const char *text, uint64_t *value_out);
/* 4096, 64M, 64MB, 64MiB, 1.5G (powers of 1024), 80%. */
bool vs_parse_size(const char *text, struct vs_size *size_out);
/* 0 1 no yes off on false true. */
bool vs_parse_bool(const char *text, bool *value_out);
/*
 * USR1, SIGUSR1, 10, RTMIN, RTMIN+3, RTMAX-1; none and 0 are 0. Not a signal
 * that cannot be caught, that reports a fault or that libc keeps for itself.
 */
bool vs_parse_signal(const char *text, int *number_out);
/* "SIGUSR1", "SIGRTMIN+3" of a number that vs_parse_signal gave. */
void vs_parse_signal_name(int number, struct vs_fmt *f);
/* Index of the word in "a|b|c". */
bool vs_parse_word(const char *text, const char *words, int *index_out);

#endif
