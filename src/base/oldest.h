/* SPDX-License-Identifier: MIT
 *
 * oldest: the names that glibc 2.32 and 2.34 moved from libpthread and libdl
 * into libc, by the versions that they had before.
 *
 * A container brings a C library of its own, often an older one than that of
 * the machine on which the shim was built; bound to the new versions, nothing
 * starts there with the shim preloaded. Both versions are one function in each
 * glibc that has both (nm -D libc.so.6). Before 2.34 they are found in the two
 * libraries, which the shim therefore asks for (configure.ac), as libcuda does.
 * tests/e2e/roads_exports.test holds what is asked for against 2.17.
 *
 * Included in front of every file (Makefile.am), so that none can forget it.
 */
#ifndef VS_BASE_OLDEST_H
#define VS_BASE_OLDEST_H

#ifdef VS_OLDEST_GLIBC
#if defined __x86_64__
#define VS_OLDEST_BASE "GLIBC_2.2.5"
#define VS_OLDEST_NAMED "GLIBC_2.12" /* threads had no names before */
#elif defined __aarch64__
#define VS_OLDEST_BASE "GLIBC_2.17" /* glibc's first for it */
#define VS_OLDEST_NAMED VS_OLDEST_BASE
#endif
#define VS_OLDEST_AS(own, name, version)                                       \
	__asm__(".symver " #own "," #name "@" version)
#define VS_OLDEST(name, version) VS_OLDEST_AS(name, name, version)

VS_OLDEST(dlclose, VS_OLDEST_BASE);
VS_OLDEST(dlerror, VS_OLDEST_BASE);
VS_OLDEST(dlopen, VS_OLDEST_BASE);
VS_OLDEST(pthread_attr_setstacksize, VS_OLDEST_BASE);
VS_OLDEST(pthread_create, VS_OLDEST_BASE);
VS_OLDEST(pthread_key_create, VS_OLDEST_BASE);
VS_OLDEST(pthread_mutex_trylock, VS_OLDEST_BASE);
VS_OLDEST(pthread_once, VS_OLDEST_BASE);
VS_OLDEST(pthread_rwlock_tryrdlock, VS_OLDEST_BASE);
VS_OLDEST(pthread_rwlock_unlock, VS_OLDEST_BASE);
VS_OLDEST(pthread_rwlock_wrlock, VS_OLDEST_BASE);
VS_OLDEST(pthread_setname_np, VS_OLDEST_NAMED);
VS_OLDEST(pthread_setspecific, VS_OLDEST_BASE);
VS_OLDEST(pthread_sigmask, VS_OLDEST_BASE);
#endif

#endif
