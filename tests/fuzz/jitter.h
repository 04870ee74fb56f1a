/* SPDX-License-Identifier: MIT
 *
 * jitter: included in front of every file of the library that is slow by chance
 * (jitter.c), so that it is so at each mutex as well.
 */
#ifndef VS_TESTS_JITTER_H
#define VS_TESTS_JITTER_H

#include <pthread.h>

void vs_jitter(void);

#define pthread_mutex_lock(m) (vs_jitter(), pthread_mutex_lock(m))
#define pthread_mutex_trylock(m) (vs_jitter(), pthread_mutex_trylock(m))
#define pthread_mutex_unlock(m) (vs_jitter(), pthread_mutex_unlock(m))

#endif
