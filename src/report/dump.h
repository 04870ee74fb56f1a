/* SPDX-License-Identifier: MIT
 *
 * dump: the statistics as text or JSON. Reads snapshots of the pools; async-
 * signal-safe (fixed buffers, own formatter, one write a line), so that it
 * works while every thread of the program is stuck in a wait.
 *
 * The process that called vs_dump_init last is the one that dumps: a forked
 * child, whose numbers would be the parent's, says nothing.
 */
#ifndef VS_REPORT_DUMP_H
#define VS_REPORT_DUMP_H

/*
 * After the first cuInit that succeeded. Resolves STATS_FILE's patterns once
 * (not in the handler). Further calls in the same process do nothing.
 */
void vs_dump_init(void);
/* Writes the statistics; `why`: "signal", "exit". Keeps errno. */
void vs_dump_write(const char *why);

#endif
