/* SPDX-License-Identifier: MIT
 *
 * board: where the processes of one user under the shim find each other, so
 * that one that is out of device memory can ask the others for what is idle.
 *
 * A System V segment of 66 KiB, named by user and PID namespace, which that
 * user alone can reach; it has no file and no descriptor, and nobody can
 * truncate it. The last to leave removes it; if that was killed it stays for
 * the next, or in another namespace, who makes one, removes it. Each process
 * has a slot: the bell that its service thread sleeps on, and for each of its
 * pools who asked and what was answered. What a process tells its own thread is
 * not there, since a child made without fork's handlers has its parent's slot
 * before it. Slots of processes that are gone are taken over.
 *
 * Where there is no segment (another IPC namespace, a sandbox, all slots in
 * use) the process is alone, for the time being: nothing fails, nobody is
 * asked.
 *
 * Everything is atomic; there are no locks, and nobody waits for a process that
 * is gone, nor twice for one that is stopped. What another process of the user
 * scribbles here can make idle memory go back, a thread wake or a request wait,
 * no more. Nothing here calls the driver.
 */
#ifndef VS_BASE_BOARD_H
#define VS_BASE_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#define VS_BOARD_POOLS 16 /* of a process that can be asked; others are not */

/*
 * Takes a slot, unless it has one that others see, or there is none: before the
 * thread that sleeps is started, then by that alone, before it asks how often
 * it rang.
 */
void vs_board_join(void);
/*
 * The last join found all slots in use, or the segment was removed since, as
 * systemd-logind does when the user logs out, whose processes may go on. Others
 * do not meet this one: it is to join again. The sleeping thread asks.
 */
bool vs_board_is_missed(void);
/* The process ends: nobody shall wait for it. */
void vs_board_leave(void);
/* In a forked child, which has no slot. */
void vs_board_forked(void);

/*
 * The bell: rings it (async-signal-safe); how often it rang; sleeps, at most
 * `ms` (0: no limit), unless it rang since. Other processes ring it, too.
 */
void vs_board_ring(void);
uint32_t vs_board_rung(void);
void vs_board_sleep(uint32_t rung, uint64_t ms);

/*
 * Pool `i` of this process is on a device that all processes name by this
 * number (0: none does). Cheap when it was said before. One thread.
 */
void vs_board_show(unsigned i, uint64_t device);
/* Whether pool `i` was asked and has not answered: *number_out names it. */
bool vs_board_is_asked(unsigned i, uint32_t *number_out);
/* So many more bytes went back to the driver. */
void vs_board_answer(unsigned i, uint32_t number, uint64_t bytes);

/*
 * Asks all other processes with a pool on `device`, waits for their answers, at
 * most `ms` in all, and returns the bytes that went back to the driver since,
 * also for others that asked; more than 0 if one of them ended. *n_out: how
 * many were asked. Any thread.
 */
uint64_t vs_board_ask(uint64_t device, uint64_t ms, int *n_out);

#endif
