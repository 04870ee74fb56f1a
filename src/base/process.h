/* SPDX-License-Identifier: MIT
 *
 * process: whether another process is still there.
 */
#ifndef VS_BASE_PROCESS_H
#define VS_BASE_PROCESS_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>

#include "base/fd.h"
#include "base/sys.h"

/*
 * It is not there, or a zombie, which can be signalled; before Linux 5.3 nobody
 * tells of those. Any thread; no lock. Changes errno.
 */
static inline bool vs_process_is_gone(pid_t pid)
{
	struct pollfd end = {.events = POLLIN};
	bool has_ended;

	/* EPERM: of this effective user, but not of this real one */
	if (vs_sys_kill(pid, 0) != 0 && errno != EPERM)
		return errno == ESRCH;
	end.fd = vs_fd_clear(vs_sys_pidfd_open(pid));
	if (end.fd < 0)
		return false;
	has_ended = vs_sys_poll(&end, 1, 0) == 1 && (end.revents & POLLIN);
	vs_sys_close(end.fd);
	return has_ended;
}

#endif
