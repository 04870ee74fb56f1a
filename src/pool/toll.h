/* SPDX-License-Identifier: MIT
 *
 * toll: what a program pays in time for holding little memory. Where chunks are
 * moved for one request after the other memory is too tight for it: training of
 * small networks (.7 to 1.9 GiB live) moved 33 to 103 chunks a step, at 90 us
 * (an H200), which was 11 to 16 % of its time. Such a program has the trunk
 * first from then on (Note [Trunk] in pool/heap), where most come to rest with
 * the memory they have. To one that goes on to pay more is allowed, by and by,
 * until it pays little. Some less again once it has paid little for long, since
 * what it does may have changed; and none, for a while, where that did not
 * help: buffers that grow with each step are moved with any memory.
 *
 * Part of struct vs_pool and guarded by its lock.
 */
#ifndef VS_POOL_TOLL_H
#define VS_POOL_TOLL_H

#include <stdint.h>

struct vs_pool;

struct vs_toll {
	uint64_t began;	   /* the window; clock, ns; 0: there is none */
	uint64_t paid;	   /* in the window, ns */
	uint64_t since;	   /* last paid much, or came down a step; clock, ns */
	uint64_t barred;   /* no step before; clock, ns */
	uint64_t tried;	   /* the trunk first, since; clock, ns */
	unsigned level;	   /* steps up */
	unsigned first;	   /* thousandths of the time that it paid before */
	unsigned n_costly; /* windows in a row in which it paid more than little
			    */
	unsigned n_dear;   /* and much, */
	unsigned n_still;  /* or what is too much once it may hold more, */
	unsigned n_vain;   /* and hardly less than before, at the top */
};

/*
 * Growth that new chunks within need did not serve took from `began` to `end`
 * (clock, ns). Takes the lock.
 */
void vs_toll_pay(struct vs_pool *pool, uint64_t began, uint64_t end);
/*
 * Thousandths of the need that may be held more for it; 0 where memory is
 * scarce. Lock.
 */
unsigned vs_toll_slack(struct vs_pool *pool);
/* Comes down a step, if it is time. Lock. */
void vs_toll_relax(struct vs_pool *pool, uint64_t now);

#endif
