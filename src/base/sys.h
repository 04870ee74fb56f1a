/* SPDX-License-Identifier: MIT
 *
 * sys: the shim's system calls, by number.
 *
 * ISO C leaves the names of POSIX to programs: one may have a kill(), a bind()
 * or a munlock() of its own, which has nothing to do with processes, sockets or
 * memory, or a number by the name of environ. Where the C library has that
 * name, too, the linker exports it, and a library that is loaded into the
 * program and asks for kill() gets the program's. The C library's own calls go
 * past it, and so do these (kernel.h). What ISO C and the C library keep for
 * themselves stays as it is, and what sanitizers must see (mmap and its like);
 * tests/e2e/roads_exports.test has the list.
 *
 * Each is what the C library's is: -1 and errno when it fails. But none is a
 * cancellation point. Calls that every machine has (aarch64 lacks open, poll,
 * readlink and stat).
 */
#ifndef VS_BASE_SYS_H
#define VS_BASE_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/kernel.h"

struct msghdr;
struct pollfd;
struct rlimit;
struct shmid_ds;
struct sockaddr;
struct stat;

/* ---- processes ------------------------------------------------------- */

static inline pid_t vs_sys_getpid(void)
{
	return (pid_t)vs_kernel(SYS_getpid);
}

static inline pid_t vs_sys_getppid(void)
{
	return (pid_t)vs_kernel(SYS_getppid);
}

static inline pid_t vs_sys_gettid(void)
{
	return (pid_t)vs_kernel(SYS_gettid);
}

static inline uid_t vs_sys_geteuid(void)
{
	return (uid_t)vs_kernel(SYS_geteuid);
}

static inline int vs_sys_kill(pid_t pid, int number)
{
	return (int)vs_kernel(SYS_kill, pid, number);
}

static inline int vs_sys_tgkill(pid_t pid, pid_t tid, int number)
{
	return (int)vs_kernel(SYS_tgkill, pid, tid, number);
}

/* Since Linux 5.3. The descriptor can be read when the process has ended. */
static inline int vs_sys_pidfd_open(pid_t pid)
{
	enum { NUMBER = 434 }; /* on every machine; older headers lack it */

	return (int)vs_kernel(NUMBER, pid, 0);
}

static inline int vs_sys_sched_yield(void)
{
	return (int)vs_kernel(SYS_sched_yield);
}

static inline int vs_sys_getrlimit(int resource, struct rlimit *limit_out)
{
	return (int)vs_kernel(SYS_prlimit64, 0, resource, NULL, limit_out);
}

/* What program_invocation_short_name is, by the C library's own name. */
static inline const char *vs_sys_program_name(void)
{
	extern char *__progname;

	return __progname;
}

/* As gethostname: what does not fit is cut, and an error. */
static inline int vs_sys_hostname(char *name_out, size_t size)
{
	struct utsname about;
	size_t length;

	if (vs_kernel(SYS_uname, &about) != 0)
		return -1;
	length = strlen(about.nodename) + 1;
	memcpy(name_out, about.nodename, length < size ? length : size);
	if (length <= size)
		return 0;
	errno = ENAMETOOLONG;
	return -1;
}

/* ---- time and signals ------------------------------------------------ */

/* By the clock that the C library's goes by. */
static inline int vs_sys_nanosleep(const struct timespec *time,
				   struct timespec *rest_out)
{
	return (int)vs_kernel(SYS_clock_nanosleep, CLOCK_REALTIME, 0, time,
			      rest_out);
}

/* A set of signals is longer in the C library than in the kernel. */
#define VS_SYS_SIGSET_BYTES 8

static inline void vs_sys_sigset_empty(sigset_t *set_out)
{
	memset(set_out, 0, sizeof(*set_out));
}

/* Of one of the kernel's: `number` is at most 64. */
static inline void vs_sys_sigset_add(sigset_t *set, int number)
{
	set->__val[0] |= 1UL << (number - 1);
}

static inline void vs_sys_sigset_remove(sigset_t *set, int number)
{
	set->__val[0] &= ~(1UL << (number - 1));
}

static inline bool vs_sys_sigset_has(const sigset_t *set, int number)
{
	return set->__val[0] >> (number - 1) & 1;
}

/*
 * All but the two that the C library keeps for itself (32 and 33), and SIGSYS:
 * a sandbox may send that for a system call, which the program's handler makes
 * in another way, and the kernel ends the program where it is held back.
 */
static inline void vs_sys_sigset_fill(sigset_t *set_out)
{
	memset(set_out, 0xff, sizeof(*set_out));
	set_out->__val[0] &= ~(3UL << 31);
	vs_sys_sigset_remove(set_out, SIGSYS);
}

/* Of `set_out` that is written which the kernel knows: empty it first. */
static inline int vs_sys_sigpending(sigset_t *set_out)
{
	return (int)vs_kernel(SYS_rt_sigpending, set_out, VS_SYS_SIGSET_BYTES);
}

static inline int vs_sys_sigtimedwait(const sigset_t *set, siginfo_t *info_out,
				      const struct timespec *time)
{
	return (int)vs_kernel(SYS_rt_sigtimedwait, set, info_out, time,
			      VS_SYS_SIGSET_BYTES);
}

/* ---- files ----------------------------------------------------------- */

static inline int vs_sys_open(const char *path, int flags, mode_t mode)
{
	return (int)vs_kernel(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int vs_sys_close(int fd)
{
	return (int)vs_kernel(SYS_close, fd);
}

static inline ssize_t vs_sys_read(int fd, void *data_out, size_t size)
{
	return vs_kernel(SYS_read, fd, data_out, size);
}

static inline ssize_t vs_sys_write(int fd, const void *data, size_t size)
{
	return vs_kernel(SYS_write, fd, data, size);
}

static inline ssize_t vs_sys_readlink(const char *path, char *out, size_t size)
{
	return vs_kernel(SYS_readlinkat, AT_FDCWD, path, out, size);
}

static inline int vs_sys_stat(const char *path, struct stat *out)
{
	return (int)vs_kernel(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

static inline int vs_sys_fstat(int fd, struct stat *out)
{
	return (int)vs_kernel(SYS_fstat, fd, out);
}

/* For the commands that take a number, or nothing (0). */
static inline int vs_sys_fcntl(int fd, int command, long argument)
{
	return (int)vs_kernel(SYS_fcntl, fd, command, argument);
}

static inline int vs_sys_flock(int fd, int operation)
{
	return (int)vs_kernel(SYS_flock, fd, operation);
}

static inline int vs_sys_ftruncate(int fd, off_t size)
{
	return (int)vs_kernel(SYS_ftruncate, fd, size);
}

static inline int vs_sys_isatty(int fd)
{
	unsigned unused[16]; /* the kernel's struct termios takes 9 */

	return vs_kernel(SYS_ioctl, fd, TCGETS, unused) == 0;
}

/* `ms` as for poll. */
static inline int vs_sys_poll(struct pollfd *fds, size_t n, int ms)
{
	struct timespec time = {.tv_sec = ms / 1000,
				.tv_nsec = ms % 1000 * 1000000L};

	return (int)vs_kernel(SYS_ppoll, fds, n, ms < 0 ? NULL : &time, NULL,
			      VS_SYS_SIGSET_BYTES);
}

/* ---- sockets --------------------------------------------------------- */

static inline int vs_sys_socket(int family, int type, int protocol)
{
	return (int)vs_kernel(SYS_socket, family, type, protocol);
}

static inline int vs_sys_bind(int fd, const struct sockaddr *address,
			      socklen_t length)
{
	return (int)vs_kernel(SYS_bind, fd, address, length);
}

static inline int vs_sys_listen(int fd, int backlog)
{
	return (int)vs_kernel(SYS_listen, fd, backlog);
}

/* Who it is does not matter. */
static inline int vs_sys_accept(int fd, int flags)
{
	return (int)vs_kernel(SYS_accept4, fd, NULL, NULL, flags);
}

static inline int vs_sys_connect(int fd, const struct sockaddr *address,
				 socklen_t length)
{
	return (int)vs_kernel(SYS_connect, fd, address, length);
}

static inline int vs_sys_getsockopt(int fd, int level, int option,
				    void *value_out, socklen_t *length)
{
	return (int)vs_kernel(SYS_getsockopt, fd, level, option, value_out,
			      length);
}

static inline ssize_t vs_sys_sendmsg(int fd, const struct msghdr *message,
				     int flags)
{
	return vs_kernel(SYS_sendmsg, fd, message, flags);
}

static inline ssize_t vs_sys_recvmsg(int fd, struct msghdr *message, int flags)
{
	return vs_kernel(SYS_recvmsg, fd, message, flags);
}

static inline ssize_t vs_sys_getrandom(void *data_out, size_t size,
				       unsigned flags)
{
	return vs_kernel(SYS_getrandom, data_out, size, flags);
}

/* ---- memory ---------------------------------------------------------- */

static inline uintptr_t vs_sys_page_size(void)
{
	/* the C library's own name of getauxval */
	unsigned long __getauxval(unsigned long type);

	return __getauxval(AT_PAGESZ);
}

static inline int vs_sys_madvise(void *p, size_t size, int advice)
{
	return (int)vs_kernel(SYS_madvise, p, size, advice);
}

static inline int vs_sys_munlock(const void *p, size_t size)
{
	return (int)vs_kernel(SYS_munlock, p, size);
}

static inline int vs_sys_shmget(key_t key, size_t size, int flags)
{
	return (int)vs_kernel(SYS_shmget, key, size, flags);
}

static inline int vs_sys_shmctl(int id, int command, struct shmid_ds *about)
{
	return (int)vs_kernel(SYS_shmctl, id, command, about);
}

/* Its address, or (void *)-1. */
static inline void *vs_sys_shmat(int id, const void *at, int flags)
{
	return (void *)vs_kernel(SYS_shmat, id, at, flags);
}

static inline int vs_sys_shmdt(const void *p)
{
	return (int)vs_kernel(SYS_shmdt, p);
}

#endif
