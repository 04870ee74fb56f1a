/* SPDX-License-Identifier: MIT
 *
 * trace: VMMSHIM_TRACE: every allocation that the pool serves and its free, as
 * lines `a ID SIZE T_US THREAD` and `f ID T_US THREAD` (input of `./dev
 * replay`). What goes with its context is free, too, by the thread that ends
 * that one.
 *
 * Threads append to rings of their own without a system call; the service
 * thread writes them out, in time order. A full ring is written by its thread.
 */
#ifndef VS_REPORT_TRACE_H
#define VS_REPORT_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Its file is there; false again only in a forked child. */
extern _Atomic bool vs_trace_is_on;

/*
 * Opens the file of knob TRACE; after the first cuInit that succeeded. Further
 * calls do nothing.
 */
void vs_trace_init(void);
/*
 * `id`: the span's id; call right after the allocation, right before the free.
 * Under no lock but the pool's, which may then be held over a write.
 */
void vs_trace_alloc(uint64_t id, size_t size);
void vs_trace_free(uint64_t id);
/* Writes what is waiting (service thread, exit). */
void vs_trace_flush(void);
void vs_trace_forked(void);

#endif
