/* SPDX-License-Identifier: MIT
 *
 * turns: chance, and threads that take turns: one alone does something at a
 * time, so that a seed says all.
 */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>
#include <stdint.h>

/* Built once more so: the NULL stream is then the thread's own (cuda.h). */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define IS_PER_THREAD true
#else
#define IS_PER_THREAD false
#endif

enum { N_THREADS = 3 };

extern int me; /* whose turn it is */

void set_seed(const char *text);
uint32_t chance(uint32_t n);

/* ---- for the first thread, which has no turn ----------------------------- */

void start_threads(void);
/* Returns when it is done. */
void give_turn(int to, void (*does)(void));
void give_each(void (*does)(void));
/* So many, at random, each on a line that begins with its number. */
void give_turns(int n, void (*does)(void));
void end_threads(void);

/* ---- within a turn ------------------------------------------------------- */

/* This thread ends after its turn; another comes in its place. */
void end_this_thread(void);

#endif
