/* SPDX-License-Identifier: MIT
 *
 * signal: the statistics signal (its handler writes the dump itself) and the
 * trim signal (its handler posts to the service thread).
 *
 * Installed when the program first initialises CUDA, only over SIG_DFL: a
 * signal that is ignored or owned stays so, with one warning, also when another
 * thread takes it at that moment. A program that takes a signal later simply
 * has it.
 *
 * In a forked child neither signal tells or trims. What the program's own
 * processes send does what it did without the shim; from others, who mean the
 * parent by a signal to a whole group, it is ignored, or it would kill the
 * program's workers. Where a handler of the program that came later calls this
 * one on, that one has had the signal already: nothing becomes of it.
 */
#ifndef VS_REPORT_SIGNAL_H
#define VS_REPORT_SIGNAL_H

/* After the first cuInit that succeeded; further calls do nothing. */
void vs_signal_install(void);

#endif
