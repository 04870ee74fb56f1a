/* SPDX-License-Identifier: MIT
 *
 * fd: the shim's own descriptors stay clear of 0, 1 and 2. A program may have
 * closed those: what it prints then must not end up in a file or socket of
 * ours.
 */
#ifndef VS_BASE_FD_H
#define VS_BASE_FD_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/sys.h"

/* Takes a fresh descriptor, or -1, and gives the one to use, or -1 (errno). */
static inline int vs_fd_clear(int fd)
{
	int saved, higher;

	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	higher = vs_sys_fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	saved = errno;
	vs_sys_close(fd);
	errno = saved;
	return higher;
}

/* What `ask` says of a file; false if that cannot be opened. Keeps errno. */
static inline bool vs_fd_ask(const char *path, bool (*ask)(int fd, void *data),
			     void *data)
{
	int saved = errno, held = vs_cancel_hold();
	int fd = vs_fd_clear(vs_sys_open(path, O_RDONLY | O_CLOEXEC, 0));
	bool answer = fd >= 0 && ask(fd, data);

	if (fd >= 0)
		vs_sys_close(fd);
	vs_cancel_let(held);
	errno = saved;
	return answer;
}

/* Whether what two calls of fstat told of is one file. */
static inline bool vs_fd_is_same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

#endif
