/* SPDX-License-Identifier: MIT */
/*
 * Life: load, cuInit, fork, reset, exit.
 */
#ifndef SIM_LIFE_H
#define SIM_LIFE_H

#include <stdbool.h>
#include <sys/types.h>

struct sim_life {
	bool initialized;
	bool deinitialized;
	pid_t process; /* that initialized it; others are children */
	bool forked;   /* this is one, and the driver knows it: none here */
};

extern struct sim_life sim_life;

#endif
