/* SPDX-License-Identifier: MIT
 *
 * sys: the shim's system calls, by number.
 *
 * ISO C leaves the names of POSIX to programs: one may have a kill(), a bind()
 * or a munlock() of its own, which has nothing to do with processes, sockets or
 * memory, or a number by the name of environ. Where the C library has that
 * name, too, the linker exports it, and a library that is loaded into the
 * program and asks for kill() gets the program's. The C library's own calls go
 * past it, and so do these: they ask for syscall() alone. What ISO C and the C
 * library keep for themselves stays as it is, and what sanitizers must see
 * (mmap and its like); tests/e2e/roads_exports.test has the list.
 *
 * Each is what the C library's is: -1 and errno when it fails. But none is a
 * cancellation point. Calls that every machine has (aarch64 lacks open, poll,
 * readlink and stat); arguments are widened, as syscall() takes whole
 * registers.
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
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct msghdr;
struct pollfd;
struct rlimit;
struct shmid_ds;
struct sockaddr;
struct stat;

/* ---- processes ------------------------------------------------------- */

static inline pid_t vs_sys_getpid(void)
{
	return (pid_t)syscall(SYS_getpid);
}

static inline pid_t vs_sys_getppid(void)
{
	return (pid_t)syscall(SYS_getppid);
}

static inline pid_t vs_sys_gettid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static inline uid_t vs_sys_geteuid(void)
{
	return (uid_t)syscall(SYS_geteuid);
}

static inline int vs_sys_kill(pid_t pid, int number)
{
	return (int)syscall(SYS_kill, (long)pid, (long)number);
}

static inline int vs_sys_tgkill(pid_t pid, pid_t tid, int number)
{
	return (int)syscall(SYS_tgkill, (long)pid, (long)tid, (long)number);
}

/* Since Linux 5.3. The descriptor can be read when the process has ended. */
static inline int vs_sys_pidfd_open(pid_t pid)
{
	enum { NUMBER = 434 }; /* on every machine; older headers lack it */

	return (int)syscall(NUMBER, (long)pid, 0L);
}

static inline int vs_sys_sched_yield(void)
{
	return (int)syscall(SYS_sched_yield);
}

static inline int vs_sys_getrlimit(int resource, struct rlimit *limit_out)
{
	return (int)syscall(SYS_prlimit64, 0L, (long)resource, NULL, limit_out);
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

	if (syscall(SYS_uname, &about) != 0)
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
	return (int)syscall(SYS_clock_nanosleep, (long)CLOCK_REALTIME, 0L, time,
			    rest_out);
}

/* A set of signals is longer in the C library than in the kernel. */
#define VS_SYS_SIGSET_BYTES 8L

static inline void vs_sys_sigset_empty(sigset_t *set_out)
{
	memset(set_out, 0, sizeof(*set_out));
}

/* Of one of the kernel's: `number` is at most 64. */
static inline void vs_sys_sigset_add(sigset_t *set, int number)
{
	set->__val[0] |= 1UL << (number - 1);
}

static inline bool vs_sys_sigset_has(const sigset_t *set, int number)
{
	return set->__val[0] >> (number - 1) & 1;
}

/* All but the two that the C library keeps for itself (32 and 33). */
static inline void vs_sys_sigset_fill(sigset_t *set_out)
{
	memset(set_out, 0xff, sizeof(*set_out));
	set_out->__val[0] &= ~(3UL << 31);
}

/* Of `set_out` that is written which the kernel knows: empty it first. */
static inline int vs_sys_sigpending(sigset_t *set_out)
{
	return (int)syscall(SYS_rt_sigpending, set_out, VS_SYS_SIGSET_BYTES);
}

static inline int vs_sys_sigtimedwait(const sigset_t *set, siginfo_t *info_out,
				      const struct timespec *time)
{
	return (int)syscall(SYS_rt_sigtimedwait, set, info_out, time,
			    VS_SYS_SIGSET_BYTES);
}

/* ---- files ----------------------------------------------------------- */

static inline int vs_sys_open(const char *path, int flags, mode_t mode)
{
	return (int)syscall(SYS_openat, (long)AT_FDCWD, path, (long)flags,
			    (long)mode);
}

static inline int vs_sys_close(int fd)
{
	return (int)syscall(SYS_close, (long)fd);
}

static inline ssize_t vs_sys_read(int fd, void *data_out, size_t size)
{
	return syscall(SYS_read, (long)fd, data_out, size);
}

static inline ssize_t vs_sys_write(int fd, const void *data, size_t size)
{
	return syscall(SYS_write, (long)fd, data, size);
}

static inline ssize_t vs_sys_readlink(const char *path, char *out, size_t size)
{
	return syscall(SYS_readlinkat, (long)AT_FDCWD, path, out, size);
}

static inline int vs_sys_stat(const char *path, struct stat *out)
{
	return (int)syscall(SYS_newfstatat, (long)AT_FDCWD, path, out, 0L);
}

static inline int vs_sys_fstat(int fd, struct stat *out)
{
	return (int)syscall(SYS_fstat, (long)fd, out);
}

/* For the commands that take a number, or nothing (0). */
static inline int vs_sys_fcntl(int fd, int command, long argument)
{
	return (int)syscall(SYS_fcntl, (long)fd, (long)command, argument);
}

static inline int vs_sys_flock(int fd, int operation)
{
	return (int)syscall(SYS_flock, (long)fd, (long)operation);
}

static inline int vs_sys_ftruncate(int fd, off_t size)
{
	return (int)syscall(SYS_ftruncate, (long)fd, (long)size);
}

static inline int vs_sys_isatty(int fd)
{
	unsigned unused[16]; /* the kernel's struct termios takes 9 */

	return syscall(SYS_ioctl, (long)fd, (long)TCGETS, unused) == 0;
}

/* `ms` as for poll. */
static inline int vs_sys_poll(struct pollfd *fds, size_t n, int ms)
{
	struct timespec time = {.tv_sec = ms / 1000,
				.tv_nsec = ms % 1000 * 1000000L};

	return (int)syscall(SYS_ppoll, fds, n, ms < 0 ? NULL : &time, NULL,
			    VS_SYS_SIGSET_BYTES);
}

/* ---- sockets --------------------------------------------------------- */

static inline int vs_sys_socket(int family, int type, int protocol)
{
	return (int)syscall(SYS_socket, (long)family, (long)type,
			    (long)protocol);
}

static inline int vs_sys_bind(int fd, const struct sockaddr *address,
			      socklen_t length)
{
	return (int)syscall(SYS_bind, (long)fd, address, (long)length);
}

static inline int vs_sys_listen(int fd, int backlog)
{
	return (int)syscall(SYS_listen, (long)fd, (long)backlog);
}

/* Who it is does not matter. */
static inline int vs_sys_accept(int fd, int flags)
{
	return (int)syscall(SYS_accept4, (long)fd, NULL, NULL, (long)flags);
}

static inline int vs_sys_connect(int fd, const struct sockaddr *address,
				 socklen_t length)
{
	return (int)syscall(SYS_connect, (long)fd, address, (long)length);
}

static inline int vs_sys_getsockopt(int fd, int level, int option,
				    void *value_out, socklen_t *length)
{
	return (int)syscall(SYS_getsockopt, (long)fd, (long)level, (long)option,
			    value_out, length);
}

static inline ssize_t vs_sys_sendmsg(int fd, const struct msghdr *message,
				     int flags)
{
	return syscall(SYS_sendmsg, (long)fd, message, (long)flags);
}

static inline ssize_t vs_sys_recvmsg(int fd, struct msghdr *message, int flags)
{
	return syscall(SYS_recvmsg, (long)fd, message, (long)flags);
}

static inline ssize_t vs_sys_getrandom(void *data_out, size_t size,
				       unsigned flags)
{
	return syscall(SYS_getrandom, data_out, size, (long)flags);
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
	return (int)syscall(SYS_madvise, p, size, (long)advice);
}

static inline int vs_sys_munlock(const void *p, size_t size)
{
	return (int)syscall(SYS_munlock, p, size);
}

static inline int vs_sys_shmget(key_t key, size_t size, int flags)
{
	return (int)syscall(SYS_shmget, (long)key, size, (long)flags);
}

static inline int vs_sys_shmctl(int id, int command, struct shmid_ds *about)
{
	return (int)syscall(SYS_shmctl, (long)id, (long)command, about);
}

/* Its address, or (void *)-1. */
static inline void *vs_sys_shmat(int id, const void *at, int flags)
{
	return (void *)syscall(SYS_shmat, (long)id, at, (long)flags);
}

static inline int vs_sys_shmdt(const void *p)
{
	return (int)syscall(SYS_shmdt, p);
}

#endif
