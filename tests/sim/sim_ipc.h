/* SPDX-License-Identifier: MIT */
/*
 * IPC: legacy memory opened in another process.  The handle names process,
 * file and place; the opener takes the file from the exporter.  Guarded by
 * the lock.
 */
#ifndef SIM_IPC_H
#define SIM_IPC_H

struct sim_context;
struct sim_vclock;

/*
 * Adds what copies what a dying context has open, on any device: its end waits
 * for that, as cuMemFree does (by analogy; no card was asked).
 */
void sim_ipc_copies(const struct sim_context *ctx, struct sim_vclock *clock);
/* Closes what a dying context has open. */
void sim_ipc_free_context(const struct sim_context *ctx);
void sim_ipc_reset(void);

#endif
