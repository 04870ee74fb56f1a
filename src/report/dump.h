/* SPDX-License-Identifier: MIT
 *
 * dump: the statistics as text or JSON. Reads snapshots of the pools; async-
 * signal-safe (fixed buffers, own formatter, one write a line), so that it
 * works while every thread of the program is stuck in a wait.
 */
#ifndef VS_REPORT_DUMP_H
#define VS_REPORT_DUMP_H

/* Resolves STATS_FILE's patterns once (not in the handler). */
void vs_dump_init(void);
/* Writes the statistics; `why`: "signal", "exit", "program". Keeps errno. */
void vs_dump_write(const char *why);

#endif
