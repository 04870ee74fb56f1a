/* SPDX-License-Identifier: MIT
 *
 * path: the names of the files that the shim writes.
 */
#ifndef VS_REPORT_PATH_H
#define VS_REPORT_PATH_H

#include <stdbool.h>
#include <stddef.h>

/*
 * `pattern` with %p as the process's id, %h as the host's name, %r as the rank,
 * %% as %; anything else stands as written. False when it does not fit: `out`
 * is then empty.
 */
bool vs_path_expand(const char *pattern, char *out, size_t size);

/* "permission denied" of EACCES; async-signal-safe, unlike strerror. */
const char *vs_path_why(int error);

#endif
