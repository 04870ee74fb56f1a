/* SPDX-License-Identifier: MIT */
/*
 * Judge: remembers which work may still touch which range, and reports what a
 * correct program (or pool) never does.  Guarded by the lock; changes nothing
 * that a program can see.
 */
#ifndef SIM_JUDGE_H
#define SIM_JUDGE_H

#include <stdint.h>
#include <stdio.h>

#include "sim.h"

struct sim_stream;
struct sim_op;
struct sim_vclock;

/* One line on stderr and one count. */
void sim_violation(enum sim_violation kind, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
const char *sim_violation_name(enum sim_violation kind);

/* The operation is submitted as work seq of stream. */
void sim_judge_submit(struct sim_stream *stream, uint64_t seq,
		      const struct sim_op *op);
/* The range is about to lose its memory. */
void sim_judge_gone(uint64_t start, uint64_t size);
/* The same in stream order: whoever is there next need not have seen work. */
void sim_judge_forget(uint64_t start, uint64_t size);
/*
 * Adds what a free of the range waits for beside the work of its device, as far
 * as is known: what copies or sets it, and nodes of graphs that were launched
 * in a stream of another device than theirs.
 */
void sim_judge_heeded(uint64_t start, uint64_t size, struct sim_vclock *clock);

/* Announced ranges. */
void sim_judge_notes(uint64_t *n_out, uint64_t *bytes_out);
void sim_judge_reset(void);

#endif
