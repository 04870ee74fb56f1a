/* SPDX-License-Identifier: MIT
 *
 * service: the shim's one thread. Decays idle memory, trims on request, writes
 * the trace. All signals blocked, relaxed capture mode, detached, named
 * "vmmshim"; gone in a forked child. Sleeps without a timer when the pools
 * have nothing to decay. At exit it makes no more driver calls; a trim under
 * way is waited for, 20 ms at most.
 */
#ifndef VS_REPORT_SERVICE_H
#define VS_REPORT_SERVICE_H

/* At the first allocation that the pool served; further calls do nothing. */
void vs_service_start(void);
/* Asks for a trim of every pool. Async-signal-safe; starts nothing. */
void vs_service_post_trim(void);
/*
 * There may be work (idle memory to decay, trace to write). One load, nearly
 * always. Where the thread could not be started, a posted trim runs here: the
 * caller holds no lock of the pool.
 */
void vs_service_wake(void);
/* In a forked child. */
void vs_service_forked(void);

#endif
