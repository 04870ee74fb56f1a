/* SPDX-License-Identifier: MIT
 *
 * emit: the two forms of a dump. Both keep their buffers static, so that a
 * small signal stack does: report/dump lets one caller in at a time.
 */
#ifndef VS_REPORT_EMIT_H
#define VS_REPORT_EMIT_H

#include <stdbool.h>
#include <stdint.h>

/* The format of the JSON line; grows when a name changes its meaning. */
#define VS_JSON_VERSION 1

struct vs_dump_head {
	const char *why;
	const char *program;
	const char *host;
	const char *mode; /* word of knob VMMSHIM */
	int pid;
	uint64_t uptime_ns; /* since CUDA was first used */
	uint64_t time_s;    /* since 1970 */
};

/*
 * One write(2) a line, each starting with "vmmshim[pid] stats: ". False: one
 * failed, and what follows was not tried.
 */
bool vs_emit_text(const struct vs_dump_head *head, int fd);
/* One line in one write(2); false: it failed. */
bool vs_emit_json(const struct vs_dump_head *head, int fd);

#endif
