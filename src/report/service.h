/* SPDX-License-Identifier: MIT
 *
 * service: the shim's one thread. Decays idle memory, trims on request, writes
 * the trace. All signals blocked, relaxed capture mode, detached, named
 * "vmmshim"; gone in a forked child. Sleeps without a timer when the pools
 * have nothing to decay.
 */
#ifndef VS_REPORT_SERVICE_H
#define VS_REPORT_SERVICE_H

/* At the first allocation that the pool served; further calls do nothing. */
void vs_service_start(void);
/* Asks for a trim of every pool. Async-signal-safe; starts nothing. */
void vs_service_post_trim(void);
/* There may be work (idle memory to decay, trace to write). Cheap. */
void vs_service_wake(void);
/* In a forked child. */
void vs_service_forked(void);

#endif
