/* SPDX-License-Identifier: MIT */
/*
 * IPC: legacy memory opened in another process.  The handle names process,
 * file and place; the opener takes the file from the exporter.  Guarded by
 * the lock.
 */
#ifndef SIM_IPC_H
#define SIM_IPC_H

struct sim_context;

/* Closes what a dying context has open. */
void sim_ipc_free_context(const struct sim_context *ctx);
void sim_ipc_reset(void);

#endif
